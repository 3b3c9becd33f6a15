// The worker's loop. Opening is in open.cpp, the calls that meet the worker in host_calls.cpp, evaluation in
// evaluation.cpp.
#include "engine/engine.h"

#include <pthread.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>

#include "base/clock.h"
#include "base/error.h"

namespace qwen3 {

namespace {

// How long the worker sleeps when every sample waits for the host: for blocks that manual sequences hold, for masks, or
// for it to poll.
constexpr std::chrono::milliseconds kBlockedWait{5};

// On the CPU: steps whose events the host may leave lying while the next one begins, and how long that waits for it at
// most. With one or two, models of very short steps make a quarter more tokens, and tokens grow old
// (docs/decisions.md).
constexpr int kStepsAhead = 0;
constexpr std::chrono::milliseconds kHostPatience{5};

// How long it waits at most for the masks of a step whose samples are all constrained.
constexpr std::chrono::milliseconds kMaskPatience{1};

// True while the chunk's sample waits for its mask.
bool is_late(const Chunk& chunk) {
  const Sample& sample = static_cast<const Sample&>(*chunk.sequence);
  return chunk.samples && sample.state != SequenceState::kEnded && sample.mask_index != sample.n_output();
}

// Where qwen3_stats.step_sizes counts a step of n_rows: the exponent of the next power of two.
size_t step_size_bucket(int n_rows) {
  const unsigned below = static_cast<unsigned>(std::max(n_rows, 1)) - 1;
  return std::min<size_t>(std::bit_width(below), QWEN3_STEP_SIZES - 1);
}

}  // namespace

// ------------------------------------------------------------------------------------------------------- the worker

void Engine::run() {
  pthread_setname_np(pthread_self(), "qwen3-engine");
  Lock lock(mutex_);
  while (!closing_) {
    try {
      if (!jobs_.empty()) {
        land_all(lock);
        const std::function<void()> job = std::move(jobs_.front());
        jobs_.pop_front();
        lock.unlock();
        job();
        lock.lock();
      }
      const bool runnable = scheduler_->has_work() && !failed_;
      const bool stalled = runnable && events_.full();
      if (stalled && !was_stalled_) log(QWEN3_LOG_WARNING, "steps pause until the host polls: its events wait");
      was_stalled_ = stalled || (was_stalled_ && !events_.empty());  // one line, however slowly the host polls
      if (runnable && !stalled) {
        step(lock);
      } else if (n_flying_ > 0) {
        land_all(lock);
      } else if (stalled) {
        wake_.wait_for(lock, kBlockedWait);
      } else if (jobs_.empty()) {
        check_idle();
        wake_.wait(lock, [this] { return closing_ || !jobs_.empty() || (scheduler_->has_work() && !failed_); });
      }
    } catch (const Error& error) {
      if (!lock.owns_lock()) lock.lock();
      fail(error.status(), error.what());
    } catch (const std::exception& error) {
      if (!lock.owns_lock()) lock.lock();
      fail(Status::kInternal, error.what());
    }
  }
  // Jobs that nobody will run: their futures report a broken promise, which on_worker() translates.
  jobs_.clear();
}

// One step: plan, issue, and read the results of the step before it, or of this one where steps cannot overlap.
void Engine::step(Lock& lock) {
  const bool asynchronous = model_->ops().asynchronous();
  const bool overlap = asynchronous && n_waiting_for_tokens_ == 0;
  if (!overlap) land_all(lock);
  if (!asynchronous) await_host(lock);
  if (!issue(lock)) {
    masks_.flush();
    if (n_flying_ > 0)
      land_all(lock);
    else
      wake_.wait_for(lock, kBlockedWait);
    return;
  }
  while (n_flying_ > (overlap ? 1u : 0u)) land(lock);
}

// On the CPU, steps that run ahead of a host only take the cores from it, and their tokens grow old.
void Engine::await_host(Lock& lock) {
  lock.unlock();
  masks_.flush();  // while the host comes, a core is free
  events_.wait_taken(kStepsAhead, kHostPatience);
  lock.lock();
}

// Plans a step and gives it to the device; false if nothing can run now. The lock is free while ops are issued.
bool Engine::issue(Lock& lock) {
  const StepPlan& plan = scheduler_->plan();
  note_admissions(plan);
  if (plan.chunks.empty()) return false;
  Flight& flight = flights_[next_flight_];
  flight.issued_ns = now_ns();
  flight.chunks = plan.chunks;
  flight.n_tokens = plan.n_tokens;
  flight.requests.clear();
  for (const Chunk& chunk : flight.chunks)
    flight.requests.push_back(requests_.at(static_cast<const Sample*>(chunk.sequence)->request->id));
  build_batch(flight);
  const BatchArrays arrays = flight.batch.arrays();  // copies the block tables, which a cancel may change from now on
  compute(flight, arrays, lock);
  next_flight_ = (next_flight_ + 1) % flights_.size();
  n_flying_++;
  return true;
}

// Where a sample is constrained, the rows are collected after the layers, so that its mask may come while they are
// computed.
void Engine::compute(Flight& flight, const BatchArrays& arrays, Lock& lock) {
  const bool constrained = std::any_of(flight.requests.begin(), flight.requests.end(),
                                       [](const auto& request) { return request->constrained; });
  if (constrained) {
    lock.unlock();
    masks_.flush();  // not before: who is woken may run at once, in this thread's place, and wait for the lock
    const auto begin = std::chrono::steady_clock::now();
    model_->forward(arrays);
    model_->ops().wait();
    const auto took = std::chrono::steady_clock::now() - begin;
    lock.lock();
    await_masks(flight, std::min<std::chrono::nanoseconds>(took, kMaskPatience), lock);
  }
  collect_rows(flight);
  lock.unlock();
  if (constrained) {
    model_->sample(flight.logit_rows, flight.rows, flight.results);
  } else {
    BatchArrays with_rows = arrays;
    with_rows.logit_rows = flight.logit_rows;
    with_rows.sample_rows = flight.rows;
    with_rows.results = flight.results;
    model_->forward(with_rows);
  }
  flight.mark = model_->ops().mark();
  lock.lock();
}

// Waits up to `limit` for masks that are late. Without one a sample's row is computed again, so it pays to wait for as
// long as that takes; but only where no sample is free, as none but constrained ones may be delayed.
void Engine::await_masks(const Flight& flight, std::chrono::nanoseconds limit, Lock& lock) {
  if (!std::all_of(flight.requests.begin(), flight.requests.end(),
                   [](const auto& request) { return request->constrained; }))
    return;
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!closing_ && std::any_of(flight.chunks.begin(), flight.chunks.end(), is_late))
    if (wake_.wait_until(lock, deadline) == std::cv_status::timeout) return;
}

// Waits for the oldest step in flight and makes its results known.
void Engine::land(Lock& lock) {
  Flight& flight = flights_[(next_flight_ + flights_.size() - n_flying_) % flights_.size()];
  lock.unlock();
  model_->ops().wait_for(flight.mark);
  lock.lock();
  n_flying_--;
  report_nonfinite(flight, lock);
  const size_t n_postponed = commit(flight);
  const int64_t now = now_ns();
  counters_.steps++;
  counters_.step_ns += static_cast<uint64_t>(now - std::max(flight.issued_ns, landed_ns_));
  counters_.computed_tokens += static_cast<uint64_t>(flight.n_tokens);
  counters_.step_sizes[step_size_bucket(flight.n_tokens)]++;
  landed_ns_ = now;
  events_.flush();
  // Nothing can go on: unless a mask has come meanwhile, the worker sleeps until one does.
  if (n_postponed == flight.chunks.size() && std::all_of(flight.chunks.begin(), flight.chunks.end(), is_late))
    wake_.wait_for(lock, kBlockedWait);
  flight.requests.clear();
}

void Engine::land_all(Lock& lock) {
  while (n_flying_ > 0) land(lock);
}

void Engine::note_admissions(const StepPlan& plan) {
  was_busy_ = true;
  counters_.preemptions += plan.preempted.size();
  const int64_t time = now_ns();
  for (Sequence* sequence : plan.admitted) {
    Sample& sample = static_cast<Sample&>(*sequence);
    counters_.prefix_queries += static_cast<uint64_t>(sample.n_looked_up);
    counters_.prefix_hits += static_cast<uint64_t>(sample.n_cached);
    if (sample.started_ns != 0) continue;  // it comes back after a preemption
    sample.started_ns = time;
    sample.n_cached_first = sample.n_cached;
    Request& request = *requests_.at(sample.request->id);
    if (request.admitted) continue;  // a prompt counts once, however many samples read it
    request.admitted = true;
    counters_.prompt_tokens += static_cast<uint64_t>(sample.n_prompt);
    counters_.cached_tokens += static_cast<uint64_t>(sample.n_cached);
  }
}

void Engine::build_batch(Flight& flight) {
  flight.batch.clear();
  flight.first_rows.clear();
  for (const Chunk& chunk : flight.chunks) {
    const Sample& sample = static_cast<const Sample&>(*chunk.sequence);
    const std::span<const int32_t> known(sample.tokens);
    const bool unknown = chunk.begin == static_cast<int64_t>(known.size());  // then it is the chunk's only token
    const int32_t from_device = -1 - sample.sampled_row;
    const std::span<const int32_t> tokens =
        unknown ? std::span(&from_device, 1)
                : known.subspan(static_cast<size_t>(chunk.begin), static_cast<size_t>(chunk.n_tokens));
    flight.first_rows.push_back(flight.batch.add(tokens, chunk.begin, sample.blocks));
  }
}

// Decides which rows of the step need logits: prompt tokens to be scored, and the last row of each sample whose next
// token is due (and whose mask is there, if it is constrained).
void Engine::collect_rows(Flight& flight) {
  flight.logit_rows.clear();
  flight.rows.clear();
  flight.row_owners.clear();
  flight.masks.clear();
  flight.masks.reserve(flight.chunks.size());
  for (size_t i = 0; i < flight.chunks.size(); i++) {
    const Chunk& chunk = flight.chunks[i];
    Sample& sample = static_cast<Sample&>(*chunk.sequence);
    if (sample.state == SequenceState::kEnded) continue;
    const Request& request = *sample.request;

    if (request.prompt_logprobs && sample.index == 0) {
      const int64_t end = std::min(chunk.begin + chunk.n_tokens, sample.n_prompt - 1);
      for (int64_t p = std::max(chunk.begin, sample.n_prompt_scored - 1); p < end; p++) {
        SampleRow row;
        row.target = sample.tokens[static_cast<size_t>(p) + 1];
        row.logprob = true;
        row.n_top = request.sampling.n_top;
        flight.logit_rows.push_back(static_cast<int32_t>(flight.first_rows[i] + p - chunk.begin));
        flight.rows.push_back(row);
        flight.row_owners.push_back({i, p + 1});
      }
    }

    if (!chunk.samples || request.max_tokens == 0) continue;
    const int64_t position = chunk.begin + chunk.n_tokens;  // of the token to sample
    SampleRow row = request.sampling;
    if (request.constrained) {
      if (sample.mask_index != sample.n_output()) continue;  // late: commit() postpones it
      flight.masks.push_back(std::move(sample.mask));
      sample.mask_index = -1;
      row.mask = flight.masks.back();
    }
    row.seed = request.sampling.seed + static_cast<uint64_t>(sample.index);
    row.position = position;
    row.history = sample.history.counts();
    if (position - sample.n_prompt < request.min_tokens) row.forbidden = request.end_ids;
    sample.sampled_row = static_cast<int32_t>(flight.rows.size());
    flight.logit_rows.push_back(flight.first_rows[i] + chunk.n_tokens - 1);
    flight.rows.push_back(row);
    flight.row_owners.push_back({i, -1});
  }
  flight.results.assign(flight.rows.size(), SampleResult{});
}

// Returns how many samples could not be sampled because their mask is late.
size_t Engine::commit(const Flight& flight) {
  size_t row = 0;
  size_t n_postponed = 0;
  for (size_t i = 0; i < flight.chunks.size(); i++) {
    const Chunk& chunk = flight.chunks[i];
    Sample& sample = static_cast<Sample&>(*chunk.sequence);
    const SampleResult* sampled = nullptr;
    const bool alive = sample.state != SequenceState::kEnded;
    if (alive && sample.request->prompt_logprobs && sample.index == 0 && sample.n_prompt_scored == 0)
      push_prompt_token(sample, sample.n_prompt_scored++, nullptr);
    for (; row < flight.row_owners.size() && flight.row_owners[row].chunk == i; row++) {
      if (!alive || (sampled != nullptr && !sampled->finite)) continue;
      const SampleResult& result = flight.results[row];
      if (flight.row_owners[row].prompt_index < 0 || !result.finite)  // a broken row ends the sample wherever it is
        sampled = &result;
      else
        push_prompt_token(sample, sample.n_prompt_scored++, &result);
    }
    if (!alive) continue;
    if (sampled == nullptr && chunk.samples && sample.request->max_tokens > 0) {
      scheduler_->postpone(chunk);
      n_postponed++;
      continue;
    }
    // Broken KV is not committed, so that no other request finds it.
    if (sampled == nullptr || sampled->finite) scheduler_->commit(chunk);
    if (sampled != nullptr || chunk.samples) commit_sample(sample, sampled);
  }
  return n_postponed;
}

// result: nullptr if the request only scores its prompt.
void Engine::commit_sample(Sample& sample, const SampleResult* result) {
  const Request& request = *sample.request;
  if (result == nullptr) {
    finish(sample, QWEN3_FINISH_LENGTH);
  } else if (!result->finite) {
    finish(sample, QWEN3_FINISH_ERROR);
  } else {
    push_token(sample, *result);
    sample.tokens.push_back(result->token);
    if (request.has_penalties) sample.history.add_output(result->token);
    counters_.generated_tokens++;
    if (request.ends(result->token))
      finish(sample, QWEN3_FINISH_STOP, result->token);
    else if (sample.n_output() == request.max_tokens)
      finish(sample, QWEN3_FINISH_LENGTH);
    else if (sample.matcher != nullptr)
      masks_.add({sample.matcher, requests_.at(request.id), &sample, result->token});
  }
}

// A row without a finite logit means broken weights or a broken device; say in which layer it began.
void Engine::report_nonfinite(const Flight& flight, Lock& lock) {
  const auto broken =
      std::find_if(flight.results.begin(), flight.results.end(), [](const SampleResult& r) { return !r.finite; });
  if (broken == flight.results.end()) return;
  const Chunk& chunk = flight.chunks[flight.row_owners[static_cast<size_t>(broken - flight.results.begin())].chunk];
  const Sample& sample = static_cast<Sample&>(*chunk.sequence);
  if (sample.state != SequenceState::kRunning) return;  // cancelled, or computed again later
  const uint64_t id = sample.request->id;
  batch_.clear();
  batch_.add(std::span<const int32_t>(sample.tokens)
                 .subspan(static_cast<size_t>(chunk.begin), static_cast<size_t>(chunk.n_tokens)),
             chunk.begin, sample.blocks);
  const BatchArrays arrays = batch_.arrays();
  lock.unlock();
  const int layer = model_->find_nonfinite_layer(arrays);
  lock.lock();

  std::string where = "no id may be sampled (mask, logit_bias and min_tokens leave none)";
  if (layer < 0)
    where = "the token embedding is not finite";
  else if (layer < info_.n_layers)
    where = "the output of layer " + std::to_string(layer) + " is not finite";
  log(QWEN3_LOG_ERROR, "request " + std::to_string(id) + " ends with an error: " + where);
}

void Engine::check_idle() {
  if (!was_busy_ || failed_) return;
  was_busy_ = false;
  scheduler_->check(n_manual_blocks_);
  counters_.idle_checks++;
}

void Engine::fail(Status status, const std::string& message) {
  failed_ = true;
  n_flying_ = 0;
  failure_ = message;
  log(QWEN3_LOG_ERROR,
      std::string(status == Status::kDeviceError ? "the device failed: " : "the engine failed: ") + message);
  const auto requests = requests_;  // finish() takes a request out with its last sample
  for (const auto& [id, request] : requests) {
    for (const auto& sample : request->samples) {
      if (sample->state == SequenceState::kEnded) continue;
      try {
        finish(*sample, QWEN3_FINISH_ERROR);
      } catch (const Error&) {  // the fault that brought us here may be in the pool's own books; the event is out
      }
    }
  }
  requests_.clear();
  for (Flight& flight : flights_) flight.requests.clear();
  events_.flush();
}

// ------------------------------------------------------------------------------------------------ with the mutex held

// The request goes with its last sample, unless a step in flight still refers to it.
void Engine::finish(Sample& sample, qwen3_finish_reason reason, int32_t token) {
  const std::shared_ptr<Request> owner = requests_.at(sample.request->id);
  Request& request = *owner;
  request.n_alive--;
  if (request.waits_for_tokens()) n_waiting_for_tokens_--;
  switch (reason) {
    case QWEN3_FINISH_STOP:
      counters_.samples_stopped++;
      break;
    case QWEN3_FINISH_LENGTH:
      counters_.samples_length++;
      break;
    case QWEN3_FINISH_CANCELLED:
      counters_.samples_cancelled++;
      break;
    default:
      counters_.samples_failed++;
      break;
  }
  qwen3_event event{};
  event.request = request.id;
  event.tag = request.tag;
  event.kind = QWEN3_EVENT_FINISHED;
  event.sample = sample.index;
  event.token = token;
  event.logprob = NAN;
  event.finish_reason = reason;
  event.index = sample.n_output();
  event.time_ns = now_ns();
  event.n_prompt = sample.n_prompt;
  event.n_cached = sample.n_cached_first;
  event.n_generated = sample.n_output();
  event.queued_ns = request.submitted_ns;
  event.started_ns = sample.started_ns;
  event.first_token_ns = sample.first_token_ns;
  events_.push(event);
  if (sample.matcher != nullptr) {
    masks_.add({.matcher = std::move(sample.matcher), .request = nullptr});  // freeing it may take long
    masks_.flush();
  }
  if (request.n_alive == 0) requests_.erase(request.id);
  scheduler_->remove(&sample);
}

namespace {

std::span<const qwen3_logprob> alternatives(const SampleResult& result) {
  static_assert(sizeof(TopLogprob) == sizeof(qwen3_logprob));
  return {reinterpret_cast<const qwen3_logprob*>(result.top.data()), static_cast<size_t>(result.n_top)};
}

}  // namespace

void Engine::push_token(Sample& sample, const SampleResult& result) {
  qwen3_event event{};
  event.request = sample.request->id;
  event.tag = sample.request->tag;
  event.kind = QWEN3_EVENT_TOKEN;
  event.sample = sample.index;
  event.token = result.token;
  event.logprob = sample.request->sampling.logprob ? result.logprob : NAN;
  event.index = sample.n_output();
  event.time_ns = now_ns();
  if (sample.first_token_ns == 0) sample.first_token_ns = event.time_ns;
  events_.push(event, alternatives(result));
}

void Engine::push_prompt_token(const Sample& sample, int64_t index, const SampleResult* result) {
  qwen3_event event{};
  event.request = sample.request->id;
  event.tag = sample.request->tag;
  event.kind = QWEN3_EVENT_PROMPT_TOKEN;
  event.sample = sample.index;
  event.token = sample.tokens[static_cast<size_t>(index)];
  event.logprob = result != nullptr ? result->logprob : NAN;
  event.index = index;
  event.time_ns = now_ns();
  events_.push(event, result != nullptr ? alternatives(*result) : std::span<const qwen3_logprob>{});
}

}  // namespace qwen3

// The calls that meet the worker: requests, cancels, masks, counters, the end. Each takes the engine's lock for a
// moment.
#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "engine/engine.h"

namespace qwen3 {

void Engine::check_open() const {
  if (closing_) throw Error(Status::kClosed, "the engine is being closed");
  if (failed_) throw Error(Status::kDeviceError, "the engine has failed and takes no more work: " + failure_);
}

uint64_t Engine::submit(const qwen3_request& spec) {
  std::shared_ptr<Request> request;
  try {
    request = make_request(spec, {.vocab = info_.vocab,
                                  .n_token_ids = info_.n_token_ids,
                                  .max_context = info_.max_context,
                                  .eos_ids = {info_.eos_ids, static_cast<size_t>(info_.n_eos_ids)}});
  } catch (const Error&) {
    const std::lock_guard lock(mutex_);
    counters_.requests_refused++;
    throw;
  }

  const std::lock_guard lock(mutex_);
  check_open();
  const int free_slots = std::max(0, scheduler_->max_running() - scheduler_->n_running());
  const int64_t most = static_cast<int64_t>(options_.max_queue) + scheduler_->max_running();
  if (request->n_alive > most) {
    counters_.requests_refused++;
    throw Error(Status::kInvalidArgument, "n is " + std::to_string(request->n_alive) + ", but only " +
                                              std::to_string(most) +
                                              " samples can run and wait here (max_slots + max_queue)");
  }
  const int64_t room = static_cast<int64_t>(options_.max_queue) + free_slots - scheduler_->n_waiting();
  if (request->n_alive > room) {
    counters_.requests_refused++;
    throw Error(Status::kQueueFull, "the queue has no room for this request (max_queue is " +
                                        std::to_string(options_.max_queue) + "); try again later");
  }
  request->id = next_id_++;
  request->submitted_ns = now_ns();
  counters_.requests_submitted++;
  for (const auto& sample : request->samples) {
    sample->arrival = next_arrival_++;
    scheduler_->add(sample.get());
  }
  const uint64_t id = request->id;
  if (request->waits_for_tokens()) n_waiting_for_tokens_ += request->n_alive;
  requests_.emplace(id, std::move(request));
  wake_.notify_one();
  return id;
}

Sample& Engine::alive_sample(Request& request, int32_t index) {
  if (index < 0 || index >= static_cast<int32_t>(request.samples.size()))
    throw Error(Status::kNotFound, "request " + std::to_string(request.id) + " has no sample " + std::to_string(index));
  Sample& sample = *request.samples[static_cast<size_t>(index)];
  if (sample.state == SequenceState::kEnded)
    throw Error(Status::kNotFound,
                "sample " + std::to_string(index) + " of request " + std::to_string(request.id) + " has ended");
  return sample;
}

void Engine::cancel(uint64_t id, int32_t index) {
  const std::lock_guard lock(mutex_);
  if (closing_) throw Error(Status::kClosed, "the engine is being closed");
  const auto found = requests_.find(id);
  if (found == requests_.end()) throw Error(Status::kNotFound, "no request " + std::to_string(id) + " is alive");
  const std::shared_ptr<Request> request = found->second;
  if (index >= 0) {
    finish(alive_sample(*request, index), QWEN3_FINISH_CANCELLED);
  } else {
    for (const auto& sample : request->samples)
      if (sample->state != SequenceState::kEnded) finish(*sample, QWEN3_FINISH_CANCELLED);
  }
  events_.flush();
  wake_.notify_one();
}

// The constrained sample whose next mask is the one for `output_index`.
Sample& Engine::next_mask_owner(uint64_t id, int32_t index, int64_t output_index) {
  if (closing_) throw Error(Status::kClosed, "the engine is being closed");
  const auto found = requests_.find(id);
  if (found == requests_.end()) throw Error(Status::kNotFound, "no request " + std::to_string(id) + " is alive");
  Sample& sample = alive_sample(*found->second, index);
  if (!found->second->constrained)
    throw Error(Status::kInvalidArgument, "request " + std::to_string(id) + " was not submitted as constrained");
  if (sample.matcher != nullptr)
    throw Error(Status::kInvalidArgument, "sample " + std::to_string(index) + " of request " + std::to_string(id) +
                                              " has a matcher, which gives its masks");
  if (output_index != sample.n_output())
    throw Error(Status::kInvalidArgument, "a mask for output token " + std::to_string(output_index) +
                                              " was given, the next one is " + std::to_string(sample.n_output()));
  return sample;
}

// False if it allows no id.
bool Engine::adopt_mask(Sample& sample, std::vector<uint32_t> mask) {
  if (const int rest = info_.n_token_ids % 32; rest != 0) mask.back() &= (1u << rest) - 1;  // bits without an id
  if (std::all_of(mask.begin(), mask.end(), [](uint32_t word) { return word == 0; })) return false;
  sample.mask = std::move(mask);
  sample.mask_index = sample.n_output();
  return true;
}

void Engine::set_mask(uint64_t id, int32_t index, int64_t output_index, std::span<const uint32_t> mask) {
  const std::lock_guard lock(mutex_);
  Sample& sample = next_mask_owner(id, index, output_index);
  const size_t n_words = n_mask_words();
  if (mask.size() < n_words)
    throw Error(Status::kInvalidArgument,
                "the mask has " + std::to_string(mask.size()) + " words, " + std::to_string(n_words) + " are needed");
  if (!adopt_mask(sample, {mask.begin(), mask.begin() + static_cast<int64_t>(n_words)}))
    throw Error(Status::kInvalidArgument, "the mask allows no id");
  wake_.notify_one();
}

void Engine::set_matcher(uint64_t id, int32_t index, int64_t output_index, const qwen3_matcher& calls) {
  const std::lock_guard lock(mutex_);
  Sample& sample = next_mask_owner(id, index, output_index);
  masks_.start(n_mask_words());
  sample.matcher = std::make_shared<Matcher>(calls);
  masks_.add({sample.matcher, requests_.at(id), &sample});
  masks_.flush();
}

qwen3_stats Engine::stats() {
  const std::lock_guard lock(mutex_);
  qwen3_stats stats = counters_;
  stats.failed = failed_;
  stats.n_running = scheduler_->n_running();
  stats.n_waiting = scheduler_->n_waiting();
  stats.blocks_total = pool_->n_blocks();
  stats.blocks_free = pool_->n_free();
  stats.blocks_cached = pool_->n_cached();
  stats.blocks_used = pool_->n_used();
  return stats;
}

void Engine::begin_close() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
  events_.close();
}

Engine::~Engine() {
  begin_close();
  if (worker_.joinable()) worker_.join();
}

// ---------------------------------------------------------------------------------------------- the threads of masks

// Takes in what matchers said of their samples' next tokens.
void Engine::take_answers(MaskThreads::Turn& turn) {
  std::vector<std::string> failures;
  {
    const std::lock_guard lock(mutex_);
    bool ended = false;
    bool slow = false;
    for (MaskJob& job : turn.answered()) {
      Sample& sample = *job.sample;
      slow = slow || job.matcher->slow();
      if (closing_ || sample.state == SequenceState::kEnded) continue;  // nobody asks any more
      if (job.answer == Matcher::Answer::kOver && !job.request->may_end(job.mask, sample.n_output())) {
        finish(sample, QWEN3_FINISH_STOP);
        ended = true;
      } else if (job.answer == Matcher::Answer::kFailed || !adopt_mask(sample, std::move(job.mask))) {
        failures.push_back("request " + std::to_string(job.request->id) +
                           " ends with an error: its matcher failed: " + job.matcher->error());
        finish(sample, QWEN3_FINISH_MATCHER);
        ended = true;
      }
    }
    if (ended) events_.flush();
    if (turn.told() || slow) wake_.notify_one();
  }
  for (const std::string& line : failures) log(QWEN3_LOG_WARNING, line);
}

}  // namespace qwen3

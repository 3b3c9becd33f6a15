// Measuring through the engine: the device's peaks, and one step with the time of each of its ops. The work runs on the
// worker thread between the steps of requests; a profile ends early, after the step that runs, when the engine is
// closed.
#include <algorithm>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"
#include "engine/engine.h"
#include "engine/landing.h"

namespace qwen3 {

namespace {

constexpr int kWarmUps = 3;  // a backend loads kernels in the first step, may record the second, and replays the third

void check_range(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high)
    throw Error(Status::kInvalidArgument, std::string("spec.") + field + " is " + std::to_string(value) +
                                              "; it must be between " + std::to_string(low) + " and " +
                                              std::to_string(high));
}

std::vector<int32_t> random_tokens(int64_t n, uint64_t seed, int n_token_ids) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  const uint64_t key = noise_key(seed, 0);
  for (size_t i = 0; i < tokens.size(); i++)
    tokens[i] = static_cast<int32_t>(noise_bits(key, static_cast<uint32_t>(i)) % static_cast<uint64_t>(n_token_ids));
  return tokens;
}

int64_t length_of(const std::vector<OpTime>& ops) {
  return ops.empty() ? 0 : ops.back().end_ns;
}

}  // namespace

DevicePeaks Engine::measure_peaks() {
  DevicePeaks peaks{};
  on_worker([&] { peaks = model_->ops().measure_peaks(); });
  return peaks;
}

void Engine::check_going_on() const {
  const std::lock_guard lock(mutex_);
  check_open();
}

StepProfile Engine::profile_step(const qwen3_profile_spec& spec) {
  check_range("n_sequences", spec.n_sequences, 1, info_.max_slots);
  check_range("n_tokens", spec.n_tokens, 1, info_.token_budget / spec.n_sequences);
  check_range("n_past", spec.n_past, 0, info_.max_context);
  check_range("repeat", spec.repeat, 1, 1000);
  if (spec.n_past + spec.n_tokens > info_.max_context)
    throw Error(Status::kContextOverflow, "the sequences would have " + std::to_string(spec.n_past + spec.n_tokens) +
                                              " tokens, but the context holds " + std::to_string(info_.max_context));

  std::vector<ManualSequence> sequences(static_cast<size_t>(spec.n_sequences));
  StepProfile profile{};
  const auto release_all = [&] {
    for (ManualSequence& sequence : sequences) release(sequence);
  };
  try {
    for (size_t i = 0; i < sequences.size() && spec.n_past > 0; i++)
      advance(sequences[i], random_tokens(spec.n_past, i, info_.n_token_ids),
              [&](size_t, size_t) { model_->ops().wait(); });
    on_worker([&] {
      batch_.clear();
      std::vector<int32_t> logit_rows;
      for (size_t i = 0; i < sequences.size(); i++) {
        hold_blocks(sequences[i], spec.n_past + spec.n_tokens);
        const int32_t first =
            batch_.add(random_tokens(spec.n_tokens, ~i, info_.n_token_ids), spec.n_past, sequences[i].blocks);
        logit_rows.push_back(first + spec.n_tokens - 1);
      }
      const std::vector<SampleRow> rows(logit_rows.size());
      std::vector<SampleResult> results(rows.size());
      BatchArrays arrays = batch_.arrays();
      arrays.logit_rows = logit_rows;
      arrays.sample_rows = rows;
      arrays.results = results;
      const auto step = [&] {
        check_going_on();
        model_->forward(arrays);
      };
      Ops& ops = model_->ops();
      const Landing landing{ops};
      for (int i = 0; i < kWarmUps; i++) step();
      ops.wait();

      // As the engine runs steps: one is issued while the one before it is computed.
      std::vector<int64_t> spans;
      uint64_t flying = 0;
      int64_t landed = 0;
      for (int i = 0; i <= spec.repeat; i++) {
        step();
        const uint64_t mark = ops.mark();
        if (i > 0) {
          ops.wait_for(flying);
          spans.push_back(now_ns() - landed);
        }
        landed = now_ns();
        flying = mark;
      }
      ops.wait();
      std::nth_element(spans.begin(), spans.begin() + static_cast<std::ptrdiff_t>(spans.size() / 2), spans.end());
      profile.step_ns = spans[spans.size() / 2];

      std::vector<std::vector<OpTime>> timed;
      for (int i = 0; i < spec.repeat; i++) {
        timed.push_back(model_->time_ops(step));
        ops.wait();
      }
      const auto median = timed.begin() + static_cast<std::ptrdiff_t>(timed.size() / 2);
      std::nth_element(timed.begin(), median, timed.end(),
                       [](const auto& a, const auto& b) { return length_of(a) < length_of(b); });
      profile.ops = std::move(*median);
    });
  } catch (...) {
    release_all();
    throw;
  }
  release_all();
  return profile;
}

}  // namespace qwen3

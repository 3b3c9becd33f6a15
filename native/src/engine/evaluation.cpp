// The synchronous face: sequences that the host advances by hand, and scoring. The work runs on the worker thread, one
// chunk of the token budget at a time between the steps of requests.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/landing.h"

namespace qwen3 {

// Runs `work` on the worker thread and returns when it is done; its exceptions come out here. A device that fails
// during it fails the engine, as in a step.
void Engine::on_worker(const std::function<void()>& work) {
  auto task = std::make_shared<std::packaged_task<void()>>([this, &work] {
    try {
      work();
    } catch (const Error& error) {
      if (error.status() == Status::kDeviceError) {
        const std::lock_guard lock(mutex_);
        fail(error.status(), error.what());
      }
      throw;
    }
  });
  std::future<void> done = task->get_future();
  {
    const std::lock_guard lock(mutex_);
    check_open();
    // The queue alone owns the task: when it is dropped there, the future learns of it.
    jobs_.emplace_back([task = std::move(task)] { (*task)(); });
  }
  wake_.notify_one();
  try {
    done.get();
  } catch (const std::future_error&) {  // the worker left without running it
    throw Error(Status::kClosed, "the engine is being closed");
  }
}

// Gives a sequence the blocks for `length` tokens. On the worker thread; after a failure the sequence has some of them.
void Engine::hold_blocks(ManualSequence& sequence, int64_t length) {
  const std::lock_guard lock(mutex_);
  while (static_cast<int64_t>(sequence.blocks.size()) * kBlockSize < length) {
    const BlockId block = pool_->allocate();
    if (block == kNoBlock)
      throw Error(Status::kOutOfMemory, "all " + std::to_string(pool_->n_blocks()) +
                                            " KV blocks are in use; wait for requests to end, or open the engine with "
                                            "more kv_bytes");
    sequence.blocks.push_back(block);
    n_manual_blocks_++;
    was_busy_ = true;
  }
}

void Engine::advance(ManualSequence& sequence, std::span<const int32_t> tokens, const UseRows& use_rows) {
  if (tokens.empty()) throw Error(Status::kInvalidArgument, "no tokens were given; give at least one");
  check_tokens(tokens, info_.vocab);
  const int64_t new_length = sequence.length + static_cast<int64_t>(tokens.size());
  if (new_length > info_.max_context)
    throw Error(Status::kContextOverflow, "the sequence would have " + std::to_string(new_length) +
                                              " tokens, but the context holds " + std::to_string(info_.max_context));

  const size_t n_blocks_before = sequence.blocks.size();
  const int64_t length_before = sequence.length;
  try {
    const size_t budget = static_cast<size_t>(info_.token_budget);
    for (size_t first = 0; first < tokens.size(); first += budget) {
      const std::span<const int32_t> chunk = tokens.subspan(first, std::min(budget, tokens.size() - first));
      on_worker([&] {
        const int64_t length = sequence.length + static_cast<int64_t>(chunk.size());
        hold_blocks(sequence, length);
        batch_.clear();
        batch_.add(chunk, sequence.length, sequence.blocks);
        model_->forward(batch_.arrays());
        sequence.length = length;
        use_rows(first, chunk.size());
      });
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    for (; sequence.blocks.size() > n_blocks_before; sequence.blocks.pop_back(), n_manual_blocks_--)
      pool_->release(sequence.blocks.back());
    sequence.length = length_before;
    throw;
  }
}

void Engine::append(ManualSequence& sequence, std::span<const int32_t> tokens, size_t first_row,
                    std::span<float> logits) {
  const size_t vocab = static_cast<size_t>(info_.vocab);
  advance(sequence, tokens, [&](size_t first, size_t n) {
    if (first + n <= first_row) {
      model_->ops().wait();
      return;
    }
    const size_t skip = first_row > first ? first_row - first : 0;
    std::vector<int32_t> rows(n - skip);
    std::iota(rows.begin(), rows.end(), static_cast<int32_t>(skip));
    model_->logits(rows, logits.subspan((first + skip - first_row) * vocab, rows.size() * vocab));
  });
}

void Engine::release(ManualSequence& sequence) {
  const std::lock_guard lock(mutex_);
  for (const BlockId block : sequence.blocks) pool_->release(block);
  n_manual_blocks_ -= static_cast<int>(sequence.blocks.size());
  sequence.blocks.clear();
  sequence.length = 0;
  wake_.notify_one();
}

void Engine::score_logits(std::span<const int32_t> tokens, size_t first, std::span<float> out) {
  ManualSequence sequence;
  try {
    append(sequence, tokens, first, out);
  } catch (...) {
    release(sequence);
    throw;
  }
  release(sequence);
}

void Engine::score_logprobs(std::span<const int32_t> tokens, std::span<float> out) {
  ManualSequence sequence;
  if (!out.empty()) out[0] = NAN;
  try {
    advance(sequence, tokens, [&](size_t first, size_t n) {
      std::vector<int32_t> token_rows;
      std::vector<SampleRow> rows;
      for (size_t i = 0; i < n && first + i + 1 < tokens.size(); i++) {
        SampleRow row;
        row.target = tokens[first + i + 1];
        row.logprob = true;
        token_rows.push_back(static_cast<int32_t>(i));
        rows.push_back(row);
      }
      std::vector<SampleResult> results(rows.size());
      const Landing landing{model_->ops()};
      model_->sample(token_rows, rows, results);
      model_->ops().wait();
      for (size_t i = 0; i < results.size(); i++) out[first + i + 1] = results[i].logprob;
    });
  } catch (...) {
    release(sequence);
    throw;
  }
  release(sequence);
}

}  // namespace qwen3

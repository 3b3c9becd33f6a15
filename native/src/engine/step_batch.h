// Builds a step's index arrays from chunks of sequences. Reused from step to step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/block_pool.h"
#include "ops/ops.h"

namespace qwen3 {

class StepBatch {
 public:
  void clear();
  // Adds tokens at positions begin.. of a sequence whose KV is in `blocks`; returns the row of the first one. A token
  // of -1 - r stands for the one that row r of the step before samples (see BatchView).
  int32_t add(std::span<const int32_t> tokens, int64_t begin, std::span<const BlockId> blocks);
  // Valid until the next add() or clear().
  BatchArrays arrays();

 private:
  std::vector<int32_t> token_ids_, positions_, seq_of_, query_start_{0}, block_tables_;
  std::vector<std::span<const BlockId>> blocks_;  // of each sequence
};

}  // namespace qwen3

#include "engine/step_batch.h"

#include <algorithm>

namespace qwen3 {

void StepBatch::clear() {
  token_ids_.clear();
  positions_.clear();
  seq_of_.clear();
  query_start_.assign(1, 0);
  blocks_.clear();
}

int32_t StepBatch::add(std::span<const int32_t> tokens, int64_t begin, std::span<const BlockId> blocks) {
  const int32_t first_row = static_cast<int32_t>(token_ids_.size());
  token_ids_.insert(token_ids_.end(), tokens.begin(), tokens.end());
  for (size_t i = 0; i < tokens.size(); i++)
    positions_.push_back(static_cast<int32_t>(begin + static_cast<int64_t>(i)));
  seq_of_.insert(seq_of_.end(), tokens.size(), static_cast<int32_t>(blocks_.size()));
  query_start_.push_back(static_cast<int32_t>(token_ids_.size()));
  blocks_.push_back(blocks);
  return first_row;
}

BatchArrays StepBatch::arrays() {
  size_t max_blocks = 0;
  for (const auto& blocks : blocks_) max_blocks = std::max(max_blocks, blocks.size());
  block_tables_.assign(max_blocks * blocks_.size(), 0);
  for (size_t i = 0; i < blocks_.size(); i++)
    std::copy(blocks_[i].begin(), blocks_[i].end(), block_tables_.begin() + static_cast<int64_t>(i * max_blocks));
  return {.n_tokens = static_cast<int>(token_ids_.size()),
          .n_seqs = static_cast<int>(blocks_.size()),
          .max_blocks = static_cast<int>(max_blocks),
          .token_ids = token_ids_,
          .positions = positions_,
          .seq_of = seq_of_,
          .query_start = query_start_,
          .block_tables = block_tables_};
}

}  // namespace qwen3

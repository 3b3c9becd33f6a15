// Who does what in a decode step's attention (attention_step.cu): the step's splits, dealt to its CTAs.
//
// All splits (kSplit keys of a sequence and KV head, which are a pair) stand in a line, in order of sequence, KV head,
// split; its length is measured in steps of kStep keys. The CTAs get equal pieces of it, or whole pairs where those
// divide evenly enough. The host plans once per step, for all layers, and sends the plan with the step's other arrays:
// when every CTA found its piece itself, no byte was read for the first 1.6 us of every layer's attention.
//
// Host code and plain numbers; no device is needed.
#pragma once

#include <cstdint>
#include <span>

#include "backend/cuda/kv_layout.h"

namespace qwen3::cuda {

inline constexpr int kStep = 64;    // keys per online-softmax step
inline constexpr int kSplit = 256;  // positions per split of the context
inline constexpr int kSplitSteps = kSplit / kStep;
inline constexpr int kSplitBlocks = kSplit / kBlockSize;

// A CTA's piece of the line: the splits whose place, or if `pairs` whose pair's place, lies before `end`, from the one
// named here on. Nothing if that one's does not.
struct alignas(64) StepPiece {
  int32_t seq = 0;
  int32_t head = 0;
  int32_t split = 0;
  int32_t last = 0;                   // position of the sequence's new token
  int32_t pair_place = 0;             // of the pair's first split in the line
  int32_t first_state = 0;            // number of the pair's first split among all splits
  int32_t end = 0;                    // place in the line
  int32_t pairs = 0;                  // not 0: whole pairs
  int32_t blocks[kSplitBlocks] = {};  // KV blocks of the first split, those behind the last token repeat its block
};

inline constexpr int kMaxStepSeqs = 512;  // sequences that attention_step takes
inline constexpr int kStepCtasPerSm = 2;  // of attention_step.cu
inline constexpr int kMaxCluster = 8;     // CTAs of a cluster of attention_step_cluster.cu

// The number of CTAs with which attention_step.cu serves n_seqs sequences of up to max_context tokens, padding
// included; 0: there is so little work that attention_step_cluster.cu serves them, which needs no plan.
int planned_ctas(int n_seqs, int n_kv_heads, int max_context, int sm_count);

struct StepPlanArgs {
  std::span<const int32_t> positions;     // [sequences], each below max_context
  std::span<const int32_t> block_tables;  // [sequences, max_blocks]
  int max_blocks;
  int n_kv_heads;
  int sm_count;
  int64_t max_states;  // splits whose state may wait in memory for a merge; with more of them, whole pairs
};
// pieces: [planned_ctas()]
void plan_attention_step(const StepPlanArgs& args, std::span<StepPiece> pieces);

}  // namespace qwen3::cuda

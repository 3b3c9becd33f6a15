// What a CTA of attention_step.cu holds and works on: its shared memory, and its piece of the line of splits, which the
// host has dealt out (attention_plan.h).
#pragma once

#include "backend/cuda/attention_step.cuh"

namespace qwen3::cuda::step_line {

constexpr int kSlots = 6;
constexpr int kWarps = 4;                       // consumers; as many feed them
[[maybe_unused]] constexpr int kPreparers = 3;  // of the feeding warps
constexpr int kTiles = 2;                       // of 16 output columns, a consumer's
constexpr int kConsumers = kWarps * 32;
constexpr int kThreads = 2 * kConsumers;
[[maybe_unused]] constexpr int kConsumerRegisters = 184;
[[maybe_unused]] constexpr int kFeederRegisters = 72;

// What the preparers make of a pair.
struct Prepared {
  uint8_t q[kMaxStepGroup * kHeadDim * 2];  // core matrices [d chunk 16]; heads beyond the group are 0
  uint32_t key[kHeadDim / 2];               // the new key and value, bf16 pairs
  uint32_t value[kHeadDim / 2];
};

struct alignas(128) Shared {
  uint8_t ring[kSlots][kStepBytes];
  Prepared pair;
  SplitScratch scratch;
  uint64_t full[kSlots], empty[kSlots];
  uint64_t ready, taken;  // pair
  int last_cta;
  int last[kMaxStepSeqs];  // position of each sequence's new token; -1: padding
};
static_assert(kStepCtasPerSm * (sizeof(Shared) + 1024) <= 228 * 1024);

#if QWEN3_SM90A
// Work that begins at place x of the line.
struct Walk {
  int seq, head, split;
  int last;        // position of the sequence's new token
  int n_splits;    // of the pair
  int pair_place;  // of the pair's first split
  int state;       // number of the pair's first split among all

  __device__ __forceinline__ int x() const { return pair_place + split * kSplitSteps; }
  __device__ __forceinline__ int n_steps() const { return min(last / kStep + 1 - split * kSplitSteps, kSplitSteps); }
  __device__ __forceinline__ void next_pair(const Shared& shared, int n_seqs, int n_kv_heads) {
    pair_place += last / kStep + 1;
    state += n_splits;
    split = 0;
    if (++head < n_kv_heads) return;
    head = 0;
    do {
      if (++seq == n_seqs) return;
      last = shared.last[seq];
    } while (last < 0);
    n_splits = last / kSplit + 1;
  }
  __device__ __forceinline__ void next(const Shared& shared, int n_seqs, int n_kv_heads) {
    if (++split == n_splits) next_pair(shared, n_seqs, n_kv_heads);
  }
};

// This CTA's part of the line: splits whose place, or whose pair's place, is in [walk.., end).
struct Piece {
  Walk walk;
  int end;
  bool pairs;
  int block;  // lane i < 8: KV block i of the first split
  __device__ __forceinline__ bool has(const Walk& w) const { return (pairs ? w.pair_place : w.x()) < end; }
  // The end of this CTA's splits of w's pair.
  __device__ __forceinline__ int end_split(const Walk& w) const {
    return pairs ? w.n_splits : min(w.n_splits, (end - w.pair_place + kSplitSteps - 1) / kSplitSteps);
  }
};

// All threads; a barrier for them. Reads the plan and the batch's arrays, which are there before the step.
__device__ __forceinline__ Piece take_piece(const StepParams& p, Shared& shared, int thread) {
  const StepPiece& from = p.plan[blockIdx.x];
  Piece piece;
  Walk& w = piece.walk;
  w.seq = from.seq;
  w.head = from.head;
  w.split = from.split;
  w.last = from.last;
  w.n_splits = w.last / kSplit + 1;
  w.pair_place = from.pair_place;
  w.state = from.first_state;
  piece.end = from.end;
  piece.pairs = from.pairs != 0;
  piece.block = from.blocks[thread % kSplitBlocks];
  for (int s = thread; s < p.n_seqs; s += kThreads) shared.last[s] = p.seq_of[s] < 0 ? -1 : p.positions[s];
  __syncthreads();
  return piece;
}
#endif

}  // namespace qwen3::cuda::step_line

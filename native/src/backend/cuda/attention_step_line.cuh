// What a CTA of attention_step.cu holds and works on: its shared memory, and its piece of the line of splits.
//
// The line has all splits of the step in order of sequence, KV head, split; its length is measured in steps of kStep
// keys. find_piece deals it out: equal pieces, or whole pairs where those divide evenly enough. Every CTA finds its own
// from the positions alone, so no launch depends on lengths that the host would have to know.
#pragma once

#include "backend/cuda/attention_step.cuh"

namespace qwen3::cuda::step_line {

constexpr int kSlots = 6;
constexpr int kWarps = 4;                       // consumers; as many feed them
[[maybe_unused]] constexpr int kPreparers = 3;  // of the feeding warps
constexpr int kConsumers = kWarps * 32;
constexpr int kThreads = 2 * kConsumers;
constexpr int kCtasPerSm = 2;
[[maybe_unused]] constexpr int kConsumerRegisters = 184;
[[maybe_unused]] constexpr int kFeederRegisters = 72;

// What the preparers make of a pair.
struct Prepared {
  uint8_t q[kMaxDecodeRows * kHeadDim * 2];  // core matrices [row group 2][d chunk 16]; rows beyond the group are 0
  uint32_t key[kHeadDim / 2];                // the new key and value, bf16 pairs
  uint32_t value[kHeadDim / 2];
};

struct alignas(128) Shared {
  uint8_t ring[kSlots][kStepBytes];
  Prepared pair;
  SplitScratch scratch;
  uint64_t full[kSlots], empty[kSlots];
  uint64_t ready, taken;                   // pair
  int totals[kThreads / 32][3];            // steps, splits and pairs of a warp's sequences
  int first_seq, first_step, first_split;  // the sequence in which this CTA's piece begins; steps and splits before it
  int last_cta;
  int last[kMaxStepSeqs];  // position of each sequence's new token; -1: padding
};
static_assert(kCtasPerSm * (sizeof(Shared) + 1024) <= 228 * 1024);

#if QWEN3_SM90A
// Work that begins at place x of the line.
struct Walk {
  int seq, head, split;
  int last;        // position of the sequence's new token
  int n_splits;    // of the pair
  int pair_start;  // place of the pair's first split
  int state;       // number of the pair's first split among all

  __device__ __forceinline__ int x() const { return pair_start + split * kSplitSteps; }
  __device__ __forceinline__ int n_steps() const { return min(last / kStep + 1 - split * kSplitSteps, kSplitSteps); }
  __device__ __forceinline__ void next_pair(const Shared& shared, int n_seqs, int n_kv_heads) {
    pair_start += last / kStep + 1;
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
  __device__ __forceinline__ bool has(const Walk& w) const { return (pairs ? w.pair_start : w.x()) < end; }
  // The end of this CTA's splits of w's pair.
  __device__ __forceinline__ int end_split(const Walk& w) const {
    return pairs ? w.n_splits : min(w.n_splits, (end - w.pair_start + kSplitSteps - 1) / kSplitSteps);
  }
};

// All threads.
__device__ __forceinline__ Piece find_piece(const StepParams& p, Shared& shared, int thread) {
  const int n_seqs = p.n_seqs;
  const int n_kv = p.n_kv_heads;
  const int each = (n_seqs + kThreads - 1) / kThreads;
  const int begin = min(thread * each, n_seqs);
  const int end = min(begin + each, n_seqs);
  int own[3] = {0, 0, 0};
  for (int s = begin; s < end; s++) {
    const int last = p.seq_of[s] < 0 ? -1 : p.positions[s];
    shared.last[s] = last;
    if (last < 0) continue;
    own[0] += last / kStep + 1;
    own[1] += last / kSplit + 1;
    own[2] += 1;
  }
  int sum[3];  // inclusive, within the warp
#pragma unroll
  for (int i = 0; i < 3; i++) {
    sum[i] = own[i];
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, sum[i], d);
      if (thread % 32 >= d) sum[i] += other;
    }
    if (thread % 32 == 31) shared.totals[thread / 32][i] = sum[i];
  }
  if (thread == 0) shared.first_seq = -1;
  __syncthreads();
  int total[3] = {0, 0, 0};
#pragma unroll
  for (int w = 0; w < kThreads / 32; w++) {
#pragma unroll
    for (int i = 0; i < 3; i++) {
      if (w == thread / 32) sum[i] += total[i];
      total[i] += shared.totals[w][i];
    }
  }
  const int n_steps = total[0] * n_kv;
  const int n_splits = total[1] * n_kv;
  const int n_pairs = total[2] * n_kv;
  // Steps that the busiest CTA has more than the average, by pairs and by splits. States that travel cost about as much
  // time as kTravel steps more.
  constexpr float kTravel = 5.0f;
  const auto parts = [&](int items) {
    return items <= p.sm_count ? min(p.sm_count, static_cast<int>(gridDim.x)) : static_cast<int>(gridDim.x);
  };
  const auto excess = [&](int items) {
    const int g = parts(items);
    return static_cast<float>((items + g - 1) / g) * static_cast<float>(n_steps) / static_cast<float>(max(items, 1)) -
           static_cast<float>(n_steps) / static_cast<float>(g);
  };
  Piece piece;
  piece.pairs = excess(n_pairs) <= excess(n_splits) + kTravel || n_splits > p.max_states;
  const int g = parts(piece.pairs ? n_pairs : n_splits);
  const auto border = [&](int c) {
    return c >= g ? n_steps : static_cast<int>((static_cast<int64_t>(c) * n_steps + g - 1) / g);
  };
  const int first = border(static_cast<int>(blockIdx.x));
  piece.end = border(static_cast<int>(blockIdx.x) + 1);
  int step = sum[0] - own[0];
  int split = sum[1] - own[1];
  for (int s = begin; s < end; s++) {
    const int last = shared.last[s];
    if (last < 0) continue;
    const int steps = last / kStep + 1;
    if (step * n_kv <= first && first < (step + steps) * n_kv) {
      shared.first_seq = s;
      shared.first_step = step * n_kv;
      shared.first_split = split * n_kv;
    }
    step += steps;
    split += last / kSplit + 1;
  }
  __syncthreads();
  Walk& w = piece.walk;
  w.seq = shared.first_seq;
  if (w.seq < 0) {  // nothing left
    w = {};
    piece.end = 0;
    return piece;
  }
  w.last = shared.last[w.seq];
  w.n_splits = w.last / kSplit + 1;
  const int steps = w.last / kStep + 1;
  const int inside = first - shared.first_step;
  w.head = inside / steps;
  const int rest = inside - w.head * steps;
  w.pair_start = first - rest;
  w.state = shared.first_split + w.head * w.n_splits;
  w.split = piece.pairs ? (rest > 0 ? w.n_splits : 0) : (rest + kSplitSteps - 1) / kSplitSteps;
  if (w.split >= w.n_splits) w.next_pair(shared, n_seqs, n_kv);
  return piece;
}
#endif

}  // namespace qwen3::cuda::step_line

// What the attention kernels share: the arithmetic of a step, of a split and of the merge, and how rows map to queries.
//
// One arithmetic for decode, prefill, any chunking and any batch; every kernel (attention_decode, attention_prefill,
// attention_hopper) follows it to the last bit:
//   row       one (token, query head of the group) pair; rows never mix
//   score     a float32 accumulator that starts at 0 and walks d upwards in k16 steps (bf16 tensor cores); scaled by
//             scale * log2(e) inside the exponent's fma; keys after the row's position become -infinity
//   step      kStep keys at absolute positions: m' = max(m, max * scale), P = exp2(fma(score, scale, -m')) in float32,
//             o and l scaled by exp2(m - m'); o += bf16(P) V, key by key upwards in k16 steps
//   l         four sums per thread, one per 16-key group of the step: l[t] = fma(l[t], alpha, (p[2c] + p[2c+1]) +
//             (p[2c+8] + p[2c+9])) for the c-th of the 4 lanes that share a row; at the end of the split
//             ((l[0] + l[1]) + l[2]) + l[3], then a butterfly over lanes c ^ 1, c ^ 2
//   split     kSplit keys start from an empty state (m = -infinity, l = 0, o = 0)
//   result    splits merged one by one in ascending order into an empty state, then bf16(o * (1 / l) + 0)
// A step in which a row sees no key leaves its state untouched to the bit, so a kernel may run it or not.
//
// Fragments (m16n8k16): lane = 4 * g + c holds rows g and g + 8; accumulator columns 2c and 2c + 1 of each 8-key tile.
// wgmma's accumulators have the same shape per warp.
#pragma once

#include <cstdint>

#include "backend/cuda/attention_plan.h"
#include "backend/cuda/kv_layout.h"
#include "backend/cuda/ptx.cuh"
#include "ops/ops.h"

namespace qwen3::cuda {

inline constexpr int kStepBytes = kStep * kHeadDim * 2;  // keys or values of one step and head
inline constexpr int kPartialRow = kHeadDim + 4;         // floats of a row's partial state; a multiple of 16 bytes
inline constexpr int kMaxDecodeRows = 16;                // sequences with at most so many rows go to the decode kernel
inline constexpr int kPrefillRows = 64;                  // of a query tile, per warpgroup
inline constexpr float kAttentionScale = 0.08838834764831845f * 1.4426950408889634f;  // log2(e) / sqrt(128)

// Everything the kernels need. Device pointers; shapes as in ops.h.
struct AttentionParams {
  const bf16* q;                // [n_tokens, n_heads, 128]
  const bf16* k;                // [n_blocks, n_kv_heads, kHeadBlock], see kv_layout.h
  const bf16* v;                // same
  bf16* out;                    // [n_tokens, n_heads, 128]
  const int32_t* query_start;   // [n_seqs + 1]
  const int32_t* positions;     // [n_tokens]
  const int32_t* block_tables;  // [n_seqs, max_blocks]
  int n_seqs;
  int max_blocks;
  int n_heads;
  int n_kv_heads;
  int group;               // n_heads / n_kv_heads
  float scale;             // log2(e) / sqrt(128)
  int max_splits;          // decode: grid size in splits; prefill: unused
  bool whole;              // decode: one CTA walks all splits of a (sequence, KV head), max_splits is 1
  int decode_rows;         // sequences with 1..decode_rows rows belong to the decode kernel, others to prefill
  int partial_rows;        // decode: rows per partial state in the workspace
  float* partials;         // [n_seqs, n_kv_heads, max_splits, partial_rows, kPartialRow]: o, then m and l
  int32_t* counters;       // [n_seqs, n_kv_heads], zero between launches
  uint32_t* turn_counter;  // hopper: tiles taken, zero between launches
};

// 2^x with the hardware's approximation; denormals are zero. Every exponential of attention.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// lower: the value with the smaller index.
__device__ __forceinline__ uint32_t pack_bf16(float lower, float upper) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(upper), "f"(lower));
  return pair;
}

// -infinity - -infinity is NaN: a row that has seen no key subtracts 0.
__device__ __forceinline__ float finite_shift(float m) {
  return m == -__builtin_inff() ? 0.0f : m;
}

// One thread's share of the scores of two rows over 16 keys: tile0, tile1 are the accumulators of the 8-key tiles.
// Turns them into P and adds their sums to l0 (row g) and l1 (row g + 8).
__device__ __forceinline__ void exponentiate(float (&tile0)[4], float (&tile1)[4], float scale, float shift0,
                                             float shift1, float alpha0, float alpha1, float& l0, float& l1) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    tile0[i] = exp2_approx(__fmaf_rn(tile0[i], scale, i < 2 ? -shift0 : -shift1));
    tile1[i] = exp2_approx(__fmaf_rn(tile1[i], scale, i < 2 ? -shift0 : -shift1));
  }
  l0 = __fmaf_rn(l0, alpha0, __fadd_rn(__fadd_rn(tile0[0], tile0[1]), __fadd_rn(tile1[0], tile1[1])));
  l1 = __fmaf_rn(l1, alpha1, __fadd_rn(__fadd_rn(tile0[2], tile0[3]), __fadd_rn(tile1[2], tile1[3])));
}

// P of 16 keys as the A fragment of a k16 step.
__device__ __forceinline__ void pack_fragment(const float (&tile0)[4], const float (&tile1)[4], uint32_t (&p)[4]) {
  p[0] = pack_bf16(tile0[0], tile0[1]);
  p[1] = pack_bf16(tile0[2], tile0[3]);
  p[2] = pack_bf16(tile1[0], tile1[1]);
  p[3] = pack_bf16(tile1[2], tile1[3]);
}

// Keys `first` .. of one 8-key tile: those after the rows' last visible key become -infinity. limit: position of the
// row minus the position of the step's first key; first: index of the thread's first column within the step.
__device__ __forceinline__ void mask_tile(float (&tile)[4], int first, int limit0, int limit1) {
  const float lowest = -__builtin_inff();
  if (first > limit0) tile[0] = lowest;
  if (first + 1 > limit0) tile[1] = lowest;
  if (first > limit1) tile[2] = lowest;
  if (first + 1 > limit1) tile[3] = lowest;
}

// The maximum over the 4 lanes that share a row.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

// The end of a split: the row's l from the four group sums of each lane.
__device__ __forceinline__ float quad_sum(float l0, float l1, float l2, float l3) {
  float x = __fadd_rn(__fadd_rn(__fadd_rn(l0, l1), l2), l3);
  x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

// Factors of the states a (all splits so far) and b (the next one) in their merged state; m becomes the merged maximum.
struct MergeFactors {
  float a, b;
};
__device__ __forceinline__ MergeFactors merge_max(float& m, float m_b) {
  const float merged = fmaxf(m, m_b);
  const float shift = finite_shift(merged);
  const MergeFactors factors{exp2_approx(__fsub_rn(m, shift)), exp2_approx(__fsub_rn(m_b, shift))};
  m = merged;
  return factors;
}
__device__ __forceinline__ float merge(float a, float b, const MergeFactors& factors) {
  return __fmaf_rn(b, factors.b, __fmul_rn(a, factors.a));
}

// The scores of one step of 16 rows in one warp's registers, s [8 tiles][4], become P. m: of rows g and g + 8, scaled;
// l [row][group]. Returns in alpha what o must be multiplied by.
template <bool kMask>
__device__ __forceinline__ void softmax_step(float (&s)[8][4], float scale, int column, int limit0, int limit1,
                                             float (&m)[2], float (&l)[2][4], float (&alpha)[2]) {
  if constexpr (kMask) {
#pragma unroll
    for (int j = 0; j < 8; j++) mask_tile(s[j], j * 8 + column, limit0, limit1);
  }
  float top0 = fmaxf(s[0][0], s[0][1]);
  float top1 = fmaxf(s[0][2], s[0][3]);
#pragma unroll
  for (int j = 1; j < 8; j++) {
    top0 = fmaxf(top0, fmaxf(s[j][0], s[j][1]));
    top1 = fmaxf(top1, fmaxf(s[j][2], s[j][3]));
  }
  const float m0 = fmaxf(m[0], __fmul_rn(quad_max(top0), scale));
  const float m1 = fmaxf(m[1], __fmul_rn(quad_max(top1), scale));
  const float shift0 = finite_shift(m0);
  const float shift1 = finite_shift(m1);
  alpha[0] = exp2_approx(__fsub_rn(m[0], shift0));
  alpha[1] = exp2_approx(__fsub_rn(m[1], shift1));
  m[0] = m0;
  m[1] = m1;
#pragma unroll
  for (int t = 0; t < 4; t++) {
    exponentiate(s[2 * t], s[2 * t + 1], scale, shift0, shift1, alpha[0], alpha[1], l[0][t], l[1][t]);
  }
}

// o [n tiles][4] of rows g and g + 8 times alpha. A factor of 1 changes no bit, so a warp whose maxima stood still
// skips.
template <int kTiles>
__device__ __forceinline__ void rescale(float (&o)[kTiles][4], const float (&alpha)[2]) {
  if (!__any_sync(0xffffffffu, alpha[0] != 1.0f || alpha[1] != 1.0f)) return;
#pragma unroll
  for (int j = 0; j < kTiles; j++) {
    o[j][0] = __fmul_rn(o[j][0], alpha[0]);
    o[j][1] = __fmul_rn(o[j][1], alpha[0]);
    o[j][2] = __fmul_rn(o[j][2], alpha[1]);
    o[j][3] = __fmul_rn(o[j][3], alpha[1]);
  }
}

// The running state of all finished splits of two rows, of kTiles 8-wide column tiles.
template <int kTiles>
struct Running {
  float o[kTiles][4];
  float m[2];
  float l[2];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int j = 0; j < kTiles; j++) {
#pragma unroll
      for (int i = 0; i < 4; i++) o[j][i] = 0.0f;
    }
    m[0] = m[1] = -__builtin_inff();
    l[0] = l[1] = 0.0f;
  }

  // Takes in the split (split_o, split_m, split_l).
  __device__ __forceinline__ void add(const float (&split_o)[kTiles][4], const float (&split_m)[2], float l0,
                                      float l1) {
    const MergeFactors f0 = merge_max(m[0], split_m[0]);
    const MergeFactors f1 = merge_max(m[1], split_m[1]);
    l[0] = merge(l[0], l0, f0);
    l[1] = merge(l[1], l1, f1);
#pragma unroll
    for (int j = 0; j < kTiles; j++) {
      o[j][0] = merge(o[j][0], split_o[j][0], f0);
      o[j][1] = merge(o[j][1], split_o[j][1], f0);
      o[j][2] = merge(o[j][2], split_o[j][2], f1);
      o[j][3] = merge(o[j][3], split_o[j][3], f1);
    }
  }
};

// Adding 0 turns -0 into 0: whether a masked key was skipped or added with probability 0 must not show.
__device__ __forceinline__ float finish(float o, float inverse_l) {
  return __fadd_rn(__fmul_rn(o, inverse_l), 0.0f);
}

// Global element offset of row r's query (and output) of a KV head; token0: the sequence's first token row.
__device__ __forceinline__ int64_t row_offset(const AttentionParams& p, int token0, int kv_head, int r) {
  const int token = token0 + r / p.group;
  return (static_cast<int64_t>(token) * p.n_heads + kv_head * p.group + r % p.group) * kHeadDim;
}

// ---- prefill: a thread's two rows (row0, row0 + 8) of a tile of 64 queries, whole heads

// A split's empty state.
__device__ __forceinline__ void start_split(float (&o)[16][4], float (&m)[2], float (&l)[2][4]) {
#pragma unroll
  for (int j = 0; j < 16; j++) {
#pragma unroll
    for (int i = 0; i < 4; i++) o[j][i] = 0.0f;
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    m[h] = -__builtin_inff();
#pragma unroll
    for (int t = 0; t < 4; t++) l[h][t] = 0.0f;
  }
}
__device__ __forceinline__ void finish_split(Running<16>& running, const float (&o)[16][4], const float (&m)[2],
                                             const float (&l)[2][4]) {
  running.add(o, m, quad_sum(l[0][0], l[0][1], l[0][2], l[0][3]), quad_sum(l[1][0], l[1][1], l[1][2], l[1][3]));
}
// The rows' outputs, columns `column`, + 1 of every 8.
__device__ __forceinline__ void write_tile_rows(const AttentionParams& p, const Running<16>& running, int token0,
                                                int kv_head, int row0, int n_rows, int column) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int r = row0 + half * 8;
    if (r >= n_rows) continue;
    const float inverse = __fdiv_rn(1.0f, running.l[half]);
    bf16* out = p.out + row_offset(p, token0, kv_head, r) + column;
#pragma unroll
    for (int j = 0; j < 16; j++) {
      *reinterpret_cast<uint32_t*>(out + j * 8) =
          pack_bf16(finish(running.o[j][2 * half], inverse), finish(running.o[j][2 * half + 1], inverse));
    }
  }
}

// Gathers `kRows` query rows from first_row on into shared memory as core matrices [row group][d chunk 16][8][8] by
// 16-byte cp.async; rows from n_rows on become 0. All kThreads threads.
template <int kRows, int kThreads>
__device__ __forceinline__ void load_queries(const AttentionParams& p, int token0, int kv_head, int first_row,
                                             int n_rows, uint32_t smem, int thread) {
#pragma unroll
  for (int i = 0; i < kRows * 16 / kThreads; i++) {
    const int piece = i * kThreads + thread;
    const int row = piece / 16;  // 16 neighbouring threads read the 256 bytes of one row
    const int chunk = piece % 16;
    const bool valid = first_row + row < n_rows;
    const bf16* from = p.q + (valid ? row_offset(p, token0, kv_head, first_row + row) + chunk * 8 : 0);
    cp_async_16(smem + (row / 8) * 2048 + chunk * 128 + (row % 8) * 16, from, valid ? 16 : 0);
  }
}

// Copies the keys or values of the step at position `start` by 16-byte cp.async of 128 threads. block0, block1: KV
// blocks of its two halves. Slots after position `last` become 0: what stale memory holds (it may be NaN) must not meet
// P = 0.
__device__ __forceinline__ void load_step(const bf16* pool, int kv_head, int n_kv_heads, int block0, int block1,
                                          int start, int last, uint32_t smem, int thread) {
  const bf16* half0 = pool + (static_cast<int64_t>(block0) * n_kv_heads + kv_head) * kHeadBlock + thread * 8;
  const bf16* half1 = pool + (static_cast<int64_t>(block1) * n_kv_heads + kv_head) * kHeadBlock + thread * 8;
  const int key = start + thread % 8;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const bf16* from = (i < 4 ? half0 : half1) + (i % 4) * kTokenGroup;
    cp_async_16(smem + i * 2048 + thread * 16, from, key + i * 8 <= last ? 16 : 0);
  }
}

// A tile of a prefill kernel: rows [first_row, first_row + kRows) of a sequence.
struct TileOf {
  int seq;
  int first_row;
};

// Which tile is number `tile` when the tiles of all sequences with more than decode_rows rows stand one after the
// other. All kThreads threads call it; found: shared memory. A scan over the batch's sequences.
template <int kRows, int kThreads>
__device__ __forceinline__ TileOf find_tile(const AttentionParams& p, int tile, int (&found)[2 + kThreads / 32],
                                            int thread) {
  if (p.n_seqs == 1) return {0, tile * kRows};
  int before = 0;
  for (int first = 0; first < p.n_seqs; first += kThreads) {
    const int s = first + thread;
    int tiles = 0;
    if (s < p.n_seqs) {
      const int rows = (p.query_start[s + 1] - p.query_start[s]) * p.group;
      tiles = rows <= p.decode_rows ? 0 : (rows + kRows - 1) / kRows;
    }
    int sum = tiles;  // inclusive, within the warp
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, sum, d);
      if (thread % 32 >= d) sum += other;
    }
    if (thread % 32 == 31) found[2 + thread / 32] = sum;
    if (thread == 0) found[0] = -1;
    __syncthreads();
    int total = 0;
#pragma unroll
    for (int w = 0; w < kThreads / 32; w++) {
      if (w == thread / 32) sum += total;
      total += found[2 + w];
    }
    const int begin = before + sum - tiles;
    if (tiles > 0 && tile >= begin && tile < begin + tiles) {
      found[0] = s;
      found[1] = (tile - begin) * kRows;
    }
    __syncthreads();
    const TileOf result{found[0], found[1]};
    __syncthreads();  // before the next round writes
    if (result.seq >= 0) return result;
    before += total;
  }
  return {-1, 0};
}

// The same by each warp for itself.
template <int kRows>
__device__ __forceinline__ TileOf find_tile_warp(const AttentionParams& p, int tile, int lane) {
  if (p.n_seqs == 1) return {0, tile * kRows};
  int before = 0;
  for (int first = 0; first < p.n_seqs; first += 32) {
    const int s = first + lane;
    int tiles = 0;
    if (s < p.n_seqs) {
      const int rows = (p.query_start[s + 1] - p.query_start[s]) * p.group;
      tiles = rows <= p.decode_rows ? 0 : (rows + kRows - 1) / kRows;
    }
    int sum = tiles;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, sum, d);
      if (lane >= d) sum += other;
    }
    const int begin = before + sum - tiles;
    const unsigned found = __ballot_sync(0xffffffffu, tile >= begin && tile < begin + tiles);
    if (found != 0) {
      const int owner = __ffs(static_cast<int>(found)) - 1;
      return {first + owner, (tile - __shfl_sync(0xffffffffu, begin, owner)) * kRows};
    }
    before += __shfl_sync(0xffffffffu, sum, 31);
  }
  return {0, 0};  // not reached: the host counts the same tiles
}

// KV block of position `position`, clamped to the sequence's last block.
__device__ __forceinline__ int block_of(const int32_t* table, int position, int last) {
  return table[(position < last ? position : last) / kBlockSize];
}

}  // namespace qwen3::cuda

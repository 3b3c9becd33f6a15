// What the kernels for decode steps on Hopper share: parameters, and a split's softmax by four warps.
//
// In every step of kStep keys warp w scores keys [16w, 16w + 16) for the 16 rows of an m16 tile; the maxima of all
// steps of the split meet in shared memory; P goes through shared memory as bf16; warp w accumulates the w-th quarter
// of the output columns that its CTA makes: all of them in attention_step.cu, those of its part in
// attention_step_cluster.cu. Rows are the query heads of one token and KV head. Arithmetic: attention.cuh.
#pragma once

#include "backend/cuda/attention.cuh"
#include "backend/cuda/attention_decode.cuh"
#include "backend/cuda/head_norm.cuh"

namespace qwen3::cuda {

// Device pointers; shapes as in ops.h. Row s of the batch is the one new token of sequence s, or padding.
struct StepParams {
  const float* qkv;             // [n_seqs, n_heads + 2 n_kv_heads, 128]; of_sums: four such, to be added
  const bf16* q_norm;           // [128]
  const bf16* k_norm;           // [128]
  const float4* angles;         // [n_seqs, 32]: (cos, sin) of two neighbouring angles
  bf16* k;                      // [n_blocks, n_kv_heads, kHeadBlock], see kv_layout.h
  bf16* v;                      // same
  bf16* out;                    // [n_seqs, n_heads, 128]
  const int32_t* positions;     // [n_seqs]
  const int32_t* seq_of;        // [n_seqs]; -1: padding, which is skipped
  const int32_t* block_tables;  // [n_seqs, max_blocks]
  int n_seqs;
  int max_blocks;
  int n_heads;
  int n_kv_heads;
  int group;  // n_heads / n_kv_heads
  int max_splits;
  float scale;  // log2(e) / sqrt(128)
  float eps;
  float* partials;    // [states, group, kPartialRow]: o, then m and l, of the splits of pairs that span CTAs
  int32_t* counters;  // [n_seqs, n_kv_heads], zero between launches
  // Of attention_step_stream() alone.
  bool of_sums;
  const StepPiece* plan;  // [n_ctas]
  int n_ctas;
};

void attention_step_cluster(const StepParams& params, const Context& ctx);  // few CTAs: latency
void attention_step_stream(const StepParams& params, const Context& ctx);   // many: bandwidth

// Through which the warps of a split meet.
struct SplitScratch {
  uint32_t p_words[kSplitSteps][kMaxDecodeRows * kStep / 2];  // bf16 pairs: core matrices [row group 2][key chunk 8]
  float4 top[kSplitSteps][kMaxDecodeRows];                    // the four warps' maxima of a row
  float l[4][kMaxDecodeRows * 4];                             // key group t's sum of (row, lane of the quad)
};

// Of a warp and lane: where its part of a tile lies, in bytes from the tile's start.
struct SplitLane {
  int warp, lane;
  int row;              // g: the thread's rows are g and g + 8
  int column;           // 2c
  uint32_t q, k, p, v;  // ldmatrix rows: of queries, keys [16w..), P, values of columns [32w..)
  int at0, at1;         // in a row of l

  __device__ __forceinline__ explicit SplitLane(int thread) : warp(thread / 32), lane(thread % 32) {
    row = lane / 4;
    column = lane % 4 * 2;
    const uint32_t matrix = lane / 8;
    const uint32_t matrix_row = lane % 8 * 16;
    q = matrix % 2 * 2048 + matrix / 2 * 128 + matrix_row;
    k = (2 * warp + matrix / 2) * 2048 + matrix % 2 * 128 + matrix_row;
    p = matrix % 2 * 1024 + matrix / 2 * 128 + matrix_row;
    v = matrix % 2 * 2048 + (4 * warp + matrix / 2) * 128 + matrix_row;
    at0 = row * 4 + lane % 4;
    at1 = at0 + 32;
  }
};

// Where a lane's words of a head (head_norm.cuh) go in a tile of core matrices [row group][d chunk 16]; the high word
// lies 8 chunks on.
__device__ __forceinline__ void place_head(uint8_t* tile, int row, int lane, const HeadWords& words) {
  uint8_t* to = tile + row / 8 * 2048 + lane / 4 * 128 + row % 8 * 16 + lane % 4 * 4;
  *reinterpret_cast<uint32_t*>(to) = words.low;
  *reinterpret_cast<uint32_t*>(to + 8 * 128) = words.high;
}
// Word i of the warp's 32 columns of a value row.
__device__ __forceinline__ void place_value(uint8_t* tile, int row, int warp, int i, uint32_t word) {
  *reinterpret_cast<uint32_t*>(tile + row / 8 * 2048 + (4 * warp + i / 4) * 128 + row % 8 * 16 + i % 4 * 4) = word;
}

// Masks a step's scores of this warp's keys and returns their maxima, in every lane of a quad. limit: index within the
// step of the last visible key.
__device__ __forceinline__ float2 mask_and_top(const SplitLane& at, float (&s)[2][4], int limit) {
  mask_tile(s[0], at.warp * 16 + at.column, limit, limit);
  mask_tile(s[1], at.warp * 16 + at.column + 8, limit, limit);
  return make_float2(quad_max(fmaxf(fmaxf(s[0][0], s[0][1]), fmaxf(s[1][0], s[1][1]))),
                     quad_max(fmaxf(fmaxf(s[0][2], s[0][3]), fmaxf(s[1][2], s[1][3]))));
}
// Leaves step i's maxima of this warp's keys.
__device__ __forceinline__ void leave_top(SplitScratch& scratch, const SplitLane& at, int i, const float2& top) {
  if (at.column == 0) {
    reinterpret_cast<float*>(&scratch.top[i][at.row])[at.warp] = top.x;
    reinterpret_cast<float*>(&scratch.top[i][at.row + 8])[at.warp] = top.y;
  }
}

// After a barrier: scores become P in shared memory, and this warp's sums. alpha: what o must be multiplied by before
// each step; m: of the split.
__device__ __forceinline__ void softmax_split(SplitScratch& scratch, const SplitLane& at, float (&s)[kSplitSteps][2][4],
                                              int n_steps, float scale, float (&alpha)[kSplitSteps][2], float (&m)[2]) {
  m[0] = m[1] = -__builtin_inff();
  float l[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < kSplitSteps; i++) {
    if (i >= n_steps) break;
    const float4 t0 = scratch.top[i][at.row];
    const float4 t1 = scratch.top[i][at.row + 8];
    const float m0 = fmaxf(m[0], __fmul_rn(fmaxf(fmaxf(t0.x, t0.y), fmaxf(t0.z, t0.w)), scale));
    const float m1 = fmaxf(m[1], __fmul_rn(fmaxf(fmaxf(t1.x, t1.y), fmaxf(t1.z, t1.w)), scale));
    const float shift0 = finite_shift(m0);
    const float shift1 = finite_shift(m1);
    alpha[i][0] = exp2_approx(__fsub_rn(m[0], shift0));
    alpha[i][1] = exp2_approx(__fsub_rn(m[1], shift1));
    m[0] = m0;
    m[1] = m1;
    exponentiate(s[i][0], s[i][1], scale, shift0, shift1, alpha[i][0], alpha[i][1], l[0], l[1]);
    uint32_t words[4];
    pack_fragment(s[i][0], s[i][1], words);
    // P as core matrices [row group][key chunk]: words 0, 2 row g of chunks 2w, 2w + 1; 1, 3 row g + 8.
    uint32_t* to = scratch.p_words[i] + at.warp * 64 + at.lane;
    to[0] = words[0];
    to[256] = words[1];
    to[32] = words[2];
    to[256 + 32] = words[3];
  }
  scratch.l[at.warp][at.at0] = l[0];
  scratch.l[at.warp][at.at1] = l[1];
}

// o += P V of one step, for this warp's quarter of a part's columns. p: shared address of this lane's rows; values: of
// the part's values, core matrices [token group 8][d chunk 16 / kParts]. All operands are asked for before the first
// product, so that their latency shows once.
template <int kParts>
__device__ __forceinline__ void add_values(float (&o)[4 / kParts][4], uint32_t p, uint32_t values, int warp, int lane) {
  constexpr int kGroups = kStep / 16, kTiles = 4 / kParts;
  constexpr uint32_t kTokens = 2048 / kParts;  // bytes from one token group to the next
  const uint32_t matrix = lane / 8, row = lane % 8 * 16;
  uint32_t pa[kGroups][4], b[kGroups][kTiles][2];
#pragma unroll
  for (int t = 0; t < kGroups; t++) ldmatrix_x4(pa[t], p + t * 256);
  if constexpr (kTiles == 1) {  // two k16 at once
#pragma unroll
    for (int t = 0; t < kGroups; t += 2) {
      uint32_t both[4];
      ldmatrix_x4_trans(both, values + (2 * t + matrix) * kTokens + warp * 128 + row);
      b[t][0][0] = both[0], b[t][0][1] = both[1];
      b[t + 1][0][0] = both[2], b[t + 1][0][1] = both[3];
    }
  } else {  // two tiles at once
#pragma unroll
    for (int t = 0; t < kGroups; t++) {
#pragma unroll
      for (int j = 0; j < kTiles; j += 2) {
        uint32_t both[4];
        ldmatrix_x4_trans(both, values + (2 * t + matrix % 2) * kTokens + (kTiles * warp + j + matrix / 2) * 128 + row);
        b[t][j][0] = both[0], b[t][j][1] = both[1];
        b[t][j + 1][0] = both[2], b[t][j + 1][1] = both[3];
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kGroups; t++) {
#pragma unroll
    for (int j = 0; j < kTiles; j++) mma_bf16(o[j], pa[t], b[t][j][0], b[t][j][1]);
  }
}

// l of the thread's two rows, after a barrier.
__device__ __forceinline__ float2 split_sums(const SplitScratch& s, const SplitLane& at) {
  return make_float2(quad_sum(s.l[0][at.at0], s.l[1][at.at0], s.l[2][at.at0], s.l[3][at.at0]),
                     quad_sum(s.l[0][at.at1], s.l[1][at.at1], s.l[2][at.at1], s.l[3][at.at1]));
}

// Leaves a split's state of `group` rows at to [group, kPartialRow].
__device__ __forceinline__ void leave_state(float* to, int group, const SplitLane& at, const float (&o)[4][4],
                                            const float (&m)[2], const float2& l) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int r = at.row + half * 8;
    if (r >= group) continue;
    float* row = to + r * kPartialRow;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      *reinterpret_cast<float2*>(row + at.warp * 32 + at.column + j * 8) =
          make_float2(o[j][2 * half], o[j][2 * half + 1]);
    }
    if (at.warp == 0 && at.column == 0) {
      *reinterpret_cast<float2*>(row + kHeadDim) = make_float2(m[half], half == 0 ? l.x : l.y);
    }
  }
}

// Writes o / l of `group` rows to out [group, 128], columns of this warp's kTiles tiles of 8.
template <int kTiles>
__device__ __forceinline__ void write_pair(bf16* out, int group, const SplitLane& at, const Running<kTiles>& state) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int r = at.row + half * 8;
    if (r >= group) continue;
    const float inverse = __fdiv_rn(1.0f, state.l[half]);
    bf16* row = out + r * kHeadDim + at.warp * (8 * kTiles) + at.column;
#pragma unroll
    for (int j = 0; j < kTiles; j++) {
      *reinterpret_cast<uint32_t*>(row + j * 8) =
          pack_bf16(finish(state.o[j][2 * half], inverse), finish(state.o[j][2 * half + 1], inverse));
    }
  }
}

}  // namespace qwen3::cuda

// What the kernels for decode steps on Hopper share: parameters, and a split's softmax by four warps.
//
// Keys and values are the M of mma.sync and the query heads of one token and KV head its N, which is 8: with heads as
// M, which is 16, most of every product and of every softmax would be rows that are not there. In every step of kStep
// keys warp w scores keys [16w, 16w + 16); the maxima of all steps of the split meet in shared memory; P goes through
// shared memory as bf16; a warp accumulates a share of the output columns that its CTA makes, all of them in
// attention_step.cu, those of its part in attention_step_cluster.cu. Arithmetic: attention.cuh.
//
// Accumulators: lane 4 g + t holds heads 2t and 2t + 1, of scores keys g and g + 8 of the warp's, of outputs columns g
// and g + 8 of a tile of 16: element 2 i + h is that of key or column g + 8 i, head 2t + h.
#pragma once

#include "backend/cuda/attention.cuh"
#include "backend/cuda/attention_decode.cuh"
#include "backend/cuda/head_norm.cuh"

namespace qwen3::cuda {

inline constexpr int kMaxStepGroup = 8;  // query heads of a KV head

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
  uint32_t p_words[kSplitSteps][kStep * kMaxStepGroup / 2];  // bf16 pairs: core matrices [key chunk 8], rows are keys
  float4 top[kSplitSteps][kMaxStepGroup];                    // the four warps' maxima of a head
  float l[4][kMaxStepGroup * 4];                             // key group w's sum of (head, c), see attention.cuh
};

// Of a warp and lane.
struct SplitLane {
  int warp, lane;
  int g, head;       // head: 2t
  bool odd;          // g is; where this lane and its neighbour (g ^ 1) share their two heads, it has the second
  uint32_t k;        // where ldmatrix finds this lane's row of keys [16w..), in bytes from the tile's start
  uint32_t stacked;  // the same of four matrices one after the other: queries, P

  __device__ __forceinline__ explicit SplitLane(int thread) : warp(thread / 32), lane(thread % 32) {
    g = lane / 4;
    head = lane % 4 * 2;
    odd = g % 2 != 0;
    const uint32_t matrix = lane / 8;
    k = (2 * warp + matrix % 2) * 2048 + matrix / 2 * 128 + lane % 8 * 16;
    stacked = lane * 16;
  }
  // The head that is this lane's where neighbours share.
  __device__ __forceinline__ int own_head() const { return head + (odd ? 1 : 0); }
  // Of that head: this lane's value and its neighbour's. a, b: values of heads 2t and 2t + 1.
  __device__ __forceinline__ float2 share(float a, float b) const {
    return make_float2(odd ? b : a, __shfl_xor_sync(0xffffffffu, odd ? a : b, 4));
  }
};

// Values of heads 2t and 2t + 1.
struct Heads {
  float a, b;
};

// Where a lane's words of a head (head_norm.cuh) go in a tile of core matrices [row group][d chunk 16]; the high word
// lies 8 chunks on.
__device__ __forceinline__ void place_head(uint8_t* tile, int row, int lane, const HeadWords& words) {
  uint8_t* to = tile + row / 8 * 2048 + lane / 4 * 128 + row % 8 * 16 + lane % 4 * 4;
  *reinterpret_cast<uint32_t*>(to) = words.low;
  *reinterpret_cast<uint32_t*>(to + 8 * 128) = words.high;
}

// s += K q of this warp's 16 keys and k16 step k. keys: the A operand; q: of all k16 steps, two in each.
__device__ __forceinline__ void add_scores(float (&s)[4], const uint32_t (&keys)[4], const uint32_t (&q)[4][4], int k) {
  mma_bf16(s, keys, q[k / 2][k % 2 * 2], q[k / 2][k % 2 * 2 + 1]);
}
// from: shared address of queries, core matrices [d chunk 16].
__device__ __forceinline__ void load_step_queries(uint32_t (&q)[4][4], uint32_t from, const SplitLane& at) {
#pragma unroll
  for (int k = 0; k < 4; k++) ldmatrix_x4(q[k], from + at.stacked + k * 512);
}

// The maximum of a step's scores of this warp's keys, of which those after `limit` (index within the step) are masked:
// of head 2t in lanes with g below 4, of 2t + 1 in the others.
__device__ __forceinline__ float mask_and_top(const SplitLane& at, float (&s)[4], int limit) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if (at.warp * 16 + at.g + i / 2 * 8 > limit) s[i] = -__builtin_inff();
  }
  const float a = fmaxf(s[0], s[2]), b = fmaxf(s[1], s[3]);
  const bool second = at.g >= 4;
  float top = fmaxf(second ? b : a, __shfl_xor_sync(0xffffffffu, second ? a : b, 16));
  top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 8));
  return fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 4));
}
// Whether this lane is the one that tells what mask_and_top() found, and of which head.
__device__ __forceinline__ bool tells_top(const SplitLane& at) {
  return at.g % 4 == 0;
}
__device__ __forceinline__ int top_head(const SplitLane& at) {
  return at.head + at.g / 4;
}
__device__ __forceinline__ void leave_top(SplitScratch& scratch, const SplitLane& at, int step, float top) {
  if (tells_top(at)) reinterpret_cast<float*>(&scratch.top[step][top_head(at)])[at.warp] = top;
}

// After a barrier: scores become P in shared memory, and this warp's sums. alpha: what o must be multiplied by before
// each step; m: of the split.
__device__ __forceinline__ void softmax_split(SplitScratch& scratch, const SplitLane& at, float (&s)[kSplitSteps][4],
                                              int n_steps, float scale, Heads (&alpha)[kSplitSteps], Heads& m) {
  m.a = m.b = -__builtin_inff();
  float l = 0.0f;
#pragma unroll
  for (int i = 0; i < kSplitSteps; i++) {
    if (i >= n_steps) break;
    const float4 top_a = scratch.top[i][at.head];
    const float4 top_b = scratch.top[i][at.head + 1];
    const float m_a = fmaxf(m.a, __fmul_rn(fmaxf(fmaxf(top_a.x, top_a.y), fmaxf(top_a.z, top_a.w)), scale));
    const float m_b = fmaxf(m.b, __fmul_rn(fmaxf(fmaxf(top_b.x, top_b.y), fmaxf(top_b.z, top_b.w)), scale));
    const float shift_a = finite_shift(m_a), shift_b = finite_shift(m_b);
    alpha[i].a = exp2_approx(__fsub_rn(m.a, shift_a));
    alpha[i].b = exp2_approx(__fsub_rn(m.b, shift_b));
    m.a = m_a;
    m.b = m_b;
#pragma unroll
    for (int j = 0; j < 4; j++) s[i][j] = exp2_approx(__fmaf_rn(s[i][j], scale, j % 2 == 0 ? -shift_a : -shift_b));
    // Keys 2c and 2c + 1 are two neighbours', c = g / 2.
    const float2 low = at.share(s[i][0], s[i][1]), high = at.share(s[i][2], s[i][3]);
    l = __fmaf_rn(l, at.odd ? alpha[i].b : alpha[i].a, __fadd_rn(__fadd_rn(low.x, low.y), __fadd_rn(high.x, high.y)));
    uint32_t* to = scratch.p_words[i] + at.warp * 64 + at.lane;
    to[0] = pack_bf16(s[i][0], s[i][1]);
    to[32] = pack_bf16(s[i][2], s[i][3]);
  }
  scratch.l[at.warp][at.own_head() * 4 + at.g / 2] = l;
}

// l of this lane's heads, after a barrier.
__device__ __forceinline__ Heads split_sums(const SplitScratch& s, const SplitLane& at) {
  const float l = quad_sum(s.l[0][at.lane], s.l[1][at.lane], s.l[2][at.lane], s.l[3][at.lane]);  // of head lane / 4
  return {__shfl_sync(0xffffffffu, l, at.head * 4), __shfl_sync(0xffffffffu, l, at.head * 4 + 4)};
}

// P of a step, the B operands of its k16 steps, two in each. step: shared address of its words.
__device__ __forceinline__ void load_probabilities(uint32_t (&p)[kStep / 32][4], uint32_t step, const SplitLane& at) {
#pragma unroll
  for (int t = 0; t < kStep / 32; t++) ldmatrix_x4_trans(p[t], step + at.stacked + t * 512);
}
// o += P V of the first n_groups k16 steps of a step. values: shared address of this lane's row (ldmatrix) of the
// warp's columns, kTokens bytes from one group of 8 tokens to the next. All operands are asked for before the first
// product, so that their latency shows once.
template <int kTokens, int kTiles>
__device__ __forceinline__ void add_values(float (&o)[kTiles][4], const uint32_t (&p)[kStep / 32][4], uint32_t values,
                                           int n_groups) {
  uint32_t a[kStep / 16][kTiles][4];
#pragma unroll
  for (int t = 0; t < kStep / 16; t++) {
#pragma unroll
    for (int j = 0; j < kTiles; j++) ldmatrix_x4_trans(a[t][j], values + t * (2 * kTokens) + j * 256);
  }
#pragma unroll
  for (int t = 0; t < kStep / 16; t++) {
    if (t >= n_groups) break;
#pragma unroll
    for (int j = 0; j < kTiles; j++) mma_bf16(o[j], a[t][j], p[t / 2][t % 2 * 2], p[t / 2][t % 2 * 2 + 1]);
  }
}
// Where that row lies, from the start of values whose column `first` is this warp's first.
template <int kTokens>
__device__ __forceinline__ uint32_t value_row(int first, int lane) {
  const uint32_t matrix = lane / 8;
  return matrix / 2 * kTokens + (first / 8 + matrix % 2) * 128 + lane % 8 * 16;
}

// A factor of 1 changes no bit, and maxima mostly stand still.
template <int kTiles>
__device__ __forceinline__ void rescale(float (&o)[kTiles][4], const Heads& alpha) {
  if (!__any_sync(0xffffffffu, alpha.a != 1.0f || alpha.b != 1.0f)) return;
#pragma unroll
  for (int j = 0; j < kTiles; j++) {
#pragma unroll
    for (int i = 0; i < 4; i++) o[j][i] = __fmul_rn(o[j][i], i % 2 == 0 ? alpha.a : alpha.b);
  }
}

// The running state of all finished splits, of kTiles tiles of 16 columns.
template <int kTiles>
struct RunningHeads {
  float o[kTiles][4];
  Heads m, l;

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int j = 0; j < kTiles; j++) {
#pragma unroll
      for (int i = 0; i < 4; i++) o[j][i] = 0.0f;
    }
    m.a = m.b = -__builtin_inff();
    l.a = l.b = 0.0f;
  }
  __device__ __forceinline__ void add(const float (&split_o)[kTiles][4], const Heads& split_m, const Heads& split_l) {
    const MergeFactors a = merge_max(m.a, split_m.a);
    const MergeFactors b = merge_max(m.b, split_m.b);
    l.a = merge(l.a, split_l.a, a);
    l.b = merge(l.b, split_l.b, b);
#pragma unroll
    for (int j = 0; j < kTiles; j++) {
#pragma unroll
      for (int i = 0; i < 4; i++) o[j][i] = merge(o[j][i], split_o[j][i], i % 2 == 0 ? a : b);
    }
  }
  // Writes o / l of `group` heads to out [group, 128], columns `first` .. of this warp.
  __device__ __forceinline__ void write(bf16* out, int first, int group, const SplitLane& at) const {
    const float inverse_a = __fdiv_rn(1.0f, l.a), inverse_b = __fdiv_rn(1.0f, l.b);
    uint32_t* row = reinterpret_cast<uint32_t*>(out + at.own_head() * kHeadDim + first) + at.g / 2;
#pragma unroll
    for (int j = 0; j < kTiles; j++) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const float2 pair = at.share(finish(o[j][2 * i], inverse_a), finish(o[j][2 * i + 1], inverse_b));
        const uint32_t word = at.odd ? pack_bf16(pair.y, pair.x) : pack_bf16(pair.x, pair.y);
        if (at.own_head() < group) row[j * 8 + i * 4] = word;
      }
    }
  }
};

}  // namespace qwen3::cuda

// attention_decode.cu's parts: which work a CTA has, its queries, how a split's state leaves it, and the merge.
//
// Decode reads its batch arrays and every key and value older than the step's new tokens before griddep_wait(), so that
// these reads overlap with the kernels that still make q. That is right because between two steps stands the copy of
// the batch arrays, which no kernel overtakes, and because old keys were written by earlier steps: a block is shared or
// published only when the step that filled it is over, and nothing copies blocks inside a step.
#pragma once

#include "backend/cuda/attention.cuh"
#include "backend/cuda/attention.h"

namespace qwen3::cuda {

inline constexpr int kDecodeThreads = 128;
inline constexpr int kMergeStages = 4;
inline constexpr int kMergeChunk = 16 * 1024;  // bytes of partial states in one stage of the merge's ring

// What a decode CTA works on.
struct DecodeWork {
  int token0;     // the sequence's first row among the batch's tokens
  int n_rows;     // token x query head of the group
  int first_new;  // position of its first new token: keys before it are old
  int last;       // position of its last
};

// False: the sequence has no rows here.
__device__ __forceinline__ bool find_work(const AttentionParams& p, int seq, DecodeWork& w) {
  w.token0 = p.query_start[seq];
  const int n_tokens = p.query_start[seq + 1] - w.token0;
  w.n_rows = n_tokens * p.group;
  if (w.n_rows == 0 || w.n_rows > p.decode_rows) return false;
  w.first_new = p.positions[w.token0];
  w.last = w.first_new + n_tokens - 1;
  return true;
}

// The m16 tile's queries as core matrices [row group 2][d chunk 16][8][8]; rows from n_rows on are 0.
struct QueryPieces {
  uint4 piece[2];
};
__device__ __forceinline__ QueryPieces read_queries(const AttentionParams& p, const DecodeWork& w, int kv_head,
                                                    int thread) {
  QueryPieces q;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int row = i * 8 + thread / 16;  // 16 neighbouring threads read the 256 bytes of one row
    q.piece[i] = make_uint4(0, 0, 0, 0);
    if (row < w.n_rows) {
      q.piece[i] = *reinterpret_cast<const uint4*>(p.q + row_offset(p, w.token0, kv_head, row) + thread % 16 * 8);
    }
  }
  return q;
}
__device__ __forceinline__ void place_queries(const QueryPieces& q, uint8_t* smem, int thread) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    *reinterpret_cast<uint4*>(smem + i * 2048 + thread % 16 * 128 + thread / 16 * 16) = q.piece[i];
  }
}

// Writes o / l of the thread's two rows, columns column + 8 j, + 1.
__device__ __forceinline__ void write_rows(const AttentionParams& p, const DecodeWork& w, int kv_head, int column,
                                           int row, const Running<4>& state) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int r = row + half * 8;
    if (r >= w.n_rows) continue;
    const float inverse = __fdiv_rn(1.0f, state.l[half]);
    bf16* out = p.out + row_offset(p, w.token0, kv_head, r) + column;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      *reinterpret_cast<uint32_t*>(out + j * 8) =
          pack_bf16(finish(state.o[j][2 * half], inverse), finish(state.o[j][2 * half + 1], inverse));
    }
  }
}

// One row's merged state, 4 of its columns.
struct RowState {
  float4 o;
  float m, l;
  __device__ __forceinline__ void clear() {
    o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    m = -__builtin_inff();
    l = 0.0f;
  }
  __device__ __forceinline__ void add(const float4& split_o, float split_m, float split_l) {
    const MergeFactors f = merge_max(m, split_m);
    l = merge(l, split_l, f);
    o.x = merge(o.x, split_o.x, f);
    o.y = merge(o.y, split_o.y, f);
    o.z = merge(o.z, split_o.z, f);
    o.w = merge(o.w, split_o.w, f);
  }
  __device__ __forceinline__ void write(bf16* to) const {
    const float inverse = __fdiv_rn(1.0f, l);
    *reinterpret_cast<uint2*>(to) = make_uint2(pack_bf16(finish(o.x, inverse), finish(o.y, inverse)),
                                               pack_bf16(finish(o.z, inverse), finish(o.w, inverse)));
  }
};

// Merges n_splits partial states of all rows, in ascending order. Warp w takes rows w, w + 4, ..; a lane 4 of the 128
// columns. The states are contiguous and come through shared memory, kMergeStages chunks deep.
__device__ __forceinline__ void merge_partials(const AttentionParams& p, const DecodeWork& w, int64_t first_state,
                                               int n_splits, int kv_head, uint8_t* shared, int thread) {
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int state_bytes = p.partial_rows * kPartialRow * 4;
  const int per_chunk = kMergeChunk / state_bytes;
  const int n_chunks = (n_splits + per_chunk - 1) / per_chunk;
  const char* from = reinterpret_cast<const char*>(p.partials) + first_state * state_bytes;
  const uint32_t ring = shared_address(shared);
  const auto load = [&](int chunk) {
    if (chunk < n_chunks) {
      const int begin = chunk * per_chunk * state_bytes;
      const int bytes = min(per_chunk, n_splits - chunk * per_chunk) * state_bytes;
      for (int at = thread * 16; at < bytes; at += kDecodeThreads * 16) {
        cp_async_16(ring + chunk % kMergeStages * kMergeChunk + at, from + begin + at, 16);
      }
    }
    cp_async_commit();
  };
#pragma unroll
  for (int i = 0; i < kMergeStages - 1; i++) load(i);
  RowState rows[4];
#pragma unroll
  for (int j = 0; j < 4; j++) rows[j].clear();
  for (int chunk = 0; chunk < n_chunks; chunk++) {
    cp_async_wait<kMergeStages - 2>();
    __syncthreads();  // the chunk is there for all, and all are past the one whose stage is filled next
    load(chunk + kMergeStages - 1);
    const float* stage = reinterpret_cast<const float*>(shared + chunk % kMergeStages * kMergeChunk);
    const int n = min(per_chunk, n_splits - chunk * per_chunk);
#pragma unroll 4
    for (int i = 0; i < n; i++) {
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int r = warp + 4 * j;
        if (r >= w.n_rows) break;
        const float* state = stage + (i * p.partial_rows + r) * kPartialRow;
        const float4 o = *reinterpret_cast<const float4*>(state + lane * 4);
        const float2 ml = *reinterpret_cast<const float2*>(state + kHeadDim);
        rows[j].add(o, ml.x, ml.y);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const int r = warp + 4 * j;
    if (r >= w.n_rows) break;
    rows[j].write(p.out + row_offset(p, w.token0, kv_head, r) + lane * 4);
  }
}

// The end of a CTA that computed one split of several: leaves its state (o, m and l of the thread's two rows) in the
// workspace; the last CTA of the (sequence, KV head) to come merges all of them. Who that is changes nothing about the
// result. All threads; last_cta and shared [kMergeStages * kMergeChunk]: shared memory that nobody needs any more.
__device__ __forceinline__ void leave_split(const AttentionParams& p, const DecodeWork& w, int seq, int kv_head,
                                            int split, int n_splits, const float (&o)[4][4], const float (&m)[2],
                                            float l0, float l1, int& last_cta, uint8_t* shared, int thread) {
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int column = lane % 4 * 2;
  const int64_t pair = static_cast<int64_t>(seq) * p.n_kv_heads + kv_head;
  const int64_t first_state = pair * p.max_splits;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int r = lane / 4 + half * 8;
    if (r >= w.n_rows) continue;
    float* to = p.partials + ((first_state + split) * p.partial_rows + r) * kPartialRow;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      *reinterpret_cast<float2*>(to + warp * 32 + column + j * 8) = make_float2(o[j][2 * half], o[j][2 * half + 1]);
    }
    if (warp == 0 && column == 0) *reinterpret_cast<float2*>(to + kHeadDim) = make_float2(m[half], half == 0 ? l0 : l1);
  }
  __threadfence();
  __syncthreads();
  if (thread == 0) last_cta = atomicAdd(p.counters + pair, 1) == n_splits - 1 ? 1 : 0;
  __syncthreads();
  if (last_cta == 0) return;
  __threadfence();
  if (thread == 0) p.counters[pair] = 0;  // ready for the next launch
  merge_partials(p, w, first_state, n_splits, kv_head, shared, thread);
}

}  // namespace qwen3::cuda

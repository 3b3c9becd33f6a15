// What happens to finished sums, the same arithmetic in every matrix product. The intrinsics keep the compiler from
// contracting operations in one kernel and not in another.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "backend/cuda/linear_kernels.h"
#include "backend/cuda/segments.cuh"

namespace qwen3::cuda {

// silu(gate) * up = gate / (1 + exp(-gate)) * up, each step rounded to float32.
__device__ __forceinline__ float silu_times(float gate, float up) {
  const float denominator = __fadd_rn(1.0f, __expf(-gate));
  return __fmul_rn(__fdiv_rn(gate, denominator), up);
}

// The same for eight pairs, equal bits, in a third of the time: a division by itself is a test and a branch, which
// keeps its latency from being hidden. Here one branch for all; within its range gate / d needs no care of exponents,
// and the five steps are those of __fdiv_rn.
__device__ __forceinline__ void silu_times(const float (&gate)[8], const float (&up)[8], float (&out)[8]) {
  constexpr uint32_t kLeast = 0x21800000, kMost = 0x42700000;  // 2^-60, 60
  bool plain = true;
#pragma unroll
  for (int i = 0; i < 8; i++) plain &= (__float_as_uint(gate[i]) & 0x7fffffff) - kLeast <= kMost - kLeast;
  if (plain) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const float d = __fadd_rn(1.0f, __expf(-gate[i]));
      float r;
      asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
      r = __fmaf_rn(r, __fmaf_rn(-d, r, 1.0f), r);
      const float q = __fmul_rn(gate[i], r);
      out[i] = __fmul_rn(__fmaf_rn(r, __fmaf_rn(-d, q, gate[i]), q), up[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++) out[i] = silu_times(gate[i], up[i]);
  }
}

// Two neighbours as bf16 in one word, `low` first in memory.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ uint16_t to_bf16(float x) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

// The ones below store a wgmma result of 64 rows x `tile` outputs: `row` and `column` are this lane's first ones
// (in kGateUp, column counts packed rows: 8 gates, 8 ups).
template <int tile>
__device__ __forceinline__ void store_gated(const LinearCall& call, const float (&y)[tile / 2], int row, int column) {
  const int n_out = call.n_out;
#pragma unroll
  for (int h = 0; h < 2; h++) {  // rows row and row + 8
    if (row + h * 8 >= call.n_rows) continue;
    uint16_t* to = call.gated + static_cast<int64_t>(row + h * 8) * n_out;
#pragma unroll
    for (int b = 0; b < tile / 16; b++) {  // one packed block: 8 gates, then 8 ups
      const int out = column / 2 + b * 8;  // column is the first of the tile plus 2 * (2 q)
      const float low = silu_times(y[b * 8 + h * 2], y[b * 8 + 4 + h * 2]);
      const float high = silu_times(y[b * 8 + h * 2 + 1], y[b * 8 + 4 + h * 2 + 1]);
      if (n_out % 2 == 0) {
        if (out < n_out) *reinterpret_cast<uint32_t*>(to + out) = pack_bf16(low, high);
      } else {
        if (out < n_out) to[out] = to_bf16(low);
        if (out + 1 < n_out) to[out + 1] = to_bf16(high);
      }
    }
  }
}

// The output's present values at the places of store_sums(); what is outside stays as it is.
template <int tile>
__device__ __forceinline__ void load_sums(const LinearCall& call, float (&old)[tile / 2], int row, int column) {
  const int n_out = call.n_out;
#pragma unroll
  for (int i = 0; i < tile / 2; i += 2) {
    const int token = row + i / 2 % 2 * 8, out = column + i / 4 * 8;
    if (token >= call.n_rows) continue;
    const float* from = call.out + static_cast<int64_t>(token) * n_out + out;
    if (n_out % 2 == 0 && out < n_out) {
      const float2 v = *reinterpret_cast<const float2*>(from);
      old[i] = v.x;
      old[i + 1] = v.y;
    } else {
      if (out < n_out) old[i] = from[0];
      if (out + 1 < n_out) old[i + 1] = from[1];
    }
  }
}

// accumulate: adds to what is there.
template <int tile>
__device__ __forceinline__ void store_sums(const LinearCall& call, const float (&y)[tile / 2], int row, int column,
                                           bool accumulate) {
  const int n_out = call.n_out;
  constexpr int kBatch = tile / 8 < 8 ? tile / 8 : 8;  // pairs whose old values are loaded together
#pragma unroll
  for (int h = 0; h < 2; h++) {
    if (row + h * 8 >= call.n_rows) continue;
    float* to = call.out + static_cast<int64_t>(row + h * 8) * n_out;
    if (n_out % 2 == 0) {
#pragma unroll
      for (int first = 0; first < tile / 8; first += kBatch) {
        float2 old[kBatch];
#pragma unroll
        for (int b = 0; b < kBatch; b++) {
          const int out = column + (first + b) * 8;
          old[b] = make_float2(0.0f, 0.0f);
          if (accumulate && out < n_out) old[b] = *reinterpret_cast<const float2*>(to + out);
        }
#pragma unroll
        for (int b = 0; b < kBatch; b++) {
          const int out = column + (first + b) * 8, i = (first + b) * 4 + h * 2;
          float2 v = make_float2(y[i], y[i + 1]);
          if (accumulate) v = make_float2(__fadd_rn(old[b].x, v.x), __fadd_rn(old[b].y, v.y));
          if (out < n_out) *reinterpret_cast<float2*>(to + out) = v;
        }
      }
    } else {
#pragma unroll
      for (int b = 0; b < tile / 8; b++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int out = column + b * 8 + e;
          const float v = y[b * 4 + h * 2 + e];
          if (out < n_out) to[out] = accumulate ? __fadd_rn(to[out], v) : v;
        }
      }
    }
  }
}

// The ones below are for a wgmma result of 64 outputs, a slab, x `sums` * 2 tokens. Accumulator i of a thread: output g
// (i / 2 % 2 == 0) or g + 8 of its warp's row tile, token 8 (i / 4) + 2 q + i % 2; g = lane / 4, q = lane % 4.

// use(i, token, output) for each of the outputs that there are.
template <int sums, class Use>
__device__ __forceinline__ void for_each_output(const LinearCall& call, int row_tile, int lane, Use use) {
#pragma unroll
  for (int i = 0; i < sums; i++) {
    const int token = i / 4 * 8 + lane % 4 * 2 + i % 2, out = row_tile * kPackRows + lane / 4 + i / 2 % 2 * 8;
    if (token < call.n_rows && out < call.n_out) use(i, token, out);
  }
}
// A row tile of kGateUp has 8 gates, then the 8 ups of the same outputs.
template <int sums>
__device__ __forceinline__ void store_gated_slab(const LinearCall& call, const float (&y)[sums], int row_tile,
                                                 int lane) {
  const int out = row_tile * 8 + lane / 4;
#pragma unroll
  for (int first = 0; first < sums; first += 16) {
    float gate[8], up[8], value[8];
#pragma unroll
    for (int k = 0; k < 8; k++) {
      // For 8 tokens none of which is there: a gate that does not take silu_times' long way.
      gate[k] = first * 2 + k / 2 * 8 < call.n_rows ? y[first + k / 2 * 4 + k % 2] : 1.0f;
      up[k] = y[first + k / 2 * 4 + k % 2 + 2];
    }
    silu_times(gate, up, value);
#pragma unroll
    for (int k = 0; k < 8; k++) {
      const int token = first * 2 + k / 2 * 8 + lane % 4 * 2 + k % 2;
      if (token < call.n_rows && out < call.n_out) {
        call.gated[static_cast<int64_t>(token) * call.n_out + out] = to_bf16(value[k]);
      }
    }
  }
}

// What becomes of a warp's part of a slab, in every mode. batch: outputs whose old values are asked for together.
template <int batch, int sums>
__device__ __forceinline__ void finish_slab(const LinearCall& call, const float (&y)[sums], int row_tile, int lane) {
  if (call.mode == LinearMode::kGateUp) return store_gated_slab(call, y, row_tile, lane);
#pragma unroll
  for (int first = 0; first < sums; first += batch) {
    float old[batch];
    const auto each = [&](auto use) {
      for_each_output<sums>(call, row_tile, lane, [&](int i, int token, int out) {
        if (i >= first && i < first + batch) use(i, call.out + static_cast<int64_t>(token) * call.n_out + out);
      });
    };
    if (call.mode == LinearMode::kAccumulate) each([&](int i, const float* from) { old[i - first] = *from; });
    each(
        [&](int i, float* to) { *to = call.mode == LinearMode::kAccumulate ? __fadd_rn(old[i - first], y[i]) : y[i]; });
  }
}

}  // namespace qwen3::cuda

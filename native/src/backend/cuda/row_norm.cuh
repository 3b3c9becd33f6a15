// The one order in which a row's sum of squares is added, for every kernel that normalises rows.
//
// 256 virtual lanes: lane t adds the squares of elements 4 t .. 4 t + 3 of every 1,024 elements, ascending, by fused
// multiply-adds into one float32; elements past the end count as 0. Lanes are then added in a fixed tree: inside each
// group of 32 by halves (distance 16, 8, 4, 2, 1), the 8 groups as ((g0 + g1) + (g2 + g3)) + ((g4 + g5) + (g6 + g7)).
// It does not matter how many threads play the lanes, so kernels of any block size give the same bits.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace qwen3::cuda {

inline constexpr int kNormLanes = 256;
inline constexpr int kNormStride = kNormLanes * 4;

__device__ __forceinline__ float norm_add(float sum, const float4& v) {
  sum = __fmaf_rn(v.x, v.x, sum);
  sum = __fmaf_rn(v.y, v.y, sum);
  sum = __fmaf_rn(v.z, v.z, sum);
  return __fmaf_rn(v.w, v.w, sum);
}
// Part of virtual lane `t` in row [hidden] f32, 16-byte aligned, hidden % 4 == 0.
__device__ __forceinline__ float norm_lane(const float* row, int hidden, int t) {
  float sum = 0.0f;
  for (int i = t * 4; i < hidden; i += kNormStride) sum = norm_add(sum, *reinterpret_cast<const float4*>(row + i));
  return sum;
}
// Sum over 32 virtual lanes held by the lanes of a warp; the same value in every lane, because a + b == b + a.
__device__ __forceinline__ float norm_group(float sum) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, distance));
  }
  return sum;
}
__device__ __forceinline__ float norm_groups(const float (&g)[8]) {
  return __fadd_rn(__fadd_rn(__fadd_rn(g[0], g[1]), __fadd_rn(g[2], g[3])),
                   __fadd_rn(__fadd_rn(g[4], g[5]), __fadd_rn(g[6], g[7])));
}
__device__ __forceinline__ float norm_scale(float sum, int hidden, float eps) {
  return __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(sum, static_cast<float>(hidden)), eps)));
}

// Scale of a row by a whole CTA of 256 threads, thread t with the part of virtual lane t; `groups` [8] in shared
// memory. The caller synchronises before it uses `groups` again.
__device__ __forceinline__ float norm_scale_block(float lane_sum, int hidden, float eps, float* groups) {
  const float sum = norm_group(lane_sum);
  if (threadIdx.x % 32 == 0) groups[threadIdx.x / 32] = sum;
  __syncthreads();
  const float g[8] = {groups[0], groups[1], groups[2], groups[3], groups[4], groups[5], groups[6], groups[7]};
  return norm_scale(norm_groups(g), hidden, eps);
}
// Scale of a row by one warp.
__device__ __forceinline__ float norm_row_warp(const float* row, int hidden, float eps) {
  float g[8];
#pragma unroll
  for (int w = 0; w < 8; w++) g[w] = norm_group(norm_lane(row, hidden, w * 32 + static_cast<int>(threadIdx.x) % 32));
  return norm_scale(norm_groups(g), hidden, eps);
}
// One normalised element: (x * scale) * weight, rounded to bf16 once.
__device__ __forceinline__ float norm_element(float x, float scale, float weight) {
  return __fmul_rn(__fmul_rn(x, scale), weight);
}

}  // namespace qwen3::cuda

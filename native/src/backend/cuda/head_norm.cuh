// One head of one token through RMSNorm and RoPE: the arithmetic that every kernel which makes q and k shares.
//
// Lane i holds elements 2i, 2i + 1 and 64 + 2i, 64 + 2i + 1 of the head, i.e. two pairs that RoPE rotates. Sum of
// squares: ((x0^2 + x1^2) + y0^2) + y1^2 by fma, then a butterfly over the lanes (distance 16, 8, 4, 2, 1). Cos and sin
// come from rope_angles.cu.
#pragma once

#include <cstdint>

#include "backend/cuda/kv_layout.h"

namespace qwen3::cuda {

// A lane's four elements.
struct HeadLane {
  float2 low, high;
};
// The same rounded to bf16, as pairs.
struct HeadWords {
  uint32_t low, high;
};

__device__ __forceinline__ HeadLane load_head(const float* head, int lane) {  // [128] f32
  return {reinterpret_cast<const float2*>(head)[lane], reinterpret_cast<const float2*>(head)[32 + lane]};
}
__device__ __forceinline__ HeadLane load_norm_weight(const bf16* weight, int lane) {  // [128] bf16
  const auto unpack = [](uint32_t pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  };
  const uint32_t* words = reinterpret_cast<const uint32_t*>(weight);
  return {unpack(words[lane]), unpack(words[32 + lane])};
}

__device__ __forceinline__ uint32_t head_word(float lower, float upper) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(upper), "f"(lower));
  return pair;
}

__device__ __forceinline__ float head_squares(const HeadLane& head) {
  const float2 x = head.low;
  const float2 y = head.high;
  return __fmaf_rn(y.y, y.y, __fmaf_rn(y.x, y.x, __fmaf_rn(x.y, x.y, __fmul_rn(x.x, x.x))));
}
__device__ __forceinline__ float head_scale(float sum, float eps) {  // sum: of squares, over all lanes
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fmul_rn(sum, 1.0f / kHeadDim), eps)));
}
// angles: (cos, sin) of elements 2i and 2i + 1.
__device__ __forceinline__ HeadWords scale_rope(const HeadLane& head, float scale, const HeadLane& weight,
                                                const float4& angles) {
  const float x0 = __fmul_rn(__fmul_rn(head.low.x, scale), weight.low.x);
  const float x1 = __fmul_rn(__fmul_rn(head.low.y, scale), weight.low.y);
  const float y0 = __fmul_rn(__fmul_rn(head.high.x, scale), weight.high.x);
  const float y1 = __fmul_rn(__fmul_rn(head.high.y, scale), weight.high.y);
  const float cos0 = angles.x, sin0 = angles.y, cos1 = angles.z, sin1 = angles.w;
  return {head_word(__fmaf_rn(x0, cos0, -__fmul_rn(y0, sin0)), __fmaf_rn(x1, cos1, -__fmul_rn(y1, sin1))),
          head_word(__fmaf_rn(y0, cos0, __fmul_rn(x0, sin0)), __fmaf_rn(y1, cos1, __fmul_rn(x1, sin1)))};
}

// All lanes of the warp.
__device__ __forceinline__ HeadWords norm_rope(const HeadLane& head, const HeadLane& weight, const float4& angles,
                                               float eps) {
  float sum = head_squares(head);
#pragma unroll
  for (int d = 16; d > 0; d /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, d));
  return scale_rope(head, head_scale(sum, eps), weight, angles);
}

}  // namespace qwen3::cuda

// The one order in which the sums of a product's segments of K are added, for the kernels that make a product and for
// those that read the sums which linear_sums() leaves: ((s0 + s1) + s2) + s3 (docs/numerics.md).
#pragma once

#include "backend/cuda/kernels.h"

namespace qwen3::cuda {

__device__ __forceinline__ float sum_segments(float s0, float s1, float s2, float s3) {
  return __fadd_rn(__fadd_rn(__fadd_rn(s0, s1), s2), s3);
}
__device__ __forceinline__ float4 sum_segments(const float4 (&v)[kSegments]) {
  return make_float4(sum_segments(v[0].x, v[1].x, v[2].x, v[3].x), sum_segments(v[0].y, v[1].y, v[2].y, v[3].y),
                     sum_segments(v[0].z, v[1].z, v[2].z, v[3].z), sum_segments(v[0].w, v[1].w, v[2].w, v[3].w));
}

}  // namespace qwen3::cuda

// RMSNorm of whole rows: float32 in, bfloat16 out, rounded once at the end. The sum's order: row_norm.cuh.
//
// Grid (row), 256 threads, four elements of every 1,024 each, held in registers. In a decode step the norm stands
// between two products, so its latency counts: weights (which a step's stream has driven out of the second-level cache)
// and the row's number are read before griddep_wait(), so that behind it are one read of x, the sum and the store. Else
// bound by reading x.
#include <string>
#include <type_traits>

#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/row_norm.cuh"
#include "backend/cuda/segments.cuh"
#include "base/error.h"

namespace qwen3::cuda {
namespace {

constexpr int kMostHeld = 8;  // times kNormStride: elements of the widest row

__device__ __forceinline__ uint32_t scaled_pair(float low, float high, float scale, uint32_t weights) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
      : "=r"(pair)
      : "f"(norm_element(high, scale, __uint_as_float(weights & 0xffff0000u))),
        "f"(norm_element(low, scale, __uint_as_float(weights << 16))));
  return pair;
}

// x [*, hidden] float32; weight [hidden] bf16; row_index [n_rows] or nullptr, of the step's arrays, which are there
// before its first kernel; out [n_rows, hidden] bf16. adds: row_index is nullptr, and the segments' sums [kSegments,
// n_rows, hidden] are first added to x.
template <int held, bool adds>
__global__ void __launch_bounds__(kNormLanes)
    rms_norm_kernel(std::conditional_t<adds, float*, const float*> x, const float* sums, const bf16* weight,
                    const int32_t* row_index, int hidden, float eps, bf16* out) {
  __shared__ float groups[8];
  griddep_launch();
  const int first = static_cast<int>(threadIdx.x) * 4;
  uint2 weights[held] = {};
#pragma unroll
  for (int i = 0; i < held; i++) {
    const int at = first + i * kNormStride;
    if (at < hidden) weights[i] = *reinterpret_cast<const uint2*>(weight + at);
  }
  const int64_t row = row_index != nullptr ? row_index[blockIdx.x] : static_cast<int64_t>(blockIdx.x);
  griddep_wait();
  float4 values[held] = {};
#pragma unroll
  for (int i = 0; i < held; i++) {
    const int at = first + i * kNormStride;
    if (at < hidden) values[i] = *reinterpret_cast<const float4*>(x + row * hidden + at);
  }
  if constexpr (adds) {
    const int64_t segment = static_cast<int64_t>(gridDim.x) * hidden;
    float4 parts[held][kSegments] = {};
#pragma unroll
    for (int i = 0; i < held; i++) {
      const int at = first + i * kNormStride;
      if (at >= hidden) continue;
#pragma unroll
      for (int s = 0; s < kSegments; s++)
        parts[i][s] = *reinterpret_cast<const float4*>(sums + s * segment + row * hidden + at);
    }
#pragma unroll
    for (int i = 0; i < held; i++) {
      const int at = first + i * kNormStride;
      if (at >= hidden) continue;
      float4& v = values[i];
      const float4 sum = sum_segments(parts[i]);
      v = make_float4(__fadd_rn(v.x, sum.x), __fadd_rn(v.y, sum.y), __fadd_rn(v.z, sum.z), __fadd_rn(v.w, sum.w));
      *reinterpret_cast<float4*>(x + row * hidden + at) = v;
    }
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < held; i++) {
    if (first + i * kNormStride < hidden) sum = norm_add(sum, values[i]);
  }
  const float scale = norm_scale_block(sum, hidden, eps, groups);
#pragma unroll
  for (int i = 0; i < held; i++) {
    const int at = first + i * kNormStride;
    if (at >= hidden) continue;
    const float4& v = values[i];
    *reinterpret_cast<uint2*>(out + static_cast<int64_t>(blockIdx.x) * hidden + at) =
        make_uint2(scaled_pair(v.x, v.y, scale, weights[i].x), scaled_pair(v.z, v.w, scale, weights[i].y));
  }
}

template <bool adds>
void run(const RmsNormArgs& args, std::conditional_t<adds, float*, const float*> x, const Context& ctx) {
  if (args.n_rows == 0) return;
  if (args.hidden % 4 != 0 || args.hidden > kMostHeld * kNormStride) {
    throw Error(Status::kUnsupported, "RMSNorm on the GPU needs a hidden size that is a multiple of 4 and at most " +
                                          std::to_string(kMostHeld * kNormStride) + ", this model has " +
                                          std::to_string(args.hidden));
  }
  const auto go = [&](auto kernel) {
    launch("launching rms_norm", kernel, {dim3(static_cast<unsigned>(args.n_rows)), dim3(kNormLanes)}, ctx, x, ctx.sums,
           args.weight, args.row_index, args.hidden, args.eps, args.out);
  };
  const int n = (args.hidden + kNormStride - 1) / kNormStride;
  if (n == 1) return go(rms_norm_kernel<1, adds>);
  if (n <= 4) return go(rms_norm_kernel<4, adds>);
  go(rms_norm_kernel<kMostHeld, adds>);
}

}  // namespace

void rms_norm(const RmsNormArgs& args, const Context& ctx) {
  run<false>(args, args.x, ctx);
}

void rms_norm_of_sums(const RmsNormArgs& args, float* x, const Context& ctx) {
  if (args.x != x || args.row_index != nullptr)
    throw Error(Status::kInternal, "a norm behind a residual add must be of all rows of what is added to");
  run<true>(args, x, ctx);
}

}  // namespace qwen3::cuda

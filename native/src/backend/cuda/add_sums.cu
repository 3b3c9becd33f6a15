// What finishes a product of which linear_sums() has made half, where its reader does not: a residual product without a
// norm behind it, as the last layer's down_proj.
//
// A thread has four neighbouring outputs. Bound by latency: the sums are still in the second-level cache.
#include "backend/cuda/launch.h"
#include "backend/cuda/linear_kernels.h"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/segments.cuh"

namespace qwen3::cuda {
namespace {

constexpr int kThreads = 256;

// out [n], sums [kSegments, n]; n4 = n / 4
__global__ void __launch_bounds__(kThreads)
    add_sums_kernel(const float4* sums, float4* out, int64_t n4, bool accumulate) {
  griddep_launch();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  griddep_wait();
  if (i >= n4) return;
  const float4 parts[kSegments] = {sums[i], sums[n4 + i], sums[2 * n4 + i], sums[3 * n4 + i]};
  float4 y = sum_segments(parts);
  if (accumulate) {
    const float4 old = out[i];
    y = make_float4(__fadd_rn(old.x, y.x), __fadd_rn(old.y, y.y), __fadd_rn(old.z, y.z), __fadd_rn(old.w, y.w));
  }
  out[i] = y;
}

}  // namespace

void add_sums(const LinearCall& call, const Context& ctx) {
  const int64_t n4 = static_cast<int64_t>(call.n_rows) * call.n_out / 4;
  launch("adding the sums of a product", add_sums_kernel,
         {dim3(static_cast<unsigned>((n4 + kThreads - 1) / kThreads)), dim3(kThreads)}, ctx,
         reinterpret_cast<const float4*>(ctx.sums), reinterpret_cast<float4*>(call.out), n4,
         call.mode == LinearMode::kAccumulate);
}

}  // namespace qwen3::cuda

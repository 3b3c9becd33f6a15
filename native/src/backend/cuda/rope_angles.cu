// RoPE's factors of a step, (cos, sin) of position * inv_freq[i] times rope_scale: once per step, read by every layer.
//
// A thread per (token, i). Angles follow transformers: the product in float32, then an accurate sincosf.
#include "backend/cuda/kernels.h"
#include "backend/cuda/kv_layout.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/ptx.cuh"

namespace qwen3::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kHalf = kHeadDim / 2;

// positions [n_tokens], inv_freq [64], out [n_tokens, 64]
__global__ void __launch_bounds__(kThreads)
    rope_angles_kernel(const int32_t* positions, const float* inv_freq, float scale, int n_tokens, float2* out) {
  const int at = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  griddep_launch();
  griddep_wait();
  if (at >= n_tokens * kHalf) return;
  float sin = 0.0f, cos = 0.0f;
  sincosf(__fmul_rn(static_cast<float>(positions[at / kHalf]), inv_freq[at % kHalf]), &sin, &cos);
  out[at] = make_float2(__fmul_rn(cos, scale), __fmul_rn(sin, scale));
}

}  // namespace

void rope_angles(const RopeAnglesArgs& args, const Context& ctx) {
  const int n = args.batch->n_tokens;
  if (n == 0) return;
  const dim3 blocks(static_cast<unsigned>((static_cast<int64_t>(n) * kHalf + kThreads - 1) / kThreads));
  launch("launching rope_angles", rope_angles_kernel, {blocks, dim3(kThreads)}, ctx, args.batch->positions,
         args.inv_freq, args.rope_scale, n, reinterpret_cast<float2*>(args.out));
}

}  // namespace qwen3::cuda

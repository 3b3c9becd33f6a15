// RMSNorm of whole rows: float32 in, bfloat16 out, rounded once at the end. The sum's order: row_norm.cuh.
//
// Grid (row), 256 threads. The row is read twice, the second time from L1. Latency-bound for small batches, else bound
// by reading x.
#include <string>

#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/row_norm.cuh"
#include "base/error.h"

namespace qwen3::cuda {
namespace {

// x [*, hidden] float32; weight [hidden] bf16; row_index [n_rows] or nullptr; out [n_rows, hidden] bf16
__global__ void __launch_bounds__(kNormLanes)
    rms_norm_kernel(const float* x, const bf16* weight, const int32_t* row_index, int hidden, float eps, bf16* out) {
  __shared__ float groups[8];
  griddep_launch();
  griddep_wait();
  const int64_t row = row_index != nullptr ? row_index[blockIdx.x] : static_cast<int64_t>(blockIdx.x);
  const float* from = x + row * hidden;
  bf16* to = out + static_cast<int64_t>(blockIdx.x) * hidden;
  const float scale = norm_row_block(from, hidden, eps, groups);
  for (int i = static_cast<int>(threadIdx.x) * 4; i < hidden; i += kNormStride) {
    const float4 v = *reinterpret_cast<const float4*>(from + i);
    const uint2 w = *reinterpret_cast<const uint2*>(weight + i);
    const float y0 = norm_element(v.x, scale, __uint_as_float(w.x << 16));
    const float y1 = norm_element(v.y, scale, __uint_as_float(w.x & 0xffff0000u));
    const float y2 = norm_element(v.z, scale, __uint_as_float(w.y << 16));
    const float y3 = norm_element(v.w, scale, __uint_as_float(w.y & 0xffff0000u));
    uint2 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed.x) : "f"(y1), "f"(y0));
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed.y) : "f"(y3), "f"(y2));
    *reinterpret_cast<uint2*>(to + i) = packed;
  }
}

}  // namespace

void rms_norm(const RmsNormArgs& args, const Context& ctx) {
  if (args.n_rows == 0) return;
  if (args.hidden % 4 != 0) {
    throw Error(Status::kUnsupported,
                "RMSNorm on the GPU needs a hidden size that is a multiple of 4, this model has " +
                    std::to_string(args.hidden));
  }
  launch("launching rms_norm", rms_norm_kernel, {dim3(static_cast<unsigned>(args.n_rows)), dim3(kNormLanes)}, ctx,
         args.x, args.weight, args.row_index, args.hidden, args.eps, args.out);
}

}  // namespace qwen3::cuda

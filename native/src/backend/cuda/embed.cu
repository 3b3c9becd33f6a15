// Embedding rows, widened to float32.
//
// Grid (token, pieces of 2,048 elements), 256 threads: a thread widens 8 elements (one 16-byte load, two 16-byte
// stores). Rows whose length is not a multiple of 8 go element by element.
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/ptx.cuh"

namespace qwen3::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPiece = kThreads * 8;

__device__ __forceinline__ float low_half(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_half(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

// ids [n_tokens], -1 - r: last_tokens[r]; table [vocab, hidden] bf16; out [n_tokens, hidden] float32
__global__ void __launch_bounds__(kThreads)
    embed_kernel(const int32_t* ids, const int32_t* last_tokens, const bf16* table, float* out, int hidden) {
  const int at = static_cast<int>(blockIdx.y * kPiece + threadIdx.x * 8);
  griddep_launch();
  griddep_wait();
  if (at >= hidden) return;
  int id = ids[blockIdx.x];
  if (id < 0) id = last_tokens[-1 - id];
  const bf16* from = table + static_cast<int64_t>(id) * hidden + at;
  float* to = out + static_cast<int64_t>(blockIdx.x) * hidden + at;
  if (hidden % 8 == 0) {
    const uint4 x = *reinterpret_cast<const uint4*>(from);
    reinterpret_cast<float4*>(to)[0] = make_float4(low_half(x.x), high_half(x.x), low_half(x.y), high_half(x.y));
    reinterpret_cast<float4*>(to)[1] = make_float4(low_half(x.z), high_half(x.z), low_half(x.w), high_half(x.w));
  } else {
    for (int i = 0; i < 8 && at + i < hidden; i++) to[i] = low_half(from[i]);
  }
}

}  // namespace

void embed(const EmbedArgs& args, const int32_t* last_tokens, const Context& ctx) {
  const BatchView& batch = *args.batch;
  if (batch.n_tokens == 0) return;
  const dim3 blocks(static_cast<unsigned>(batch.n_tokens), static_cast<unsigned>((args.hidden + kPiece - 1) / kPiece));
  launch("launching embed", embed_kernel, {blocks, dim3(kThreads)}, ctx, batch.token_ids, last_tokens, args.table,
         args.out, args.hidden);
}

}  // namespace qwen3::cuda

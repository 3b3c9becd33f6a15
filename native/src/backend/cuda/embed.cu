// Embedding rows, widened to float32, gathered from the packed table (kernels.h).
//
// Grid (token, pieces of 2,048 elements), 256 threads: a thread widens one chunk of 8 columns (one 16-byte load, two
// 16-byte stores). Chunks of a row lie 128 bytes apart, so half of what is read is thrown away; at 8,192 tokens of 8B
// that is some 20 us of a step of 200 ms, and a table of its own would take 311 MB at 0.6B.
#include <string>

#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/ptx.cuh"
#include "base/error.h"

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

// ids [n_tokens], -1 - r: last_tokens[r]; table: packed [vocab, hidden] bf16; out [n_tokens, hidden] float32
__global__ void __launch_bounds__(kThreads)
    embed_kernel(const int32_t* ids, const int32_t* last_tokens, const bf16* table, float* out, int hidden) {
  const int at = static_cast<int>(blockIdx.y * kPiece + threadIdx.x * 8);
  griddep_launch();
  griddep_wait();
  if (at >= hidden) return;
  int id = ids[blockIdx.x];
  if (id < 0) id = last_tokens[-1 - id];
  const int col_blocks = (hidden + kPackCols - 1) / kPackCols;
  const int64_t block = static_cast<int64_t>(id / kPackRows) * col_blocks + at / kPackCols;
  const int inside = id % kPackRows / 8 * 512 + at % kPackCols / 8 * 64 + id % 8 * 8;
  const uint4 x = *reinterpret_cast<const uint4*>(table + block * (kPackRows * kPackCols) + inside);
  float4* to = reinterpret_cast<float4*>(out + static_cast<int64_t>(blockIdx.x) * hidden + at);
  to[0] = make_float4(low_half(x.x), high_half(x.x), low_half(x.y), high_half(x.y));
  to[1] = make_float4(low_half(x.z), high_half(x.z), low_half(x.w), high_half(x.w));
}

}  // namespace

void embed(const EmbedArgs& args, const int32_t* last_tokens, const Context& ctx) {
  const BatchView& batch = *args.batch;
  const int hidden = args.table->n_in;
  if (hidden % 8 != 0)
    throw Error(Status::kUnsupported,
                "the model's hidden size is " + std::to_string(hidden) + "; the CUDA backend needs a multiple of 8");
  if (batch.n_tokens == 0) return;
  const dim3 blocks(static_cast<unsigned>(batch.n_tokens), static_cast<unsigned>((hidden + kPiece - 1) / kPiece));
  launch("launching embed", embed_kernel, {blocks, dim3(kThreads)}, ctx, batch.token_ids, last_tokens,
         args.table->parts[0].data, args.out, hidden);
}

}  // namespace qwen3::cuda

// Per-head RMSNorm and RoPE of q and k, and the one place that writes the KV blocks (layout: kv_layout.h).
//
// A warp takes a few neighbouring heads of one token: one for small batches, kManyHeads for large ones. Lane i holds
// elements 2i, 2i + 1 and 64 + 2i, 64 + 2i + 1 of a head, i.e. two pairs that RoPE rotates. Sum of squares: ((x0^2 +
// x1^2) + y0^2) + y1^2 by fma, then a butterfly over the lanes: one order, whatever the batch. Cos and sin:
// rope_angles.cu. Bound by reading qkv; see native/bench/cuda_attention_bench.cu.
#include "backend/cuda/kernels.h"
#include "backend/cuda/kv_layout.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/ptx.cuh"

namespace qwen3::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kManyHeads = 8;

struct Params {
  const float* qkv;             // [n_tokens, n_heads + 2 * n_kv_heads, 128]
  const int32_t* positions;     // [n_tokens]
  const int32_t* seq_of;        // [n_tokens]; -1: a padding token, whose keys and values go nowhere
  const int32_t* block_tables;  // [n_seqs, max_blocks]
  const bf16* q_norm;           // [128]
  const bf16* k_norm;           // [128]
  const float4* angles;         // [n_tokens, 32]: (cos, sin) of two neighbouring angles
  bf16* q_out;                  // [n_tokens, n_heads, 128]
  bf16* k;                      // [n_blocks, n_kv_heads, kHeadBlock]
  bf16* v;
  float eps;
  int n_tokens;
  int max_blocks;
  int n_heads;
  int n_kv_heads;
};

__device__ __forceinline__ uint32_t pack(float lower, float upper) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(upper), "f"(lower));
  return pair;
}
__device__ __forceinline__ float2 unpack(uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

template <int kHeads>
__global__ void __launch_bounds__(kThreads) qk_norm_rope_kernel(const Params p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int n_row_heads = p.n_heads + 2 * p.n_kv_heads;
  const int pieces = (n_row_heads + kHeads - 1) / kHeads;
  const int item = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int token = item / pieces;
  const int first_head = item % pieces * kHeads;
  const uint32_t* q_norm = reinterpret_cast<const uint32_t*>(p.q_norm);
  const uint32_t* k_norm = reinterpret_cast<const uint32_t*>(p.k_norm);
  const float2 q_low = unpack(q_norm[lane]);
  const float2 q_high = unpack(q_norm[32 + lane]);
  const float2 k_low = unpack(k_norm[lane]);
  const float2 k_high = unpack(k_norm[32 + lane]);
  griddep_launch();
  griddep_wait();
  if (token >= p.n_tokens) return;

  const int position = p.positions[token];
  const int seq = p.seq_of[token];
  const float2* row = reinterpret_cast<const float2*>(p.qkv) + static_cast<int64_t>(token) * n_row_heads * 64 + lane;
  float2 low[kHeads];
  float2 high[kHeads];
#pragma unroll
  for (int i = 0; i < kHeads; i++) {
    const int head = min(first_head + i, n_row_heads - 1);
    low[i] = row[head * 64];
    high[i] = row[head * 64 + 32];
  }
  const float4 angles = p.angles[static_cast<int64_t>(token) * 32 + lane];
  const float cos0 = angles.x, sin0 = angles.y, cos1 = angles.z, sin1 = angles.w;
  const int slot = position % kBlockSize;
  int64_t block = 0;
  if (first_head + kHeads > p.n_heads && seq >= 0) {
    block = p.block_tables[static_cast<int64_t>(seq) * p.max_blocks + position / kBlockSize];
  }
  // The lane's two words within a head of a KV block.
  const int word = kv_offset(slot, 2 * lane) / 2;
  const int word_high = kv_offset(slot, 64 + 2 * lane) / 2;

#pragma unroll
  for (int i = 0; i < kHeads; i++) {
    const int head = first_head + i;
    if (head >= n_row_heads || (seq < 0 && head >= p.n_heads)) break;
    const float2 x = low[i];
    const float2 y = high[i];
    if (seq < 0 && head >= p.n_heads) continue;  // padding writes no KV
    if (head >= p.n_heads + p.n_kv_heads) {
      const int kv_head = head - p.n_heads - p.n_kv_heads;
      uint32_t* v = reinterpret_cast<uint32_t*>(p.v + (block * p.n_kv_heads + kv_head) * kHeadBlock);
      v[word] = pack(x.x, x.y);
      v[word_high] = pack(y.x, y.y);
      continue;
    }
    float sum = __fmaf_rn(y.y, y.y, __fmaf_rn(y.x, y.x, __fmaf_rn(x.y, x.y, __fmul_rn(x.x, x.x))));
#pragma unroll
    for (int d = 16; d > 0; d /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, d));
    const float scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fmul_rn(sum, 1.0f / kHeadDim), p.eps)));
    const bool is_q = head < p.n_heads;
    const float2 w_low = is_q ? q_low : k_low;
    const float2 w_high = is_q ? q_high : k_high;
    const float x0 = __fmul_rn(__fmul_rn(x.x, scale), w_low.x);
    const float x1 = __fmul_rn(__fmul_rn(x.y, scale), w_low.y);
    const float y0 = __fmul_rn(__fmul_rn(y.x, scale), w_high.x);
    const float y1 = __fmul_rn(__fmul_rn(y.y, scale), w_high.y);
    const uint32_t out_low = pack(__fmaf_rn(x0, cos0, -__fmul_rn(y0, sin0)), __fmaf_rn(x1, cos1, -__fmul_rn(y1, sin1)));
    const uint32_t out_high = pack(__fmaf_rn(y0, cos0, __fmul_rn(x0, sin0)), __fmaf_rn(y1, cos1, __fmul_rn(x1, sin1)));
    if (is_q) {
      uint32_t* q = reinterpret_cast<uint32_t*>(p.q_out) + (static_cast<int64_t>(token) * p.n_heads + head) * 64 + lane;
      q[0] = out_low;
      q[32] = out_high;
    } else {
      uint32_t* k = reinterpret_cast<uint32_t*>(p.k + (block * p.n_kv_heads + head - p.n_heads) * kHeadBlock);
      k[word] = out_low;
      k[word_high] = out_high;
    }
  }
}

template <int kHeads>
void launch_heads(const Params& p, const Context& ctx) {
  const int64_t pieces = (p.n_heads + 2 * p.n_kv_heads + kHeads - 1) / kHeads;
  const int64_t items = p.n_tokens * pieces;
  const dim3 blocks(static_cast<unsigned>((items + kWarps - 1) / kWarps));
  launch("launching qk_norm_rope", qk_norm_rope_kernel<kHeads>, {blocks, dim3(kThreads)}, ctx, p);
}

}  // namespace

void qk_norm_rope(const QkNormRopeArgs& args, const Context& ctx) {
  const BatchView& batch = *args.batch;
  if (batch.n_tokens == 0) return;
  const Params p{args.qkv,
                 batch.positions,
                 batch.seq_of,
                 batch.block_tables,
                 args.q_norm,
                 args.k_norm,
                 reinterpret_cast<const float4*>(args.angles),
                 args.q_out,
                 args.kv.k,
                 args.kv.v,
                 args.eps,
                 batch.n_tokens,
                 batch.max_blocks,
                 args.n_heads,
                 args.n_kv_heads};
  if (batch.n_tokens >= 64) {
    launch_heads<kManyHeads>(p, ctx);
  } else {
    launch_heads<1>(p, ctx);
  }
}

}  // namespace qwen3::cuda

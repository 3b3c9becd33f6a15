// Per-head RMSNorm and RoPE of q and k, written to the KV blocks with v (layout: kv_layout.h).
//
// A warp takes a few neighbouring heads of one token: one for small batches, kManyHeads for large ones (head_norm.cuh).
// Decode steps on Hopper do this inside attention_step.cu. Bound by reading qkv; see
// native/bench/cuda_ops_bench.cu.
#include "backend/cuda/head_norm.cuh"
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

template <int kHeads>
__global__ void __launch_bounds__(kThreads) qk_norm_rope_kernel(const Params p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int n_row_heads = p.n_heads + 2 * p.n_kv_heads;
  const int pieces = (n_row_heads + kHeads - 1) / kHeads;
  const int item = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int token = item / pieces;
  const int first_head = item % pieces * kHeads;
  griddep_launch();
  const HeadLane q_norm = load_norm_weight(p.q_norm, lane);
  const HeadLane k_norm = load_norm_weight(p.k_norm, lane);
  // The step's arrays are there before its first kernel (attention_decode.cuh says why).
  const bool exists = token < p.n_tokens;
  const int position = exists ? p.positions[token] : 0;
  const int seq = exists ? p.seq_of[token] : -1;
  int64_t block = 0;
  if (first_head + kHeads > p.n_heads && seq >= 0) {
    block = p.block_tables[static_cast<int64_t>(seq) * p.max_blocks + position / kBlockSize];
  }
  griddep_wait();
  if (!exists) return;

  const float* row = p.qkv + static_cast<int64_t>(token) * n_row_heads * kHeadDim;
  HeadLane heads[kHeads];
#pragma unroll
  for (int i = 0; i < kHeads; i++) heads[i] = load_head(row + min(first_head + i, n_row_heads - 1) * kHeadDim, lane);
  const float4 angles = p.angles[static_cast<int64_t>(token) * 32 + lane];
  const int slot = position % kBlockSize;
  // The lane's two words within a head of a KV block.
  const int word = kv_offset(slot, 2 * lane) / 2;
  const int word_high = kv_offset(slot, 64 + 2 * lane) / 2;

#pragma unroll
  for (int i = 0; i < kHeads; i++) {
    const int head = first_head + i;
    if (head >= n_row_heads || (seq < 0 && head >= p.n_heads)) break;  // padding writes no KV
    const HeadLane x = heads[i];
    if (head >= p.n_heads + p.n_kv_heads) {
      const int kv_head = head - p.n_heads - p.n_kv_heads;
      uint32_t* v = reinterpret_cast<uint32_t*>(p.v + (block * p.n_kv_heads + kv_head) * kHeadBlock);
      v[word] = head_word(x.low.x, x.low.y);
      v[word_high] = head_word(x.high.x, x.high.y);
      continue;
    }
    const bool is_q = head < p.n_heads;
    const HeadWords out = norm_rope(x, is_q ? q_norm : k_norm, angles, p.eps);
    if (is_q) {
      uint32_t* q = reinterpret_cast<uint32_t*>(p.q_out) + (static_cast<int64_t>(token) * p.n_heads + head) * 64 + lane;
      q[0] = out.low;
      q[32] = out.high;
    } else {
      uint32_t* k = reinterpret_cast<uint32_t*>(p.k + (block * p.n_kv_heads + head - p.n_heads) * kHeadBlock);
      k[word] = out.low;
      k[word_high] = out.high;
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

// Attention of a decode step on Hopper, from qkv, when CTAs are few and latency counts: the twin of attention_step.cu.
//
// Grid (split, KV head, sequence), 128 threads, at most one CTA per SM. A CTA asks for its whole split of kSplit keys
// at once (128 KB, before griddep_wait), makes its queries meanwhile, and does the split's four steps together, so that
// three barriers are enough; the one with the last split also makes the new key and value, writes them to the KV block
// and places them among the others. Up to kMaxCluster splits are a cluster and merge through its shared memory. Warp w
// scores keys [16w, 16w + 16) of every step for the 16 rows of the m16 tile, P goes through shared memory as bf16, and
// warp w accumulates output columns [32w, 32w + 32). CTAs beyond a sequence's splits exit at once. Arithmetic:
// attention.cuh and head_norm.cuh.
#include <bit>

#include "backend/cuda/attention_step.cuh"
#include "backend/cuda/launch.h"

namespace qwen3::cuda {
namespace {

constexpr int kThreads = 128;

struct alignas(128) Shared {
  uint8_t keys[kSplitSteps][kStepBytes];
  uint8_t values[kSplitSteps][kStepBytes];
  uint8_t q[kMaxDecodeRows * kHeadDim * 2];  // core matrices [row group 2][d chunk 16]
  SplitScratch scratch;
  float state[kMaxDecodeRows * kPartialRow];  // what the first CTA of a cluster reads
};

#if QWEN3_SM90A
// The splits of a cluster, rank by rank, meet in the first CTA's registers. Everyone else waits until it has read them.
// state [kMaxDecodeRows][kPartialRow]: shared memory, at the same place in every CTA. out [group, 128].
__device__ __forceinline__ void merge_cluster(int group, int split, int n_splits, const SplitLane& at,
                                              const float (&o)[4][4], const float (&m)[2], const float2& l,
                                              float* state, bf16* out) {
  leave_state(state, group, at, o, m, l);
  cluster_sync();
  if (split == 0) {
    for (int r = at.warp; r < group; r += 4) {
      const uint32_t own = shared_address(state + r * kPartialRow);
      float4 value[kMaxCluster], ml[kMaxCluster];
#pragma unroll
      for (int i = 0; i < kMaxCluster; i++) {
        if (i >= n_splits) break;
        value[i] = cluster_load_float4(cluster_address(own + at.lane * 16, static_cast<uint32_t>(i)));
        ml[i] = cluster_load_float4(cluster_address(own + kHeadDim * 4, static_cast<uint32_t>(i)));
      }
      RowState row;
      row.clear();
#pragma unroll
      for (int i = 0; i < kMaxCluster; i++) {
        if (i >= n_splits) break;
        row.add(value[i], ml[i].x, ml[i].y);
      }
      row.write(out + r * kHeadDim + at.lane * 4);
    }
  }
  cluster_sync();
}
#endif

template <bool kCluster>
__global__ void __launch_bounds__(kThreads) attention_step_cluster_kernel(const StepParams p) {
#if QWEN3_SM90A
  extern __shared__ __align__(128) uint8_t memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int thread = static_cast<int>(threadIdx.x);
  const SplitLane at(thread);
  const int warp = at.warp;
  const int lane = at.lane;
  const int seq = static_cast<int>(blockIdx.z);
  const int head = static_cast<int>(blockIdx.y);
  const int split = static_cast<int>(blockIdx.x);

  griddep_launch();
  // The block table is read together with the position that tells how much of it is valid.
  constexpr int kBlocks = kSplit / kBlockSize;
  const int32_t* table = p.block_tables + static_cast<int64_t>(seq) * p.max_blocks;
  int blocks[kBlocks];
#pragma unroll
  for (int i = 0; i < kBlocks; i++) blocks[i] = table[min(split * kBlocks + i, p.max_blocks - 1)];
  const int last = p.seq_of[seq] < 0 ? -1 : p.positions[seq];
  const int n_splits = last / kSplit + 1;
  if (last < 0 || split >= n_splits) return;
  const int first = split * kSplit;
  const int n_steps = min(last / kStep + 1 - split * kSplitSteps, kSplitSteps);
  int new_block = 0;
#pragma unroll
  for (int i = 0; i < kBlocks; i++) {
    if (first + i * kBlockSize > last) blocks[i] = 0;  // whatever the table holds there
    if (first + i * kBlockSize <= last) new_block = blocks[i];
  }
  const auto load = [&](const bf16* pool, uint8_t (&to)[kSplitSteps][kStepBytes]) {
#pragma unroll
    for (int i = 0; i < kSplitSteps; i++) {
      if (i >= n_steps) break;
      load_step(pool, head, p.n_kv_heads, blocks[2 * i], blocks[2 * i + 1], first + i * kStep, last - 1,
                shared_address(to[i]), thread);
    }
    cp_async_commit();
  };
  load(p.k, shared.keys);
  load(p.v, shared.values);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof shared.q) / 16 / kThreads; i++) {
    reinterpret_cast<uint4*>(shared.q)[i * kThreads + thread] = make_uint4(0, 0, 0, 0);
  }
  const HeadLane q_norm = load_norm_weight(p.q_norm, lane);
  const HeadLane k_norm = load_norm_weight(p.k_norm, lane);
  const bool has_new = split == n_splits - 1;
  const int key_row = last % kStep;  // of the new key in its step
  const bool key_owner = has_new && warp == key_row / 16;
  __syncthreads();
  griddep_wait();

  const float* heads = p.qkv + static_cast<int64_t>(seq) * (p.n_heads + 2 * p.n_kv_heads) * kHeadDim;
  const float4 angles = p.angles[static_cast<int64_t>(seq) * 32 + lane];
  const HeadLane key = load_head(heads + (p.n_heads + head) * kHeadDim, lane);
  const float2 value =
      reinterpret_cast<const float2*>(heads + (p.n_heads + p.n_kv_heads + head) * kHeadDim)[warp * 16 + lane % 16];
  for (int r = warp; r < p.group; r += 4) {
    place_head(shared.q, r, lane,
               norm_rope(load_head(heads + (head * p.group + r) * kHeadDim, lane), q_norm, angles, p.eps));
  }
  HeadWords key_words = {};
  const uint32_t value_word = head_word(value.x, value.y);
  if (key_owner) key_words = norm_rope(key, k_norm, angles, p.eps);
  cp_async_wait<1>();
  __syncthreads();
  if (key_owner) {  // the only warp that reads this row
    place_head(shared.keys[n_steps - 1], key_row, lane, key_words);
    __syncwarp();
  }

  // Operands of the next k16 are asked for before the products of this one.
  float s[kSplitSteps][2][4] = {};
  uint32_t q[2][4], b[2][kSplitSteps][4];
  const auto load_operands = [&](int k) {
    ldmatrix_x4(q[k % 2], shared_address(shared.q) + at.q + k * 256);
#pragma unroll
    for (int i = 0; i < kSplitSteps; i++) {
      ldmatrix_x4(b[k % 2][i], shared_address(shared.keys[i]) + at.k + k * 256);
    }
  };
  load_operands(0);
#pragma unroll
  for (int k = 0; k < 8; k++) {
    if (k < 7) load_operands(k + 1);
#pragma unroll
    for (int i = 0; i < kSplitSteps; i++) {
      if (i >= n_steps) break;
      mma_bf16(s[i][0], q[k % 2], b[k % 2][i][0], b[k % 2][i][1]);
      mma_bf16(s[i][1], q[k % 2], b[k % 2][i][2], b[k % 2][i][3]);
    }
  }
#pragma unroll
  for (int i = 0; i < kSplitSteps; i++) {
    if (i < n_steps) leave_top(shared.scratch, at, i, s[i], last - first - i * kStep);
  }
  if (has_new) {  // beside the way of the scores
    const int64_t at = (static_cast<int64_t>(new_block) * p.n_kv_heads + head) * kHeadBlock;
    const int slot = last % kBlockSize;
    if (key_owner) {
      uint32_t* k = reinterpret_cast<uint32_t*>(p.k + at);
      k[kv_offset(slot, 2 * lane) / 2] = key_words.low;
      k[kv_offset(slot, 64 + 2 * lane) / 2] = key_words.high;
    }
    if (lane < 16) reinterpret_cast<uint32_t*>(p.v + at)[kv_offset(slot, 32 * warp + 2 * lane) / 2] = value_word;
  }
  __syncthreads();

  float alpha[kSplitSteps][2], m[2];
  softmax_split(shared.scratch, at, s, n_steps, p.scale, alpha, m);
  cp_async_wait<0>();
  __syncthreads();
  if (has_new) {  // every warp the columns that it reads
    if (lane < 16) place_value(shared.values[n_steps - 1], key_row, warp, lane, value_word);
    __syncwarp();
  }

  float o[4][4] = {};
#pragma unroll
  for (int i = 0; i < kSplitSteps; i++) {
    if (i >= n_steps) break;
    rescale(o, alpha[i]);
    add_values(o, shared_address(shared.scratch.p_words[i]) + at.p, shared_address(shared.values[i]) + at.v,
               kStep / 16);
  }
  const float2 l = split_sums(shared.scratch, at);
  bf16* out = p.out + (static_cast<int64_t>(seq) * p.n_heads + head * p.group) * kHeadDim;
  if constexpr (kCluster) {
    if (n_splits > 1) {
      merge_cluster(p.group, split, n_splits, at, o, m, l, shared.state, out);
      return;
    }
  }
  Running<4> running;
  running.clear();
  running.add(o, m, l.x, l.y);
  write_pair(out, p.group, at, running);
#endif
}

template <bool kCluster>
void launch_kernel(const StepParams& p, unsigned n_splits, const Context& ctx) {
  configure<attention_step_cluster_kernel<kCluster>>(sizeof(Shared));
  launch("launching attention_step_cluster", attention_step_cluster_kernel<kCluster>,
         {dim3(n_splits, static_cast<unsigned>(p.n_kv_heads), static_cast<unsigned>(p.n_seqs)), dim3(kThreads),
          sizeof(Shared), kCluster ? static_cast<int>(n_splits) : 1},
         ctx, p);
}

}  // namespace

void attention_step_cluster(const StepParams& p, const Context& ctx) {
  const unsigned n_splits = std::bit_ceil(static_cast<unsigned>(p.max_splits));
  if (n_splits == 1) {
    launch_kernel<false>(p, n_splits, ctx);
  } else {
    launch_kernel<true>(p, n_splits, ctx);
  }
}

}  // namespace qwen3::cuda

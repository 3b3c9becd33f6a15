// Attention of a decode step on Hopper, from qkv, when CTAs are few and latency counts: the twin of attention_step.cu.
//
// Grid (CTA of a cluster, KV head, sequence), 128 threads. A cluster has the splits of one sequence and KV head, each
// in kParts parts: a part scores the keys of its share of the split's steps and makes its share of the output columns,
// so that neither the copies nor the shared memory of one SM hold up a split. A CTA asks for all its keys and values
// before griddep_wait() and makes its queries; the one with the new token's step also makes the new key and writes it
// to the KV block, those of the last split the new value, each its columns. Warp w scores keys [16w, 16w + 16) of every
// step and, if there are several parts, sends scores and maxima to all of them; each makes all of P, in shared memory
// as bf16, and its warps accumulate its columns, each one or two tiles of 16. Splits behind the first send their states
// to the parts of the first, which merge. What is sent counts on the receiver's barrier, so nobody waits for a round
// trip. CTAs beyond a sequence's splits exit at once. Arithmetic: attention.cuh and head_norm.cuh.
#include <bit>

#include "backend/cuda/attention_step.cuh"
#include "backend/cuda/launch.h"

namespace qwen3::cuda {
namespace {

constexpr int kThreads = 128;

template <int kParts>
struct alignas(128) Shared {
  static constexpr int kSteps = kSplitSteps / kParts;  // whose keys a part scores
  static constexpr int kColumns = kHeadDim / kParts;   // of values and outputs
  static constexpr int kTiles = kParts == 1 ? 2 : 1;   // of 16 columns, a warp's
  static constexpr int kOutWarps = kColumns / (16 * kTiles);
  static constexpr int kValueBytes = kStepBytes / kParts;  // of a step
  static constexpr int kMaxSplits = kMaxCluster / kParts;

  uint8_t keys[kSteps][kStepBytes];
  uint8_t values[kSplitSteps][kValueBytes];  // core matrices [token group 8][d chunk of the part]
  uint8_t q[kMaxStepGroup * kHeadDim * 2];   // core matrices [d chunk 16]
  SplitScratch scratch;
  // What other CTAs send, as their lanes hold it; of the group's heads alone. What stands for the others is read too,
  // but heads never mix, and theirs are not written.
  float4 scores[kParts == 1 ? 1 : kSplitSteps][4][32];  // by [step][warp][lane]
  // States of splits 1 ..: by [warp][lane][tile]; m and l of heads 2t and 2t + 1.
  float4 o[kMaxSplits - 1][kOutWarps][32][kTiles];
  float4 ml[kMaxSplits - 1][4];
  uint64_t scored, merged;
};

#if QWEN3_SM90A
// The part's columns of a step's values, as load_step() has them. half0, half1: the KV blocks' values of this head.
template <int kParts>
__device__ __forceinline__ void load_columns(const bf16* half0, const bf16* half1, int part, int start, int last,
                                             uint32_t to, int thread) {
  constexpr int kChunks = 16 / kParts;
  const int in_group = thread % (8 * kChunks);
  const int group = thread / (8 * kChunks);  // of tokens, beside the others of an iteration
  const int key = start + group * 8 + thread % 8;
  const int64_t from = group * kTokenGroup + (part * kChunks * 8 + in_group) * 8;
#pragma unroll
  for (int i = 0; i < 8 / kParts; i++) {
    const bf16* half = i * kParts < 4 ? half0 : half1;
    cp_async_16(to + i * 2048 + thread * 16, half + from + i * kParts % 4 * kTokenGroup,
                key + i * kParts * 8 <= last ? 16 : 0);
  }
}

// Lanes of a quad that hold heads of the group.
__device__ __forceinline__ int lanes_of(int group) {
  return (group + 1) / 2;
}

// Sends a step's masked scores of this warp's keys, and their maxima, to all parts of the split.
template <int kParts>
__device__ __forceinline__ void send_scores(Shared<kParts>& shared, const SplitLane& at, int group, int split, int step,
                                            const float (&s)[4], float top) {
  const uint32_t to = shared_address(&shared.scores[step][at.warp][at.lane]);
  const uint32_t top_to = shared_address(&shared.scratch.top[step][top_head(at)]) + at.warp * 4;
#pragma unroll
  for (int part = 0; part < kParts; part++) {
    const uint32_t rank = static_cast<uint32_t>(split * kParts + part);
    const uint32_t barrier = cluster_address(shared_address(&shared.scored), rank);
    if (at.head < group) cluster_store_async(cluster_address(to, rank), make_float4(s[0], s[1], s[2], s[3]), barrier);
    if (tells_top(at) && top_head(at) < group) cluster_store_async(cluster_address(top_to, rank), top, barrier);
  }
}
__device__ __forceinline__ uint32_t score_bytes(int group, int n_steps) {
  return static_cast<uint32_t>(n_steps * 4 * (8 * lanes_of(group) * sizeof(float4) + group * sizeof(float)));
}

// Sends a split's state of this warp's columns to the same part of the first split.
template <int kParts, int kTiles>
__device__ __forceinline__ void send_state(Shared<kParts>& shared, const SplitLane& at, int group, int split, int part,
                                           const float (&o)[kTiles][4], const Heads& m, const Heads& l) {
  if (at.head >= group) return;
  const uint32_t rank = static_cast<uint32_t>(part);
  const uint32_t barrier = cluster_address(shared_address(&shared.merged), rank);
  const uint32_t to = cluster_address(shared_address(shared.o[split - 1][at.warp][at.lane]), rank);
#pragma unroll
  for (int j = 0; j < kTiles; j++) {
    cluster_store_async(to + j * sizeof(float4), make_float4(o[j][0], o[j][1], o[j][2], o[j][3]), barrier);
  }
  if (at.warp == 0 && at.g == 0) {
    cluster_store_async(cluster_address(shared_address(&shared.ml[split - 1][at.lane]), rank),
                        make_float4(m.a, l.a, m.b, l.b), barrier);
  }
}
template <int kParts>
__device__ __forceinline__ uint32_t state_bytes(int group, int n_splits) {
  using Memory = Shared<kParts>;
  return static_cast<uint32_t>((n_splits - 1) * lanes_of(group) * (Memory::kOutWarps * 8 * Memory::kTiles + 1) *
                               sizeof(float4));
}
#endif

template <int kParts>
__global__ void __launch_bounds__(kThreads) attention_step_cluster_kernel(const StepParams p) {
#if QWEN3_SM90A
  using Memory = Shared<kParts>;
  constexpr int kSteps = Memory::kSteps, kTiles = Memory::kTiles;
  extern __shared__ __align__(128) uint8_t memory[];
  Memory& shared = *reinterpret_cast<Memory*>(memory);
  const int thread = static_cast<int>(threadIdx.x);
  const SplitLane at(thread);
  const int warp = at.warp;
  const int lane = at.lane;
  const int seq = static_cast<int>(blockIdx.z);
  const int head = static_cast<int>(blockIdx.y);
  const int split = static_cast<int>(blockIdx.x) / kParts;
  const int part = static_cast<int>(blockIdx.x) % kParts;

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
  if (thread == 0) {
    mbarrier_init(shared_address(&shared.scored), 1);
    mbarrier_init(shared_address(&shared.merged), 1);
    fence_mbarrier_init();
    mbarrier_expect(shared_address(&shared.scored), score_bytes(p.group, n_steps));
    mbarrier_expect(shared_address(&shared.merged), state_bytes<kParts>(p.group, n_splits));
  }
  cluster_arrive();
  int new_block = 0;
#pragma unroll
  for (int i = 0; i < kBlocks; i++) {
    if (first + i * kBlockSize > last) blocks[i] = 0;  // whatever the table holds there
    if (first + i * kBlockSize <= last) new_block = blocks[i];
  }
  const int first_step = part * kSteps;
#pragma unroll
  for (int i = 0; i < kSplitSteps; i++) {
    if (i < first_step || i >= first_step + kSteps || i >= n_steps) continue;
    load_step(p.k, head, p.n_kv_heads, blocks[2 * i], blocks[2 * i + 1], first + i * kStep, last - 1,
              shared_address(shared.keys) + (i - first_step) * kStepBytes, thread);
  }
  cp_async_commit();
#pragma unroll
  for (int i = 0; i < kSplitSteps; i++) {
    if (i >= n_steps) break;
    const auto values = [&](int block) {
      return p.v + (static_cast<int64_t>(block) * p.n_kv_heads + head) * kHeadBlock;
    };
    load_columns<kParts>(values(blocks[2 * i]), values(blocks[2 * i + 1]), part, first + i * kStep, last - 1,
                         shared_address(shared.values[i]), thread);
  }
  cp_async_commit();
  static_assert(sizeof shared.q == kThreads * 16);
  reinterpret_cast<uint4*>(shared.q)[thread] = make_uint4(0, 0, 0, 0);
  const HeadLane q_norm = load_norm_weight(p.q_norm, lane);
  const HeadLane k_norm = load_norm_weight(p.k_norm, lane);
  const bool has_new = split == n_splits - 1;
  const int key_row = last % kStep;               // of the new key in its step
  const int key_step = n_steps - 1 - first_step;  // and its step among this part's
  const bool key_owner = has_new && key_step >= 0 && key_step < kSteps && warp == key_row / 16;
  const bool makes_outputs = warp < Memory::kOutWarps;
  // This lane's word of the new value, if it has one: of the columns that its warp reads.
  constexpr int kWords = 8 * kTiles;
  const bool has_value = makes_outputs && lane < kWords;
  const int value_word_at = (warp * kWords + lane) % (Memory::kColumns / 2);  // in the part
  const int value_at = part * (Memory::kColumns / 2) + value_word_at;
  __syncthreads();
  cluster_wait();  // the barriers of those that will be sent to are there
  griddep_wait();

  const float* heads = p.qkv + static_cast<int64_t>(seq) * (p.n_heads + 2 * p.n_kv_heads) * kHeadDim;
  const float4 angles = p.angles[static_cast<int64_t>(seq) * 32 + lane];
  const HeadLane key = load_head(heads + (p.n_heads + head) * kHeadDim, lane);
  const float2 value = reinterpret_cast<const float2*>(heads + (p.n_heads + p.n_kv_heads + head) * kHeadDim)[value_at];
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
    place_head(shared.keys[key_step], key_row, lane, key_words);
    __syncwarp();
  }

  // Keys of the next k16 are asked for before the products of this one.
  const int own_steps = min(n_steps - first_step, kSteps);  // may be negative
  float s[kSplitSteps][4] = {};                             // of the part's steps, later of all
  uint32_t q[4][4], keys[2][kSteps][4];
  const auto load_keys = [&](int k) {
#pragma unroll
    for (int i = 0; i < kSteps; i++) {
      ldmatrix_x4(keys[k % 2][i], shared_address(shared.keys[i]) + at.k + k * 256);
    }
  };
  load_step_queries(q, shared_address(shared.q), at);
  load_keys(0);
#pragma unroll
  for (int k = 0; k < 8; k++) {
    if (k < 7) load_keys(k + 1);
#pragma unroll
    for (int i = 0; i < kSteps; i++) {
      // A part's only step costs less than to ask whether it is there: scores of stale memory are not sent.
      if (kSteps > 1 && i >= own_steps) break;
      add_scores(s[i], keys[k % 2][i], q, k);
    }
  }
#pragma unroll
  for (int i = 0; i < kSteps; i++) {
    if (i >= own_steps) break;
    const int step = first_step + i;
    const float top = mask_and_top(at, s[i], last - first - step * kStep);
    if constexpr (kParts == 1) {
      leave_top(shared.scratch, at, i, top);
    } else {
      send_scores(shared, at, p.group, split, step, s[i], top);
    }
  }
  if (has_new) {  // beside the way of the scores
    const int64_t to = (static_cast<int64_t>(new_block) * p.n_kv_heads + head) * kHeadBlock;
    const int slot = last % kBlockSize;
    if (key_owner) {
      uint32_t* k = reinterpret_cast<uint32_t*>(p.k + to);
      k[kv_offset(slot, 2 * lane) / 2] = key_words.low;
      k[kv_offset(slot, 64 + 2 * lane) / 2] = key_words.high;
    }
    if (has_value) reinterpret_cast<uint32_t*>(p.v + to)[kv_offset(slot, 2 * value_at) / 2] = value_word;
  }
  if constexpr (kParts == 1) {
    __syncthreads();
  } else {
    mbarrier_wait_cluster(shared_address(&shared.scored), 0);
#pragma unroll
    for (int i = 0; i < kSplitSteps; i++) {
      if (i >= n_steps) break;
      const float4 sent = shared.scores[i][warp][lane];
      s[i][0] = sent.x, s[i][1] = sent.y, s[i][2] = sent.z, s[i][3] = sent.w;
    }
  }

  Heads alpha[kSplitSteps], m;
  softmax_split(shared.scratch, at, s, n_steps, p.scale, alpha, m);
  cp_async_wait<0>();
  __syncthreads();
  if (!makes_outputs) return;
  constexpr int kTokens = 2048 / kParts;  // bytes from one group of 8 tokens to the next
  if (has_new) {                          // every warp the columns that it reads
    if (has_value) {
      uint8_t* to = shared.values[n_steps - 1] + key_row / 8 * kTokens + key_row % 8 * 16;
      *reinterpret_cast<uint32_t*>(to + value_word_at / 4 * 128 + value_word_at % 4 * 4) = value_word;
    }
    __syncwarp();
  }

  const int first_column = warp * 16 * kTiles;  // of this warp, in the part
  float o[kTiles][4] = {};
#pragma unroll
  for (int i = 0; i < kSplitSteps; i++) {
    if (i >= n_steps) break;
    rescale(o, alpha[i]);
    uint32_t probabilities[kStep / 32][4];
    load_probabilities(probabilities, shared_address(shared.scratch.p_words[i]), at);
    add_values<kTokens>(o, probabilities, shared_address(shared.values[i]) + value_row<kTokens>(first_column, lane),
                        kStep / 16);
  }
  const Heads l = split_sums(shared.scratch, at);
  if (split > 0) {
    send_state(shared, at, p.group, split, part, o, m, l);
    return;
  }
  RunningHeads<kTiles> running;
  running.clear();
  running.add(o, m, l);
  if (n_splits > 1) {
    mbarrier_wait_cluster(shared_address(&shared.merged), 0);
    for (int i = 0; i < n_splits - 1; i++) {
#pragma unroll
      for (int j = 0; j < kTiles; j++) {
        const float4 tile = shared.o[i][warp][lane][j];
        o[j][0] = tile.x, o[j][1] = tile.y, o[j][2] = tile.z, o[j][3] = tile.w;
      }
      const float4 ml = shared.ml[i][lane % 4];
      running.add(o, {ml.x, ml.z}, {ml.y, ml.w});
    }
  }
  bf16* out = p.out + (static_cast<int64_t>(seq) * p.n_heads + head * p.group) * kHeadDim;
  running.write(out, part * Memory::kColumns + first_column, p.group, at);
#endif
}

template <int kParts>
void launch_kernel(const StepParams& p, int n_splits, const Context& ctx) {
  configure<attention_step_cluster_kernel<kParts>>(sizeof(Shared<kParts>));
  const int n_ctas = n_splits * kParts;
  launch("launching attention_step_cluster", attention_step_cluster_kernel<kParts>,
         {dim3(static_cast<unsigned>(n_ctas), static_cast<unsigned>(p.n_kv_heads), static_cast<unsigned>(p.n_seqs)),
          dim3(kThreads), sizeof(Shared<kParts>), n_ctas},
         ctx, p);
}

}  // namespace

void attention_step_cluster(const StepParams& p, const Context& ctx) {
  const int n_splits = static_cast<int>(std::bit_ceil(static_cast<unsigned>(p.max_splits)));
  const int n_ctas = n_splits * p.n_kv_heads * p.n_seqs;
  // As many parts as SMs are there for.
  const auto fits = [&](int parts) { return n_splits * parts <= kMaxCluster && n_ctas * parts <= ctx.sm_count; };
  if (fits(4)) return launch_kernel<4>(p, n_splits, ctx);
  if (fits(2)) return launch_kernel<2>(p, n_splits, ctx);
  launch_kernel<1>(p, n_splits, ctx);
}

}  // namespace qwen3::cuda

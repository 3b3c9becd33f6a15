// Attention's host side: sorts the batch's sequences by how many rows (token x query head of a group) they have, and
// launches the kernels that serve them. The choice changes no bit: all kernels follow attention.cuh's arithmetic.
#include <algorithm>
#include <string>

#include "backend/cuda/attention.cuh"
#include "backend/cuda/attention.h"
#include "backend/cuda/attention_step.cuh"
#include "base/error.h"

namespace qwen3::cuda {
namespace {

constexpr size_t kPartialRowBytes = kPartialRow * sizeof(float);

// What the kernels are compiled for.
void require_heads(int n_heads, int n_kv_heads, int head_dim) {
  if (head_dim == kHeadDim && n_heads % n_kv_heads == 0 && n_heads / n_kv_heads <= kMaxDecodeRows) return;
  throw Error(Status::kUnsupported,
              "attention on the GPU needs heads of 128 and at most 16 query heads per KV head; "
              "this model has heads of " +
                  std::to_string(head_dim) + " and " + std::to_string(n_heads) + " for " + std::to_string(n_kv_heads));
}

int step_ctas(const SelfAttentionArgs& args, const BatchHost& host, const Context& ctx) {
  return planned_ctas(host.n_seqs, args.n_kv_heads, host.max_context, ctx.sm_count);
}

int most_splits(const BatchHost& host) {
  return (host.max_context + kSplit - 1) / kSplit;
}

// Tiles of prompt chunks, over all sequences with more rows than the decode kernel takes.
int count_tiles(const BatchHost& host, int group, int tile_rows) {
  int n_tiles = 0;
  for (int s = 0; s < host.n_seqs; s++) {
    const int rows = (host.query_start[s + 1] - host.query_start[s]) * group;
    if (rows > kMaxDecodeRows) n_tiles += (rows + tile_rows - 1) / tile_rows;
  }
  return n_tiles;
}

// Warpgroups per CTA of attention_hopper. Three do most per step, but with few large tiles SMs stand idle at the
// launch's end. Tiles of 128 / 192 rows, and the last CTA's time over the mean one's if all steps take equal time, for
// one prompt, 32 / 8 heads and 132 SMs: 512 tokens: 128 / 88 tiles, 1.60 / 2.23; 1,024: 256 / 176, 1.03 / 1.24; 2,048:
// 512 / 344, 1.02 / 1.12; 4,096: 1,024 / 688, 1.00 / 1.02. Measured: 512 tokens 15.5 / 19.0 us, 1,024 31.4 / 30.2,
// 2,048 87 / 84.
int prefill_groups(const BatchHost& host, int group, int n_kv_heads, int sm_count) {
  return count_tiles(host, group, 3 * kPrefillRows) * n_kv_heads > sm_count ? 3 : 2;
}

}  // namespace

int64_t most_states(const AttentionWorkspace& workspace, int group) {
  return static_cast<int64_t>(workspace.bytes / (static_cast<size_t>(group) * kPartialRowBytes));
}

bool attention_step_serves(const SelfAttentionArgs& args, const BatchHost& host, const AttentionWorkspace& workspace,
                           const Context& ctx) {
  return ctx.hopper && args.n_heads <= args.n_kv_heads * kMaxStepGroup && host.n_tokens == host.n_seqs &&
         host.n_seqs <= kMaxStepSeqs && host.n_seqs * args.n_kv_heads < workspace.n_counters &&
         (host.plan != nullptr || step_ctas(args, host, ctx) == 0);
}

void attention_step(const SelfAttentionArgs& args, const BatchHost& host, const AttentionWorkspace& workspace,
                    const Context& ctx, bool of_sums) {
  require_heads(args.n_heads, args.n_kv_heads, args.head_dim);
  const BatchView& batch = *args.batch;
  StepParams p = {};
  p.qkv = of_sums ? ctx.sums : args.qkv;
  p.of_sums = of_sums;
  p.q_norm = args.q_norm;
  p.k_norm = args.k_norm;
  p.angles = reinterpret_cast<const float4*>(args.angles);
  p.k = args.kv.k;
  p.v = args.kv.v;
  p.out = args.out;
  p.positions = batch.positions;
  p.seq_of = batch.seq_of;
  p.block_tables = batch.block_tables;
  p.n_seqs = host.n_seqs;
  p.max_blocks = batch.max_blocks;
  p.n_heads = args.n_heads;
  p.n_kv_heads = args.n_kv_heads;
  p.group = args.n_heads / args.n_kv_heads;
  p.max_splits = most_splits(host);
  p.scale = kAttentionScale;
  p.eps = args.eps;
  p.partials = workspace.partials;
  p.counters = workspace.counters;
  p.plan = host.plan;
  p.n_ctas = step_ctas(args, host, ctx);
  if (of_sums && p.n_ctas == 0)
    throw Error(Status::kInternal, "attention of few sequences cannot add sums of qkv_proj");
  if (p.n_ctas == 0) {
    attention_step_cluster(p, ctx);
  } else {
    attention_step_stream(p, ctx);
  }
}

void attention(const AttentionArgs& args, const BatchHost& host, const AttentionWorkspace& workspace,
               const Context& ctx) {
  const BatchView& batch = *args.batch;
  if (host.n_tokens == 0) return;
  const int group = args.n_heads / args.n_kv_heads;
  require_heads(args.n_heads, args.n_kv_heads, args.head_dim);
  AttentionParams p = {};
  p.q = args.q;
  p.k = args.kv.k;
  p.v = args.kv.v;
  p.out = args.out;
  p.query_start = batch.query_start;
  p.positions = batch.positions;
  p.block_tables = batch.block_tables;
  p.n_seqs = host.n_seqs;
  p.max_blocks = batch.max_blocks;
  p.n_heads = args.n_heads;
  p.n_kv_heads = args.n_kv_heads;
  p.group = group;
  p.scale = kAttentionScale;
  p.decode_rows = kMaxDecodeRows;
  p.turn_counter = reinterpret_cast<uint32_t*>(workspace.counters + workspace.n_counters - 1);

  int decode_rows = 0;  // the most rows of a sequence that decodes
  int n_decode = 0;
  for (int s = 0; s < host.n_seqs; s++) {
    const int rows = (host.query_start[s + 1] - host.query_start[s]) * group;
    if (rows == 0 || rows > kMaxDecodeRows) continue;
    n_decode++;
    decode_rows = std::max(decode_rows, rows);
  }

  if (n_decode > 0) {
    const int n_pairs = host.n_seqs * args.n_kv_heads;
    p.max_splits = most_splits(host);
    p.partial_rows = decode_rows;
    const size_t states = static_cast<size_t>(n_pairs) * static_cast<size_t>(p.max_splits);
    const size_t partial_rows = states * static_cast<size_t>(decode_rows);
    p.whole = partial_rows * kPartialRowBytes > workspace.bytes || n_pairs >= workspace.n_counters;
    if (p.whole) p.max_splits = 1;
    p.partials = workspace.partials;
    p.counters = workspace.counters;
    attention_decode(p, ctx);
  }
  const int n_groups = ctx.hopper ? prefill_groups(host, group, args.n_kv_heads, ctx.sm_count) : 1;
  const int n_tiles = count_tiles(host, group, n_groups * kPrefillRows);
  if (n_tiles == 0) return;
  if (ctx.hopper) {
    attention_hopper(p, n_tiles, n_groups, ctx);
  } else {
    attention_prefill(p, n_tiles, ctx);
  }
}

}  // namespace qwen3::cuda

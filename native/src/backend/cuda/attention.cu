// Attention's host side: sorts the batch's sequences by how many rows (token x query head of a group) they have, and
// launches the kernels that serve them. The choice changes no bit: all kernels follow attention.cuh's arithmetic.
#include <algorithm>
#include <string>

#include "backend/cuda/attention.cuh"
#include "backend/cuda/attention.h"
#include "base/error.h"

namespace qwen3::cuda {
namespace {

constexpr size_t kPartialRowBytes = kPartialRow * sizeof(float);

}  // namespace

void attention(const AttentionArgs& args, const BatchHost& host, const AttentionWorkspace& workspace,
               const Context& ctx) {
  const BatchView& batch = *args.batch;
  if (host.n_tokens == 0) return;
  const int group = args.n_heads / args.n_kv_heads;
  if (args.head_dim != kHeadDim || group * args.n_kv_heads != args.n_heads || group > kMaxDecodeRows) {
    throw Error(Status::kUnsupported,
                "attention on the GPU needs heads of 128 and at most 16 query heads per KV head; "
                "this model has heads of " +
                    std::to_string(args.head_dim) + " and " + std::to_string(args.n_heads) + " for " +
                    std::to_string(args.n_kv_heads));
  }
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
  p.scale = 0.08838834764831845f * 1.4426950408889634f;  // log2(e) / sqrt(128)
  p.decode_rows = kMaxDecodeRows;
  p.turn_counter = reinterpret_cast<uint32_t*>(workspace.counters + workspace.n_counters - 1);

  const int tile_rows = ctx.hopper ? kHopperRows : kPrefillRows;
  int decode_rows = 0;  // the most rows of a sequence that decodes
  int n_decode = 0;
  int n_tiles = 0;
  for (int s = 0; s < host.n_seqs; s++) {
    const int rows = (host.query_start[s + 1] - host.query_start[s]) * group;
    if (rows == 0) continue;
    if (rows <= kMaxDecodeRows) {
      n_decode++;
      decode_rows = std::max(decode_rows, rows);
    } else {
      n_tiles += (rows + tile_rows - 1) / tile_rows;
    }
  }

  if (n_decode > 0) {
    const int n_pairs = host.n_seqs * args.n_kv_heads;
    p.max_splits = (host.max_context + kSplit - 1) / kSplit;
    p.partial_rows = decode_rows;
    const size_t states = static_cast<size_t>(n_pairs) * static_cast<size_t>(p.max_splits);
    const size_t partial_rows = states * static_cast<size_t>(decode_rows);
    p.whole = partial_rows * kPartialRowBytes > workspace.bytes || n_pairs >= workspace.n_counters;
    if (p.whole) p.max_splits = 1;
    p.partials = workspace.partials;
    p.counters = workspace.counters;
    attention_decode(p, ctx);
  }
  if (n_tiles > 0) {
    if (ctx.hopper) {
      attention_hopper(p, n_tiles, ctx);
    } else {
      attention_prefill(p, n_tiles, ctx);
    }
  }
}

}  // namespace qwen3::cuda

// What attention needs from its caller beyond AttentionArgs: host numbers to size its grids, and a workspace.
//
// Host code only; no kernel, no device memory of its own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/attention_plan.h"
#include "backend/cuda/kernels.h"
#include "ops/ops.h"

namespace qwen3::cuda {

// What the host knows of a step's batch. Grids follow from it, so for a captured graph it describes the padded batch:
// n_seqs sequences of one token each and an upper bound of the context. Sequences of a replay may be shorter than
// max_context says, and may have no token at all.
struct BatchHost {
  int n_tokens;
  int n_seqs;
  const int32_t* query_start;  // [n_seqs + 1] host memory
  int max_context;             // upper bound of position + 1 over the batch's tokens
  const StepPiece* plan;       // [planned_ctas()] device memory, of this batch; nullptr: none was made
};

// Device memory that lives as long as the backend. Used by one stream.
struct AttentionWorkspace {
  float* partials;    // partial states, 16-byte aligned
  size_t bytes;       // of partials
  int32_t* counters;  // [n_counters], zero at first; kernels leave them zero
  int n_counters;     // more than max_seqs * n_kv_heads
};

// Enough for every split of `max_seqs` decoding sequences to run in parallel as long as their number of splits times
// sequences stays moderate; with less, sequences are walked whole by one CTA per KV head, with the same bits.
inline constexpr size_t kAttentionWorkspaceBytes = size_t{96} << 20;

// States of a split, of `group` rows, that there is room for: what a plan needs.
int64_t most_states(const AttentionWorkspace& workspace, int group);

void attention(const AttentionArgs& args, const BatchHost& host, const AttentionWorkspace& workspace,
               const Context& ctx);

// ---- the kernels behind it (params: attention.cuh)
struct AttentionParams;
void attention_decode(const AttentionParams& params, const Context& ctx);
void attention_prefill(const AttentionParams& params, int n_tiles, const Context& ctx);  // tiles of kPrefillRows
// n_groups: 2 or 3; tiles of n_groups x kPrefillRows.
void attention_hopper(const AttentionParams& params, int n_tiles, int n_groups, const Context& ctx);

// Decode steps on Hopper, one token per sequence: qk_norm_rope and attention in one. args.qkv is there, args.kv and
// args.out are made, args.q is not used. host.plan must be there where planned_ctas() wants one.
bool attention_step_serves(const SelfAttentionArgs& args, const BatchHost& host, const AttentionWorkspace& workspace,
                           const Context& ctx);
// of_sums: qkv is not in args.qkv but in ctx.sums, where linear_sums() has left it; only with a plan.
void attention_step(const SelfAttentionArgs& args, const BatchHost& host, const AttentionWorkspace& workspace,
                    const Context& ctx, bool of_sums = false);

}  // namespace qwen3::cuda

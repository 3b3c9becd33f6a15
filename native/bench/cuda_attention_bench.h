// What the benches of attention share: the workspace, and batches over a large pool to be timed. Header only.
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/attention.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/kv_layout.h"
#include "cuda_bench.h"

namespace bench {

using namespace qwen3;
using namespace qwen3::cuda;

// One workspace for all calls, poisoned anew: who reads what it has not written gets NaN.
inline AttentionWorkspace workspace(size_t bytes) {
  static Buffer<float> partials(kAttentionWorkspaceBytes / 4);
  static Buffer<int32_t> counters(1 << 15);
  partials.poison();
  return {partials.data, bytes, counters.data, 1 << 15};
}

// What the backend plans for a decode step of these sequences; empty: such a step needs no plan.
inline std::vector<StepPiece> step_plan(std::span<const int32_t> positions, std::span<const int32_t> tables,
                                        int max_blocks, int heads, int kv_heads, int n_seqs, int max_context,
                                        const AttentionWorkspace& w) {
  std::vector<StepPiece> pieces(size_t(planned_ctas(n_seqs, kv_heads, max_context, sm_count)));
  if (!pieces.empty())
    plan_attention_step({positions, tables, max_blocks, kv_heads, sm_count, most_states(w, heads / kv_heads)}, pieces);
  return pieces;
}

// A batch whose sequences own distinct blocks of a big pool, in `sets` disjoint places.
struct Timed {
  BatchView view;
  std::vector<int32_t> start;
  Buffer<int32_t> positions, seq_of, query_start;
  std::vector<std::unique_ptr<Buffer<int32_t>>> tables;
  std::vector<std::vector<int32_t>> host_tables;
  std::vector<std::unique_ptr<Buffer<StepPiece>>> plans;  // of make_plans(), one per set
  int n_seqs, length;

  Timed(int seqs, int len, int n_new, int sets)
      : positions(std::vector<int32_t>(size_t(seqs) * size_t(n_new))),
        seq_of(size_t(seqs) * size_t(n_new)),
        query_start(size_t(seqs) + 1),
        n_seqs(seqs),
        length(len) {
    std::vector<int32_t> p, o;
    for (int s = 0; s < seqs; s++) {
      start.push_back(s * n_new);
      for (int t = 0; t < n_new; t++) p.push_back(len - n_new + t), o.push_back(s);
    }
    start.push_back(seqs * n_new);
    ok(cudaMemcpy(positions.data, p.data(), p.size() * 4, cudaMemcpyHostToDevice));
    ok(cudaMemcpy(seq_of.data, o.data(), o.size() * 4, cudaMemcpyHostToDevice));
    ok(cudaMemcpy(query_start.data, start.data(), start.size() * 4, cudaMemcpyHostToDevice));
    const int blocks = (len + kBlockSize - 1) / kBlockSize;
    int32_t next = 0;
    for (int set = 0; set < sets; set++) {
      // Sequences grow together: their blocks alternate, as in a server.
      std::vector<int32_t> t(size_t(seqs) * size_t(blocks));
      for (int b = 0; b < blocks; b++)
        for (int s = 0; s < seqs; s++) t[size_t(s) * size_t(blocks) + size_t(b)] = next++;
      tables.push_back(std::make_unique<Buffer<int32_t>>(t));
      host_tables.push_back(std::move(t));
    }
    view = {seqs * n_new, seqs, blocks, nullptr, positions.data, seq_of.data, query_start.data, tables[0]->data};
  }
  BatchView batch(int set) const {
    BatchView batch = view;
    batch.block_tables = tables[size_t(set) % tables.size()]->data;
    return batch;
  }
  void make_plans(int heads, const AttentionWorkspace& w) {
    for (const std::vector<int32_t>& table : host_tables) {
      const std::vector<int32_t> positions(size_t(n_seqs), length - 1);
      plans.push_back(std::make_unique<Buffer<StepPiece>>(
          step_plan(positions, table, view.max_blocks, heads, 8, n_seqs, host().max_context, w)));
    }
  }
  // What a server's graph knows: a bound of the context, the next power of two.
  BatchHost host(int set = 0) const {
    const StepPiece* plan = plans.empty() ? nullptr : plans[size_t(set) % plans.size()]->data;
    return {view.n_tokens, n_seqs, start.data(), int(std::bit_ceil(unsigned(length))), plan};
  }
  void issue(int set, const bf16* q, KvLayer kv, bf16* out, int heads, bool hopper, const AttentionWorkspace& w) {
    const BatchView batch = this->batch(set);
    cuda::attention({&batch, q, kv, heads, 8, 128, out}, host(), w, context(hopper));
  }
};

}  // namespace bench

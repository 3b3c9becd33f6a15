// Memory of the model: KV pool and workspace, and timing of its ops. The forward pass is in forward.cpp.
#include "model/model.h"

#include <algorithm>

namespace qwen3 {

namespace {

// Sizes of the workspace buffers, so that the estimate before opening and the allocation cannot differ.
struct WorkspaceSizes {
  uint64_t x, angles, normed, qkv, q, attention, activation, logits, sampling;
  uint64_t total() const { return x + angles + normed + qkv + q + attention + activation + logits + sampling; }
};

WorkspaceSizes workspace_sizes(const ModelConfig& c, int token_budget, const Ops& ops) {
  const uint64_t logit_rows = static_cast<uint64_t>(ops.max_logit_rows());
  const uint64_t rows = (static_cast<uint64_t>(token_budget) + kRowPadding - 1) / kRowPadding * kRowPadding;
  const uint64_t norm_rows = std::max(rows, logit_rows);
  const uint64_t hidden = static_cast<uint64_t>(c.hidden);
  const uint64_t q_width = static_cast<uint64_t>(c.n_heads) * static_cast<uint64_t>(c.head_dim);
  const uint64_t kv_width = static_cast<uint64_t>(c.n_kv_heads) * static_cast<uint64_t>(c.head_dim);
  return {
      .x = rows * hidden * sizeof(float),
      .angles = rows * static_cast<uint64_t>(c.head_dim) * sizeof(float),
      .normed = norm_rows * hidden * sizeof(bf16),
      .qkv = rows * (q_width + 2 * kv_width) * sizeof(float),
      .q = rows * q_width * sizeof(bf16),
      .attention = rows * q_width * sizeof(bf16),
      .activation = rows * static_cast<uint64_t>(c.intermediate) * sizeof(bf16),
      .logits = logit_rows * static_cast<uint64_t>(c.vocab) * sizeof(float),
      .sampling = ops.sample_workspace_bytes(c.vocab),
  };
}

uint64_t layer_kv_bytes(const ModelConfig& c) {  // k or v of one block of one layer
  return static_cast<uint64_t>(kBlockSize) * static_cast<uint64_t>(c.n_kv_heads) * static_cast<uint64_t>(c.head_dim) *
         sizeof(bf16);
}

}  // namespace

uint64_t Model::kv_block_bytes(const ModelConfig& config) {
  return 2 * layer_kv_bytes(config) * static_cast<uint64_t>(config.n_layers);
}

uint64_t Model::workspace_bytes(const ModelConfig& config, int token_budget, const Ops& ops) {
  return workspace_sizes(config, token_budget, ops).total();
}

Model::Model(const ModelConfig& config, std::unique_ptr<Ops> ops, std::unique_ptr<Weights> weights,
             const ModelLimits& limits)
    : config_(config),
      n_token_ids_(limits.n_token_ids),
      weights_(std::move(weights)),
      backend_(std::move(ops)),
      ops_(backend_.get()) {
  rope_inv_freq_ = ops_->load_floats(rope_inv_freq(config_.rope, config_.head_dim));
  rope_scale_ = rope_attention_scale(config_.rope);

  // One allocation: a device rounds each one up, which would add up over the layers.
  const uint64_t pool = kv_block_bytes(config_) * static_cast<uint64_t>(limits.n_blocks);
  bf16* kv = static_cast<bf16*>(ops_->allocate(pool, "the KV pool"));
  const uint64_t part = layer_kv_bytes(config_) / sizeof(bf16) * static_cast<uint64_t>(limits.n_blocks);
  for (int layer = 0; layer < config_.n_layers; layer++, kv += 2 * part) kv_.push_back({.k = kv, .v = kv + part});

  const WorkspaceSizes sizes = workspace_sizes(config_, limits.token_budget, *ops_);
  const auto allocate = [&](uint64_t bytes) { return ops_->allocate(bytes, "the workspace"); };
  x_ = static_cast<float*>(allocate(sizes.x));
  angles_ = static_cast<float*>(allocate(sizes.angles));
  normed_ = static_cast<bf16*>(allocate(sizes.normed));
  qkv_ = static_cast<float*>(allocate(sizes.qkv));
  q_ = static_cast<bf16*>(allocate(sizes.q));
  attention_ = static_cast<bf16*>(allocate(sizes.attention));
  activation_ = static_cast<bf16*>(allocate(sizes.activation));
  logits_ = static_cast<float*>(allocate(sizes.logits));
  sampling_ = allocate(sizes.sampling);
}

std::vector<OpTime> Model::time_ops(const std::function<void()>& step) {
  TimedOps timed(*backend_, *weights_, kv_);
  backend_->wait();
  ops_ = &timed;
  try {
    timed.begin();
    step();
  } catch (...) {
    ops_ = backend_.get();
    throw;
  }
  ops_ = backend_.get();
  return timed.take();
}

}  // namespace qwen3

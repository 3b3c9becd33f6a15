// The model on a device: weights, KV pool, workspace, and the forward pass over Ops.
//
// It knows token rows, positions and block tables; it knows no requests and no scheduling. Only the engine's worker
// thread calls it once it has been made. A step is forward(), whose batch names the rows to sample; where they are not
// known before, sample() follows on rows of the same step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/config.h"
#include "model/timed_ops.h"
#include "model/weights.h"
#include "ops/ops.h"

namespace qwen3 {

struct ModelLimits {
  int token_budget;  // most token rows of a step
  int64_t n_blocks;  // KV blocks
  int n_token_ids;   // ids from here on are never sampled
};

class Model {
 public:
  Model(const ModelConfig& config, std::unique_ptr<Ops> ops, std::unique_ptr<Weights> weights,
        const ModelLimits& limits);

  static uint64_t kv_block_bytes(const ModelConfig& config);
  // Activations, logits and tables for `token_budget` rows.
  static uint64_t workspace_bytes(const ModelConfig& config, int token_budget, const Ops& ops);

  const ModelConfig& config() const { return config_; }
  const Weights& weights() const { return *weights_; }
  Ops& ops() { return *ops_; }

  // Runs `step`, which calls forward() and nothing that waits, and returns what each of its ops took. Ops are
  // issued one by one, not recorded.
  std::vector<OpTime> time_ops(const std::function<void()>& step);

  // Runs all layers over the batch's tokens and writes their keys and values to the KV pool; then samples or scores the
  // batch's rows, any number of them. Results are there by the time of ops().wait() or a later mark's.
  void forward(const BatchArrays& batch);
  // Samples rows of the last forward(), one result each.
  void sample(std::span<const int32_t> token_rows, std::span<const SampleRow> rows, std::span<SampleResult> results);
  // Raw logits of rows of the last forward(). out: [token_rows.size(), vocab] in host memory. Waits for them.
  void logits(std::span<const int32_t> token_rows, std::span<float> out);
  // Repeats forward() and returns the first layer whose output is not finite; -1 for the embedding, n_layers if all
  // are.
  int find_nonfinite_layer(const BatchArrays& batch);

 private:
  BatchView upload(BatchArrays arrays);
  void run_layers(const BatchView& batch);
  // The embedding, the first layer's input norm, and what all layers share.
  void begin_layers(const BatchView& batch);
  void run_layer(size_t layer, const BatchView& batch);
  RmsNormArgs norm_of_x(const bf16* weight, int n_rows) const;
  void run_rows(const BatchView& batch, std::span<const SampleRow> rows, std::span<SampleResult> results);
  template <typename Use>
  void for_logits(const BatchView& batch, const Use& use);

  const ModelConfig config_;
  const int n_token_ids_;
  // Destroyed in reverse order: on the CPU, ops refer to the weights' mapping, so the weights go last.
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<Ops> backend_;
  Ops* ops_;                    // the backend, or what time_ops() puts around it
  std::vector<KvLayer> kv_;     // [n_layers]
  const float* rope_inv_freq_;  // [head_dim / 2]
  float rope_scale_;
  // Workspace, device memory.
  float* x_;          // [token_budget, hidden] residual stream
  float* angles_;     // [token_budget, head_dim] cos and sin of the step's positions
  bf16* normed_;      // [max(token_budget, max_logit_rows), hidden]
  float* qkv_;        // [token_budget, (n_heads + 2 n_kv_heads) * head_dim]
  bf16* q_;           // [token_budget, n_heads * head_dim]
  bf16* attention_;   // [token_budget, n_heads * head_dim]
  bf16* activation_;  // [token_budget, intermediate]
  float* logits_;     // [max_logit_rows, vocab]
  void* sampling_;    // the backend's
};

}  // namespace qwen3

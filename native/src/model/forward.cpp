// The forward pass, read from top to bottom.
//
//   x  = embed(tokens)                                        residual stream, float32
//   angles = cos, sin(position * inv_freq)                    RoPE's, for all layers
//   n  = rmsnorm(x)                                           operands of products are bfloat16
//   per layer:
//     qkv = n * qkv_proj^T                                    float32
//     q, KV pool <- rope(head_norm(q)), rope(head_norm(k)), v
//     x  += attention(q, KV pool) * o_proj^T
//     n   = rmsnorm(x)
//     x  += (silu(n * gate_proj^T) * (n * up_proj^T)) * down_proj^T
//     n   = rmsnorm(x)                                        of the next layer: a residual add and the norm after it
//                                                             are one op
//   logits = rmsnorm(x[rows]) * lm_head^T                     only for rows that somebody asks for
#include <algorithm>
#include <cmath>

#include "model/model.h"

namespace qwen3 {

BatchView Model::upload(BatchArrays arrays) {
  arrays.n_heads = config_.n_heads;
  arrays.n_kv_heads = config_.n_kv_heads;
  return ops_->upload_batch(arrays);
}

void Model::forward(const BatchArrays& arrays) {
  const BatchView batch = upload(arrays);
  ops_->run_recorded(batch.record_key, [&] {
    run_layers(batch);
    if (batch.records_rows) run_rows(batch, arrays.sample_rows, arrays.results);
  });
  if (!batch.records_rows) run_rows(batch, arrays.sample_rows, arrays.results);
}

void Model::run_layers(const BatchView& batch) {
  begin_layers(batch);
  for (size_t layer = 0; layer < weights_->layers.size(); layer++) run_layer(layer, batch);
}

void Model::begin_layers(const BatchView& batch) {
  ops_->embed({.batch = &batch, .table = &weights_->embed_tokens, .out = x_});
  ops_->rope_angles({.batch = &batch,
                     .inv_freq = rope_inv_freq_,
                     .rope_scale = rope_scale_,
                     .head_dim = config_.head_dim,
                     .out = angles_});
  ops_->rms_norm(norm_of_x(weights_->layers[0].input_layernorm, batch.n_tokens));
}

RmsNormArgs Model::norm_of_x(const bf16* weight, int n_rows) const {
  return {.x = x_,
          .weight = weight,
          .row_index = nullptr,
          .n_rows = n_rows,
          .hidden = config_.hidden,
          .eps = config_.rms_norm_eps,
          .out = normed_};
}

// Begins with its input normed, and ends with that of the next layer.
void Model::run_layer(size_t layer, const BatchView& batch) {
  const LayerWeights& w = weights_->layers[layer];
  const int n = batch.n_tokens;
  ops_->self_attention({.batch = &batch,
                        .x = normed_,
                        .qkv_proj = &w.qkv_proj,
                        .q_norm = w.q_norm,
                        .k_norm = w.k_norm,
                        .angles = angles_,
                        .eps = config_.rms_norm_eps,
                        .n_heads = config_.n_heads,
                        .n_kv_heads = config_.n_kv_heads,
                        .head_dim = config_.head_dim,
                        .qkv = qkv_,
                        .q = q_,
                        .kv = kv_[layer],
                        .out = attention_});
  ops_->residual_norm({.linear = {.x = attention_, .n_rows = n, .weight = &w.o_proj, .out = x_, .accumulate = true},
                       .norm = norm_of_x(w.post_attention_layernorm, n)});

  ops_->gate_up({.x = normed_, .n_rows = n, .weight = &w.gate_up_proj, .out = activation_});
  const LinearArgs down = {.x = activation_, .n_rows = n, .weight = &w.down_proj, .out = x_, .accumulate = true};
  if (layer + 1 == weights_->layers.size()) return ops_->linear(down);  // the last norm is only of rows with logits
  ops_->residual_norm({.linear = down, .norm = norm_of_x(weights_->layers[layer + 1].input_layernorm, n)});
}

// Computes logits piece by piece, as many rows as logits_ holds, and calls use(first row, n rows) after each.
template <typename Use>
void Model::for_logits(const BatchView& batch, const Use& use) {
  for (int first = 0; first < batch.n_logit_rows; first += ops_->max_logit_rows()) {
    const int n = std::min(ops_->max_logit_rows(), batch.n_logit_rows - first);
    RmsNormArgs norm = norm_of_x(weights_->norm, n);
    norm.row_index = batch.logit_rows + first;
    ops_->rms_norm(norm);
    ops_->linear({.x = normed_, .n_rows = n, .weight = &weights_->lm_head, .out = logits_, .accumulate = false});
    use(static_cast<size_t>(first), static_cast<size_t>(n));
  }
}

void Model::run_rows(const BatchView& batch, std::span<const SampleRow> rows, std::span<SampleResult> results) {
  for_logits(batch, [&](size_t first, size_t n) {
    const size_t n_real = std::min(n, rows.size() - first);
    ops_->sample({.logits = logits_,
                  .vocab = config_.vocab,
                  .n_token_ids = n_token_ids_,
                  .rows = rows.subspan(first, n_real),
                  .results = results.subspan(first, n_real),
                  .first_row = static_cast<int>(first),
                  .n_rows = static_cast<int>(n),
                  .workspace = sampling_});
  });
}

void Model::sample(std::span<const int32_t> token_rows, std::span<const SampleRow> rows,
                   std::span<SampleResult> results) {
  run_rows(ops_->upload_batch({.logit_rows = token_rows, .sample_rows = rows, .results = results}), rows, results);
}

void Model::logits(std::span<const int32_t> token_rows, std::span<float> out) {
  const size_t vocab = static_cast<size_t>(config_.vocab);
  for_logits(ops_->upload_batch({.logit_rows = token_rows}), [&](size_t first, size_t n) {
    ops_->download(out.subspan(first * vocab, n * vocab), logits_);
    ops_->wait();
  });
}

int Model::find_nonfinite_layer(const BatchArrays& arrays) {
  const BatchView batch = upload(arrays);
  std::vector<float> x(static_cast<size_t>(arrays.n_tokens) * static_cast<size_t>(config_.hidden));
  const auto finite = [&] {
    ops_->download(x, x_);
    ops_->wait();
    return std::all_of(x.begin(), x.end(), [](float value) { return std::isfinite(value); });
  };
  begin_layers(batch);
  if (!finite()) return -1;
  for (int layer = 0; layer < config_.n_layers; layer++) {
    run_layer(static_cast<size_t>(layer), batch);
    if (!finite()) return layer;
  }
  return config_.n_layers;
}

}  // namespace qwen3

// A checkpoint's weights as the backend keeps them. Names are Hugging Face's; fusions say so. Rounds float16 and
// float32 files to bfloat16. Used on the opening thread; read-only afterwards.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "model/checkpoint.h"
#include "model/config.h"
#include "ops/ops.h"

namespace qwen3 {

struct LayerWeights {
  const bf16* input_layernorm;           // [hidden]
  LinearWeight qkv_proj;                 // [(n_heads + 2 n_kv_heads) * head_dim, hidden]
  const bf16* q_norm;                    // [head_dim]
  const bf16* k_norm;                    // [head_dim]
  LinearWeight o_proj;                   // [hidden, n_heads * head_dim]
  const bf16* post_attention_layernorm;  // [hidden]
  LinearWeight gate_up_proj;             // [2 * intermediate, hidden]
  LinearWeight down_proj;                // [hidden, intermediate]
};

// done and total count bytes of the files; returning false stops the load with Error(kCancelled).
using LoadProgress = std::function<bool(uint64_t done, uint64_t total)>;

class Weights {
 public:
  // Keeps the checkpoint's mapping: on the CPU the weights are the mapped file.
  Weights(Checkpoint checkpoint, const ModelConfig& config, Ops& ops, const LoadProgress& progress);

  // Has the backend keep them in its smaller form too (Ops::code), in at most `room` bytes. Returns the bytes taken.
  uint64_t code(Ops& ops, uint64_t room);

  LinearWeight embed_tokens;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  const bf16* norm;          // [hidden]
  LinearWeight lm_head;      // [vocab, hidden]; embed_tokens itself when tied
  uint64_t total_bytes = 0;  // as bfloat16
  int64_t n_parameters = 0;

 private:
  HostMatrix as_bf16(const HostTensor& tensor);
  void count(const HostTensor& tensor, const LoadProgress& progress);

  Checkpoint checkpoint_;
  uint64_t file_bytes_ = 0;  // loaded so far
  std::vector<std::unique_ptr<bf16[]>> converted_;
};

}  // namespace qwen3

// The weights of a Qwen3 model directory: which file holds which tensor, checked against the config, nothing copied.
//
// Owns the mappings, the tensors' names and expected shapes, and the rules about shards and tied heads. Knows no
// backend and converts nothing. Invariants after open: every tensor of the model is there exactly once with the
// expected shape and a float dtype; no other tensor is; every data pointer lies inside a mapping that this object keeps
// alive, and is aligned to the tensor's element (a file whose data starts at an odd address has that tensor copied, the
// only copy). Weights are read lazily by whoever touches them; a file that shrinks after open raises SIGBUS
// (base/mapped_file.h). open() runs on the thread that opens the model; the result is constant and may be read by any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "model/config.h"

namespace qwen3 {

enum class DType : int32_t { kBf16, kF16, kF32 };

constexpr int64_t dtype_bytes(DType dtype) {
  return dtype == DType::kF32 ? 4 : 2;
}

struct HostTensor {
  std::string name;  // as in the file: "model.layers.0.self_attn.q_proj.weight"
  DType dtype = DType::kBf16;
  std::vector<int64_t> shape;  // row-major, [rows, columns] = [out, in], or [n] for norms
  const void* data = nullptr;  // shape x dtype; aligned to the element, not to 64
  std::string file;            // path, for messages

  int64_t elements() const {
    int64_t n = 1;
    for (const int64_t dimension : shape) n *= dimension;
    return n;
  }
  int64_t bytes() const { return elements() * dtype_bytes(dtype); }
};

// q = n_heads * head_dim, kv = n_kv_heads * head_dim.
struct LayerTensors {
  HostTensor input_layernorm;           // [hidden]
  HostTensor q_proj;                    // [q, hidden]
  HostTensor k_proj;                    // [kv, hidden]
  HostTensor v_proj;                    // [kv, hidden]
  HostTensor q_norm;                    // [head_dim]
  HostTensor k_norm;                    // [head_dim]
  HostTensor o_proj;                    // [hidden, q]
  HostTensor post_attention_layernorm;  // [hidden]
  HostTensor gate_proj;                 // [intermediate, hidden]
  HostTensor up_proj;                   // [intermediate, hidden]
  HostTensor down_proj;                 // [hidden, intermediate]
};

struct FileInfo {
  std::string path;
  int64_t bytes = 0;
  std::shared_ptr<const MappedFile> mapping;
};

class Checkpoint {
 public:
  // Errors: kNotFound (no weights), kBadModel (broken or not fitting the config), kUnsupported (a dtype we do not
  // read).
  static Checkpoint open(const std::string& model_dir, const ModelConfig& config);

  HostTensor embed_tokens;           // [vocab, hidden]
  std::vector<LayerTensors> layers;  // [n_layers]
  HostTensor norm;                   // [hidden]
  HostTensor lm_head;                // [vocab, hidden]; embed_tokens itself when tied
  int64_t total_bytes = 0;           // of the tensors above as stored, a tied head counted once
  int64_t n_elements = 0;            // of the same
  std::vector<FileInfo> files;       // keeps the mappings alive

 private:
  std::vector<std::shared_ptr<std::byte[]>> copies_;  // tensors that lay misaligned in their file
};

}  // namespace qwen3

// A scratch model directory for loader tests and the loader's fuzzer: the smallest valid Qwen3 checkpoint, written byte
// by byte here so that nothing of the reader is used to test the reader.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace model_dir {

// A directory under $TMPDIR that is removed with the object.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "qwen3-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make a temporary directory");
    path_ = pattern;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ + "/" + name, std::ios::binary | std::ios::trunc) << bytes;
  }
  std::string read(const std::string& name) const {
    std::ifstream file(path_ + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void remove(const std::string& name) const { std::filesystem::remove(path_ + "/" + name); }

 private:
  std::string path_;
};

inline std::string replace(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  if (at == std::string::npos) throw std::runtime_error("the test looks for text that is not there: " + from);
  return text.replace(at, from.size(), to);
}

// hidden 16, intermediate 32, 2 layers, 2 heads, 1 KV head, head_dim 128, 8 ids.
inline std::string config_text() {
  return R"({
  "architectures": ["Qwen3ForCausalLM"],
  "attention_bias": false,
  "eos_token_id": 7,
  "head_dim": 128,
  "hidden_act": "silu",
  "hidden_size": 16,
  "intermediate_size": 32,
  "max_position_embeddings": 40960,
  "model_type": "qwen3",
  "num_attention_heads": 2,
  "num_hidden_layers": 2,
  "num_key_value_heads": 1,
  "rms_norm_eps": 1e-06,
  "rope_scaling": null,
  "rope_theta": 1000000,
  "sliding_window": null,
  "tie_word_embeddings": true,
  "torch_dtype": "bfloat16",
  "use_sliding_window": false,
  "vocab_size": 8
})";
}

struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  std::string dtype = "BF16";

  std::size_t bytes() const {
    std::size_t n = dtype == "F32" || dtype == "I32" ? 4 : dtype == "U8" ? 1 : 2;
    for (const int64_t dimension : shape) n *= static_cast<std::size_t>(dimension);
    return n;
  }
};

inline std::string length_prefix(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i) & 255);
  return bytes;
}

// A file of that header text and data.
inline std::string container(const std::string& header, const std::string& data) {
  return length_prefix(header.size()) + header + data;
}

inline std::string header_entry(const Tensor& tensor, std::size_t begin, std::size_t end) {
  std::string shape;
  for (const int64_t dimension : tensor.shape) shape += (shape.empty() ? "" : ",") + std::to_string(dimension);
  return "\"" + tensor.name + "\":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":[" + shape + "],\"data_offsets\":[" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}

// Byte i of tensor number t is a fixed function of both, so that a wrong offset shows.
inline char data_byte(std::size_t t, std::size_t i) {
  return static_cast<char>((t * 31 + i * 7 + 3) & 0x3f);
}

// The whole file; `padding` more spaces end the header, to shift the data.
inline std::string safetensors(const std::vector<Tensor>& tensors, std::size_t padding = 0) {
  std::string header = R"({"__metadata__":{"format":"pt"})";
  std::string data;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::size_t begin = data.size();
    for (std::size_t i = 0; i < tensors[t].bytes(); ++i) data += data_byte(t, i);
    header += "," + header_entry(tensors[t], begin, data.size());
  }
  header += "}";
  while (header.size() % 8 != 0) header += ' ';
  return container(header + std::string(padding, ' '), data);
}

// The tensors that config_text() asks for, in file order.
inline std::vector<Tensor> model_tensors() {
  std::vector<Tensor> tensors = {{"model.embed_tokens.weight", {8, 16}}};
  for (const std::string layer : {"0", "1"}) {
    const std::string prefix = "model.layers." + layer + ".";
    tensors.push_back({prefix + "input_layernorm.weight", {16}});
    tensors.push_back({prefix + "self_attn.q_proj.weight", {256, 16}});
    tensors.push_back({prefix + "self_attn.k_proj.weight", {128, 16}});
    tensors.push_back({prefix + "self_attn.v_proj.weight", {128, 16}});
    tensors.push_back({prefix + "self_attn.q_norm.weight", {128}});
    tensors.push_back({prefix + "self_attn.k_norm.weight", {128}});
    tensors.push_back({prefix + "self_attn.o_proj.weight", {16, 256}});
    tensors.push_back({prefix + "post_attention_layernorm.weight", {16}});
    tensors.push_back({prefix + "mlp.gate_proj.weight", {32, 16}});
    tensors.push_back({prefix + "mlp.up_proj.weight", {32, 16}});
    tensors.push_back({prefix + "mlp.down_proj.weight", {16, 32}});
  }
  tensors.push_back({"model.norm.weight", {16}});
  return tensors;
}

// Index text for (tensor, shard) pairs.
inline std::string index_text(const std::vector<std::pair<std::string, std::string>>& map) {
  std::string text = R"({"metadata":{"total_size":1},"weight_map":{)";
  for (const auto& [tensor, shard] : map) text += (text.back() == '{' ? "\"" : ",\"") + tensor + "\":\"" + shard + "\"";
  return text + "}}";
}

// Writes a sharded checkpoint: the first `cut` tensors into a.safetensors, the rest into b.safetensors.
inline std::vector<std::pair<std::string, std::string>> write_shards(const TempDir& dir, std::size_t cut = 10) {
  const std::vector<Tensor> all = model_tensors();
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(cut);
  dir.write("a.safetensors", safetensors({all.begin(), middle}));
  dir.write("b.safetensors", safetensors({middle, all.end()}));
  std::vector<std::pair<std::string, std::string>> map;
  for (std::size_t t = 0; t < all.size(); ++t)
    map.emplace_back(all[t].name, t < cut ? "a.safetensors" : "b.safetensors");
  dir.write("model.safetensors.index.json", index_text(map));
  return map;
}

}  // namespace model_dir

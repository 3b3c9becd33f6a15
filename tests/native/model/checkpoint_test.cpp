// A model directory: single file and shards, every tensor where it belongs, every disagreement with the config
// reported.
#include "model/checkpoint.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "model/model_dir.h"

using model_dir::config_text;
using model_dir::data_byte;
using model_dir::index_text;
using model_dir::model_tensors;
using model_dir::replace;
using model_dir::safetensors;
using model_dir::TempDir;
using model_dir::Tensor;
using model_dir::write_shards;
using qwen3::Checkpoint;
using qwen3::DType;
using qwen3::Error;
using qwen3::HostTensor;
using qwen3::Status;

namespace {

Checkpoint open(const TempDir& dir) {
  return Checkpoint::open(dir.path(), qwen3::load_config(dir.path()));
}

// A directory with config_text() and one file of these tensors.
void write_model(const TempDir& dir, const std::vector<Tensor>& tensors) {
  dir.write("config.json", config_text());
  dir.write("model.safetensors", safetensors(tensors));
}

Checkpoint open_tensors(const std::vector<Tensor>& tensors) {
  const TempDir dir;
  write_model(dir, tensors);
  return open(dir);
}

void set_untied(const TempDir& dir) {
  dir.write("config.json", replace(config_text(), R"("tie_word_embeddings": true)", R"("tie_word_embeddings": false)"));
}

Tensor& named(std::vector<Tensor>& tensors, const std::string& name) {
  return *std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& t) { return t.name == name; });
}

// The bytes that model_dir::safetensors gave tensor number t.
bool has_bytes_of(const HostTensor& tensor, std::size_t t) {
  const auto* bytes = static_cast<const char*>(tensor.data);
  for (std::size_t i = 0; i < static_cast<std::size_t>(tensor.bytes()); ++i) {
    if (bytes[i] != data_byte(t, i)) return false;
  }
  return true;
}

}  // namespace

TEST("checkpoint: one file") {
  const TempDir dir;
  write_model(dir, model_tensors());
  const Checkpoint checkpoint = open(dir);
  REQUIRE(checkpoint.layers.size() == 2);
  CHECK(has_bytes_of(checkpoint.embed_tokens, 0));
  CHECK(has_bytes_of(checkpoint.layers[0].input_layernorm, 1));
  CHECK(has_bytes_of(checkpoint.layers[1].q_proj, 13));
  CHECK(has_bytes_of(checkpoint.layers[1].down_proj, 22));
  CHECK(has_bytes_of(checkpoint.norm, 23));
  CHECK_EQ(checkpoint.layers[1].o_proj.name, "model.layers.1.self_attn.o_proj.weight");
  CHECK(checkpoint.layers[0].q_proj.shape == std::vector<int64_t>({256, 16}));
  CHECK_EQ(checkpoint.layers[0].gate_proj.elements(), int64_t{512});
  CHECK(checkpoint.norm.dtype == DType::kBf16);
  CHECK(checkpoint.lm_head.data == checkpoint.embed_tokens.data);  // tied
  CHECK_EQ(checkpoint.lm_head.name, checkpoint.embed_tokens.name);
  int64_t total = 0;
  for (const Tensor& tensor : model_tensors()) total += static_cast<int64_t>(tensor.bytes());
  CHECK_EQ(checkpoint.total_bytes, total);
  REQUIRE(checkpoint.files.size() == 1);
  CHECK_EQ(checkpoint.files[0].bytes, static_cast<int64_t>(std::filesystem::file_size(dir / "model.safetensors")));
  // Mapped, not copied: every pointer lies in the mapping.
  const auto bytes = checkpoint.files[0].mapping->bytes();
  for (const HostTensor* tensor : {&checkpoint.embed_tokens, &checkpoint.layers[0].k_proj, &checkpoint.norm}) {
    const auto* data = static_cast<const std::byte*>(tensor->data);
    CHECK(data >= bytes.data() && data + tensor->bytes() <= bytes.data() + bytes.size());
  }
}

TEST("checkpoint: moving keeps the data, and deleting the file does not matter") {
  const TempDir dir;
  write_model(dir, model_tensors());
  Checkpoint first = open(dir);
  dir.remove("model.safetensors");
  const Checkpoint second = std::move(first);
  CHECK(has_bytes_of(second.norm, 23));
  CHECK(has_bytes_of(second.lm_head, 0));
}

TEST("checkpoint: an untied head") {
  std::vector<Tensor> tensors = model_tensors();
  tensors.push_back({"lm_head.weight", {8, 16}});
  const TempDir dir;
  write_model(dir, tensors);
  set_untied(dir);
  const Checkpoint checkpoint = open(dir);
  CHECK(has_bytes_of(checkpoint.lm_head, 24));
  CHECK(checkpoint.lm_head.data != checkpoint.embed_tokens.data);
  dir.write("model.safetensors", safetensors(model_tensors()));
  CHECK_THROWS_WITH(open(dir), Error, R"(has no tensor "lm_head.weight", expected one of shape [8, 16])");
}

TEST("checkpoint: a tied head may have an equal copy, never a different one") {
  std::vector<Tensor> tensors = model_tensors();
  tensors.push_back({"lm_head.weight", {8, 16}});
  const TempDir dir;
  write_model(dir, tensors);
  CHECK_THROWS_WITH(open(dir), Error, R"(tensor "lm_head.weight" differs from "model.embed_tokens.weight")");

  std::string file = dir.read("model.safetensors");
  std::string embedding;
  for (std::size_t i = 0; i < tensors[0].bytes(); ++i) embedding += data_byte(0, i);
  file.replace(file.size() - embedding.size(), embedding.size(), embedding);
  dir.write("model.safetensors", file);
  const Checkpoint checkpoint = open(dir);
  CHECK(checkpoint.lm_head.data == checkpoint.embed_tokens.data);
  file.back() = static_cast<char>(file.back() ^ 1);  // one bit in the last byte
  dir.write("model.safetensors", file);
  CHECK_THROWS_WITH(open(dir), Error, "but config.json says that they are tied");

  tensors.back() = {"lm_head.weight", {8, 16}, "F16"};
  write_model(dir, tensors);
  CHECK_THROWS_WITH(open(dir), Error, "differs from");
  tensors.back() = {"lm_head.weight", {4, 16}};
  write_model(dir, tensors);
  CHECK_THROWS_WITH(open(dir), Error, "has shape [4, 16], expected [8, 16] by config.json");
}

TEST("checkpoint: F16, F32 and mixed files") {
  for (const auto& [name, dtype] : {std::pair<std::string, DType>{"F16", DType::kF16}, {"F32", DType::kF32}}) {
    std::vector<Tensor> tensors = model_tensors();
    for (Tensor& tensor : tensors) tensor.dtype = name;
    tensors.back().dtype = "BF16";
    const TempDir dir;
    write_model(dir, tensors);
    const Checkpoint checkpoint = open(dir);
    CHECK(checkpoint.layers[0].q_proj.dtype == dtype);
    CHECK(has_bytes_of(checkpoint.layers[1].down_proj, 22));
    CHECK(checkpoint.norm.dtype == DType::kBf16);
  }
}

TEST("checkpoint: data at an odd address is copied to an aligned one") {
  for (const std::size_t padding : {1, 2, 3}) {
    std::vector<Tensor> tensors = model_tensors();
    tensors[1].dtype = "F32";
    const TempDir dir;
    dir.write("config.json", config_text());
    dir.write("model.safetensors", safetensors(tensors, padding));
    Checkpoint opened = open(dir);
    const Checkpoint checkpoint = std::move(opened);
    CHECK(has_bytes_of(checkpoint.embed_tokens, 0));
    CHECK(has_bytes_of(checkpoint.lm_head, 0));
    CHECK(has_bytes_of(checkpoint.layers[0].input_layernorm, 1));
    CHECK(has_bytes_of(checkpoint.norm, 23));
    CHECK_EQ(reinterpret_cast<std::uintptr_t>(checkpoint.embed_tokens.data) % 2, std::uintptr_t{0});
    CHECK_EQ(reinterpret_cast<std::uintptr_t>(checkpoint.layers[0].input_layernorm.data) % 4, std::uintptr_t{0});
    CHECK_EQ(reinterpret_cast<std::uintptr_t>(checkpoint.norm.data) % 2, std::uintptr_t{0});
  }
}

TEST("checkpoint: tensors that do not fit the config") {
  std::vector<Tensor> tensors = model_tensors();
  named(tensors, "model.layers.1.self_attn.q_proj.weight").shape = {128, 16};
  CHECK_THROWS_WITH(
      open_tensors(tensors), Error,
      R"(tensor "model.layers.1.self_attn.q_proj.weight" has shape [128, 16], expected [256, 16] by config)");
  tensors = model_tensors();
  named(tensors, "model.embed_tokens.weight").shape = {16, 8};
  CHECK_THROWS_WITH(open_tensors(tensors), Error, "has shape [16, 8], expected [8, 16]");
  tensors = model_tensors();
  named(tensors, "model.norm.weight").dtype = "I32";
  CHECK_THROWS_WITH(open_tensors(tensors), Error,
                    R"(tensor "model.norm.weight" has dtype I32, expected BF16, F16 or F32)");
  tensors = model_tensors();
  tensors.erase(tensors.begin() + 5);
  CHECK_THROWS_WITH(
      open_tensors(tensors), Error,
      R"(model.safetensors has no tensor "model.layers.0.self_attn.q_norm.weight", expected one of shape [128])");
  tensors = model_tensors();
  tensors.push_back({"model.layers.0.self_attn.q_proj.bias", {256}});
  CHECK_THROWS_WITH(open_tensors(tensors), Error,
                    R"(tensor "model.layers.0.self_attn.q_proj.bias" (BF16 [256]) is not part of a Qwen3 model)");
  tensors = model_tensors();
  tensors.push_back({"model.layers.2.input_layernorm.weight", {16}});
  CHECK_THROWS_WITH(open_tensors(tensors), Error, "is not part of a Qwen3 model with this config.json");
}

TEST("checkpoint: more layers in the config than in the file") {
  const TempDir dir;
  write_model(dir, model_tensors());
  dir.write("config.json", replace(config_text(), R"("num_hidden_layers": 2)", R"("num_hidden_layers": 1024)"));
  CHECK_THROWS_WITH(open(dir), Error, R"(has no tensor "model.layers.2.input_layernorm.weight")");
}

TEST("checkpoint: directories without weights") {
  const TempDir dir;
  dir.write("config.json", config_text());
  CHECK_THROWS_WITH(open(dir), Error,
                    "has neither model.safetensors nor model.safetensors.index.json; download the weights");
  dir.write("pytorch_model.bin", "x");
  CHECK_THROWS_WITH(open(dir), Error, R"(only "pytorch_model.bin"; weights are read from safetensors files)");
  dir.write("model.safetensors", "");
  CHECK_THROWS_WITH(open(dir), Error, "model.safetensors is empty");
  dir.remove("model.safetensors");
  std::filesystem::create_directory(dir / "model.safetensors");
  CHECK_THROWS_WITH(open(dir), Error, "model.safetensors is a directory, expected a file");
  dir.remove("model.safetensors");
  REQUIRE(::mkfifo((dir / "model.safetensors").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(open(dir), Error, "is not a regular file");  // and does not hang
  try {
    dir.remove("model.safetensors");
    open(dir);
  } catch (const Error& error) {
    CHECK(error.status() == Status::kNotFound);
  }
}

TEST("checkpoint: no permission") {
  const TempDir dir;
  write_model(dir, model_tensors());
  ::chmod(dir.path().c_str(), 0755);
  ::chmod((dir / "model.safetensors").c_str(), 0);
  // Root reads everything: be somebody else meanwhile.
  const uid_t user = ::geteuid();
  if (user == 0 && ::seteuid(65534) != 0) return;
  CHECK_THROWS_WITH(open(dir), Error, "model.safetensors: permission denied; make it readable");
  REQUIRE(::seteuid(user) == 0);
}

TEST("checkpoint: shards") {
  const TempDir dir;
  dir.write("config.json", config_text());
  write_shards(dir);
  const Checkpoint checkpoint = open(dir);
  CHECK(has_bytes_of(checkpoint.embed_tokens, 0));
  CHECK(has_bytes_of(checkpoint.layers[0].gate_proj, 9));
  CHECK(has_bytes_of(checkpoint.layers[0].up_proj, 0));  // first of the second file
  CHECK(has_bytes_of(checkpoint.norm, 13));
  CHECK_EQ(checkpoint.files.size(), std::size_t{2});
  CHECK_EQ(checkpoint.norm.file, dir / "b.safetensors");
}

TEST("checkpoint: beside an index, other files are ignored") {
  const TempDir dir;
  dir.write("config.json", config_text());
  write_shards(dir);
  dir.write("model.safetensors", "rubbish");
  dir.write("c.safetensors", safetensors({{"model.norm.weight", {4}}}));
  CHECK_EQ(open(dir).files.size(), std::size_t{2});
}

TEST("checkpoint: missing shards and a stale index") {
  const TempDir dir;
  dir.write("config.json", config_text());
  auto map = write_shards(dir);
  std::filesystem::rename(dir / "b.safetensors", dir / "renamed.safetensors");
  CHECK_THROWS_WITH(
      open(dir), Error,
      R"(b.safetensors does not exist, but model.safetensors.index.json maps tensor "model.layers.0.mlp.down_proj)");
  CHECK_THROWS_WITH(open(dir), Error,
                    R"(while "renamed.safetensors" is there and not in the index; the index is stale)");
  dir.remove("renamed.safetensors");
  CHECK_THROWS_WITH(open(dir), Error, "to it; download it again");

  // The index maps a tensor to a shard that lacks it.
  map = write_shards(dir);
  map.front().second = "b.safetensors";
  dir.write("model.safetensors.index.json", index_text(map));
  CHECK_THROWS_WITH(open(dir), Error,
                    R"(a.safetensors holds tensor "model.embed_tokens.weight", but )" + dir.path() +
                        R"(/model.safetensors.index.json maps it to "b.safetensors")");
  map = write_shards(dir);
  map.emplace_back("model.extra", "a.safetensors");
  dir.write("model.safetensors.index.json", index_text(map));
  CHECK_THROWS_WITH(open(dir), Error, R"(a.safetensors lacks tensor "model.extra", which )");
  map = write_shards(dir);
  map.erase(map.begin());
  dir.write("model.safetensors.index.json", index_text(map));
  CHECK_THROWS_WITH(open(dir), Error, R"(holds tensor "model.embed_tokens.weight", but )");
  CHECK_THROWS_WITH(open(dir), Error, "does not know it; the index is stale or of another checkpoint");

  // All agree, but the model needs one more.
  dir.write("config.json", replace(config_text(), R"("num_hidden_layers": 2)", R"("num_hidden_layers": 3)"));
  write_shards(dir);
  CHECK_THROWS_WITH(open(dir), Error,
                    R"(model.safetensors.index.json has no tensor "model.layers.2.input_layernorm.weight")");
}

TEST("checkpoint: broken shards") {
  const TempDir dir;
  dir.write("config.json", config_text());
  write_shards(dir);
  const std::string whole = dir.read("b.safetensors");
  dir.write("b.safetensors", whole.substr(0, whole.size() - 1));
  CHECK_THROWS_WITH(open(dir), Error, "b.safetensors is truncated");
  dir.write("b.safetensors", "");
  CHECK_THROWS_WITH(open(dir), Error, "b.safetensors is empty (0 bytes)");
  dir.write("b.safetensors", "version https://git-lfs.github.com/spec/v1\n");
  CHECK_THROWS_WITH(open(dir), Error, "b.safetensors is a git-lfs pointer");
}

TEST("checkpoint: broken indexes") {
  const TempDir dir;
  dir.write("config.json", config_text());
  write_shards(dir);
  const auto refused = [&](const std::string& index, const std::string& sentence) {
    dir.write("model.safetensors.index.json", index);
    CHECK_THROWS_WITH(open(dir), Error, sentence);
  };
  refused("", "index.json is not valid JSON");
  refused("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 726\n", "index.json is a git-lfs pointer");
  refused("[]", "expected an object");
  refused("{}", "has no weight_map object");
  refused(R"({"weight_map":[]})", "has no weight_map object");
  refused(R"({"weight_map":{}})", "has an empty weight_map");
  refused(R"({"weight_map":{"a":3}})", R"(maps tensor "a" to 3, expected a file name)");
  refused(R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})", R"(has the key "a" twice)");
  for (const std::string name :
       {"../x.safetensors", "/etc/x.safetensors", "..", "", "a/b.safetensors", "a\\\\b.safetensors",
        "a\\u0000.safetensors", "a\\u001b.safetensors", "\\u00e4.safetensors", "model.bin"}) {
    refused(R"({"weight_map":{"a":")" + name + "\"}}",
            "expected the name of a .safetensors file in the same directory");
  }
  refused(R"({"weight_map":{"a":")" + std::string(300, 'x') + ".safetensors\"}}",
          "expected the name of a .safetensors");
  refused(std::string(9 << 20, ' '), "has 9437184 bytes, the limit is 8388608");
  dir.remove("model.safetensors.index.json");
  std::filesystem::create_directory(dir / "model.safetensors.index.json");
  CHECK_THROWS_WITH(open(dir), Error, "index.json is a directory, expected a file");
}

// Not a check by itself: tests/python/unit/test_make_checkpoint.py compares these lines with what the reference library
// reads from the same directory.
TEST("checkpoint: list the tensors of $QWEN3_LIST_MODEL") {
  const char* model_dir = std::getenv("QWEN3_LIST_MODEL");
  if (model_dir == nullptr) return;
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    table[i] = i;
    for (int bit = 0; bit < 8; ++bit) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320U : 0U);
  }
  const auto print = [&](const HostTensor& tensor) {
    uint32_t crc = ~0U;
    const auto* bytes = static_cast<const unsigned char*>(tensor.data);
    for (int64_t i = 0; i < tensor.bytes(); ++i) crc = crc >> 8 ^ table[(crc ^ bytes[i]) & 255];
    constexpr std::array<const char*, 3> kNames = {"BF16", "F16", "F32"};
    std::printf("%s %s", tensor.name.c_str(), kNames[static_cast<std::size_t>(tensor.dtype)]);
    for (const int64_t dimension : tensor.shape) std::printf(" %lld", static_cast<long long>(dimension));
    std::printf(" crc %08x\n", ~crc);
  };
  const Checkpoint checkpoint = Checkpoint::open(model_dir, qwen3::load_config(model_dir));
  print(checkpoint.embed_tokens);
  for (const qwen3::LayerTensors& layer : checkpoint.layers) {
    for (const HostTensor* tensor :
         {&layer.input_layernorm, &layer.q_proj, &layer.k_proj, &layer.v_proj, &layer.q_norm, &layer.k_norm,
          &layer.o_proj, &layer.post_attention_layernorm, &layer.gate_proj, &layer.up_proj, &layer.down_proj}) {
      print(*tensor);
    }
  }
  print(checkpoint.norm);
  if (checkpoint.lm_head.data != checkpoint.embed_tokens.data) print(checkpoint.lm_head);
}

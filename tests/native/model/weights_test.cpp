// Weights as the backend gets them: float16 and float32 files are rounded to bfloat16, bfloat16 is not copied.
#include "model/weights.h"

#include <bit>
#include <cstring>
#include <limits>

#include "backend/cpu/cpu_ops.h"
#include "base/error.h"
#include "check.h"
#include "model/model_dir.h"

using namespace qwen3;

namespace {

// The smallest checkpoint in `dtype`, its embedding table beginning with `first`.
template <typename Element>
void write(const model_dir::TempDir& dir, const std::string& dtype, const std::vector<Element>& first) {
  std::vector<model_dir::Tensor> tensors = model_dir::model_tensors();
  for (model_dir::Tensor& tensor : tensors) tensor.dtype = dtype;
  std::string file = model_dir::safetensors(tensors);
  uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof header);
  std::memcpy(file.data() + 8 + header, first.data(), first.size() * sizeof(Element));
  dir.write("config.json", model_dir::config_text());
  dir.write("model.safetensors", file);
}

uint16_t bits(bf16 value) {
  return std::bit_cast<uint16_t>(value);
}

struct Loaded {
  explicit Loaded(const model_dir::TempDir& dir)
      : config(load_config(dir.path())), weights(Checkpoint::open(dir.path(), config), config, ops, nullptr) {}
  cpu::CpuOps ops{"scalar", 1};
  ModelConfig config;
  Weights weights;
};

}  // namespace

TEST("weights: float32 is rounded to the nearest bfloat16, ties to even") {
  const model_dir::TempDir dir;
  const std::vector<std::pair<uint32_t, uint16_t>> cases = {
      {0x00000000, 0x0000}, {0x80000000, 0x8000}, {0x3f800000, 0x3f80}, {0x3f807fff, 0x3f80}, {0x3f808000, 0x3f80},
      {0x3f808001, 0x3f81}, {0x3f818000, 0x3f82}, {0xbf818000, 0xbf82}, {0x7f800000, 0x7f80}, {0x00000001, 0x0000}};
  std::vector<uint32_t> values;
  for (const auto& [from, to] : cases) values.push_back(from);
  write(dir, "F32", values);
  const Loaded loaded(dir);
  for (size_t i = 0; i < cases.size(); i++)
    CHECK_EQ(bits(loaded.weights.embed_tokens.parts[0].data[i]), cases[i].second);
}

TEST("weights: float16 is widened exactly, then rounded") {
  const model_dir::TempDir dir;
  const std::vector<std::pair<uint16_t, uint16_t>> cases = {
      {0x0000, 0x0000},                    // 0
      {0x8000, 0x8000},                    // -0
      {0x3c00, 0x3f80},                    // 1
      {0xc000, 0xc000},                    // -2
      {0x7bff, 0x4780},                    // 65504 rounds up to 65536
      {0x3c04, 0x3f80},                    // 1 + 1/256 lies between two: to even
      {0x3c0c, 0x3f82},                    // 1 + 3/256: to even
      {0x3c05, 0x3f81},                    // a little above the tie
      {0x0001, 0x3380},                    // the smallest subnormal, 2^-24
      {0x8200, 0xb800},                    // -2^-15, subnormal in float16
      {0x7c00, 0x7f80}, {0xfc00, 0xff80},  // infinities
  };
  std::vector<uint16_t> values;
  for (const auto& [from, to] : cases) values.push_back(from);
  values.push_back(0x7e00);  // NaN
  write(dir, "F16", values);
  const Loaded loaded(dir);
  for (size_t i = 0; i < cases.size(); i++)
    CHECK_EQ(bits(loaded.weights.embed_tokens.parts[0].data[i]), cases[i].second);
  const uint16_t nan = bits(loaded.weights.embed_tokens.parts[0].data[cases.size()]);
  CHECK((nan & 0x7f80) == 0x7f80 && (nan & 0x7f) != 0);
}

TEST("weights: a tied head is the embedding table itself, counted once; an untied one has its own") {
  const model_dir::TempDir dir;
  write(dir, "BF16", std::vector<uint16_t>{0x3f80});
  int64_t n_tied = 0;
  {
    const Loaded tied(dir);
    n_tied = tied.weights.n_parameters;
    CHECK(tied.weights.lm_head.parts[0].data == tied.weights.embed_tokens.parts[0].data);
    CHECK_EQ(tied.weights.total_bytes, static_cast<uint64_t>(2 * n_tied));
    CHECK_EQ(bits(tied.weights.embed_tokens.parts[0].data[0]), 0x3f80);
  }
  std::vector<model_dir::Tensor> tensors = model_dir::model_tensors();
  tensors.push_back({"lm_head.weight", {8, 16}});
  dir.write("model.safetensors", model_dir::safetensors(tensors));
  dir.write("config.json", model_dir::replace(model_dir::config_text(), "\"tie_word_embeddings\": true",
                                              "\"tie_word_embeddings\": false"));
  const Loaded untied(dir);
  CHECK(untied.weights.lm_head.parts[0].data != untied.weights.embed_tokens.parts[0].data);
  CHECK_EQ(untied.weights.n_parameters, n_tied + 8 * 16);
}

TEST("weights: progress counts the file's bytes and may stop the load") {
  const model_dir::TempDir dir;
  write(dir, "F32", std::vector<uint32_t>{});
  const ModelConfig config = load_config(dir.path());
  cpu::CpuOps ops("scalar", 1);
  uint64_t last = 0, whole = 0;
  const Weights weights(Checkpoint::open(dir.path(), config), config, ops, [&](uint64_t done, uint64_t total) {
    CHECK(done > last && done <= total);
    last = done;
    whole = total;
    return true;
  });
  CHECK_EQ(last, whole);
  CHECK_EQ(whole, 2 * weights.total_bytes);  // float32 files are twice as large
  CHECK_THROWS_WITH(
      Weights(Checkpoint::open(dir.path(), config), config, ops, [](uint64_t, uint64_t) { return false; }), Error,
      "stopped by the progress callback");
}

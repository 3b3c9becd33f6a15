// config.json and generation_config.json: both layouts, every refusal, and RoPE's numbers against transformers.
#include "model/config.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "model/model_dir.h"

using model_dir::config_text;
using model_dir::replace;
using model_dir::TempDir;
using qwen3::Error;
using qwen3::load_config;
using qwen3::ModelConfig;
using qwen3::RopeConfig;
using qwen3::Status;

namespace {

ModelConfig load(const std::string& text) {
  const TempDir dir;
  dir.write("config.json", text);
  return load_config(dir.path());
}

// Loads config_text() with one piece replaced.
ModelConfig load_with(const std::string& from, const std::string& to) {
  return load(replace(config_text(), from, to));
}

// The sentence of a config that must be refused, and its status.
void check_refused(const std::string& from, const std::string& to, Status status, const std::string& sentence) {
  try {
    load_with(from, to);
    check::fail(__FILE__, __LINE__, "accepted " + to);
  } catch (const Error& error) {
    const std::string message = error.what();
    if (message.find(sentence) == std::string::npos) {
      check::fail(__FILE__, __LINE__, "\"" + message + "\" lacks \"" + sentence + "\"");
    }
    if (message.find("config.json") == std::string::npos) check::fail(__FILE__, __LINE__, "no file in: " + message);
    if (error.status() != status) check::fail(__FILE__, __LINE__, "wrong status for: " + message);
  }
}

const std::string kTheta = R"("rope_theta": 1000000,)";
const std::string kNoScaling = R"("rope_scaling": null,)";
const std::string kYarn =
    R"("rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},)";

// Dimension pairs at which the numbers below were taken.
constexpr std::array<std::size_t, 13> kPairs = {0, 1, 15, 16, 20, 24, 31, 32, 38, 40, 47, 48, 63};

// theirs is float32 with float32 steps, ours rounds fewer times: 2 units in the last place, more where YaRN adds two.
void check_inv_freq(const RopeConfig& rope, const std::array<float, 13>& theirs) {
  const std::vector<float> ours = qwen3::rope_inv_freq(rope, 128);
  REQUIRE(ours.size() == 64);
  for (std::size_t i = 0; i < kPairs.size(); ++i) CHECK_NEAR(ours[kPairs[i]], theirs[i], theirs[i] * 4 * 0x1p-24);
}

}  // namespace

TEST("config: the transformers 4 layout") {
  const ModelConfig config = load(config_text());
  CHECK_EQ(config.hidden, 16);
  CHECK_EQ(config.intermediate, 32);
  CHECK_EQ(config.n_layers, 2);
  CHECK_EQ(config.n_heads, 2);
  CHECK_EQ(config.n_kv_heads, 1);
  CHECK_EQ(config.head_dim, 128);
  CHECK_EQ(config.vocab, 8);
  CHECK_EQ(config.max_positions, 40960);
  CHECK_EQ(config.rms_norm_eps, 1e-6F);
  CHECK(config.tied);
  CHECK(!config.rope.yarn);
  CHECK_EQ(config.rope.theta, 1e6);
  CHECK(config.eos_ids == std::vector<int32_t>{7});
  CHECK_EQ(qwen3::rope_attention_scale(config.rope), 1.0F);
}

TEST("config: the transformers 5 layout gives the same model") {
  std::string text =
      replace(config_text(), kTheta, R"("rope_parameters": {"rope_type": "default", "rope_theta": 1e6},)");
  text = replace(text, kNoScaling, R"("layer_types": ["full_attention", "full_attention"],)");
  text = replace(text, "torch_dtype", "dtype");
  const ModelConfig config = load(text);
  CHECK_EQ(config.rope.theta, 1e6);
  CHECK(!config.rope.yarn);
  CHECK_EQ(config.max_positions, 40960);

  const std::string nested =
      R"("rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 5000000, "factor": 2,
          "original_max_position_embeddings": 32768}},)";
  const ModelConfig yarn = load_with(kTheta, nested);
  CHECK_EQ(yarn.rope.theta, 5e6);
  CHECK(yarn.rope.yarn);
  CHECK_EQ(yarn.max_positions, 65536);
}

TEST("config: what may be missing takes transformers' defaults") {
  CHECK_EQ(load_with(R"("head_dim": 128,)", "").head_dim, 128);
  CHECK_EQ(load_with(R"("rms_norm_eps": 1e-06,)", "").rms_norm_eps, 1e-6F);
  CHECK(!load_with(R"("tie_word_embeddings": true,)", "").tied);
  CHECK_EQ(load_with(R"("num_key_value_heads": 1,)", R"("num_key_value_heads": null,)").n_kv_heads, 2);
  CHECK_EQ(load_with(R"("hidden_act": "silu",)", "").hidden, 16);
  CHECK_EQ(load_with(R"("sliding_window": null,)", R"("sliding_window": 32768,)").hidden, 16);
  CHECK_EQ(load_with(R"("use_sliding_window": false,)", R"("use_sliding_window": true,)").hidden, 16);
  CHECK_EQ(load_with(R"("model_type": "qwen3",)", "").hidden, 16);
  CHECK_EQ(load_with(R"("architectures": ["Qwen3ForCausalLM"],)", "").hidden, 16);
  CHECK_EQ(load_with(R"("torch_dtype": "bfloat16",)", R"("torch_dtype": null, "dtype": "float32",)").hidden, 16);
  CHECK_EQ(load_with(kNoScaling, R"("rope_scaling": {},)").rope.theta, 1e6);
}

TEST("config: rope_theta is never assumed") {
  check_refused(kTheta, "", Status::kBadModel, "rope_theta is missing");
  check_refused(kTheta, R"("rope_parameters": {"rope_type": "default"},)", Status::kBadModel, "rope_theta is missing");
  check_refused(kTheta, R"("rope_theta": 1000000, "rope_parameters": {"rope_theta": 10000},)", Status::kBadModel,
                "rope_theta is given as");
  CHECK_EQ(load_with(kTheta, R"("rope_theta": 1000000, "rope_parameters": {"rope_theta": 1e6},)").rope.theta, 1e6);
  check_refused(kTheta, R"("rope_theta": 0,)", Status::kBadModel, "rope_theta is 0");
  check_refused(kTheta, R"("rope_theta": -1e6,)", Status::kBadModel, "rope_theta is -1000000");
  check_refused(kTheta, R"("rope_theta": "1e6",)", Status::kBadModel, "expected a number");
}

TEST("config: YaRN in the config") {
  const ModelConfig config = load_with(kNoScaling, kYarn);
  CHECK(config.rope.yarn);
  CHECK_EQ(config.rope.factor, 4.0);
  CHECK_EQ(config.rope.original_max_positions, 32768);
  CHECK_EQ(config.max_positions, 131072);
  CHECK_EQ(qwen3::rope_attention_scale(config.rope), 1.138629436111989F);

  const ModelConfig assumed = load_with(kNoScaling, R"("rope_scaling": {"rope_type": "yarn", "factor": 2},)");
  CHECK_EQ(assumed.rope.original_max_positions, 40960);
  CHECK_EQ(assumed.max_positions, 81920);
  const ModelConfig outside = load_with(
      kNoScaling, R"("original_max_position_embeddings": 1024, "rope_scaling": {"rope_type": "yarn", "factor": 2},)");
  CHECK_EQ(outside.max_positions, 2048);
  const ModelConfig agreed =
      load_with(kNoScaling, kYarn + R"("rope_parameters": {"rope_type": "yarn", "factor": 4, "rope_theta": 1e6,
                              "original_max_position_embeddings": 32768},)");
  CHECK_EQ(agreed.max_positions, 131072);

  const auto refused = [](const std::string& scaling, const std::string& sentence) {
    check_refused(kNoScaling, "\"rope_scaling\": " + scaling + ",", Status::kBadModel, sentence);
  };
  refused(R"({"rope_type": "yarn"})", "factor is missing");
  refused(R"({"rope_type": "yarn", "factor": 0.5})", "factor is 0.5, expected 1");
  refused(R"({"rope_type": "yarn", "factor": 65})", "factor is 65");
  refused(R"({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 0})", "is 0, expected 1 to");
  refused(R"({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 16777216})", "beyond the limit");
  refused(R"({"rope_type": "yarn", "factor": 4, "beta_fast": 1, "beta_slow": 2})", "less than beta_slow");
  refused(R"({"rope_type": "yarn", "factor": 4, "attention_factor": -1})", "attention_factor is -1");
  refused(R"([1])", "expected an object");
  check_refused(kNoScaling, kYarn + R"("rope_parameters": {"rope_type": "default", "rope_theta": 1e6},)",
                Status::kBadModel, "rope_parameters and rope_scaling disagree");
  check_refused(kNoScaling, R"("original_max_position_embeddings": 1024,)" + kYarn, Status::kBadModel,
                "remove the wrong one");
  check_refused(kNoScaling, R"("rope_scaling": {"rope_type": "dynamic", "factor": 2},)", Status::kUnsupported,
                R"(rope_type is "dynamic")");
  check_refused(kNoScaling, R"("rope_scaling": {"partial_rotary_factor": 0.5},)", Status::kUnsupported,
                "partial_rotary_factor");
  check_refused(kNoScaling, R"("partial_rotary_factor": 0.5,)", Status::kUnsupported, "partial_rotary_factor");
}

TEST("config: the YaRN option") {
  ModelConfig config = load(config_text());
  qwen3::apply_yarn(config, 4);
  CHECK(config.rope.yarn);
  CHECK_EQ(config.rope.original_max_positions, 32768);
  CHECK_EQ(config.max_positions, 131072);
  CHECK_EQ(qwen3::rope_attention_scale(config.rope), 1.138629436111989F);
  const ModelConfig from_file = load_with(kNoScaling, kYarn);
  CHECK(qwen3::rope_inv_freq(config.rope, 128) == qwen3::rope_inv_freq(from_file.rope, 128));
  qwen3::apply_yarn(config, 4);  // the same again
  CHECK_EQ(config.max_positions, 131072);
  CHECK_THROWS_WITH(qwen3::apply_yarn(config, 2), Error, "config.json already sets 4");

  ModelConfig long_model = load_with(R"("max_position_embeddings": 40960)", R"("max_position_embeddings": 262144)");
  qwen3::apply_yarn(long_model, 4);
  CHECK_EQ(long_model.rope.original_max_positions, 262144);
  CHECK_EQ(long_model.max_positions, 1048576);

  ModelConfig plain = load(config_text());
  for (const double factor : {1.0, 0.0, -4.0, 65.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    CHECK_THROWS_WITH(qwen3::apply_yarn(plain, factor), Error, "expected more than 1 and at most 64");
  }
  CHECK_THROWS_WITH(qwen3::apply_yarn(plain, 1.2), Error, "no more than the 40960");
  CHECK(!plain.rope.yarn);
  ModelConfig huge = load_with(R"("max_position_embeddings": 40960)", R"("max_position_embeddings": 16777216)");
  CHECK_THROWS_WITH(qwen3::apply_yarn(huge, 2), Error, "beyond the limit of 16777216");
}

TEST("config: end ids are the union of both files") {
  const TempDir dir;
  dir.write("config.json", config_text());
  dir.write("generation_config.json", R"({"eos_token_id": [3, 7, 5], "temperature": 0.6})");
  CHECK(load_config(dir.path()).eos_ids == std::vector<int32_t>({7, 3, 5}));
  dir.write("generation_config.json", R"({"eos_token_id": 2})");
  CHECK(load_config(dir.path()).eos_ids == std::vector<int32_t>({7, 2}));
  dir.write("generation_config.json", "{}");
  CHECK(load_config(dir.path()).eos_ids == std::vector<int32_t>({7}));
  dir.write("config.json", replace(config_text(), R"("eos_token_id": 7,)", R"("eos_token_id": null,)"));
  CHECK(load_config(dir.path()).eos_ids.empty());

  dir.write("generation_config.json", R"({"eos_token_id": 8})");
  CHECK_THROWS_WITH(load_config(dir.path()), Error, "generation_config.json: eos_token_id is 8, expected 0 to 7");
  dir.write("generation_config.json", R"({"eos_token_id": [1, "x"]})");
  CHECK_THROWS_WITH(load_config(dir.path()), Error, "expected a whole number");
  dir.write("generation_config.json", "{\"eos_token_id\": [");
  CHECK_THROWS_WITH(load_config(dir.path()), Error, "generation_config.json is not valid JSON");
  dir.write("generation_config.json", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 726\n");
  CHECK_THROWS_WITH(load_config(dir.path()), Error, "generation_config.json is a git-lfs pointer");
  dir.write("generation_config.json", "[]");
  CHECK_THROWS_WITH(load_config(dir.path()), Error, "generation_config.json is a list of 0, expected an object");
  std::string many = R"({"eos_token_id": [0)";
  for (int i = 0; i < 1024; ++i) many += ",0";
  dir.write("generation_config.json", many + "]}");
  CHECK_THROWS_WITH(load_config(dir.path()), Error, "lists 1025 ids, the limit is 1024");
}

TEST("config: every number has its range and type") {
  const auto refused = [](const std::string& key, const std::string& from, const std::string& to,
                          const std::string& sentence) {
    check_refused("\"" + key + "\": " + from, "\"" + key + "\": " + to, Status::kBadModel, sentence);
  };
  refused("hidden_size", "16", "0", "hidden_size is 0, expected 16 to 65536");
  refused("hidden_size", "16", "-16", "hidden_size is -16");
  refused("hidden_size", "16", "1000000000000", "hidden_size is 1000000000000");
  refused("hidden_size", "16", "18446744073709551615", "hidden_size is 18446744073709551615");
  refused("hidden_size", "16", "99999999999999999999999", "expected a whole number");
  refused("hidden_size", "16", "16.0", "expected a whole number");
  refused("hidden_size", "16", "true", "hidden_size is true, expected a whole number");
  refused("hidden_size", "16", "[16]", "hidden_size is a list of 1");
  refused("hidden_size", "16", "null", "hidden_size is missing");
  refused("intermediate_size", "32", "2000000", "intermediate_size is 2000000");
  refused("num_hidden_layers", "2", "100000", "num_hidden_layers is 100000");
  refused("num_attention_heads", "2", "0", "num_attention_heads is 0");
  refused("num_key_value_heads", "1", "0", "num_key_value_heads is 0");
  refused("vocab_size", "8", "99999999", "vocab_size is 99999999");
  refused("max_position_embeddings", "40960", "0", "max_position_embeddings is 0");
  refused("rms_norm_eps", "1e-06", "0", "rms_norm_eps is 0");
  refused("rms_norm_eps", "1e-06", "1e999", "not valid JSON");
  refused("head_dim", "128", "null", "head_dim is null");
  refused("tie_word_embeddings", "true", "1", "tie_word_embeddings is 1, expected true or false");
  refused("hidden_act", "\"silu\"", "3", "hidden_act is 3, expected text");
  refused("eos_token_id", "7", "-1", "eos_token_id is -1, expected 0 to 7");
  refused("architectures", "[\"Qwen3ForCausalLM\"]", "{}", "architectures is an object");
  check_refused(R"("num_key_value_heads": 1,)", "", Status::kBadModel, "num_key_value_heads is missing");
}

TEST("config: heads are a multiple of the KV heads") {
  std::string text = replace(config_text(), R"("num_attention_heads": 2)", R"("num_attention_heads": 5)");
  text = replace(text, R"("num_key_value_heads": 1)", R"("num_key_value_heads": 2)");
  CHECK_THROWS_WITH(load(text), Error,
                    "num_attention_heads is 5, expected a multiple of num_key_value_heads, which is 2");
}

TEST("config: what is not supported is refused in one sentence") {
  const auto refused = [](const std::string& from, const std::string& to, const std::string& sentence) {
    check_refused(from, to, Status::kUnsupported, sentence);
  };
  refused("Qwen3ForCausalLM", "Qwen3MoeForCausalLM", R"(the architecture is "Qwen3MoeForCausalLM")");
  refused("Qwen3ForCausalLM", "LlamaForCausalLM", "only the dense Qwen3ForCausalLM is supported");
  refused(R"("model_type": "qwen3")", R"("model_type": "qwen3_moe")", R"(model_type "qwen3_moe")");
  CHECK_THROWS_WITH(load("{}"), Error, "the architecture is nothing, only the dense");
  CHECK_THROWS_WITH(load(R"({"model_type": "llama"})"), Error, R"(the architecture is model_type "llama")");
  refused(R"(["Qwen3ForCausalLM"])", R"(["Qwen3ForCausalLM", "Other"])", "the architecture is");
  refused(R"("attention_bias": false)", R"("attention_bias": true)", "attention_bias is true");
  refused(R"("hidden_act": "silu")", R"("hidden_act": "gelu")", R"(hidden_act is "gelu", only silu)");
  refused(R"("head_dim": 128)", R"("head_dim": 64)", "head_dim is 64, only 128");
  refused(R"("hidden_size": 16)", R"("hidden_size": 17)", "hidden_size is 17, expected a multiple of 16");
  refused(R"("torch_dtype": "bfloat16")", R"("torch_dtype": "float8_e4m3fn")", R"(torch_dtype is "float8_e4m3fn")");
  refused(kNoScaling, R"("quantization_config": {"quant_method": "fp8"},)", R"(the checkpoint is quantized ("fp8"))");
  refused(kNoScaling, R"("quantization_config": 1,)", "quantized (an unnamed method)");
  refused(R"("sliding_window": null,
  "tie_word_embeddings": true,
  "torch_dtype": "bfloat16",
  "use_sliding_window": false)",
          R"("sliding_window": 4096, "use_sliding_window": true)", "use_sliding_window is true");
  refused(kNoScaling, R"("layer_types": ["full_attention", "sliding_attention"],)",
          R"(layer_types has "sliding_attention")");
  check_refused(kNoScaling, R"("layer_types": ["full_attention"],)", Status::kBadModel,
                "layer_types has 1 entries, expected num_hidden_layers = 2");
  check_refused(kNoScaling, R"("layer_types": 3,)", Status::kBadModel, "layer_types is 3");
}

TEST("config: the file itself may be broken") {
  CHECK_THROWS_WITH(load(""), Error, "config.json is not valid JSON (at byte 0 of 0)");
  CHECK_THROWS_WITH(load("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 726\n"), Error,
                    "config.json is a git-lfs pointer (66 bytes of text), not the file itself; run `git lfs pull` in "
                    "the model directory");
  CHECK_THROWS_WITH(load("[1, 2]"), Error, "config.json is a list of 2, expected an object");
  CHECK_THROWS_WITH(load(config_text().substr(0, 100)), Error, "is the download complete?");
  CHECK_THROWS_WITH(load(replace(config_text(), R"("vocab_size": 8)", R"("vocab_size": 8, "head_dim": 128)")), Error,
                    R"(has the key "head_dim" twice)");
  CHECK_THROWS_WITH(load(std::string(2000, '[')), Error, "nests deeper than 32 levels");
  CHECK_THROWS_WITH(load(std::string(2 << 20, ' ')), Error, "has 2097152 bytes, the limit is 1048576");
  // Foreign bytes never reach the terminal as they are.
  CHECK_THROWS_WITH(load(R"({"architectures": ["a\u001b[31m\u00e4"]})"), Error, R"("a\x1b[31m\xc3\xa4")");
  CHECK_THROWS_WITH(load(R"({"architectures": [")" + std::string(500, 'x') + R"("]})"), Error, "xxx...\"");
}

TEST("config: paths") {
  const TempDir dir;
  CHECK_THROWS_WITH(load_config(dir / "nowhere"), Error, "nowhere does not exist");
  CHECK_THROWS_WITH(load_config(dir.path()), Error, "config.json does not exist; give the directory of a Qwen3 model");
  dir.write("file", "x");
  CHECK_THROWS_WITH(load_config(dir / "file"), Error, "is a file, expected a model directory");
  CHECK_THROWS_WITH(load_config(dir / "file/deeper"), Error, "does not exist");
  CHECK_THROWS_WITH(load_config(""), Error, "is not a path");
  CHECK_THROWS_WITH(load_config(std::string("a\0b", 3)), Error, "is not a path");
  CHECK_THROWS_WITH(load_config(std::string(5000, 'a')), Error, "cannot open the model directory");
  std::filesystem::create_directory(dir / "config.json");
  CHECK_THROWS_WITH(load_config(dir.path()), Error, "config.json is a directory, expected a file");
}

// The numbers of the next three tests come from transformers 5.18.0 and torch 2.13.0:
//   c = Qwen3Config(head_dim=128, max_position_embeddings=40960, rope_parameters=P)
//   e = Qwen3RotaryEmbedding(c); print([f"{float(x):.9g}" for x in e.inv_freq[kPairs]], e.attention_scaling)
// where Qwen3RotaryEmbedding calls ROPE_INIT_FUNCTIONS["yarn"] for YaRN.

TEST("rope: default frequencies are those of transformers") {
  RopeConfig rope;
  rope.theta = 1e6;  // P = {rope_type: default, rope_theta: 1000000}
  check_inv_freq(rope,
                 {1.0F, 0.805842221F, 0.0392418988F, 0.0316227786F, 0.0133352149F, 0.00562341325F, 0.00124093785F,
                  0.00100000005F, 0.000273841957F, 0.00017782794F, 3.92418988e-05F, 3.16227743e-05F, 1.24093776e-06F});
  rope.theta = 5e6;
  check_inv_freq(
      rope, {1.0F, 0.785830021F, 0.026910942F, 0.0211474262F, 0.00806439668F, 0.00307529117F, 0.000569097116F,
             0.000447213621F, 0.000105314102F, 6.50344882e-05F, 1.20349387e-05F, 9.45741613e-06F, 2.54507967e-07F});
}

TEST("rope: YaRN frequencies and scale are those of transformers") {
  // P = {rope_type: yarn, rope_theta: 1000000, factor: 4.0, original_max_position_embeddings: 32768}
  const ModelConfig config = load_with(kNoScaling, kYarn);
  check_inv_freq(config.rope, {1.0F, 0.805842221F, 0.0392418988F, 0.0316227786F, 0.0133352149F, 0.00537532149F,
                               0.000802959781F, 0.000602941145F, 9.26230132e-05F, 4.44569851e-05F, 9.81047469e-06F,
                               7.90569356e-06F, 3.10234441e-07F});
  CHECK_NEAR(qwen3::rope_attention_scale(config.rope), 1.138629436111989, 1e-7);
  RopeConfig derived = config.rope;
  derived.attention_factor = 0;
  CHECK_NEAR(qwen3::rope_attention_scale(derived), 1.138629436111989, 1e-7);
}

TEST("rope: YaRN's optional parameters") {
  const ModelConfig config = load_with(
      kNoScaling, R"("rope_scaling": {"rope_type": "yarn", "factor": 2.5, "original_max_position_embeddings": 32768,
                      "truncate": false, "beta_fast": 16, "beta_slow": 2, "attention_factor": 1.25},)");
  check_inv_freq(config.rope, {1.0F, 0.805842221F, 0.0392418988F, 0.0316227786F, 0.0133352149F, 0.00562341325F,
                               0.000916842255F, 0.000676543976F, 0.000109536784F, 7.11311732e-05F, 1.56967599e-05F,
                               1.26491104e-05F, 4.96375094e-07F});
  CHECK_EQ(qwen3::rope_attention_scale(config.rope), 1.25F);
  const ModelConfig mscale = load_with(
      kNoScaling, R"("rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768,
                      "mscale": 0.707, "mscale_all_dim": 1.0, "beta_fast": null, "beta_slow": 0},)");
  CHECK_EQ(mscale.rope.beta_fast, 32.0);
  CHECK_EQ(mscale.rope.beta_slow, 1.0);
  CHECK_NEAR(qwen3::rope_attention_scale(mscale.rope), 0.964326914892074, 1e-7);
  const ModelConfig one = load_with(kNoScaling, R"("rope_scaling": {"rope_type": "yarn", "factor": 1.0},)");
  CHECK_EQ(qwen3::rope_attention_scale(one.rope), 1.0F);
  CHECK_EQ(one.max_positions, 40960);
}

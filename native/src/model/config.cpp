#include "model/config.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/mapped_file.h"
#include "model/json.h"

namespace qwen3 {
namespace {

constexpr std::size_t kMaxConfigBytes = std::size_t{1} << 20U;  // official files have under 1 KB
constexpr int kHeadDim = 128;
// Limits: about ten times the largest Qwen3 (32B), and small enough that any product of three fits int64_t.
constexpr int kMaxHidden = 65'536;
constexpr int kMaxIntermediate = 1'048'576;
constexpr int kMaxLayers = 1024;
constexpr int kMaxHeads = 1024;
constexpr int kMaxVocab = 16'777'216;
constexpr int kMaxPositions = 16'777'216;  // a position stays exact in float32
constexpr double kMaxYarnFactor = 64;
constexpr int kQwen3Positions = 40960;
constexpr int kQwen3TrainedPositions = 32768;

std::string number_text(double value) {
  return Json(value).dump();
}

// A JSON object of a named file, with typed access. A null counts as missing, as it does for transformers.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  [[noreturn]] void bad(const std::string& rest) const { throw Error(Status::kBadModel, where_ + ": " + rest); }
  [[noreturn]] void unsupported(const std::string& rest) const {
    throw Error(Status::kUnsupported, where_ + ": " + rest);
  }

  const Json* find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  bool is_null(const char* key) const { return object_.contains(key) && find(key) == nullptr; }

  std::optional<double> number(const char* key, double min, double max) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number()) bad(std::string(key) + " is " + describe(*value) + ", expected a number");
    const auto number = value->get<double>();
    if (!(number >= min && number <= max)) {
      bad(std::string(key) + " is " + describe(*value) + ", expected " + number_text(min) + " to " + number_text(max));
    }
    return number;
  }

  std::optional<int> integer(const char* key, int min, int max) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    return checked_integer(*value, key, min, max);
  }
  int required_integer(const char* key, int min, int max) const {
    const auto value = integer(key, min, max);
    if (!value) bad(std::string(key) + " is missing");
    return *value;
  }
  int checked_integer(const Json& value, const char* key, int min, int max) const {
    if (!value.is_number_integer()) bad(std::string(key) + " is " + describe(value) + ", expected a whole number");
    // Unsigned values above int64_t's range would wrap to negative ones, which the lower bound refuses: min is >= 0.
    const auto number = value.get<int64_t>();
    if (number < min || number > max) {
      bad(std::string(key) + " is " + describe(value) + ", expected " + std::to_string(min) + " to " +
          std::to_string(max));
    }
    return static_cast<int>(number);
  }

  bool boolean(const char* key, bool missing) const {
    const Json* value = find(key);
    if (value == nullptr) return missing;
    if (!value->is_boolean()) bad(std::string(key) + " is " + describe(*value) + ", expected true or false");
    return value->get<bool>();
  }
  std::optional<std::string> text(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) bad(std::string(key) + " is " + describe(*value) + ", expected text");
    return value->get<std::string>();
  }
  // An object, or nullptr when missing, null or {}.
  const Json* object(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return nullptr;
    if (!value->is_object()) bad(std::string(key) + " is " + describe(*value) + ", expected an object");
    return value->empty() ? nullptr : value;
  }

 private:
  const Json& object_;
  std::string where_;
};

void check_directory(const std::string& model_dir) {
  struct stat info{};
  if (model_dir.empty() || model_dir.find('\0') != std::string::npos) {
    throw Error(Status::kInvalidArgument, "the model directory " + quote(model_dir) + " is not a path");
  }
  if (::stat(model_dir.c_str(), &info) != 0) {
    const int error = errno;
    if (error == ENOENT || error == ENOTDIR) {
      throw Error(Status::kNotFound, "the model directory " + model_dir + " does not exist");
    }
    throw Error(Status::kBadModel, "cannot open the model directory " + model_dir + ": " + std::strerror(error));
  }
  if (!S_ISDIR(info.st_mode)) {
    throw Error(Status::kBadModel,
                model_dir + " is a file, expected a model directory (the one that holds config.json)");
  }
}

void check_architecture(const Fields& config) {
  const auto type = config.text("model_type");
  bool listed = false;
  std::string found = "nothing";
  if (const Json* architectures = config.find("architectures")) {
    if (!architectures->is_array() || architectures->empty() || !(*architectures)[0].is_string()) {
      config.bad("architectures is " + describe(*architectures) + ", expected a list of names");
    }
    found = describe((*architectures)[0]);
    listed = (*architectures)[0] == "Qwen3ForCausalLM" && architectures->size() == 1;
  } else if (type) {
    found = "model_type " + quote(*type);
    listed = *type == "qwen3";
  }
  if (!listed || type.value_or("qwen3") != "qwen3") {
    config.unsupported("the architecture is " + found + (type ? " (model_type " + quote(*type) + ")" : "") +
                       ", only the dense Qwen3ForCausalLM is supported");
  }
}

void check_features(const Fields& config, int n_layers) {
  if (const Json* quantization = config.find("quantization_config")) {
    const std::string method = quantization->is_object() && quantization->contains("quant_method")
                                   ? describe((*quantization)["quant_method"])
                                   : "an unnamed method";
    config.unsupported("the checkpoint is quantized (" + method +
                       "); use the unquantized one in bfloat16, float16 or float32");
  }
  if (const auto act = config.text("hidden_act"); act && *act != "silu") {
    config.unsupported("hidden_act is " + quote(*act) + ", only silu is supported");
  }
  if (config.boolean("attention_bias", false))
    config.unsupported("attention_bias is true, only models without biases are supported");
  // transformers turns the window off when either says so; the official files carry a null, older ones a number.
  if (config.boolean("use_sliding_window", false) && config.find("sliding_window") != nullptr) {
    config.unsupported("use_sliding_window is true, sliding window attention is not supported");
  }
  if (const Json* types = config.find("layer_types")) {
    if (!types->is_array()) config.bad("layer_types is " + describe(*types) + ", expected a list");
    for (const Json& type : *types) {
      if (type != "full_attention")
        config.unsupported("layer_types has " + describe(type) + ", only full_attention is supported");
    }
    if (types->size() != static_cast<std::size_t>(n_layers)) {
      config.bad("layer_types has " + std::to_string(types->size()) +
                 " entries, expected num_hidden_layers = " + std::to_string(n_layers));
    }
  }
  for (const char* key : {"dtype", "torch_dtype"}) {
    const auto dtype = config.text(key);
    if (dtype && *dtype != "bfloat16" && *dtype != "float16" && *dtype != "float32") {
      config.unsupported(std::string(key) + " is " + quote(*dtype) + ", expected bfloat16, float16 or float32");
    }
  }
}

// One description of RoPE: the value of rope_scaling or rope_parameters.
struct RopeSource {
  std::optional<double> theta;
  std::optional<RopeConfig> scaling;  // set when the object says how positions are scaled (its theta is unset)
};

RopeSource read_rope_object(const Fields& config, const char* key, int max_positions) {
  RopeSource source;
  const Json* object = config.object(key);
  if (object == nullptr) return source;
  // transformers 5 may nest one object per layer type; all our layers are full attention.
  const Fields outer(*object, config.where() + ": " + key);
  if (const Json* nested = outer.object("full_attention")) object = nested;
  const Fields fields(*object, outer.where());

  source.theta = fields.number("rope_theta", 1.0001, 1e12);
  if (fields.number("partial_rotary_factor", 0, 1).value_or(1) != 1) {
    fields.unsupported("partial_rotary_factor is not 1, only full rotation is supported");
  }
  // "type" is the old name of "rope_type".
  const std::string type = fields.text("rope_type").value_or(fields.text("type").value_or("default"));
  source.scaling.emplace();
  if (type == "default") return source;
  if (type != "yarn") fields.unsupported("rope_type is " + quote(type) + ", only default and yarn are supported");

  RopeConfig& rope = *source.scaling;
  rope.yarn = true;
  const auto factor = fields.number("factor", 1, kMaxYarnFactor);
  if (!factor) fields.bad("factor is missing, yarn needs it");
  rope.factor = *factor;
  const auto inside = fields.integer("original_max_position_embeddings", 1, kMaxPositions);
  const auto outside = config.integer("original_max_position_embeddings", 1, kMaxPositions);
  if (inside && outside && *inside != *outside) {
    fields.bad("original_max_position_embeddings is " + std::to_string(*inside) + " here and " +
               std::to_string(*outside) + " at the top; remove the wrong one");
  }
  rope.original_max_positions = inside.value_or(outside.value_or(max_positions));
  // transformers takes its default where these are null or 0.
  const auto or_default = [](std::optional<double> value, double missing) {
    return value.value_or(0) == 0 ? missing : *value;
  };
  rope.beta_fast = or_default(fields.number("beta_fast", 0, 1e6), 32);
  rope.beta_slow = or_default(fields.number("beta_slow", 0, 1e6), 1);
  if (rope.beta_fast < rope.beta_slow) {
    fields.bad("beta_fast is " + number_text(rope.beta_fast) + ", less than beta_slow, which is " +
               number_text(rope.beta_slow));
  }
  rope.truncate = fields.boolean("truncate", true);
  const auto magnitude = [&](double mscale) {
    return rope.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(rope.factor) + 1.0;
  };
  const double mscale = fields.number("mscale", 0, 100).value_or(0);
  const double mscale_all_dim = fields.number("mscale_all_dim", 0, 100).value_or(0);
  const double derived =
      mscale != 0 && mscale_all_dim != 0 ? magnitude(mscale) / magnitude(mscale_all_dim) : magnitude(1);
  rope.attention_factor = fields.number("attention_factor", 1e-3, 1e3).value_or(derived);
  return source;
}

bool same_scaling(const RopeConfig& a, const RopeConfig& b) {
  return a.yarn == b.yarn &&
         (!a.yarn || (a.factor == b.factor && a.original_max_positions == b.original_max_positions &&
                      a.attention_factor == b.attention_factor && a.beta_fast == b.beta_fast &&
                      a.beta_slow == b.beta_slow && a.truncate == b.truncate));
}

// A wrong theta or scaling is not a crash but quietly worse text, so nothing is assumed: a config without theta and one
// that says two different things are both refused.
RopeConfig read_rope(const Fields& config, int max_positions) {
  if (config.number("partial_rotary_factor", 0, 1).value_or(1) != 1) {
    config.unsupported("partial_rotary_factor is not 1, only full rotation is supported");
  }
  const RopeSource parameters = read_rope_object(config, "rope_parameters", max_positions);
  const RopeSource scaling = read_rope_object(config, "rope_scaling", max_positions);
  if (parameters.scaling && scaling.scaling && !same_scaling(*parameters.scaling, *scaling.scaling)) {
    config.bad("rope_parameters and rope_scaling disagree; remove the wrong one");
  }
  RopeConfig rope = scaling.scaling.value_or(parameters.scaling.value_or(RopeConfig{}));
  for (const auto& theta : {parameters.theta, scaling.theta, config.number("rope_theta", 1.0001, 1e12)}) {
    if (!theta) continue;
    if (rope.theta != 0 && rope.theta != *theta) {
      config.bad("rope_theta is given as " + number_text(rope.theta) + " and as " + number_text(*theta) +
                 "; remove the wrong one");
    }
    rope.theta = *theta;
  }
  if (rope.theta == 0) config.bad("rope_theta is missing (neither at the top nor in rope_parameters)");
  return rope;
}

void set_yarn_positions(ModelConfig& config, const std::string& where, Status status) {
  const double positions = config.rope.factor * config.rope.original_max_positions;
  if (positions > kMaxPositions) {
    throw Error(status, where + ": YaRN by " + number_text(config.rope.factor) + " extends " +
                            std::to_string(config.rope.original_max_positions) + " positions beyond the limit of " +
                            std::to_string(kMaxPositions));
  }
  config.max_positions = static_cast<int>(positions);
}

void add_eos(const Fields& fields, int vocab, std::vector<int32_t>& eos_ids) {
  const Json* value = fields.find("eos_token_id");
  if (value == nullptr) return;
  const auto add = [&](const Json& item) {
    const int id = fields.checked_integer(item, "eos_token_id", 0, vocab - 1);
    if (std::find(eos_ids.begin(), eos_ids.end(), id) == eos_ids.end()) eos_ids.push_back(id);
  };
  constexpr std::size_t kMaxEos = 1024;
  if (!value->is_array()) {
    add(*value);
  } else if (value->size() > kMaxEos) {
    fields.bad("eos_token_id lists " + std::to_string(value->size()) + " ids, the limit is " + std::to_string(kMaxEos));
  } else {
    for (const Json& item : *value) add(item);
  }
}

int multiple_of_16(const Fields& config, const char* key, int max) {
  const int value = config.required_integer(key, 16, max);
  if (value % 16 != 0)
    config.unsupported(std::string(key) + " is " + std::to_string(value) + ", expected a multiple of 16");
  return value;
}

}  // namespace

ModelConfig load_config(const std::string& model_dir) {
  check_directory(model_dir);
  const std::string path = model_dir + "/config.json";
  std::string text;
  try {
    text = read_text_file(path, kMaxConfigBytes);
  } catch (const Error& error) {
    if (error.status() != Status::kNotFound) throw;
    throw Error(Status::kNotFound, path + " does not exist; give the directory of a Qwen3 model as it was published");
  }
  const Json json = parse_json_object(text, path);
  const Fields config(json, path);
  check_architecture(config);

  ModelConfig model;
  model.hidden = multiple_of_16(config, "hidden_size", kMaxHidden);
  model.intermediate = multiple_of_16(config, "intermediate_size", kMaxIntermediate);
  model.n_layers = config.required_integer("num_hidden_layers", 1, kMaxLayers);
  model.n_heads = config.required_integer("num_attention_heads", 1, kMaxHeads);
  model.n_kv_heads = config.is_null("num_key_value_heads")
                         ? model.n_heads
                         : config.required_integer("num_key_value_heads", 1, kMaxHeads);
  if (model.n_heads % model.n_kv_heads != 0) {
    config.bad("num_attention_heads is " + std::to_string(model.n_heads) +
               ", expected a multiple of num_key_value_heads, which is " + std::to_string(model.n_kv_heads));
  }
  // transformers' Qwen3Config takes 128 when the key is missing (never hidden / heads) and refuses a null.
  if (config.is_null("head_dim")) config.bad("head_dim is null, expected 128");
  model.head_dim = config.integer("head_dim", 1, kMaxHidden).value_or(kHeadDim);
  if (model.head_dim != kHeadDim) {
    config.unsupported("head_dim is " + std::to_string(model.head_dim) + ", only 128 is supported");
  }
  model.vocab = config.required_integer("vocab_size", 1, kMaxVocab);
  model.max_positions = config.required_integer("max_position_embeddings", 1, kMaxPositions);
  model.rms_norm_eps = static_cast<float>(config.number("rms_norm_eps", 1e-12, 1e-2).value_or(1e-6));
  model.tied = config.boolean("tie_word_embeddings", false);
  check_features(config, model.n_layers);
  model.rope = read_rope(config, model.max_positions);
  if (model.rope.yarn) set_yarn_positions(model, path, Status::kBadModel);
  add_eos(config, model.vocab, model.eos_ids);

  const std::string generation_path = model_dir + "/generation_config.json";
  try {
    text = read_text_file(generation_path, kMaxConfigBytes);
  } catch (const Error& error) {
    if (error.status() != Status::kNotFound) throw;
    return model;
  }
  const Json generation = parse_json_object(text, generation_path);
  add_eos(Fields(generation, generation_path), model.vocab, model.eos_ids);
  return model;
}

void apply_yarn(ModelConfig& config, double factor) {
  if (!(factor > 1 && factor <= kMaxYarnFactor)) {
    throw Error(Status::kInvalidArgument, "the YaRN factor is " +
                                              (std::isfinite(factor) ? number_text(factor) : "not finite") +
                                              ", expected more than 1 and at most " + number_text(kMaxYarnFactor));
  }
  if (config.rope.yarn) {
    if (config.rope.factor == factor) return;
    throw Error(Status::kInvalidArgument, "the YaRN factor is " + number_text(factor) +
                                              ", but config.json already sets " + number_text(config.rope.factor) +
                                              "; leave the option out or change the file");
  }
  ModelConfig extended = config;
  extended.rope.yarn = true;
  extended.rope.factor = factor;
  extended.rope.original_max_positions =
      config.max_positions == kQwen3Positions ? kQwen3TrainedPositions : config.max_positions;
  extended.rope.attention_factor = 0.1 * std::log(factor) + 1.0;
  set_yarn_positions(extended, "the YaRN option", Status::kInvalidArgument);
  if (extended.max_positions <= config.max_positions) {
    throw Error(Status::kInvalidArgument, "YaRN by " + number_text(factor) + " gives " +
                                              std::to_string(extended.max_positions) + " positions, no more than the " +
                                              std::to_string(config.max_positions) + " that the model has without it");
  }
  config = extended;
}

std::vector<float> rope_inv_freq(const RopeConfig& rope, int head_dim) {
  const int half = head_dim / 2;
  std::vector<float> inv_freq(static_cast<std::size_t>(half));
  // transformers works in float32 from the power on. Here the power is taken in double and rounded once, so each result
  // is within 2 units in the last place of theirs (tests/native/model/config_test.cpp).
  const auto base_power = [&](int i) {
    return static_cast<float>(
        std::pow(rope.theta, static_cast<double>(static_cast<float>(2 * i) / static_cast<float>(head_dim))));
  };
  if (!rope.yarn) {
    for (int i = 0; i < half; ++i) inv_freq[static_cast<std::size_t>(i)] = 1.0F / base_power(i);
    return inv_freq;
  }
  // YaRN: dimensions that turn more than beta_fast times over the original length keep their frequency, those that turn
  // less than beta_slow times are divided by the factor, a linear ramp joins them.
  const auto dimension_of = [&](double turns) {
    return head_dim * std::log(rope.original_max_positions / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = dimension_of(rope.beta_fast);
  double high = dimension_of(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;
  for (int i = 0; i < half; ++i) {
    const float power = base_power(i);
    const float kept = 1.0F / power;
    const float divided = 1.0F / (static_cast<float>(rope.factor) * power);
    const float ramp =
        std::clamp((static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0F, 1.0F);
    const float keep = 1.0F - ramp;
    inv_freq[static_cast<std::size_t>(i)] = divided * (1.0F - keep) + kept * keep;
  }
  return inv_freq;
}

float rope_attention_scale(const RopeConfig& rope) {
  if (!rope.yarn) return 1.0F;
  if (rope.attention_factor > 0) return static_cast<float>(rope.attention_factor);
  return static_cast<float>(rope.factor <= 1 ? 1.0 : 0.1 * std::log(rope.factor) + 1.0);
}

}  // namespace qwen3

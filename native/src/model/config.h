// The model's shape: config.json and generation_config.json, read, validated, and reduced to what the engine needs.
//
// Owns the knowledge of both layouts (transformers 4: rope_theta + rope_scaling; transformers 5: rope_parameters), of
// what is supported, and of RoPE's frequencies. Knows no tensor and no file but these two. Invariant: a ModelConfig
// that load_config returned is fully validated, and every product of its sizes fits int64_t. Pure functions: any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace qwen3 {

struct RopeConfig {
  double theta = 0;
  bool yarn = false;
  // The rest counts with yarn only.
  double factor = 1;
  int original_max_positions = 0;
  double attention_factor = 0;  // scales cos and sin; 0 means 0.1 ln(factor) + 1
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;  // round the ramp's borders to whole dimensions
};

struct ModelConfig {
  int hidden = 0;  // a multiple of 16, as intermediate is: the GEMMs walk K in steps of 16
  int intermediate = 0;
  int n_layers = 0;
  int n_heads = 0;  // a multiple of n_kv_heads
  int n_kv_heads = 0;
  int head_dim = 0;       // 128
  int vocab = 0;          // padded: the rows of embed_tokens, more than the tokenizer knows
  int max_positions = 0;  // what the config allows; with YaRN original_max_positions * factor
  float rms_norm_eps = 0;
  bool tied = false;  // lm_head is embed_tokens
  RopeConfig rope;
  std::vector<int32_t> eos_ids;  // union of config.json and generation_config.json, in order of appearance
};

// Reads model_dir/config.json and, when it is there, model_dir/generation_config.json.
// Errors: kNotFound (no directory, no config.json), kBadModel (broken), kUnsupported (a feature we refuse).
ModelConfig load_config(const std::string& model_dir);

// The --yarn flag: turns YaRN on and extends max_positions. The original length is 32,768 for models of 40,960
// positions (Qwen3 reserves the last 8,192 for the answer and documents YaRN from 32,768), else the config's
// max_positions. Asking again for the factor that the config already has changes nothing. Errors: kInvalidArgument.
void apply_yarn(ModelConfig& config, double factor);

// [head_dim / 2] float32: the angle of dimension pair (i, i + head_dim / 2) per position, as transformers computes it.
std::vector<float> rope_inv_freq(const RopeConfig& rope, int head_dim);

// What cos and sin are multiplied by: 1 without YaRN.
float rope_attention_scale(const RopeConfig& rope);

}  // namespace qwen3

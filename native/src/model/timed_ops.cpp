#include "model/timed_ops.h"

namespace qwen3 {

TimedOps::TimedOps(Ops& inner, const Weights& weights, std::span<const KvLayer> kv)
    : inner_(inner), clock_(inner.make_clock()) {
  for (size_t i = 0; i < weights.layers.size(); i++) {
    const LayerWeights& w = weights.layers[i];
    const int layer = static_cast<int>(i);
    labels_[w.input_layernorm] = {"input_layernorm", layer};
    labels_[&w.qkv_proj] = {"qkv_proj", layer};
    labels_[w.q_norm] = {"qk_norm_rope", layer};
    labels_[&w.o_proj] = {"o_proj", layer};
    labels_[w.post_attention_layernorm] = {"post_attention_layernorm", layer};
    labels_[&w.gate_up_proj] = {"gate_up_proj", layer};
    labels_[&w.down_proj] = {"down_proj", layer};
    labels_[kv[i].k] = {nullptr, layer};
  }
  labels_[weights.norm] = {"norm", -1};
  labels_[&weights.lm_head] = {"lm_head", -1};
  inner_.set_parts(*this);
}

void TimedOps::begin() {
  noted_.clear();
  clock_->begin();
}

std::vector<OpTime> TimedOps::take() {
  const std::vector<int64_t> ends = clock_->take();
  std::vector<OpTime> times;
  int64_t begin = 0;
  for (size_t i = 0; i < noted_.size(); i++) {
    times.push_back({noted_[i].name, noted_[i].layer, begin, ends[i]});
    begin = ends[i];
  }
  return times;
}

void TimedOps::note(const void* operand, const char* own_name) {
  clock_->stamp();
  const auto found = labels_.find(operand);
  Label label = found != labels_.end() ? found->second : Label{nullptr, -1};
  if (label.name == nullptr) label.name = own_name;
  noted_.push_back(label);
}

BatchView TimedOps::upload_batch(const BatchArrays& arrays) {
  const BatchView view = inner_.upload_batch(arrays);
  note(nullptr, "upload");
  return view;
}

void TimedOps::embed(const EmbedArgs& args) {
  inner_.embed(args);
  note(nullptr, "embed_tokens");
}

void TimedOps::rope_angles(const RopeAnglesArgs& args) {
  inner_.rope_angles(args);
  note(nullptr, "rope_angles");
}

void TimedOps::rms_norm(const RmsNormArgs& args) {
  inner_.rms_norm(args);
  note(args.weight, "rms_norm");
}

void TimedOps::linear(const LinearArgs& args) {
  inner_.linear(args);
  note(args.weight, "linear");
}

void TimedOps::gate_up(const GateUpArgs& args) {
  inner_.gate_up(args);
  note(args.weight, "gate_up");
}

void TimedOps::qk_norm_rope(const QkNormRopeArgs& args) {
  inner_.qk_norm_rope(args);
  note(args.q_norm, "qk_norm_rope");
}

// What a self_attention has issued unseen before its attention is its qkv_proj, with norm, RoPE and KV write.
void TimedOps::attention(const AttentionArgs& args) {
  if (noted_.size() == self_attention_begin_) note(args.kv.k, "qkv_proj");
  inner_.attention(args);
  note(args.kv.k, "attention");
  self_attention_begin_ = kNowhere;
}

void TimedOps::self_attention(const SelfAttentionArgs& args) {
  self_attention_begin_ = noted_.size();
  inner_.self_attention(args);
  if (self_attention_begin_ == kNowhere) return;
  note(args.kv.k, noted_.size() == self_attention_begin_ ? "self_attention" : "attention");
  self_attention_begin_ = kNowhere;
}

void TimedOps::residual_norm(const ResidualNormArgs& args) {
  const size_t begin = noted_.size();
  inner_.residual_norm(args);
  if (noted_.size() == begin) return note(args.linear.weight, "residual_norm");
  if (noted_.size() == begin + 1) note(args.norm.weight, "rms_norm");
}

void TimedOps::sample(const SampleArgs& args) {
  inner_.sample(args);
  note(nullptr, "sample");
}

}  // namespace qwen3

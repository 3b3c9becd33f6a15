#include "model/weights.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace qwen3 {

namespace {

float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

}  // namespace

HostMatrix Weights::as_bf16(const HostTensor& tensor) {
  const int64_t n = tensor.elements();
  const int64_t cols = tensor.shape.back();
  const bf16* data = static_cast<const bf16*>(tensor.data);
  if (tensor.dtype != DType::kBf16) {
    converted_.push_back(std::make_unique_for_overwrite<bf16[]>(static_cast<size_t>(n)));
    bf16* out = converted_.back().get();
    const char* bytes = static_cast<const char*>(tensor.data);  // may be unaligned
    for (int64_t i = 0; i < n; i++) {
      if (tensor.dtype == DType::kF32) {
        float value;
        std::memcpy(&value, bytes + i * 4, 4);
        out[i] = float_to_bf16(value);
      } else {
        uint16_t half;
        std::memcpy(&half, bytes + i * 2, 2);
        out[i] = float_to_bf16(half_to_float(half));
      }
    }
    data = out;
  }
  return {data, n / cols, cols};
}

void Weights::count(const HostTensor& tensor, const LoadProgress& progress) {
  n_parameters += tensor.elements();
  total_bytes = static_cast<uint64_t>(n_parameters) * sizeof(bf16);
  file_bytes_ += static_cast<uint64_t>(tensor.bytes());
  if (progress && !progress(file_bytes_, static_cast<uint64_t>(checkpoint_.total_bytes)))
    throw Error(Status::kCancelled, "loading was stopped by the progress callback");
}

Weights::Weights(Checkpoint checkpoint, const ModelConfig& config, Ops& ops, const LoadProgress& progress)
    : checkpoint_(std::move(checkpoint)) {
  const auto vector = [&](const HostTensor& tensor) {
    const bf16* loaded = ops.load_vector(as_bf16(tensor));
    count(tensor, progress);
    return loaded;
  };
  const auto linear = [&](std::initializer_list<const HostTensor*> tensors, LinearLayout layout) {
    std::vector<HostMatrix> parts;
    for (const HostTensor* tensor : tensors) parts.push_back(as_bf16(*tensor));
    const LinearWeight loaded = ops.load_linear(parts, layout);
    for (const HostTensor* tensor : tensors) count(*tensor, progress);
    return loaded;
  };

  embed_tokens = linear({&checkpoint_.embed_tokens}, LinearLayout::kConcat);
  layers.reserve(checkpoint_.layers.size());
  for (const LayerTensors& t : checkpoint_.layers) {
    layers.push_back({
        .input_layernorm = vector(t.input_layernorm),
        .qkv_proj = linear({&t.q_proj, &t.k_proj, &t.v_proj}, LinearLayout::kConcat),
        .q_norm = vector(t.q_norm),
        .k_norm = vector(t.k_norm),
        .o_proj = linear({&t.o_proj}, LinearLayout::kConcat),
        .post_attention_layernorm = vector(t.post_attention_layernorm),
        .gate_up_proj = linear({&t.gate_proj, &t.up_proj}, LinearLayout::kGateUp),
        .down_proj = linear({&t.down_proj}, LinearLayout::kConcat),
    });
  }
  norm = vector(checkpoint_.norm);
  lm_head = config.tied ? embed_tokens : linear({&checkpoint_.lm_head}, LinearLayout::kConcat);
  ops.finish_loading();
}

uint64_t Weights::code(Ops& ops, uint64_t room) {
  std::vector<LinearWeight*> worth;
  const auto add = [&](LinearWeight& weight) {
    if (ops.worth_coding(weight)) worth.push_back(&weight);
  };
  for (LayerWeights& layer : layers)
    for (LinearWeight* weight : {&layer.qkv_proj, &layer.o_proj, &layer.gate_up_proj, &layer.down_proj}) add(*weight);
  add(lm_head);
  return worth.empty() ? 0 : ops.code(worth, room);
}

}  // namespace qwen3

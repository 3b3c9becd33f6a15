// A device for engine tests: a deterministic toy "model" whose logits depend on the whole text through the KV blocks
// that it wrote, so that a wrong block, table, position or chunk gives other tokens than the reference below.
//
// Each KV slot holds (token, position). A row's hash runs over all slots from 0 to its own, read through its block
// table; its logits are a function of the hash. Sampling is the CPU backend's own. Faults can be planted: an exception
// in a chosen step, NaN from a chosen layer on for texts with a chosen token, and a hook that runs at each step's
// begin.
//
// With the environment variable QWEN3_TOY_ASYNC=1 it behaves like an asynchronous device: results appear only when they
// are waited for, and tokens that the host does not know yet pass from step to step. `make test-native` runs the
// engine's tests both ways.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "base/error.h"
#include "model/model_dir.h"
#include "ops/ops.h"

namespace toy {

inline constexpr int32_t kVocab = 100;
inline constexpr int32_t kTokenIds = 97;  // not a multiple of 32, as the official one is not
inline constexpr int32_t kEos = 7;        // of model_dir::config_text()

inline uint64_t hash_token(uint64_t before, int32_t token, int32_t position) {
  uint64_t x = before + (static_cast<uint64_t>(static_cast<uint32_t>(token)) << 32 | static_cast<uint32_t>(position)) +
               0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 27);
}

inline uint64_t hash_text(std::span<const int32_t> tokens) {
  uint64_t hash = 0;
  for (size_t i = 0; i < tokens.size(); i++) hash = hash_token(hash, tokens[i], static_cast<int32_t>(i));
  return hash;
}

// In [-4, 4), all different in practice.
inline float logit(uint64_t hash, int32_t token) {
  return static_cast<float>(hash_token(hash, token, -1) >> 40) * 0x1p-21f - 4.0f;
}

// The greedy continuation of a text, by definition.
inline std::vector<int32_t> continuation(std::vector<int32_t> text, int n, bool stop_at_eos = false) {
  std::vector<int32_t> out;
  while (static_cast<int>(out.size()) < n) {
    const uint64_t hash = hash_text(text);
    int32_t best = 0;
    for (int32_t id = 1; id < kTokenIds; id++)
      if (logit(hash, id) > logit(hash, best)) best = id;
    text.push_back(best);
    out.push_back(best);
    if (stop_at_eos && best == kEos) break;
  }
  return out;
}

inline double logprob(std::span<const int32_t> text, int32_t token) {
  const uint64_t hash = hash_text(text);
  double sum = 0;
  for (int32_t id = 0; id < kVocab; id++) sum += std::exp(static_cast<double>(logit(hash, id)));
  return logit(hash, token) - std::log(sum);
}

struct Faults {
  std::function<void(int step)> on_step;  // at the begin of each step, on the worker thread; may throw
  std::function<void()> on_sample;        // before each sampling; may throw
  int32_t poison = -1;                    // texts with this token give NaN ...
  int poison_layer = 0;                   // ... from this layer on
  bool poison_logits_only = false;        // ... or in the logits alone
  int fuses_attention = 0;  // no fault: of self_attention, 1: the first two parts, 2: the last two, 3: all
                            // are one op, whose parts nobody sees
  int fuses_residual = 0;   // no fault: of residual_norm, 1: the product is said to be done, 2: nothing is seen
};

class ToyOps final : public qwen3::Ops {
 public:
  explicit ToyOps(std::shared_ptr<const Faults> faults) : faults_(std::move(faults)), cpu_("scalar", 1) {}

  qwen3::DeviceInfo info() const override {
    qwen3::DeviceInfo info{};
    info.device = "toy";
    info.device_name = "a toy";
    info.kernels = "toy";
    info.threads = 1;
    info.free_bytes = uint64_t{1} << 30;
    info.token_budget = 512;
    info.max_slots = 32;
    return info;
  }
  void* allocate(size_t bytes, const char* what) override { return cpu_.allocate(bytes, what); }
  qwen3::LinearWeight load_linear(std::span<const qwen3::HostMatrix> parts, qwen3::LinearLayout layout) override {
    return cpu_.load_linear(parts, layout);
  }
  const qwen3::bf16* load_vector(const qwen3::HostMatrix& table) override { return cpu_.load_vector(table); }
  const float* load_floats(std::span<const float> values) override { return cpu_.load_floats(values); }
  qwen3::BatchView upload_batch(const qwen3::BatchArrays& arrays) override { return cpu_.upload_batch(arrays); }

  void embed(const qwen3::EmbedArgs& args) override {
    layer_ = -1;
    if (faults_->on_step) faults_->on_step(n_steps_++);
    std::memset(args.out, 0,
                sizeof(float) * static_cast<size_t>(args.batch->n_tokens) * static_cast<size_t>(args.table->n_in));
  }

  void rope_angles(const qwen3::RopeAnglesArgs&) override {}
  void rms_norm(const qwen3::RmsNormArgs& args) override {
    if (args.row_index != nullptr) logit_rows_.assign(args.row_index, args.row_index + args.n_rows);
  }

  void qk_norm_rope(const qwen3::QkNormRopeArgs& args) override {
    layer_++;
    slot_bytes_ = static_cast<size_t>(args.n_kv_heads) * static_cast<size_t>(args.head_dim) * sizeof(qwen3::bf16);
    for (int row = 0; row < args.batch->n_tokens; row++) {
      const int32_t id = args.batch->token_ids[row];
      const int32_t token = id >= 0 ? id : last_tokens_.at(static_cast<size_t>(-1 - id));
      const int32_t entry[2] = {token, args.batch->positions[row]};
      std::memcpy(slot(args.kv, *args.batch, args.batch->seq_of[row], args.batch->positions[row]), entry, sizeof entry);
    }
  }

  void attention(const qwen3::AttentionArgs& args) override {
    const qwen3::BatchView& batch = *args.batch;
    hashes_.assign(static_cast<size_t>(batch.n_tokens), 0);
    poisoned_.assign(static_cast<size_t>(batch.n_tokens), 0);
    for (int seq = 0; seq < batch.n_seqs; seq++) {
      uint64_t hash = 0;
      char poisoned = 0;
      int32_t p = 0;
      for (int row = batch.query_start[seq]; row < batch.query_start[seq + 1]; row++) {
        for (; p <= batch.positions[row]; p++) {
          int32_t entry[2];
          std::memcpy(entry, slot(args.kv, batch, seq, p), sizeof entry);
          hash = hash_token(hash, entry[0], entry[1]);
          poisoned = static_cast<char>(poisoned | (entry[0] == faults_->poison));
        }
        hashes_[static_cast<size_t>(row)] = hash;
        poisoned_[static_cast<size_t>(row)] = poisoned;
      }
    }
  }

  void self_attention(const qwen3::SelfAttentionArgs& args) override {
    const int fuses = faults_->fuses_attention;
    qwen3::Ops& qkv = fuses == 1 || fuses == 3 ? *this : parts();
    qwen3::Ops& rope = fuses > 0 ? *this : parts();
    qwen3::Ops& rest = fuses >= 2 ? *this : parts();
    qkv.linear(qwen3::qkv_part(args));
    rope.qk_norm_rope(qwen3::rope_part(args));
    rest.attention(qwen3::attention_part(args));
  }

  void residual_norm(const qwen3::ResidualNormArgs& args) override {
    if (faults_->fuses_residual == 0) return Ops::residual_norm(args);
    linear(args.linear);
    if (faults_->fuses_residual == 1) parts().product_done(*args.linear.weight);
    rms_norm(args.norm);
  }

  void linear(const qwen3::LinearArgs& args) override {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    const size_t width = static_cast<size_t>(args.weight->n_out);
    if (args.weight->n_out == kVocab) {
      for (size_t i = 0; i < logit_rows_.size(); i++) {
        const size_t row = static_cast<size_t>(logit_rows_[i]);
        for (int32_t id = 0; id < kVocab; id++)
          args.out[i * width + static_cast<size_t>(id)] = poisoned_[row] != 0 ? kNan : logit(hashes_[row], id);
      }
    } else if (args.accumulate && layer_ == faults_->poison_layer && !faults_->poison_logits_only) {
      for (size_t row = 0; row < poisoned_.size(); row++)
        if (poisoned_[row] != 0) args.out[row * width] = kNan;
    }
  }

  void gate_up(const qwen3::GateUpArgs&) override {}
  void sample(const qwen3::SampleArgs& args) override {
    if (faults_->on_sample) faults_->on_sample();
    if (!asynchronous()) return cpu_.sample(args);
    Pending pending{std::vector<qwen3::SampleResult>(args.rows.size()), args.results, n_marks_ + 1};
    qwen3::SampleArgs now = args;
    now.results = pending.values;
    cpu_.sample(now);
    last_tokens_.resize(static_cast<size_t>(args.first_row));
    for (const qwen3::SampleResult& result : pending.values) last_tokens_.push_back(result.token);
    pending_.push_back(std::move(pending));
  }
  bool asynchronous() const override { return asynchronous_; }
  uint64_t mark() override { return ++n_marks_; }
  void wait_for(uint64_t mark) override {
    for (; !pending_.empty() && pending_.front().mark <= mark; pending_.pop_front())
      std::copy(pending_.front().values.begin(), pending_.front().values.end(), pending_.front().results.begin());
  }
  void download(std::span<float> out, const float* device) override { cpu_.download(out, device); }
  void wait() override { wait_for(n_marks_ + 1); }
  std::unique_ptr<qwen3::OpClock> make_clock() override { return cpu_.make_clock(); }
  qwen3::DevicePeaks measure_peaks() override { return cpu_.measure_peaks(); }

 private:
  struct Pending {
    std::vector<qwen3::SampleResult> values;
    std::span<qwen3::SampleResult> results;  // where the host wants them
    uint64_t mark;                           // the one that covers them
  };

  char* slot(const qwen3::KvLayer& kv, const qwen3::BatchView& batch, int seq, int32_t position) const {
    const int32_t block = batch.block_tables[seq * batch.max_blocks + position / qwen3::kBlockSize];
    return reinterpret_cast<char*>(kv.k) +
           static_cast<size_t>(block * qwen3::kBlockSize + position % qwen3::kBlockSize) * slot_bytes_;
  }

  const std::shared_ptr<const Faults> faults_;
  qwen3::cpu::CpuOps cpu_;
  int n_steps_ = 0;
  int layer_ = -1;
  size_t slot_bytes_ = 0;
  std::vector<int32_t> logit_rows_;
  std::vector<uint64_t> hashes_;
  std::vector<char> poisoned_;
  const bool asynchronous_ = std::getenv("QWEN3_TOY_ASYNC") != nullptr;
  std::vector<int32_t> last_tokens_;  // by row of the last sampled step
  std::deque<Pending> pending_;
  uint64_t n_marks_ = 0;
};

// The model directory that goes with it: model_dir's smallest checkpoint with kVocab ids.
inline void write_model(const model_dir::TempDir& dir) {
  std::vector<model_dir::Tensor> tensors = model_dir::model_tensors();
  tensors.front().shape = {kVocab, 16};
  dir.write("config.json", model_dir::replace(model_dir::config_text(), "\"vocab_size\": 8",
                                              "\"vocab_size\": " + std::to_string(kVocab)));
  dir.write("model.safetensors", model_dir::safetensors(tensors));
}

}  // namespace toy

// An Ops around another that notes when each op is done: profiles without a word in the forward pass or the kernels.
//
// An op is named by the weight it reads, which also tells its layer; ops without weights by themselves, and by the KV
// of their layer. Ops that a backend would record are issued one by one, and ops that stand for a whole layer or more
// say that the backend has none, so that their parts are seen. What a backend fuses is one op here too, as far as it
// shows its parts. Used by the engine's worker thread for one step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "model/weights.h"
#include "ops/ops.h"

namespace qwen3 {

struct OpTime {
  const char* name;  // a string literal
  int layer;         // -1: outside the layers
  int64_t begin_ns;  // after the begin of the step; the end of the op before
  int64_t end_ns;
};

class TimedOps final : public Ops {
 public:
  // All must outlive the object.
  TimedOps(Ops& inner, const Weights& weights, std::span<const KvLayer> kv);
  ~TimedOps() override { inner_.set_parts(inner_); }
  TimedOps(const TimedOps&) = delete;
  TimedOps& operator=(const TimedOps&) = delete;

  void begin();
  // Waits for the ops since begin().
  std::vector<OpTime> take();

  DeviceInfo info() const override { return inner_.info(); }
  void* allocate(size_t bytes, const char* what) override { return inner_.allocate(bytes, what); }
  LinearWeight load_linear(std::span<const HostMatrix> parts, LinearLayout layout) override {
    return inner_.load_linear(parts, layout);
  }
  const bf16* load_vector(const HostMatrix& vector) override { return inner_.load_vector(vector); }
  const float* load_floats(std::span<const float> values) override { return inner_.load_floats(values); }

  BatchView upload_batch(const BatchArrays& arrays) override;
  void embed(const EmbedArgs& args) override;
  void rope_angles(const RopeAnglesArgs& args) override;
  void rms_norm(const RmsNormArgs& args) override;
  void linear(const LinearArgs& args) override;
  void gate_up(const GateUpArgs& args) override;
  void qk_norm_rope(const QkNormRopeArgs& args) override;
  void attention(const AttentionArgs& args) override;
  void self_attention(const SelfAttentionArgs& args) override;
  void residual_norm(const ResidualNormArgs& args) override;
  void product_done(const LinearWeight& weight) override { note(&weight, "linear"); }
  void sample(const SampleArgs& args) override;
  void run_recorded(uint64_t, const std::function<void()>& issue) override { issue(); }
  void download(std::span<float> out, const float* device) override { inner_.download(out, device); }
  void wait() override { inner_.wait(); }
  bool asynchronous() const override { return inner_.asynchronous(); }
  uint64_t mark() override { return inner_.mark(); }
  void wait_for(uint64_t mark) override { inner_.wait_for(mark); }
  int max_logit_rows() const override { return inner_.max_logit_rows(); }
  uint64_t sample_workspace_bytes(int vocab) const override { return inner_.sample_workspace_bytes(vocab); }
  std::unique_ptr<OpClock> make_clock() override { return inner_.make_clock(); }
  DevicePeaks measure_peaks() override { return inner_.measure_peaks(); }

 private:
  struct Label {
    const char* name;  // nullptr: the op's own
    int layer;
  };
  // Notes that the op last issued is that of `operand`: a weight, or the keys of a layer, which has no name.
  void note(const void* operand, const char* own_name);

  Ops& inner_;
  std::unique_ptr<OpClock> clock_;
  std::unordered_map<const void*, Label> labels_;
  std::vector<Label> noted_;
  static constexpr size_t kNowhere = SIZE_MAX;
  size_t self_attention_begin_ = kNowhere;  // of the one under way whose attention has not been seen: place in noted_
};

}  // namespace qwen3

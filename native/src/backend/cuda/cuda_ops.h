// The CUDA backend behind the ops waist: one GPU, one stream, all device memory.
//
// Ops are launched in call order on one stream and run asynchronously; results reach the host in `wait`. Weights are
// copied from the mapped files and packed for the tensor cores while they arrive (weight_upload.h). A pure decode step
// (one token per sequence) is padded to a bucketed number of sequences and replayed as a CUDA graph, from the embedding
// to the sampled tokens, recorded when its like comes for the second time (recordings.h). Used by the engine's worker
// thread (loading: by the opening thread before it starts).
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/attention.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/memory.h"
#include "backend/cuda/recordings.h"
#include "backend/cuda/sample.h"
#include "backend/cuda/weight_upload.h"
#include "ops/ops.h"

namespace qwen3::cuda {

class CudaOps final : public Ops {
 public:
  // device: number of the GPU. kernels: "auto" or "generic". Throws Error: kUnsupported (no such GPU, a driver or GPU
  // that is too old), kInvalidArgument (unknown kernels), kDeviceError.
  CudaOps(int device, const std::string& kernels);
  ~CudaOps() override;
  CudaOps(const CudaOps&) = delete;
  CudaOps& operator=(const CudaOps&) = delete;

  DeviceInfo info() const override;
  void* allocate(size_t bytes, const char* what) override;
  LinearWeight load_linear(std::span<const HostMatrix> parts, LinearLayout layout) override;
  const bf16* load_vector(const HostMatrix& vector) override;
  const float* load_floats(std::span<const float> values) override;
  void finish_loading() override { upload_.finish(memory_, ctx_); }
  uint64_t code(std::span<LinearWeight* const> weights, uint64_t room) override;
  bool worth_coding(const LinearWeight& weight) const override;
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
  void sample(const SampleArgs& args) override;
  void download(std::span<float> out, const float* device) override;
  void wait() override;
  bool asynchronous() const override { return true; }
  uint64_t mark() override;
  void wait_for(uint64_t mark) override;
  int max_logit_rows() const override { return kMaxRows; }
  uint64_t sample_workspace_bytes(int vocab) const override { return cuda::sample_workspace_bytes(kMaxRows, vocab); }
  void run_recorded(uint64_t key, const std::function<void()>& issue) override;
  std::unique_ptr<OpClock> make_clock() override;
  DevicePeaks measure_peaks() override;

 private:
  // A decode step of this many sequences still samples in one go; its logits take 156 MB for 151,936 ids.
  static constexpr int kMaxRows = 256;
  // Marks whose events are kept; a wait for an older one waits for the oldest of these.
  static constexpr uint64_t kMarks = 8;
  // Rows that one step may sample, so that the next step can refer to their tokens.
  static constexpr size_t kMaxStepRows = 1 << 16;

  int device_;
  Context ctx_{};
  std::string device_name_, kernels_;
  DeviceMemory memory_;
  WeightUpload upload_;
  // Everything that a step reads from the host: written to pinned memory, sent in one copy, read at a fixed device
  // address.
  Staging batch_;
  std::vector<int32_t> query_start_;              // of the batch, padded
  const SampleRowDevice* sample_rows_ = nullptr;  // of the batch, in batch_
  SampleNeeds sample_needs_;
  BatchHost batch_host_{};
  AttentionWorkspace attention_workspace_{};
  int32_t* last_tokens_ = nullptr;  // [kMaxStepRows] by row of the last sampled step
  // Results on their way to the host: kernels and copies write pinned memory, waiting hands it on.
  struct Pending {
    std::unique_ptr<PinnedBuffer> buffer;
    std::span<std::byte> to;
    uint64_t mark;  // the one that covers it
  };
  std::unique_ptr<PinnedBuffer> take_buffer();
  std::deque<Pending> pending_;
  std::vector<std::unique_ptr<PinnedBuffer>> free_buffers_;
  std::array<cudaEvent_t, kMarks> marks_{};
  uint64_t n_marks_ = 0;
  Recordings recordings_;
};

}  // namespace qwen3::cuda

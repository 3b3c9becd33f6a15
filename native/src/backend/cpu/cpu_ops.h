// The CPU backend behind the ops waist: picks the kernels for this processor, owns the thread pool and all memory.
//
// Ops run at once, on the calling thread and the pool's helpers; `wait` has nothing to wait for. Weights stay where the
// loader mapped them. One thread at a time uses an object (the engine's worker); `info` may be called by any.
#pragma once

#include <string>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/thread_pool.h"
#include "ops/ops.h"

namespace qwen3::cpu {

// A step of 512 tokens takes about a second at 8B; more would only make running answers wait longer.
inline constexpr int kTokenBudget = 512;
inline constexpr int kMaxSlots = 32;

// The kernel sets that this processor runs, the slowest first ("scalar" is always there).
std::vector<const KernelTable*> supported_kernels();

// "auto": the best of them, else the one of that name. Throws Error: kInvalidArgument for a name that is none,
// kUnsupported for one that this processor cannot run.
const KernelTable& choose_kernels(const std::string& name);

class CpuOps final : public Ops {
 public:
  // threads 0: one per usable core. Throws as choose_kernels and ThreadPool do.
  CpuOps(const std::string& kernels, int threads);
  ~CpuOps() override;
  CpuOps(const CpuOps&) = delete;
  CpuOps& operator=(const CpuOps&) = delete;

  DeviceInfo info() const override;
  void* allocate(size_t bytes, const char* what) override;
  LinearWeight load_linear(std::span<const HostMatrix> parts, LinearLayout layout) override;
  const bf16* load_vector(const HostMatrix& vector) override;
  const float* load_floats(std::span<const float> values) override;
  BatchView upload_batch(const BatchArrays& arrays) override;
  void embed(const EmbedArgs& args) override;
  void rope_angles(const RopeAnglesArgs& args) override;
  void rms_norm(const RmsNormArgs& args) override;
  void linear(const LinearArgs& args) override;
  void gate_up(const GateUpArgs& args) override;
  void qk_norm_rope(const QkNormRopeArgs& args) override;
  void attention(const AttentionArgs& args) override;
  void sample(const SampleArgs& args) override;
  void download(std::span<float> out, const float* device) override;
  void wait() override;
  std::unique_ptr<OpClock> make_clock() override;
  DevicePeaks measure_peaks() override;

 private:
  struct Mapping {
    void* data;
    size_t bytes;
  };

  const KernelTable& kernels_;
  ThreadPool pool_;
  std::vector<Mapping> mappings_;
  // Copies of the step's index arrays: token_ids, positions, seq_of, query_start, block_tables and logit_rows one after
  // the other.
  std::vector<int32_t> batch_;
};

}  // namespace qwen3::cpu

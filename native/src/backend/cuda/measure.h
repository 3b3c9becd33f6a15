// Measuring on a GPU: the clock of ops on a stream (op_clock.cu), and what the card can do at most (peaks.cu).
#pragma once

#include <condition_variable>
#include <mutex>
#include <vector>

#include "backend/cuda/kernels.h"
#include "ops/ops.h"

namespace qwen3::cuda {

// An event behind every op. Between begin() and take() the stream is held by a host function, so that ops are queued
// when the first one starts and the times between events are the device's alone. An op then starts when the one before
// it has ended: programmatic dependent launch has no effect across an event.
class StreamOpClock final : public OpClock {
 public:
  explicit StreamOpClock(cudaStream_t stream) : stream_(stream) {}
  ~StreamOpClock() override;
  StreamOpClock(const StreamOpClock&) = delete;
  StreamOpClock& operator=(const StreamOpClock&) = delete;

  void begin() override;
  void stamp() override;
  std::vector<int64_t> take() override;

 private:
  static void hold(void* clock);  // runs on a thread of the driver's
  void let_go();

  const cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;
  size_t n_used_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
};

// See Ops::measure_peaks. Blocks; the stream must be idle.
DevicePeaks measure_peaks(const Context& ctx);

}  // namespace qwen3::cuda

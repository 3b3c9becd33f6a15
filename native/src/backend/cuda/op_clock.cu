#include <algorithm>
#include <chrono>

#include "backend/cuda/measure.h"

namespace qwen3::cuda {

namespace {

// A step of many ops may fill the driver's queue, which waits until the stream moves: never hold it for good.
constexpr std::chrono::milliseconds kLongestHold{50};

}  // namespace

StreamOpClock::~StreamOpClock() {
  let_go();
  cudaStreamSynchronize(stream_);  // hold() refers to this object
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
}

void StreamOpClock::hold(void* clock) {
  auto* self = static_cast<StreamOpClock*>(clock);
  std::unique_lock lock(self->mutex_);
  self->changed_.wait_for(lock, kLongestHold, [self] { return !self->held_; });
}

void StreamOpClock::let_go() {
  const std::lock_guard lock(mutex_);
  held_ = false;
  changed_.notify_all();
}

void StreamOpClock::begin() {
  n_used_ = 0;
  {
    const std::lock_guard lock(mutex_);
    held_ = true;
  }
  check(cudaLaunchHostFunc(stream_, hold, this), "holding the stream");
  stamp();
}

void StreamOpClock::stamp() {
  if (n_used_ == events_.size()) {
    events_.push_back(nullptr);
    check(cudaEventCreate(&events_.back()), "creating an event");
  }
  check(cudaEventRecord(events_[n_used_++], stream_), "recording an event");
}

std::vector<int64_t> StreamOpClock::take() {
  let_go();
  std::vector<int64_t> stamps;
  if (n_used_ == 0) return stamps;
  check(cudaEventSynchronize(events_[n_used_ - 1]), "waiting for the ops of a profile");
  int64_t last = 0;
  for (size_t i = 1; i < n_used_; i++) {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, events_[0], events_[i]), "reading the time of an op");
    last = std::max(last, static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6));
    stamps.push_back(last);
  }
  return stamps;
}

}  // namespace qwen3::cuda

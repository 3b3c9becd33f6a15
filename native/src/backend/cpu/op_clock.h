// The clock of ops that run at once: the steady clock, read by the calling thread.
#pragma once

#include <chrono>
#include <utility>
#include <vector>

#include "ops/ops.h"

namespace qwen3::cpu {

class SteadyOpClock final : public OpClock {
 public:
  void begin() override {
    stamps_.clear();
    started_ = std::chrono::steady_clock::now();
  }
  void stamp() override {
    const auto since = std::chrono::steady_clock::now() - started_;
    stamps_.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
  }
  std::vector<int64_t> take() override { return std::exchange(stamps_, {}); }

 private:
  std::chrono::steady_clock::time_point started_;
  std::vector<int64_t> stamps_;
};

}  // namespace qwen3::cpu

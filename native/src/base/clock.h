// The clock of all times that the library gives and takes.
#pragma once

#include <time.h>

#include <cstdint>

namespace qwen3 {

// Nanoseconds of CLOCK_MONOTONIC, whatever the C++ library's steady_clock is: hosts compare them with their own.
inline int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

}  // namespace qwen3

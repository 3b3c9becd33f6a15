// How benches take time, and the machine's own limits (backend/cpu/peaks.h) to compare with: the best of some rounds,
// as other programs disturb single ones.
#pragma once

#include <time.h>

#include <cstddef>
#include <string>

#include "backend/cpu/peaks.h"
#include "backend/cpu/thread_pool.h"

namespace qwen3::bench {

// Wall-clock time; on one thread the process's CPU time, which other programs on the machine do not lengthen.
inline double now_seconds(const cpu::ThreadPool& pool) {
  timespec now{};
  ::clock_gettime(pool.n_threads() == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The shortest of `rounds` runs, in seconds.
template <typename Run>
double best_seconds(const cpu::ThreadPool& pool, int rounds, const Run& run) {
  double best = 1e30;
  for (int round = 0; round < rounds; round++) {
    const double start = now_seconds(pool);
    run();
    const double seconds = now_seconds(pool) - start;
    if (seconds < best) best = seconds;
  }
  return best;
}

// Floating point operations per second, see cpu::multiply_add.
inline double peak_flops(const std::string& kernels, cpu::ThreadPool& pool, int rounds = 5) {
  double operations = 0;
  const double seconds = best_seconds(pool, rounds, [&] { operations = cpu::multiply_add(kernels, pool); });
  return operations / seconds;
}

// The seconds of the best round of reading all bytes. What it reads stays in the cache if it fits, so give it more than
// that.
inline double read_seconds(const void* data, size_t bytes, cpu::ThreadPool& pool, int rounds = 5) {
  return best_seconds(pool, rounds, [&] { cpu::read_memory(data, bytes, pool); });
}

}  // namespace qwen3::bench

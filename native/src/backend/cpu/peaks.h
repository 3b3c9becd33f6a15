// The processor's own limits, measured the plainest way: multiply-adds on registers alone, and reading memory, by all
// threads of a pool at once. Knows no op. Runs on the thread that owns the pool.
#pragma once

#include <cstddef>
#include <string>

#include "backend/cpu/thread_pool.h"
#include "ops/ops.h"

namespace qwen3::cpu {

// Runs the kernel set's own instruction on all threads for some milliseconds: float32 fused multiply-add, or the bf16
// dot product for "avx512bf16". Returns the floating point operations done (a multiply-add counts as two). `kernels`
// must be supported by this processor.
double multiply_add(const std::string& kernels, ThreadPool& pool);

// Reads all bytes once with the widest loads.
void read_memory(const void* data, size_t bytes, ThreadPool& pool);

// Both, in wall-clock time, the best of some tries.
DevicePeaks measure_peaks(const std::string& kernels, ThreadPool& pool);

}  // namespace qwen3::cpu

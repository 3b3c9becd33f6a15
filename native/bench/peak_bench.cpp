// What this machine can do at most, per kernel set and thread count: `peak_bench [threads]`.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/machine.h"
#include "peak.h"

int main(int argc, char** argv) {
  using namespace qwen3;
  const int all = argc > 1 ? std::atoi(argv[1]) : cpu::usable_cores();
  std::printf("%s, %d usable cores\n", cpu::processor_name().c_str(), cpu::usable_cores());
  const std::vector<uint64_t> memory((size_t{512} << 20) / 8, 1);  // many times a last-level cache
  for (int threads = 1; threads <= all; threads = threads < all && threads * 2 > all ? all : threads * 2) {
    cpu::ThreadPool pool(threads);
    std::printf(
        "%3d threads: read %6.1f GB/s", threads,
        8e-9 * static_cast<double>(memory.size()) / bench::read_seconds(memory.data(), memory.size() * 8, pool));
    for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
      std::printf("   %s %.0f GFLOP/s", kernels->name, 1e-9 * bench::peak_flops(kernels->name, pool));
    }
    std::printf("\n");
  }
  return 0;
}

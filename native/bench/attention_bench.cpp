// Speed of paged attention: attention_bench [kernels] [threads].
//
// Decode: one query of the 0.6B (16 heads) and 8B (32 heads) shapes over contexts of 128 to 32,768 tokens; GB/s counts
// each byte of K and V once. KV of 4 layers is walked in turn, as in a model, so that it does not stay in the cache.
// Prefill: a whole prompt at once; GFLOP/s counts 4 * 128 per (query, visible key) pair, and the peak is a loop of
// independent FMAs in registers on the same threads, measured in the same run. Best of 3 to 5. With one thread the
// thread's own processor time is taken, so that other programs disturb less; with more, the time on the wall.
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/kv_layout.h"
#include "base/random.h"

namespace {

using namespace qwen3;

clockid_t bench_clock = CLOCK_THREAD_CPUTIME_ID;

double now() {
  timespec t{};
  clock_gettime(bench_clock, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

std::vector<bf16> random_bf16(size_t n, uint64_t seed) {
  std::vector<bf16> values(n);
  const uint64_t key = noise_key(seed, 0);
  for (size_t i = 0; i < n; i++) {
    values[i] = float_to_bf16(static_cast<float>(noise_uniform(noise_bits(key, static_cast<uint32_t>(i))) * 3.4 - 1.7));
  }
  return values;
}

#if defined(__x86_64__)
// 12 independent accumulators; returns GFLOP/s of one thread.
[[gnu::target("avx512f")]] double fma_peak_avx512() {
  using V [[gnu::vector_size(64)]] = float;
  V acc[12];
  for (int i = 0; i < 12; i++) acc[i] = V{} + static_cast<float>(i);
  const V a = V{} + 0.999f, b = V{} + 1e-3f;
  double best = 0;
  for (int round = 0; round < 5; round++) {
    const double start = now();
    constexpr int kLoops = 200000;
    for (int loop = 0; loop < kLoops; loop++) {
#pragma GCC unroll 12
      for (int i = 0; i < 12; i++) {
        acc[i] = acc[i] * a + b;
        asm volatile("" : "+v"(acc[i]));
      }
    }
    best = std::max(best, 12.0 * kLoops * 32 / (now() - start) * 1e-9);
  }
  return best;
}
[[gnu::target("avx2,fma")]] double fma_peak_avx2() {
  using V [[gnu::vector_size(32)]] = float;
  V acc[12];
  for (int i = 0; i < 12; i++) acc[i] = V{} + static_cast<float>(i);
  const V a = V{} + 0.999f, b = V{} + 1e-3f;
  double best = 0;
  for (int round = 0; round < 5; round++) {
    const double start = now();
    constexpr int kLoops = 200000;
    for (int loop = 0; loop < kLoops; loop++) {
#pragma GCC unroll 12
      for (int i = 0; i < 12; i++) {
        acc[i] = acc[i] * a + b;
        asm volatile("" : "+x"(acc[i]));
      }
    }
    best = std::max(best, 12.0 * kLoops * 16 / (now() - start) * 1e-9);
  }
  return best;
}
#endif

// GFLOP/s that one thread reaches with float32 FMAs of the kernel set's width; 0: not measured.
double fma_peak(const std::string& kernels) {
#if defined(__x86_64__)
  if (kernels.rfind("avx512", 0) == 0) return fma_peak_avx512();
  if (kernels == "avx2") return fma_peak_avx2();
#endif
  return 0;
}

struct Setup {
  int n_heads, n_kv_heads, context, n_tokens, n_layers;
  std::vector<bf16> q, out, k, v;
  std::vector<int32_t> positions, query_start, table;
  BatchView batch{};

  Setup(int heads, int kv_heads, int context_, int n_tokens_, int layers)
      : n_heads(heads), n_kv_heads(kv_heads), context(context_), n_tokens(n_tokens_), n_layers(layers) {
    q = random_bf16(static_cast<size_t>(n_tokens * n_heads) * 128, 1);
    out.resize(q.size());
    const int blocks = (context + kBlockSize - 1) / kBlockSize;
    const size_t layer = static_cast<size_t>(blocks * n_kv_heads) * cpu::kHeadBlock;
    k = random_bf16(layer * static_cast<size_t>(n_layers), 2);
    v = random_bf16(layer * static_cast<size_t>(n_layers), 3);
    for (int t = 0; t < n_tokens; t++) positions.push_back(context - n_tokens + t);
    query_start = {0, n_tokens};
    for (int b = 0; b < blocks; b++) table.push_back(blocks - 1 - b);  // not in order of memory
    batch.n_tokens = n_tokens;
    batch.n_seqs = 1;
    batch.max_blocks = blocks;
    batch.positions = positions.data();
    batch.query_start = query_start.data();
    batch.block_tables = table.data();
  }

  double seconds(const cpu::KernelTable& kernels, cpu::ThreadPool& pool) {
    const size_t layer = k.size() / static_cast<size_t>(n_layers);
    double best = 1e30;
    for (int round = 0; round < 3; round++) {
      const double start = now();
      int calls = 0;
      do {
        const size_t at = layer * static_cast<size_t>(calls % n_layers);
        kernels.attention({&batch, q.data(), {k.data() + at, v.data() + at}, n_heads, n_kv_heads, 128, out.data()},
                          pool);
        calls++;
      } while (calls % n_layers != 0 || (now() - start) < 0.03);
      best = std::min(best, (now() - start) / calls);
    }
    return best;
  }
};

}  // namespace

int main(int argc, char** argv) {
  const std::string wanted = argc > 1 ? argv[1] : "";
  const int threads = argc > 2 ? std::atoi(argv[2]) : 1;
  cpu::ThreadPool pool(threads);
  if (threads > 1) bench_clock = CLOCK_MONOTONIC;
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    if (!wanted.empty() && wanted != kernels->name) continue;
    const double peak = fma_peak(kernels->name) * threads;
    std::printf("%s, %d threads, FMA peak %.0f GFLOP/s\n", kernels->name, threads, peak);
    for (const int heads : {16, 32}) {
      for (const int context : {128, 512, 1024, 4096, 32768}) {
        Setup setup(heads, 8, context, 1, context >= 32768 ? 1 : 4);
        const double t = setup.seconds(*kernels, pool);
        std::printf("  decode   heads %d context %6d  %9.1f us  %6.1f GB/s\n", heads, context, t * 1e6,
                    context * 8.0 * 128 * 2 * 2 / t * 1e-9);
      }
    }
    for (const int n : {512, 2048, 8192}) {
      Setup setup(16, 8, n, n, 1);
      const double t = setup.seconds(*kernels, pool);
      const double flop = 4.0 * 128 * 16 * (0.5 * n * (n + 1.0));
      std::printf("  prefill  heads 16 tokens %6d  %9.2f ms  %6.1f GFLOP/s  %5.1f%% of peak\n", n, t * 1e3,
                  flop / t * 1e-9, peak > 0 ? 100 * flop / t * 1e-9 / peak : 0.0);
    }
  }
  return 0;
}

// Speed of paged attention: attention_bench [kernels] [threads].
//
// Decode: one query of the 0.6B (16 heads) and 8B (32 heads) shapes over contexts of 128 to 32,768 tokens; GB/s counts
// each byte of K and V once. KV of 4 layers is walked in turn, as in a model, so that it does not stay in the cache.
// Prefill: a whole prompt at once; GFLOP/s counts 4 * 128 per (query, visible key) pair, its peak is float32
// multiply-adds in registers on the same threads. Read bandwidth and peak are measured in the same run (peak.h, which
// also says what is timed). KV lies where the backend allocates it. Best of 3 to 8 rounds.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/kv_layout.h"
#include "base/random.h"
#include "peak.h"

namespace {

using namespace qwen3;

std::vector<bf16> random_bf16(size_t n, uint64_t seed) {
  std::vector<bf16> values(n);
  const uint64_t key = noise_key(seed, 0);
  for (size_t i = 0; i < n; i++) {
    values[i] = float_to_bf16(static_cast<float>(noise_uniform(noise_bits(key, static_cast<uint32_t>(i))) * 3.4 - 1.7));
  }
  return values;
}

struct Setup {
  int n_heads, n_kv_heads, context, n_tokens, n_layers;
  std::vector<bf16> q, out;
  size_t size;  // of k and of v: [n_layers][blocks][n_kv_heads][kHeadBlock]
  bf16 *k, *v;
  std::vector<int32_t> positions, query_start, table;
  BatchView batch{};
  cpu::CpuOps memory{"scalar", 1};

  Setup(int heads, int kv_heads, int context_, int n_tokens_, int layers)
      : n_heads(heads), n_kv_heads(kv_heads), context(context_), n_tokens(n_tokens_), n_layers(layers) {
    q = random_bf16(static_cast<size_t>(n_tokens * n_heads) * 128, 1);
    out.resize(q.size());
    const int blocks = (context + kBlockSize - 1) / kBlockSize;
    const size_t layer = static_cast<size_t>(blocks * n_kv_heads) * cpu::kHeadBlock;
    size = layer * static_cast<size_t>(n_layers);
    k = static_cast<bf16*>(memory.allocate(size * sizeof(bf16), "keys"));
    v = static_cast<bf16*>(memory.allocate(size * sizeof(bf16), "values"));
    std::memcpy(k, random_bf16(size, 2).data(), size * sizeof(bf16));
    std::memcpy(v, random_bf16(size, 3).data(), size * sizeof(bf16));
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
    const size_t layer = size / static_cast<size_t>(n_layers);
    int call = 0;
    const auto once = [&] {
      const size_t at = layer * static_cast<size_t>(call++ % n_layers);
      kernels.attention({&batch, q.data(), {k + at, v + at}, n_heads, n_kv_heads, 128, out.data()}, pool);
    };
    once();
    const double single = bench::best_seconds(pool, 1, once);
    const int n_calls = n_layers * (1 + static_cast<int>(0.005 / single / n_layers));
    return bench::best_seconds(pool, n_tokens > 1000 ? 3 : 8,
                               [&] {
                                 for (int i = 0; i < n_calls; i++) once();
                               }) /
           n_calls;
  }
};

}  // namespace

int main(int argc, char** argv) {
  const std::string wanted = argc > 1 ? argv[1] : "";
  const int threads = argc > 2 ? std::atoi(argv[2]) : 1;
  cpu::ThreadPool pool(threads);
  const std::vector<uint64_t> memory((size_t{256} << 20) / 8, 1);
  const double read =
      8e-9 * static_cast<double>(memory.size()) / bench::read_seconds(memory.data(), memory.size() * 8, pool);
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    if (!wanted.empty() && wanted != kernels->name) continue;
    const std::string name = kernels->name;
    const double peak = 1e-9 * bench::peak_flops(name == "avx512bf16" ? "avx512" : name, pool);
    std::printf("%s, %d threads, read %.1f GB/s, float32 FMA peak %.0f GFLOP/s\n", kernels->name, threads, read, peak);
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
                  flop / t * 1e-9, 100 * flop / t * 1e-9 / peak);
    }
  }
  return 0;
}

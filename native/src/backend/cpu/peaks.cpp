#include "backend/cpu/peaks.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "backend/cpu/machine.h"

#if defined(__x86_64__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

namespace qwen3::cpu {

namespace {

std::atomic<uint64_t> sink;  // results go here, so that no loop is optimised away

// Each loop does kRounds rounds of multiply-adds on as many independent accumulators as latency x throughput needs, and
// returns the operations done.
constexpr int kRounds = 1 << 20;

double fma_scalar() {
  constexpr int kAccumulators = 8;
  using Float4 [[gnu::vector_size(16)]] = float;
  Float4 acc[kAccumulators] = {};
  Float4 x = {1.0f, 1.0f, 1.0f, 1.0f}, y = {0.5f, 0.5f, 0.5f, 0.5f};
  for (int round = 0; round < kRounds; round++) {
#pragma GCC unroll 8
    for (int i = 0; i < kAccumulators; i++) acc[i] = acc[i] * y + x;
  }
  float sum = 0;
  for (const Float4& a : acc) sum += a[0];
  sink += static_cast<uint64_t>(sum);
  return 8.0 * kAccumulators * kRounds;
}

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] double fma_avx2() {
  constexpr int kAccumulators = 12;
  __m256 acc[kAccumulators];
#pragma GCC unroll 16
  for (int i = 0; i < kAccumulators; i++) acc[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 x = _mm256_set1_ps(0.5f), y = _mm256_set1_ps(1.0f);
  for (int round = 0; round < kRounds; round++) {
#pragma GCC unroll 16
    for (int i = 0; i < kAccumulators; i++) acc[i] = _mm256_fmadd_ps(acc[i], x, y);
  }
  __m256 sum = acc[0];
#pragma GCC unroll 16
  for (int i = 1; i < kAccumulators; i++) sum = _mm256_add_ps(sum, acc[i]);
  sink += static_cast<uint64_t>(_mm256_cvtss_f32(sum));
  return 16.0 * kAccumulators * kRounds;
}

[[gnu::target("avx512f")]] double fma_avx512() {
  constexpr int kAccumulators = 24;
  __m512 acc[kAccumulators];
#pragma GCC unroll 32
  for (int i = 0; i < kAccumulators; i++) acc[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 x = _mm512_set1_ps(0.5f), y = _mm512_set1_ps(1.0f);
  for (int round = 0; round < kRounds; round++) {
#pragma GCC unroll 32
    for (int i = 0; i < kAccumulators; i++) acc[i] = _mm512_fmadd_ps(acc[i], x, y);
  }
  __m512 sum = acc[0];
#pragma GCC unroll 32
  for (int i = 1; i < kAccumulators; i++) sum = _mm512_add_ps(sum, acc[i]);
  sink += static_cast<uint64_t>(_mm512_cvtss_f32(sum));
  return 32.0 * kAccumulators * kRounds;
}

[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]] double dot_avx512bf16() {
  constexpr int kAccumulators = 24;
  __m512 acc[kAccumulators];
#pragma GCC unroll 32
  for (int i = 0; i < kAccumulators; i++) acc[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512i x = _mm512_set1_epi16(0x3f00), y = _mm512_set1_epi16(0x3c00);
  for (int round = 0; round < kRounds; round++) {
#pragma GCC unroll 32
    for (int i = 0; i < kAccumulators; i++) acc[i] = _mm512_dpbf16_ps(acc[i], (__m512bh)x, (__m512bh)y);
  }
  __m512 sum = acc[0];
#pragma GCC unroll 32
  for (int i = 1; i < kAccumulators; i++) sum = _mm512_add_ps(sum, acc[i]);
  sink += static_cast<uint64_t>(_mm512_cvtss_f32(sum));
  return 64.0 * kAccumulators * kRounds;
}

[[gnu::target("avx512f")]] uint64_t read_avx512(const std::byte* data, size_t bytes) {
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  for (size_t i = 0; i + 256 <= bytes; i += 256) {
    a = _mm512_or_si512(a, _mm512_loadu_si512(data + i));
    b = _mm512_or_si512(b, _mm512_loadu_si512(data + i + 64));
    c = _mm512_or_si512(c, _mm512_loadu_si512(data + i + 128));
    d = _mm512_or_si512(d, _mm512_loadu_si512(data + i + 192));
  }
  const __m512i all = _mm512_or_si512(_mm512_or_si512(a, b), _mm512_or_si512(c, d));
  return static_cast<uint64_t>(_mm_cvtsi128_si64(_mm512_castsi512_si128(all)));
}

[[gnu::target("avx2")]] uint64_t read_avx2(const std::byte* data, size_t bytes) {
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  for (size_t i = 0; i + 128 <= bytes; i += 128) {
    a = _mm256_or_si256(a, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + i)));
    b = _mm256_or_si256(b, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + i + 32)));
    c = _mm256_or_si256(c, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + i + 64)));
    d = _mm256_or_si256(d, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + i + 96)));
  }
  const __m256i all = _mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d));
  return static_cast<uint64_t>(_mm_cvtsi128_si64(_mm256_castsi256_si128(all)));
}
#endif

uint64_t read_scalar(const std::byte* data, size_t bytes) {
  uint64_t all = 0;
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    uint64_t word;
    __builtin_memcpy(&word, data + i, 8);
    all |= word;
  }
  return all;
}

// Memory for the reading: several times a last-level cache, and never more than a quarter of what is free.
constexpr size_t kReadBytes = size_t{1} << 30;

template <typename Run>
double best_seconds(const Run& run) {
  constexpr int kTries = 5;  // other programs disturb single ones
  double best = 1e30;
  for (int i = 0; i < kTries; i++) {
    const auto start = std::chrono::steady_clock::now();
    run();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

double multiply_add(const std::string& kernels, ThreadPool& pool) {
  double (*loop)() = fma_scalar;
#if defined(__x86_64__)
  if (kernels == "avx2") loop = fma_avx2;
  if (kernels == "avx512") loop = fma_avx512;
  if (kernels == "avx512bf16") loop = dot_avx512bf16;
#endif
  std::atomic<double> operations = 0;  // of one thread
  // One piece per thread: as long as all cores are free each takes one.
  pool.parallel_for(pool.n_threads(), 1, [&](int64_t, int64_t, int) { operations = loop(); });
  return operations * pool.n_threads();
}

void read_memory(const void* data, size_t bytes, ThreadPool& pool) {
  uint64_t (*read)(const std::byte*, size_t) = read_scalar;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) read = read_avx2;
  if (__builtin_cpu_supports("avx512f")) read = read_avx512;
#endif
  const auto* first = static_cast<const std::byte*>(data);
  constexpr size_t kChunk = size_t{1} << 20;
  pool.parallel_for(static_cast<int64_t>((bytes + kChunk - 1) / kChunk), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) {
      const size_t offset = static_cast<size_t>(i) * kChunk;
      sink += read(first + offset, std::min(kChunk, bytes - offset));
    }
  });
}

DevicePeaks measure_peaks(const std::string& kernels, ThreadPool& pool) {
  const uint64_t available = available_bytes();
  const size_t bytes = available > 0 ? std::min<size_t>(kReadBytes, available / 4) : kReadBytes;
  // Written by the threads that read it, so that on a machine of several memories each has its part nearby.
  const auto memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
  constexpr size_t kPage = 4096;
  pool.parallel_for(static_cast<int64_t>(bytes / kPage), 256, [&](int64_t begin, int64_t end, int) {
    std::fill(memory.get() + static_cast<size_t>(begin) * kPage, memory.get() + static_cast<size_t>(end) * kPage,
              std::byte{0x55});
  });
  const size_t read = bytes / kPage * kPage;
  double operations = 0;
  const double multiplying = best_seconds([&] { operations = multiply_add(kernels, pool); });
  const double reading = best_seconds([&] { read_memory(memory.get(), read, pool); });
  return {.read_bytes_per_second = static_cast<double>(read) / reading,
          .flops_per_second = operations / multiplying,
          .flops_of = kernels == "avx512bf16" ? "bf16 dot product" : "float32 multiply-add"};
}

}  // namespace qwen3::cpu

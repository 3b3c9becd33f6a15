// The machine's own limits, measured the plainest way, for benches to compare with: multiply-adds on registers alone,
// and reading memory. All threads of a pool at once; the best of some rounds, as other programs disturb single ones.
#pragma once

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "backend/cpu/thread_pool.h"

#if defined(__x86_64__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

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

namespace detail {

inline std::atomic<uint64_t> sink;  // results go here, so that no loop is optimised away

// Each loop does kRounds rounds of multiply-adds on as many independent accumulators as latency x throughput needs, and
// returns the operations done.
inline constexpr int kRounds = 1 << 20;

inline double fma_scalar() {
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
[[gnu::target("avx2,fma")]] inline double fma_avx2() {
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

[[gnu::target("avx512f")]] inline double fma_avx512() {
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

[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]] inline double dot_avx512bf16() {
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

[[gnu::target("avx512f")]] inline uint64_t read_avx512(const std::byte* data, size_t bytes) {
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

[[gnu::target("avx2")]] inline uint64_t read_avx2(const std::byte* data, size_t bytes) {
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

inline uint64_t read_scalar(const std::byte* data, size_t bytes) {
  uint64_t all = 0;
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    uint64_t word;
    __builtin_memcpy(&word, data + i, 8);
    all |= word;
  }
  return all;
}

}  // namespace detail

// Floating point operations per second (a multiply-add counts as two) of the kernel set's own instruction: float32
// fused multiply-add, or the bf16 dot product for "avx512bf16". `kernels` must be supported by this processor.
inline double peak_flops(const std::string& kernels, cpu::ThreadPool& pool, int rounds = 5) {
  double (*loop)() = detail::fma_scalar;
#if defined(__x86_64__)
  if (kernels == "avx2") loop = detail::fma_avx2;
  if (kernels == "avx512") loop = detail::fma_avx512;
  if (kernels == "avx512bf16") loop = detail::dot_avx512bf16;
#endif
  double operations = 0;  // of one thread
  const double seconds = best_seconds(pool, rounds, [&] {
    // One piece per thread: as long as all cores are free each takes one.
    pool.parallel_for(pool.n_threads(), 1, [&](int64_t begin, int64_t, int) {
      const double done = loop();
      if (begin == 0) operations = done;
    });
  });
  return operations * pool.n_threads() / seconds;
}

// Reads all bytes once with the widest loads; returns the seconds of the best round. What it reads stays in the cache
// if it fits, so give it more than that.
inline double read_seconds(const void* data, size_t bytes, cpu::ThreadPool& pool, int rounds = 5) {
  uint64_t (*read)(const std::byte*, size_t) = detail::read_scalar;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) read = detail::read_avx2;
  if (__builtin_cpu_supports("avx512f")) read = detail::read_avx512;
#endif
  const auto* first = static_cast<const std::byte*>(data);
  constexpr size_t kChunk = size_t{1} << 20;
  return best_seconds(pool, rounds, [&] {
    pool.parallel_for(static_cast<int64_t>((bytes + kChunk - 1) / kChunk), 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; i++) {
        const size_t offset = static_cast<size_t>(i) * kChunk;
        detail::sink += read(first + offset, std::min(kChunk, bytes - offset));
      }
    });
  });
}

}  // namespace qwen3::bench

// The noise of sampling: 64 random bits as a pure function of (seed, position, token), so that a draw depends on
// nothing else - no state, no order, no batch. SplitMix64's output function (a bijection of 64 bits that passes
// BigCrush as a counter generator) is applied once to the seed, once to the position and once per token.
//
// Plain integer code without std, for host and device compilers alike. Internal linkage on purpose: kernel files
// compile it with their own instruction set's flags.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define QWEN3_HOST_DEVICE __host__ __device__
#else
#define QWEN3_HOST_DEVICE
#endif

namespace qwen3 {

QWEN3_HOST_DEVICE static inline uint64_t mix_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// One draw's key. position: index of the token in its sequence.
QWEN3_HOST_DEVICE static inline uint64_t noise_key(uint64_t seed, int64_t position) {
  const uint64_t golden = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio, SplitMix64's increment
  return mix_bits(mix_bits(seed + golden) + static_cast<uint64_t>(position) * golden);
}

QWEN3_HOST_DEVICE static inline uint64_t noise_bits(uint64_t key, uint32_t token) {
  return mix_bits(key + (static_cast<uint64_t>(token) + 1) * 0x9e3779b97f4a7c15u);
}

// Uniform in (0, 1) with 52 bits, exact in float64: the smallest value is 2^-53, the largest 1 - 2^-53.
QWEN3_HOST_DEVICE static inline double noise_uniform(uint64_t bits) {
  return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
}

}  // namespace qwen3

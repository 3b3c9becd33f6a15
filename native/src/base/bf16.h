// bfloat16 as it is stored: the upper half of a float32. Host-side conversions for loading and tests; kernels have
// their own vector forms with the same rounding.
#pragma once

#include <bit>
#include <cstdint>

namespace qwen3 {

using bf16 = uint16_t;

inline float bf16_to_float(bf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}

// Round to nearest, ties to even. NaN stays NaN (made quiet), infinities stay.
inline bf16 float_to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<bf16>((bits >> 16) | 0x0040u);
  return static_cast<bf16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace qwen3

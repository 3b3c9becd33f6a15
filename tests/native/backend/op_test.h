// What the tests of single CPU ops share: random data, the kernel sets of this machine, and float64 forms of bfloat16.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/thread_pool.h"
#include "base/bf16.h"
#include "check.h"
#include "ops/ops.h"

namespace qwen3::op_test {

// SplitMix64: the same numbers on every machine and library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    uint64_t x = state_ += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  int below(int n) { return static_cast<int>(bits() % static_cast<uint64_t>(n)); }  // 0..n-1
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }          // [0, 1)
  double normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }

  std::vector<float> normals(size_t n, double scale) {
    std::vector<float> values(n);
    for (float& value : values) value = static_cast<float>(normal() * scale);
    return values;
  }
  std::vector<bf16> normals_bf16(size_t n, double scale, double mean = 0.0) {
    std::vector<bf16> values(n);
    for (bf16& value : values) value = float_to_bf16(static_cast<float>(mean + normal() * scale));
    return values;
  }

 private:
  uint64_t state_;
};

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// Reports a failure with the kernel set's and case's name.
inline void check_case(bool ok, const std::string& what) {
  if (!ok) check::fail("", 0, what);
}

// |got - exact| of a value that was rounded to bfloat16 (half a unit of 8 bits) after an error of `before`.
inline double bf16_tolerance(double exact, double before) {
  return (std::fabs(exact) + before) * 0x1p-8 + before + 1e-38;
}

}  // namespace qwen3::op_test

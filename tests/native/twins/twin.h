// What the twin tests share: the same op with the same random inputs on two backends, through the ops waist alone.
//
// A Device wraps one open backend. Numbers reach it by load_floats and load_table and come back by download, so nothing
// here knows where a backend keeps its memory or how it lays out weights and KV. A test takes the CPU's result as the
// reference, holds every kernel set of the tested device against it within a tolerance that the test derives, and the
// kernel sets and batch sizes of the tested device against each other bit for bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/op_test.h"
#include "ops/ops.h"

namespace qwen3::twins {

struct Settings {
  BackendOptions reference;       // whose results are right
  std::string device = "cuda:0";  // what is tested, with each of these kernel sets
  std::vector<std::string> kernels = {"auto", "generic"};
  bool equal_sets = true;  // the kernel sets must agree to the last bit
  uint64_t seed = 1;
  bool few = false;  // a handful of small cases, for slow checkers
};

// Counts cases and reports failures; a failure names the seed, so that the case can be had again.
class Report {
 public:
  explicit Report(uint64_t seed) : seed_(seed) {}
  void check(bool ok, const std::string& what);
  int cases() const { return cases_; }
  int failures() const { return failures_; }

 private:
  uint64_t seed_;
  int cases_ = 0;
  int failures_ = 0;
};

// Random numbers that cost about a nanosecond: 16-bit pieces of SplitMix64 choose from 65,536 normal values.
class Source {
 public:
  explicit Source(uint64_t seed);
  op_test::Random& random() { return random_; }
  int below(int n) { return random_.below(n); }
  template <size_t n>
  int pick(const int (&values)[n]) {
    return values[random_.below(static_cast<int>(n))];
  }
  std::vector<bf16> normals(size_t n, float scale);
  std::vector<float> floats(size_t n, float scale);

 private:
  op_test::Random random_;
};

std::vector<bf16> magnitudes(std::vector<bf16> values);

class Device {
 public:
  explicit Device(const BackendOptions& options);
  Ops& ops() { return *ops_; }
  const std::string& name() const { return name_; }

  // Device memory that starts with these values.
  float* floats(std::span<const float> values);
  // Device memory in which an element that no op has written is NaN, as float32 and as bfloat16, and 256 bytes behind
  // it that must stay NaN.
  float* blank_floats(size_t n);
  bf16* blank_bf16(size_t n);
  const bf16* table(std::span<const bf16> values);
  // parts: [outputs, n_in] each; they must live as long as the device, which may use them where they are. Call
  // Ops::finish_loading after the last; what loading sets up is dear, so load all weights of a group at once.
  const LinearWeight* linear(const std::vector<std::vector<bf16>>& parts, int n_in, LinearLayout layout);
  // The same weight, with its smaller form too (Ops::code); nullptr if it has none here.
  const LinearWeight* coded(const LinearWeight& weight);
  // Whether weights have that form here at all.
  bool codes() const { return name_.starts_with("cuda"); }

  std::vector<float> read(const float* from, size_t n);
  std::vector<bf16> read(const bf16* from, size_t n);
  // As read, of memory from blank_*: false if what lies behind it was written to.
  template <typename T>
  bool read_guarded(const T* from, size_t n, std::vector<T>& out) {
    out = read(from, n + kGuardBytes / sizeof(T));
    const auto* guard = reinterpret_cast<const bf16*>(out.data() + n);
    const bool clean = std::all_of(guard, guard + kGuardBytes / sizeof(bf16), [](bf16 x) { return x == 0x7fc0; });
    out.resize(n);
    return clean;
  }

 private:
  static constexpr size_t kGuardBytes = 256;
  std::unique_ptr<Ops> ops_;
  std::string name_;
  std::deque<LinearWeight> weights_;
};

// The reference and the tested device, once per kernel set. Opening a GPU takes a fifth of a second, so a group of
// tests opens one bench for all its cases; what cases load stays until it closes.
struct Bench {
  explicit Bench(const Settings& settings);
  Device reference;
  std::vector<std::unique_ptr<Device>> tested;
};

// For results that a backend computes from sums in float32 and rounds to bfloat16: both sides round (half a unit of
// 2^-8 relative each), after an error of `before` together.
inline double bf16_pair_tolerance(double value, double before) {
  return (std::fabs(value) + before) * 0x1p-7 + before + 1e-38;
}

void linear_twins(const Settings& settings, Report& report);
void small_op_twins(const Settings& settings, Report& report);
void attention_twins(const Settings& settings, Report& report);
void sample_twins(const Settings& settings, Report& report);

}  // namespace qwen3::twins

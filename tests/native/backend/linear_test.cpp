// linear and gate_up of every kernel set that this processor runs: against float64, and bit for bit against themselves.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "check.h"

namespace {

using namespace qwen3;

std::vector<bf16> random_bf16(size_t n, uint64_t seed, float scale = 1.0f) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<bf16> values(n);
  for (bf16& value : values) value = float_to_bf16(normal(random));
  return values;
}

// One shape with its data. Matrices begin `offset` elements into their storage.
struct Case {
  int n_rows, n_in;
  std::vector<int> parts;
  size_t offset = 0;
  std::vector<bf16> x;
  std::vector<std::vector<bf16>> weights;
  LinearWeight weight;

  Case(int rows, int in, std::vector<int> part_rows, size_t begin = 0)
      : n_rows(rows), n_in(in), parts(std::move(part_rows)), offset(begin) {
    const uint64_t seed = static_cast<uint64_t>(rows) * 1'000'003 + static_cast<uint64_t>(in);
    x = random_bf16(static_cast<size_t>(rows) * static_cast<size_t>(in) + offset, seed);
    weight.n_in = in;
    weight.n_parts = static_cast<int>(parts.size());
    for (size_t i = 0; i < parts.size(); i++) {
      weights.push_back(random_bf16(static_cast<size_t>(parts[i]) * static_cast<size_t>(in) + offset, seed + 1 + i));
      weight.n_out += parts[i];
    }
    for (size_t i = 0; i < parts.size(); i++) weight.parts[i] = {weights[i].data() + offset, parts[i]};
  }
  const bf16* x_data() const { return x.data() + offset; }

  const bf16* row(int output) const {
    size_t part = 0;
    while (output >= parts[part]) output -= parts[part++];
    return weights[part].data() + offset + static_cast<size_t>(output) * static_cast<size_t>(n_in);
  }

  // The exact product (float64 holds the sum of exact products to 1e-16) and the sum of the products' magnitudes.
  void reference(int token, int output, double* value, double* magnitude) const {
    const bf16* a = x_data() + static_cast<size_t>(token) * static_cast<size_t>(n_in);
    const bf16* b = row(output);
    *value = *magnitude = 0;
    for (int k = 0; k < n_in; k++) {
      const double product = static_cast<double>(bf16_to_float(a[k])) * static_cast<double>(bf16_to_float(b[k]));
      *value += product;
      *magnitude += std::fabs(product);
    }
  }
};

// Bound of a float32 sum's error: each of the n additions rounds by at most 2^-24 of a partial sum, and no partial sum
// exceeds the sum of magnitudes. Additions in one lane: n_in / lanes and a tree of log2(lanes); lanes >= 4. A dot
// instruction that rounds twice per pair and a multiply that is not fused double it.
double sum_tolerance(int n_in, double magnitude) {
  return 2.0 * (n_in / 4.0 + 4) * 0x1p-24 * magnitude;
}

std::vector<float> run_linear(const cpu::KernelTable& kernels, cpu::ThreadPool& pool, const Case& c, int first,
                              int n_rows, bool accumulate = false, float before = 0) {
  std::vector<float> out(static_cast<size_t>(n_rows) * static_cast<size_t>(c.weight.n_out), before);
  kernels.linear({c.x_data() + static_cast<size_t>(first) * static_cast<size_t>(c.n_in), n_rows, &c.weight, out.data(),
                  accumulate},
                 pool);
  return out;
}

bool same_bits(const float* a, const float* b, size_t n) {
  return std::memcmp(a, b, n * sizeof(float)) == 0;
}

TEST("linear: every kernel set agrees with float64 on full and ragged shapes") {
  cpu::ThreadPool pool(2);
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    for (const int n_in : {1, 2, 7, 31, 32, 33, 63, 64, 100, 257, 1024, 2048, 2049, 4099, 6144}) {
      for (const std::vector<int>& parts :
           {std::vector<int>{1}, {3}, {32}, {35}, {5, 2, 9}, {64, 16, 16}, {300}, {257, 31}}) {
        for (const int n_rows : {1, 2, 5, 7, 49, 50}) {
          if (n_in > 300 && n_rows > 7 && parts.size() == 1 && parts[0] > 40) continue;  // enough is covered
          const Case c(n_rows, n_in, parts);
          const std::vector<float> out = run_linear(*kernels, pool, c, 0, n_rows);
          int wrong = 0;
          const int step = n_in > 1000 ? 13 : n_in > 200 ? 3 : 1;  // of the outputs, to save time
          for (int i = 0; i < n_rows * c.weight.n_out; i += step) {
            double value, magnitude;
            c.reference(i / c.weight.n_out, i % c.weight.n_out, &value, &magnitude);
            wrong += !(std::fabs(out[static_cast<size_t>(i)] - value) <= sum_tolerance(n_in, magnitude));
          }
          if (wrong > 0) {
            check::fail(__FILE__, __LINE__,
                        std::string(kernels->name) + ": " + std::to_string(wrong) + " outputs are wrong, n_in " +
                            std::to_string(n_in) + ", n_out " + std::to_string(c.weight.n_out) + ", rows " +
                            std::to_string(n_rows));
          }
        }
      }
    }
  }
}

TEST("linear: a row has equal bits alone, in any batch and place, with any number of threads") {
  constexpr int kMost = 150;  // more than three blocks of inputs
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    for (const int n_in : {96, 1000, 4160}) {
      const Case c(kMost, n_in, {70, 10, 21});
      const auto n_out = static_cast<size_t>(c.weight.n_out);
      cpu::ThreadPool one(1);
      std::vector<float> alone;
      for (int row = 0; row < kMost; row++) {
        const std::vector<float> out = run_linear(*kernels, one, c, row, 1);
        alone.insert(alone.end(), out.begin(), out.end());
      }
      for (const int threads : {1, 2, 3, 5}) {
        cpu::ThreadPool pool(threads);
        for (int n_rows = 1; n_rows <= kMost; n_rows += n_rows < 66 ? (threads == 1 ? 1 : 5) : 21) {
          for (const int first : {0, kMost - n_rows}) {
            const std::vector<float> out = run_linear(*kernels, pool, c, first, n_rows);
            CHECK(same_bits(out.data(), alone.data() + static_cast<size_t>(first) * n_out, out.size()));
          }
        }
      }
    }
  }
}

TEST("linear: accumulate adds to what is there, once") {
  cpu::ThreadPool pool(2);
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    const Case c(9, 160, {37});
    const std::vector<float> plain = run_linear(*kernels, pool, c, 0, 9);
    const std::vector<float> added = run_linear(*kernels, pool, c, 0, 9, true, 3.25f);
    for (size_t i = 0; i < plain.size(); i++) CHECK_EQ(added[i], 3.25f + plain[i]);
    // Without accumulate what was there does not matter, NaN included.
    const std::vector<float> fresh = run_linear(*kernels, pool, c, 0, 9, false, std::nanf(""));
    CHECK(same_bits(plain.data(), fresh.data(), plain.size()));
  }
}

TEST("linear: weights and inputs may lie at any even address, and nothing beyond them is touched") {
  cpu::ThreadPool pool(2);
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    for (const int n_in : {33, 128, 1027}) {
      for (const int n_rows : {1, 8, 60}) {
        const Case aligned(n_rows, n_in, {29, 6});
        Case shifted = aligned;
        // The same values at odd element offsets; NaN all around them would show in the result if it were read.
        const bf16 nan = 0x7fc0;
        for (const size_t offset : {1, 3, 17}) {
          shifted.offset = offset;
          const auto shift = [&](const std::vector<bf16>& from) {
            std::vector<bf16> to(from.size() + 64, nan);
            std::copy(from.begin(), from.end(), to.begin() + static_cast<std::ptrdiff_t>(offset));
            return to;
          };
          shifted.x = shift(aligned.x);
          for (size_t i = 0; i < 2; i++) {
            shifted.weights[i] = shift(aligned.weights[i]);
            shifted.weight.parts[i].data = shifted.weights[i].data() + offset;
          }
          const std::vector<float> expected = run_linear(*kernels, pool, aligned, 0, n_rows);
          const std::vector<float> actual = run_linear(*kernels, pool, shifted, 0, n_rows);
          CHECK(same_bits(actual.data(), expected.data(), expected.size()));
        }
      }
    }
  }
}

TEST("linear: an infinite or NaN input spoils its own row only") {
  cpu::ThreadPool pool(1);
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    Case c(13, 70, {11});
    const std::vector<float> before = run_linear(*kernels, pool, c, 0, 13);
    c.x[5 * 70 + 3] = 0x7fc0;
    const std::vector<float> after = run_linear(*kernels, pool, c, 0, 13);
    for (size_t i = 0; i < before.size(); i++) {
      if (i / 11 == 5) {
        CHECK(std::isnan(after[i]));
      } else {
        CHECK_EQ(after[i], before[i]);
      }
    }
  }
}

TEST("gate_up: is silu(gate) * up of the two linear products, with equal bits in any batch") {
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    for (const int intermediate : {1, 5, 16, 24, 100, 288}) {
      for (const int n_in : {40, 1024}) {
        constexpr int kRows = 55;
        const Case c(kRows, n_in, {intermediate, intermediate});
        cpu::ThreadPool pool(2);
        cpu::ThreadPool one(1);
        const auto n = static_cast<size_t>(intermediate);
        std::vector<bf16> out(kRows * n + 1, 0x1234);
        kernels->gate_up({c.x_data(), kRows, &c.weight, out.data()}, pool);
        CHECK_EQ(out.back(), 0x1234);
        const std::vector<float> both = run_linear(*kernels, one, c, 0, kRows);
        for (size_t row = 0; row < kRows; row++) {
          for (size_t i = 0; i < n; i++) {
            const double gate = both[row * 2 * n + i], up = both[row * 2 * n + n + i];
            const double expected = gate / (1 + std::exp(-gate)) * up;
            // bf16 has 8 significant bits: rounding moves by at most 2^-8 relative; exp, the division and two products
            // by a few times 2^-24. Below a gate of -88.7 e^-gate is infinite and the result 0 instead of less than
            // 3e-37 * up.
            CHECK_NEAR(bf16_to_float(out[row * n + i]), expected,
                       std::fabs(expected) * (0x1p-8 + 8 * 0x1p-24) + 3e-37 * std::fabs(up));
          }
          std::vector<bf16> alone(n);
          kernels->gate_up({c.x_data() + row * static_cast<size_t>(n_in), 1, &c.weight, alone.data()}, one);
          CHECK(std::equal(alone.begin(), alone.end(), out.begin() + static_cast<std::ptrdiff_t>(row * n)));
        }
      }
    }
  }
}

TEST("linear: the kernel sets differ only by rounding") {
  const Case c(6, 3000, {50});
  cpu::ThreadPool pool(1);
  const std::vector<const cpu::KernelTable*> sets = cpu::supported_kernels();
  const std::vector<float> first = run_linear(*sets.front(), pool, c, 0, 6);
  for (const cpu::KernelTable* kernels : sets) {
    const std::vector<float> out = run_linear(*kernels, pool, c, 0, 6);
    for (int i = 0; i < 300; i++) {
      double value, magnitude;
      c.reference(i / 50, i % 50, &value, &magnitude);
      CHECK_NEAR(out[static_cast<size_t>(i)], first[static_cast<size_t>(i)], 2 * sum_tolerance(3000, magnitude));
    }
  }
}

}  // namespace

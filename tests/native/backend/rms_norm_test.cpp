// rms_norm against float64.
//
// Tolerance: the sum of n squares of float32 carries at most (n / (4 lanes) + 12) roundings of 2^-24, halved by the
// square root; then the square root, the division and two products round once each, and bfloat16 rounds at the end.
#include "op_test.h"

namespace qwen3 {
namespace {

using op_test::Random;

TEST("rms_norm agrees with float64 over shapes, row selections and magnitudes") {
  Random random(2);
  cpu::ThreadPool pool(2);
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    for (const int hidden : {1, 5, 31, 64, 127, 1024, 2560, 4096, 5120}) {
      for (const double scale : {1e-6, 1.0, 3e4}) {
        const int n_x = 9;
        const size_t width = static_cast<size_t>(hidden);
        const std::vector<float> x = random.normals(n_x * width, scale);
        const std::vector<bf16> weight = random.normals_bf16(width, 0.3, 1.0);
        const std::vector<int32_t> index = {8, 0, 3, 3};
        for (const bool indexed : {false, true}) {
          const int n_rows = indexed ? 4 : n_x;
          std::vector<bf16> out(static_cast<size_t>(n_rows) * width);
          const float eps = 1e-6f;
          kernels->rms_norm(
              {x.data(), weight.data(), indexed ? index.data() : nullptr, n_rows, hidden, eps, out.data()}, pool);
          int wrong = 0;
          for (int row = 0; row < n_rows; row++) {
            const float* from = x.data() + static_cast<size_t>(indexed ? index[static_cast<size_t>(row)] : row) * width;
            double sum = 0.0;
            for (size_t i = 0; i < width; i++) sum += static_cast<double>(from[i]) * from[i];
            const double factor = 1.0 / std::sqrt(sum / hidden + static_cast<double>(eps));
            for (size_t i = 0; i < width; i++) {
              const double exact = from[i] * factor * static_cast<double>(bf16_to_float(weight[i]));
              const double before = std::fabs(exact) * (0.5 * (hidden / 16.0 + 12) + 5) * 0x1p-24;
              const double got = bf16_to_float(out[static_cast<size_t>(row) * width + i]);
              if (!(std::fabs(got - exact) <= op_test::bf16_tolerance(exact, before))) wrong++;
            }
          }
          op_test::check_case(wrong == 0, std::string(kernels->name) + " hidden " + std::to_string(hidden) + ": " +
                                              std::to_string(wrong) + " elements are off");
        }
      }
    }
  }
}

TEST("rms_norm of a row has equal bits alone, in a batch and on any number of threads") {
  Random random(3);
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    const int hidden = 1030;
    const int n_rows = 67;
    const size_t width = hidden;
    const std::vector<float> x = random.normals(n_rows * width, 1.0);
    const std::vector<bf16> weight = random.normals_bf16(width, 0.3, 1.0);
    std::vector<bf16> alone(n_rows * width);
    cpu::ThreadPool one(1);
    for (size_t row = 0; row < n_rows; row++) {
      kernels->rms_norm({x.data() + row * width, weight.data(), nullptr, 1, hidden, 1e-6f, alone.data() + row * width},
                        one);
    }
    for (int threads = 1; threads <= 3; threads++) {
      cpu::ThreadPool pool(threads);
      std::vector<bf16> out(n_rows * width);
      kernels->rms_norm({x.data(), weight.data(), nullptr, n_rows, hidden, 1e-6f, out.data()}, pool);
      op_test::check_case(op_test::same_bits(out, alone), std::string(kernels->name) + ": rows differ");
    }
  }
}

}  // namespace
}  // namespace qwen3

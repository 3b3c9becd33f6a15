// cuBLAS for the benches that stand beside it: without its headers, loaded from where the loader looks. Header only.
#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include "cuda_bench.h"

namespace bench {

struct CannotRun : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// x [rows, n_in] times w [n_out, n_in] transposed, bf16 and row-major.
class Cublas {
 public:
  Cublas() {
    void* library = dlopen("libcublas.so.13", RTLD_NOW);
    if (library == nullptr) {
      throw CannotRun(std::string(dlerror()) + "; name its folder in LD_LIBRARY_PATH");
    }
    const auto create = reinterpret_cast<int (*)(void**)>(dlsym(library, "cublasCreate_v2"));
    const auto set_stream = reinterpret_cast<int (*)(void*, cudaStream_t)>(dlsym(library, "cublasSetStream_v2"));
    const auto set_workspace = reinterpret_cast<int (*)(void*, void*, size_t)>(dlsym(library, "cublasSetWorkspace_v2"));
    gemm_ = reinterpret_cast<Gemm>(dlsym(library, "cublasGemmEx"));
    if (!create || !set_stream || !set_workspace || !gemm_) {
      throw std::runtime_error("libcublas.so.13 lacks a function");
    }
    constexpr size_t kWorkspace = size_t{64} << 20;
    good(create(&handle_));
    good(set_stream(handle_, stream));
    good(set_workspace(handle_, allocate<uint8_t>(kWorkspace), kWorkspace));
  }
  // y [rows, n_out] = the product, bf16
  void multiply(const bf16* x, int rows, int n_in, const bf16* w, int n_out, bf16* y) const {
    run(x, rows, n_in, w, n_out, y, kBf16, 0.0f);
  }
  // y = the product, float32, or y += the product: the job of LinearMode::kStore and kAccumulate
  void multiply(const bf16* x, int rows, int n_in, const bf16* w, int n_out, float* y, bool accumulate) const {
    run(x, rows, n_in, w, n_out, y, kFloat32, accumulate ? 1.0f : 0.0f);
  }

 private:
  static constexpr int kBf16 = 14, kFloat32 = 0;
  void run(const bf16* x, int rows, int n_in, const bf16* w, int n_out, void* y, int type, float beta) const {
    constexpr int kTransposed = 1, kPlain = 0, kCompute32F = 68, kDefault = -1;
    const float one = 1.0f;
    good(gemm_(handle_, kTransposed, kPlain, n_out, rows, n_in, &one, w, kBf16, n_in, x, kBf16, n_in, &beta, y, type,
               n_out, kCompute32F, kDefault));
  }
  using Gemm = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int,
                       const void*, void*, int, int, int, int);
  static void good(int status) {
    if (status != 0) throw std::runtime_error("cuBLAS returned " + std::to_string(status));
  }
  void* handle_ = nullptr;
  Gemm gemm_;
};

}  // namespace bench

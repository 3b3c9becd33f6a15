// What the stand-alone CUDA benches share: the stream, and how a failing call or a hanging kernel ends the process with
// a line that names the case. Header only; each bench is one translation unit on one thread.
#pragma once

#include <cuda_runtime.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>

namespace bench {

inline cudaStream_t stream;
inline std::string now = "start";  // what runs, for messages
inline std::string table;          // lines kept for the end; a hang shows those that there are

inline void ok(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("FAILED during %s: %s\n", now.c_str(), cudaGetErrorString(error));
  std::fflush(stdout);
  _exit(1);
}

// Waits for the stream; a kernel that hangs is named instead of waited for.
inline void finish() {
  constexpr std::chrono::seconds kLongest{15};
  ok(cudaGetLastError());
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    const cudaError_t state = cudaStreamQuery(stream);
    if (state == cudaSuccess) return;
    if (state != cudaErrorNotReady) ok(state);
    if (std::chrono::steady_clock::now() - start > kLongest) {
      std::printf("%sHANG during %s\n", table.c_str(), now.c_str());
      std::fflush(stdout);
      _exit(1);
    }
  }
}

}  // namespace bench

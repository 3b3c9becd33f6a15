// Breaks the CUDA context of the process that loads it, for tests/gpu/faults.py: a kernel that writes where there is no
// memory. The error is sticky: every later CUDA call of the process fails, whoever makes it.
//
// Built as a library of its own (nvcc -shared), never part of the product. fault_now() does it at once. Preloaded into
// a process (LD_PRELOAD), it waits in a thread until the file named by FAULT_FILE exists.
#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

namespace {

__global__ void write_to_nowhere() {
  *reinterpret_cast<volatile int*>(64) = 1;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int fault_now() {
  cudaSetDevice(0);
  write_to_nowhere<<<1, 1>>>();
  return cudaDeviceSynchronize();
}

__attribute__((constructor)) static void wait_for_file() {
  const char* file = std::getenv("FAULT_FILE");
  if (file == nullptr) return;
  std::thread([file] {
    while (access(file, F_OK) != 0) usleep(20'000);
    fault_now();
  }).detach();
}

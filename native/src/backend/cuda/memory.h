// Device and pinned host memory of the CUDA backend: owners that free what they hold, and the staging of small arrays.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace qwen3::cuda {

// All cudaMalloc allocations of one CudaOps.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // Zeroed, 256-byte aligned. Throws Error(kOutOfMemory) naming `what`, its size and what is free.
  void* allocate(size_t bytes, const char* what, cudaStream_t stream);
  void release(void* pointer);

 private:
  std::vector<void*> pointers_;
};

// Page-locked host memory that grows on demand; its content is lost when it grows.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  void* ensure(size_t bytes);

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Bytes that the host writes each step and kernels read: a pinned buffer and a device buffer at a fixed address.
class Staging {
 public:
  Staging() = default;
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Room for `bytes` on the host, after the last send has left it. Returns true if the device address changed.
  bool begin(size_t bytes, DeviceMemory& memory, cudaStream_t stream);
  char* host() { return static_cast<char*>(pinned_.ensure(capacity_)); }
  const char* device() const { return static_cast<const char*>(device_); }
  // Copies the first `bytes` to the device in stream order.
  void send(size_t bytes, cudaStream_t stream);

 private:
  PinnedBuffer pinned_;
  void* device_ = nullptr;
  size_t capacity_ = 0;
  cudaEvent_t sent_ = nullptr;
};

}  // namespace qwen3::cuda

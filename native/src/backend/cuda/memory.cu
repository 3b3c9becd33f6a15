#include <algorithm>
#include <string>

#include "backend/cuda/kernels.h"
#include "backend/cuda/memory.h"
#include "base/error.h"

namespace qwen3::cuda {

namespace {

std::string mib(size_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

}  // namespace

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw Error(Status::kDeviceError, std::string("CUDA failed at ") + what + ": " + cudaGetErrorString(error));
}

DeviceMemory::~DeviceMemory() {
  for (void* pointer : pointers_) cudaFree(pointer);
}

void* DeviceMemory::allocate(size_t bytes, const char* what, cudaStream_t stream) {
  void* pointer = nullptr;
  const cudaError_t error = cudaMalloc(&pointer, std::max<size_t>(bytes, 256));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "asking for free memory");
    throw Error(Status::kOutOfMemory, std::string("the GPU has not enough memory for ") + what + ": " + mib(bytes) +
                                          " are needed, " + mib(free) + " of " + mib(total) + " are free");
  }
  check(error, "allocating device memory");
  pointers_.push_back(pointer);
  check(cudaMemsetAsync(pointer, 0, std::max<size_t>(bytes, 256), stream), "clearing device memory");
  return pointer;
}

void DeviceMemory::release(void* pointer) {
  std::erase(pointers_, pointer);
  check(cudaFree(pointer), "freeing device memory");
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) cudaFreeHost(data_);
}

void* PinnedBuffer::ensure(size_t bytes) {
  if (bytes <= bytes_) return data_;
  if (data_ != nullptr) check(cudaFreeHost(data_), "freeing pinned memory");
  data_ = nullptr;
  bytes_ = 0;
  check(cudaHostAlloc(&data_, bytes, cudaHostAllocDefault), "allocating pinned memory");
  bytes_ = bytes;
  return data_;
}

Staging::~Staging() {
  if (sent_ != nullptr) cudaEventDestroy(sent_);
}

bool Staging::begin(size_t bytes, DeviceMemory& memory, cudaStream_t stream) {
  if (sent_ == nullptr) check(cudaEventCreateWithFlags(&sent_, cudaEventDisableTiming), "creating an event");
  check(cudaEventSynchronize(sent_), "waiting for a copy");
  if (bytes <= capacity_) return false;
  // capacity_ last: an evaluation that finds no memory fails alone, and the next step must find this as it was.
  const size_t capacity = std::max<size_t>(2 * bytes, size_t{1} << 16);
  void* larger = memory.allocate(capacity, "the step's index arrays", stream);
  if (device_ != nullptr) memory.release(device_);  // cudaFree waits for kernels that still read it
  device_ = larger;
  pinned_.ensure(capacity);
  capacity_ = capacity;
  return true;
}

void Staging::send(size_t bytes, cudaStream_t stream) {
  check(cudaMemcpyAsync(device_, host(), bytes, cudaMemcpyHostToDevice, stream), "sending the step's index arrays");
  check(cudaEventRecord(sent_, stream), "recording an event");
}

}  // namespace qwen3::cuda

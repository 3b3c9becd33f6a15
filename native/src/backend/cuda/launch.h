// The one way to launch a kernel: sets shared memory limits once per kernel and device, cluster size and the
// programmatic dependent launch attribute, and turns failures into Errors.
//
// A kernel launched with ctx.pdl may start before the kernels before it have finished. It must call griddep_wait()
// (ptx.cuh) before it reads what they wrote or writes what they read, in every thread that does so; it calls
// griddep_launch() early. Weights never change after loading and may be read before the wait.
#pragma once

#include <atomic>

#include "backend/cuda/kernels.h"

namespace qwen3::cuda {

struct Grid {
  dim3 blocks;
  dim3 threads;
  size_t shared_bytes = 0;  // dynamic
  int cluster = 1;          // CTAs per cluster, along x
};

// Allows `kernel` up to `max_shared_bytes` of dynamic shared memory and prefers shared memory over L1. Loads the
// kernel. Not a stream operation; costs a few ns after the first call.
template <auto kernel>
void configure(size_t max_shared_bytes) {
  static std::atomic<uint64_t> done{0};  // one bit per device
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const uint64_t bit = uint64_t{1} << (device & 63);
  if ((done.load(std::memory_order_relaxed) & bit) != 0) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(max_shared_bytes)),
        "setting a kernel's shared memory limit");
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
        "setting a kernel's shared memory carve-out");
  done.fetch_or(bit, std::memory_order_relaxed);
}

template <class... Params, class... Args>
void launch(const char* what, void (*kernel)(Params...), const Grid& grid, const Context& ctx, Args&&... args) {
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = {};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = ctx.stream;
  config.attrs = attributes;
  if (ctx.pdl) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (grid.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(grid.cluster);
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
  }
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), what);
}

}  // namespace qwen3::cuda

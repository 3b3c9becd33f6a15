// The CUDA backend's door for host code: no CUDA header needed.
#pragma once

#include <memory>
#include <string>

#include "ops/ops.h"

namespace qwen3::cuda {

// True if there is a GPU that the driver can use and that is new enough (compute capability 8.0).
bool usable();

// See CudaOps for the errors.
std::unique_ptr<Ops> open(int device, const std::string& kernels);

}  // namespace qwen3::cuda

// The CUDA backend's door for host code: no CUDA header needed.
#pragma once

#include <memory>
#include <string>

#include "ops/ops.h"

namespace qwen3::cuda {

// True if there is a GPU that the driver can use and that is new enough (compute capability 8.0). why_not: a sentence,
// if there seems to be one that cannot be used.
bool usable(std::string& why_not);

// See CudaOps for the errors.
std::unique_ptr<Ops> open(int device, const std::string& kernels);

}  // namespace qwen3::cuda

// Picks a backend by the name of a device. Called once per engine, by the thread that opens it.
#include <algorithm>
#include <cctype>

#include "backend/cpu/cpu_ops.h"
#ifdef QWEN3_CUDA
#include "backend/cuda/open.h"
#endif
#include "base/error.h"
#include "ops/ops.h"

namespace qwen3 {

std::unique_ptr<Ops> open_backend(const BackendOptions& options) {
  const std::string& device = options.device;
  const bool automatic = device.empty() || device == "auto";
#ifdef QWEN3_CUDA
  if (automatic) {
    std::string why_not;
    if (cuda::usable(why_not)) return cuda::open(0, options.kernels);
    if (!why_not.empty() && options.warn) options.warn("the GPU is not used: " + why_not);
  }
#endif
  if (automatic || device == "cpu") return std::make_unique<cpu::CpuOps>(options.kernels, options.threads);
  const std::string prefix = "cuda:";
  const bool numbered = device.starts_with(prefix) && device.size() > prefix.size() &&
                        std::all_of(device.begin() + static_cast<std::ptrdiff_t>(prefix.size()), device.end(),
                                    [](unsigned char c) { return std::isdigit(c) != 0; });
  if (device == "cuda" || numbered) {
#ifdef QWEN3_CUDA
    return cuda::open(numbered ? std::stoi(device.substr(prefix.size())) : 0, options.kernels);
#else
    throw Error(Status::kUnsupported,
                "device \"" + device + "\" cannot be used: this build has no CUDA backend; use device \"cpu\"");
#endif
  }
  throw Error(Status::kInvalidArgument,
              "\"" + device + "\" is no device; use \"auto\", \"cpu\" or \"cuda:N\" with N the number of the GPU");
}

}  // namespace qwen3

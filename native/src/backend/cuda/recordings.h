// Recorded steps: CUDA graphs by key, made when a key comes for the second time.
//
// The first time, ops are launched one by one, which also loads their kernels. At most kMaxGraphs are kept, the least
// recently used goes. Used by the engine's worker thread.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <map>

namespace qwen3::cuda {

class Recordings {
 public:
  Recordings() = default;
  ~Recordings() { clear(); }
  Recordings(const Recordings&) = delete;
  Recordings& operator=(const Recordings&) = delete;

  // Does what `issue` launches on `stream`, by launching its graph if there is one.
  void run(uint64_t key, const std::function<void()>& issue, cudaStream_t stream);
  // Forgets all graphs: their arguments are no longer valid. None may be running.
  void clear();

 private:
  static constexpr size_t kMaxGraphs = 256;

  struct Recording {
    cudaGraphExec_t graph = nullptr;  // nullptr: the key has been seen once
    uint64_t last_used = 0;
  };
  void make_room(cudaStream_t stream);

  std::map<uint64_t, Recording> recordings_;
  uint64_t n_runs_ = 0;
};

}  // namespace qwen3::cuda

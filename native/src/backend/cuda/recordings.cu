#include <algorithm>

#include "backend/cuda/kernels.h"
#include "backend/cuda/recordings.h"

namespace qwen3::cuda {

namespace {

cudaGraphExec_t record(const std::function<void()>& issue, cudaStream_t stream) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "recording a step");
  cudaGraph_t graph = nullptr;
  try {
    issue();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph), "recording a step");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(error, "building a step's graph");
  return executable;
}

}  // namespace

void Recordings::run(uint64_t key, const std::function<void()>& issue, cudaStream_t stream) {
  const auto found = recordings_.find(key);
  if (found == recordings_.end()) {
    make_room(stream);
    recordings_[key].last_used = ++n_runs_;
    return issue();
  }
  Recording& recording = found->second;
  recording.last_used = ++n_runs_;
  if (recording.graph == nullptr) recording.graph = record(issue, stream);
  check(cudaGraphLaunch(recording.graph, stream), "launching a step's graph");
}

void Recordings::make_room(cudaStream_t stream) {
  if (recordings_.size() < kMaxGraphs) return;
  const auto oldest = std::min_element(recordings_.begin(), recordings_.end(), [](const auto& a, const auto& b) {
    return a.second.last_used < b.second.last_used;
  });
  if (oldest->second.graph != nullptr) {
    check(cudaStreamSynchronize(stream), "waiting for a step");
    cudaGraphExecDestroy(oldest->second.graph);
  }
  recordings_.erase(oldest);
}

void Recordings::clear() {
  for (const auto& [key, recording] : recordings_)
    if (recording.graph != nullptr) cudaGraphExecDestroy(recording.graph);
  recordings_.clear();
}

}  // namespace qwen3::cuda

// What the stand-alone CUDA benches share: the stream, device memory with known contents, times by events, sections
// that are named on the command line, and how a failing call or a hanging kernel ends the process with a line that
// names the case. Knows no op. Header only; each bench is one translation unit on one thread.
#pragma once

#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "backend/cuda/kernels.h"
#include "base/bf16.h"
#include "base/random.h"

namespace bench {

using qwen3::bf16;

inline cudaStream_t stream;
inline int sm_count;
inline int failures = 0;
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

template <class... A>
void line(const char* format, A... args) {
  char text[400];
  std::snprintf(text, sizeof text, format, args...);
  table += std::string(text) + "\n";
}
inline void fail(const char* what) {
  failures++;
  if (failures <= 60) std::printf("FAIL %s: %s\n", now.c_str(), what);
}

// The first device, with the stream on it.
inline cudaDeviceProp open_device() {
  cudaDeviceProp properties{};
  ok(cudaGetDeviceProperties(&properties, 0));
  sm_count = properties.multiProcessorCount;
  ok(cudaStreamCreate(&stream));
  return properties;
}
inline qwen3::cuda::Context context(bool hopper, bool pdl = true) {
  return {stream, sm_count, hopper, pdl};
}

// ---------------------------------------------------------------- memory
// Never freed, unless by the caller.
template <class T>
T* allocate(size_t n) {
  T* p = nullptr;
  ok(cudaMalloc(&p, n * sizeof(T)));
  return p;
}

template <class T>
struct Buffer {
  T* data = nullptr;
  size_t n = 0;
  explicit Buffer(size_t count) : data(allocate<T>(std::max<size_t>(count, 64))), n(count) {
    ok(cudaMemsetAsync(data, 0, std::max<size_t>(count, 64) * sizeof(T), stream));
  }
  explicit Buffer(const std::vector<T>& host) : Buffer(host.size()) {
    ok(cudaMemcpyAsync(data, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice, stream));
    finish();
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() {
    finish();
    ok(cudaFree(data));
  }
  void poison() { ok(cudaMemsetAsync(data, 0xff, n * sizeof(T), stream)); }
  std::vector<T> host() const {
    std::vector<T> out(n);
    ok(cudaMemcpyAsync(out.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost, stream));
    finish();
    return out;
  }
};

// ---------------------------------------------------------------- data
__device__ inline bf16 to_bf16(float x) {
  const uint32_t bits = __float_as_uint(x);
  return static_cast<bf16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
__device__ inline float from_bf16(bf16 x) {
  return __uint_as_float(static_cast<uint32_t>(x) << 16);
}

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
// Random numbers around 0, a pure function of their place.
struct Normal {
  float deviation;
  uint64_t salt;
  __device__ float operator()(uint64_t i) const {
    const uint64_t a = qwen3::mix_bits((i + 1) * kGolden + salt);
    const float u = (static_cast<float>(a >> 40) + 0.5f) * 0x1p-24f;
    const float v = static_cast<float>(a & 0xffffff) * 0x1p-24f;
    return sqrtf(-2.0f * logf(u)) * cosf(6.2831853f * v) * deviation;
  }
};
struct Uniform {
  float deviation;
  uint64_t salt;
  __device__ float operator()(uint64_t i) const {
    const uint64_t a = qwen3::mix_bits((i + salt + 1) * kGolden);
    return (static_cast<float>(static_cast<uint32_t>(a >> 32)) * 0x1p-32f - 0.5f) * 3.4641016f * deviation;
  }
};
// About normal: the sum of four uniform numbers.
struct UniformSum {
  float deviation;
  uint64_t salt;
  __device__ float operator()(uint64_t i) const {
    float sum = 0.0f;
    for (uint64_t k = 0; k < 4; k++) sum += Uniform{deviation * 0.5f, salt}(4 * i + k);
    return sum;
  }
};

// p [n] bf16 or float32
template <class T, class Data>
__global__ void fill_kernel(T* p, size_t n, Data value) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n;
       i += size_t{gridDim.x} * blockDim.x) {
    if constexpr (std::is_same_v<T, bf16>) {
      p[i] = to_bf16(value(i));
    } else {
      p[i] = value(i);
    }
  }
}
template <class T, class Data>
void fill(T* p, size_t n, Data value) {
  fill_kernel<<<2048, 256, 0, stream>>>(p, n, value);
}
template <class T>
void fill(T* p, size_t n, float deviation, uint64_t salt) {
  fill(p, n, Normal{deviation, salt});
}

// ---------------------------------------------------------------- times
// Microseconds from the first to the last of what `issue` puts on the stream.
inline double elapsed_us(const std::function<void()>& issue) {
  const auto create = [] {
    cudaEvent_t event;
    ok(cudaEventCreate(&event));
    return event;
  };
  static const cudaEvent_t begin = create(), end = create();
  ok(cudaEventRecord(begin, stream));
  issue();
  ok(cudaEventRecord(end, stream));
  finish();
  float ms = 0;
  ok(cudaEventElapsedTime(&ms, begin, end));
  return static_cast<double>(ms) * 1e3;
}

inline cudaGraphExec_t record(const std::function<void()>& issue) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  issue();
  ok(cudaStreamEndCapture(stream, &graph));
  ok(cudaGraphInstantiate(&exec, graph, 0));
  ok(cudaGraphDestroy(graph));
  return exec;
}

class TimedGraph {
 public:
  explicit TimedGraph(const std::function<void()>& issue) {
    issue();  // loads kernels, outside the capture
    finish();
    exec_ = record(issue);
  }
  ~TimedGraph() { cudaGraphExecDestroy(exec_); }
  TimedGraph(const TimedGraph&) = delete;
  TimedGraph& operator=(const TimedGraph&) = delete;

  // Microseconds per launch of the graph, back to back.
  double run(int repeats) const {
    return elapsed_us([&] {
             for (int i = 0; i < repeats; i++) ok(cudaGraphLaunch(exec_, stream));
           }) /
           repeats;
  }
  int repeats_in(double budget_us) const {
    return std::clamp(static_cast<int>(budget_us / std::max(run(1), 1.0)), 1, 30);
  }

 private:
  cudaGraphExec_t exec_ = nullptr;
};

// Median microseconds of one `issue(i)` when `n` of them stand in a graph.
inline double time_us(int n, const std::function<void(int)>& issue) {
  const TimedGraph graph([&] {
    for (int i = 0; i < n; i++) issue(i);
  });
  std::vector<double> times;
  for (int i = 0; i < 7; i++) {
    const double us = graph.run(1) / n;
    if (i > 1) times.push_back(us);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// ---------------------------------------------------------------- the command line
// Ends the process if a word is none of these.
inline void expect_words(const std::set<std::string>& words, const std::vector<std::string>& known) {
  for (const std::string& word : words) {
    if (std::find(known.begin(), known.end(), word) != known.end()) continue;
    std::string list;
    for (const std::string& each : known) list += (list.empty() ? "" : ", ") + each;
    std::printf("%s: expected some of %s, or nothing\n", word.c_str(), list.c_str());
    std::exit(2);
  }
}

struct Section {
  const char* name;
  void (*run)();
};

// A bench's main: runs the sections that are named, or all; prints the table after them.
[[noreturn]] inline void run_sections(int argc, char** argv, const std::vector<Section>& sections) {
  const std::set<std::string> wanted(argv + 1, argv + argc);
  std::vector<std::string> names;
  for (const Section& section : sections) names.push_back(section.name);
  expect_words(wanted, names);
  const cudaDeviceProp properties = open_device();
  for (const Section& section : sections) {
    if (!wanted.empty() && wanted.count(section.name) == 0) continue;
    const auto start = std::chrono::steady_clock::now();
    try {
      section.run();
    } catch (const std::exception& error) {
      fail(error.what());
    }
    finish();
    std::printf("%s: %.1f s\n", section.name,
                std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    std::fflush(stdout);
  }
  std::printf("\n%s, %d SMs\n%s%d failures\n", properties.name, sm_count, table.c_str(), failures);
  std::fflush(stdout);
  _exit(failures == 0 ? 0 : 1);
}

}  // namespace bench

// What the card can do at most, for profiles and benches to compare with. No kernel here computes anything of a model.
//
// Reading: 16-byte loads, four in flight per thread, 2,048 threads per SM, over up to 2 GB of random bits.
// Multiplying: on Hopper wgmma m64n256k16 by two warpgroups per SM, operands in shared memory, where they stay;
// elsewhere mma.sync m16n8k16 by 16 warps per SM, operands in registers. Random operands, as zeros take less power and
// so run faster. Milliseconds long: a card that lowers its clock under a load of seconds shows a higher peak here than
// it keeps.
#include <algorithm>
#include <string>

#include "backend/cuda/launch.h"
#include "backend/cuda/measure.h"
#include "backend/cuda/ptx.cuh"
#include "base/error.h"
#include "base/random.h"

namespace qwen3::cuda {
namespace {

constexpr size_t kMostBytes = size_t{2} << 30;
constexpr size_t kFewestBytes = size_t{64} << 20;
constexpr int kTries = 5;

constexpr int kReadThreads = 512;
constexpr int kReadBlocks = 4;  // per SM
constexpr int kMultiplyThreads = 256;
constexpr int kMmaBlocks = 2;  // per SM
constexpr int kRounds = 2000;  // 5 ms on an H200

// out [n] random bits
__global__ void random_kernel(uint4* out, int64_t n) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const uint64_t a = mix_bits(static_cast<uint64_t>(i)), b = mix_bits(a);
    out[i] = {static_cast<uint32_t>(a), static_cast<uint32_t>(a >> 32), static_cast<uint32_t>(b),
              static_cast<uint32_t>(b >> 32)};
  }
}

__device__ __forceinline__ uint32_t load(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v.x | v.y | v.z | v.w;
}

// data [n]; sink takes what nobody wants, so that the loads stay
__global__ void __launch_bounds__(kReadThreads) read_kernel(const uint4* data, int64_t n, uint32_t* sink) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  uint32_t all = 0;
  for (; i + 3 * stride < n; i += 4 * stride) {
    const uint32_t a = load(data + i), b = load(data + i + stride);
    const uint32_t c = load(data + i + 2 * stride), d = load(data + i + 3 * stride);
    all |= a | b | c | d;
  }
  for (; i < n; i += stride) all |= load(data + i);
  if (all == 0x5eed) *sink = all;
}

// A pair of bf16 in [-2, 2) \ (-1, 1).
__device__ __forceinline__ uint32_t random_pair(uint32_t seed) {
  return (static_cast<uint32_t>(mix_bits(seed)) & 0x807f807fu) | 0x3f803f80u;
}

// Per round and warp 2 x 4 products of 16 x 8 x 16.
__global__ void __launch_bounds__(kMultiplyThreads) mma_kernel(int rounds, float* sink) {
  uint32_t a[2][4], b[4][2];
  float c[2][4][4] = {};
#pragma unroll
  for (int i = 0; i < 8; i++) {
    a[i / 4][i % 4] = random_pair(threadIdx.x * 16 + i);
    b[i / 2][i % 2] = random_pair(threadIdx.x * 16 + 8 + i);
  }
  for (int round = 0; round < rounds; round++) {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) mma_bf16(c[i][j], a[i], b[j][0], b[j][1]);
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) sum += c[i / 4][i % 4][0];
  if (sum == 0.5f) *sink = sum;
}
constexpr double kMmaFlops = 8.0 * 2 * 16 * 8 * 16;  // per round and warp

// Per round and warpgroup 16 products of 64 x 256 x 16, over a block of 64 columns of K four times.
constexpr int kOperandBytes = 64 * 128, kWeightBytes = 256 * 128;  // [64 x 64] per warpgroup, [256 x 64] for both
__global__ void __launch_bounds__(kMultiplyThreads, 1) wgmma_kernel(int rounds, float* sink) {
#if QWEN3_SM90A
  extern __shared__ __align__(1024) uint32_t shared[];
  for (int i = threadIdx.x; i < (2 * kOperandBytes + kWeightBytes) / 4; i += kMultiplyThreads)
    shared[i] = random_pair(i);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const uint32_t base = shared_address(shared);
  const uint64_t a = plain_descriptor(base + (threadIdx.x / 128) * kOperandBytes);
  const uint64_t b = plain_descriptor(base + 2 * kOperandBytes);
  float d[128];
#pragma unroll
  for (int i = 0; i < 128; i++) d[i] = 0.0f;
  for (int round = 0; round < rounds; round++) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 16; i++) wgmma<256>(d, a + (i % 4) * 16, b + (i % 4) * 16, 1);
    wgmma_commit();
    wgmma_wait<0>();
  }
  wgmma_results(d);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 128; i++) sum += d[i];
  if (sum == 0.5f) *sink = sum;
#endif
}
constexpr double kWgmmaFlops = 16.0 * 2 * 64 * 256 * 16;  // per round and warpgroup

// The shortest of some runs, by events.
template <typename Run>
double best_seconds(cudaEvent_t start, cudaEvent_t stop, cudaStream_t stream, const Run& run) {
  float best = 1e30f;
  for (int i = 0; i < kTries; i++) {
    check(cudaEventRecord(start, stream), "recording an event");
    run();
    check(cudaEventRecord(stop, stream), "recording an event");
    check(cudaEventSynchronize(stop), "measuring the peaks");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start, stop), "measuring the peaks");
    best = std::min(best, milliseconds);
  }
  return static_cast<double>(best) * 1e-3;
}

struct Measuring {
  ~Measuring() {
    if (memory != nullptr) cudaFree(memory);
    if (start != nullptr) cudaEventDestroy(start);
    if (stop != nullptr) cudaEventDestroy(stop);
  }
  uint4* memory = nullptr;
  cudaEvent_t start = nullptr, stop = nullptr;
};

}  // namespace

DevicePeaks measure_peaks(const Context& engine_ctx) {
  Context ctx = engine_ctx;
  ctx.pdl = false;  // nothing here waits inside a kernel for the one before it
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for free memory");
  const size_t bytes = std::min(kMostBytes, free / 2 >> 20 << 20);
  Measuring m;
  if (bytes < kFewestBytes || cudaMalloc(&m.memory, bytes) != cudaSuccess) {
    cudaGetLastError();
    throw Error(Status::kOutOfMemory, "measuring the GPU's bandwidth takes " + std::to_string(kFewestBytes >> 20) +
                                          " MiB or more, and half of what is free is " +
                                          std::to_string(free / 2 >> 20) +
                                          " MiB; open the engine with less memory for KV");
  }
  check(cudaEventCreate(&m.start), "creating an event");
  check(cudaEventCreate(&m.stop), "creating an event");

  const int64_t n = static_cast<int64_t>(bytes / sizeof(uint4));
  const unsigned sms = static_cast<unsigned>(ctx.sm_count);
  uint32_t* sink = reinterpret_cast<uint32_t*>(m.memory);
  launch("launching random", random_kernel, {dim3(sms * kReadBlocks), dim3(kReadThreads)}, ctx, m.memory, n);
  const double reading = best_seconds(m.start, m.stop, ctx.stream, [&] {
    launch("launching read", read_kernel, {dim3(sms * kReadBlocks), dim3(kReadThreads)}, ctx, m.memory, n, sink);
  });

  double flops = 0;
  const double multiplying = best_seconds(m.start, m.stop, ctx.stream, [&] {
    float* float_sink = reinterpret_cast<float*>(m.memory);
    if (ctx.hopper) {
      const size_t shared = 2 * kOperandBytes + kWeightBytes;
      launch("launching wgmma", wgmma_kernel, {dim3(sms), dim3(kMultiplyThreads), shared}, ctx, kRounds, float_sink);
      flops = kWgmmaFlops * kRounds * ctx.sm_count * (kMultiplyThreads / 128);
    } else {
      launch("launching mma", mma_kernel, {dim3(sms * kMmaBlocks), dim3(kMultiplyThreads)}, ctx, 10 * kRounds,
             float_sink);
      flops = kMmaFlops * 10 * kRounds * ctx.sm_count * kMmaBlocks * (kMultiplyThreads / 32);
    }
  });
  return {.read_bytes_per_second = static_cast<double>(bytes) / reading,
          .flops_per_second = flops / multiplying,
          .flops_of = ctx.hopper ? "bf16 wgmma" : "bf16 mma.sync"};
}

}  // namespace qwen3::cuda

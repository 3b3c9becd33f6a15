// The first two stages of sampling, see sample.cu.
//
// Both: grid (slices of 2,048 ids, rows), 256 threads. adjust has a slice's values in shared memory, each id changed by
// one thread. scan: a warp has a chunk of 256 ids, 8 per lane; sums of exp by one fixed tree: lane, warp, warps in
// order. Bound by reading the logits.
#include "backend/cuda/launch.h"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/sample_kernels.cuh"

namespace qwen3::cuda::sampling {
namespace {

__device__ __forceinline__ float clamp_finite(float x) {
  return x > kHighest ? kHighest : x < -kHighest ? -kHighest : x;
}

// ---------------------------------------------------------------- adjust
__global__ void __launch_bounds__(kScanThreads) adjust_kernel(const Params p) {
  __shared__ float z[kSlice];
  griddep_launch();
  griddep_wait();
  const SampleRowDevice& row = p.rows[blockIdx.y];
  if (row.adjusted == 0) return;
  const int first = static_cast<int>(blockIdx.x) * kSlice;
  const int thread = static_cast<int>(threadIdx.x);
  const float* logits = p.logits + static_cast<int64_t>(blockIdx.y) * p.vocab;
  for (int i = thread; i < kSlice; i += kScanThreads) {
    const int id = first + i;
    float x = id < p.n ? logits[id] : -kInfinity;
    if (row.n_mask > 0) {
      const bool allowed = id / 32 < row.n_mask && (row.mask[id / 32] >> (id % 32) & 1u) != 0;
      if (!allowed) x = -kInfinity;
    }
    z[i] = x;
  }
  __syncthreads();
  const auto mine = [&](int token) { return token >= first && token < first + kSlice && token < p.n; };
  // A token may stand in the list twice: the thread of its first entry applies all of them in order.
  for (int i = thread; i < row.n_bias; i += kScanThreads) {
    const int token = row.bias[i].token;
    if (!mine(token)) continue;
    bool repeated = false;
    for (int j = 0; j < i && !repeated; j++) repeated = row.bias[j].token == token;
    if (repeated) continue;
    float x = z[token - first];
    for (int j = i; j < row.n_bias; j++) {
      if (row.bias[j].token != token) continue;
      const float bias = row.bias[j].bias;
      x = bias == -kInfinity || x == -kInfinity ? -kInfinity : clamp_finite(__fadd_rn(x, bias));
    }
    z[token - first] = x;
  }
  __syncthreads();
  for (int i = thread; i < row.n_forbidden; i += kScanThreads) {
    if (mine(row.forbidden[i])) z[row.forbidden[i] - first] = -kInfinity;
  }
  __syncthreads();
  for (int i = thread; i < row.n_history; i += kScanThreads) {
    const TokenCount count = row.history[i];
    if (!mine(count.token)) continue;
    float x = z[count.token - first];
    if (x == -kInfinity) continue;
    x = x > 0.0f ? __fdiv_rn(x, row.repetition_penalty) : __fmul_rn(x, row.repetition_penalty);
    if (count.in_output > 0) {
      const float frequency = __fmul_rn(row.frequency_penalty, static_cast<float>(count.in_output));
      x = __fsub_rn(x, __fadd_rn(row.presence_penalty, frequency));
    }
    z[count.token - first] = clamp_finite(x);
  }
  __syncthreads();
  float* out = p.adjusted + static_cast<int64_t>(blockIdx.y) * p.vocab;
  for (int i = thread; i < kSlice; i += kScanThreads) {
    if (first + i < p.n) out[first + i] = z[i];
  }
}

// ---------------------------------------------------------------- scan
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(kAll, x, d));
  return x;
}

__global__ void __launch_bounds__(kScanThreads) scan_kernel(const Params p) {
  __shared__ float tops[kSliceChunks];
  __shared__ float sums[kSliceChunks];
  griddep_launch();
  griddep_wait();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int chunk = static_cast<int>(blockIdx.x) * kSliceChunks + warp;
  const int64_t row = blockIdx.y;
  if (is_padding(p.rows[row])) return;
  const float* logits = p.logits + row * p.vocab;
  float x[kPerLane];
  float top = -kInfinity;
  float top_token = -kInfinity;  // of ids with a token
  bool broken = false;
#pragma unroll
  for (int i = 0; i < kPerLane; i++) {
    const int id = chunk * kChunk + i * 32 + lane;
    x[i] = id < p.vocab ? logits[id] : -kInfinity;
    broken |= isnan(x[i]) || x[i] == kInfinity;
    top = fmaxf(top, x[i]);
    if (id < p.n) top_token = fmaxf(top_token, x[i]);
  }
  top = warp_max(top);
  top_token = warp_max(top_token);
  if (lane == 0) {
    tops[warp] = top;
    if (chunk < p.chunks) p.raw_max[row * p.chunks + chunk] = top_token;
  }
  const int any_broken = __syncthreads_or(broken ? 1 : 0);
  float slice_top = tops[0];
#pragma unroll
  for (int w = 1; w < kSliceChunks; w++) slice_top = fmaxf(slice_top, tops[w]);
  if (p.with_sum) {
    float sum = 0.0f;
    if (slice_top > -kInfinity) {
#pragma unroll
      for (int i = 0; i < kPerLane; i++) sum = __fadd_rn(sum, expf(__fsub_rn(x[i], slice_top)));
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(kAll, sum, d));
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    float sum = 0.0f;
    if (p.with_sum) {
#pragma unroll
      for (int w = 0; w < kSliceChunks; w++) sum = __fadd_rn(sum, sums[w]);
    }
    p.states[row * p.slices + blockIdx.x] = {slice_top, sum, any_broken};
  }
  if (p.rows[row].adjusted == 0) return;
  const float* adjusted = p.adjusted + row * p.vocab;
  float best = -kInfinity;
#pragma unroll
  for (int i = 0; i < kPerLane; i++) {
    const int id = chunk * kChunk + i * 32 + lane;
    if (id < p.n) best = fmaxf(best, adjusted[id]);
  }
  best = warp_max(best);
  if (lane == 0 && chunk < p.chunks) p.adjusted_max[row * p.chunks + chunk] = best;
}

dim3 slice_grid(const Params& p, int n_rows) {
  return dim3(static_cast<unsigned>(p.slices), static_cast<unsigned>(n_rows));
}

}  // namespace

void adjust(const Params& p, int n_rows, const Context& ctx) {
  launch("launching sample adjust", adjust_kernel, {slice_grid(p, n_rows), dim3(kScanThreads)}, ctx, p);
}

void scan(const Params& p, int n_rows, const Context& ctx) {
  launch("launching sample scan", scan_kernel, {slice_grid(p, n_rows), dim3(kScanThreads)}, ctx, p);
}

}  // namespace qwen3::cuda::sampling

// Matrix product of up to 256 rows on Hopper for weights so narrow that the SMs can hold all their outputs at once.
// Bound by reading the weights, from 128 rows on by what the second-level cache delivers of the inputs.
//
// A cluster of 4 CTAs, one CTA per SM, owns up to `row_tiles` packed row tiles of 16 outputs and all input rows; CTA r
// takes segment r of K, so that each SM reads inputs once. In a CTA one warp fills a ring of stages with weights,
// another with inputs, by the copy engine; a stage holds one block of 64 columns: [row tiles x 2 KB, packed], [inputs,
// 128-byte swizzle]. Weights are asked for before griddep_wait(), but only kInFlight bytes at a time: more would queue
// up in front of what the kernel before still reads, and of this one's inputs. Each of `warpgroups` multiplies `halves`
// x 64 input rows by wgmma, inputs as M, weights as N; input rows past n_rows and outputs past the cluster's are what
// lies in shared memory, and never stored.
//
// When all four are done their rings are free: every warp sends its sums of row tile p to the same warp of CTA p % 4 by
// st.async, [source][p / 4][half][2][threads] float4, and that one adds the segments in order and stores.
//
// Measured on an H200 (bench/results/2026-11-29-h200-linear-2.txt), share of 4.57 TB/s, 8B qkv, o, down: 64 rows 68,
// 64, 76%, 128 rows 57, 55, 67%, 256 rows o 52, down 68% of 750 TFLOP/s. Clusters of 4 fill 120 of the 132 SMs. Walking
// several tiles per cluster, for wider weights, lost to linear_batch and linear_hopper.
#include <algorithm>
#include <atomic>
#include <string>

#include "backend/cuda/launch.h"
#include "backend/cuda/linear_epilogue.cuh"
#include "backend/cuda/linear_kernels.h"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/tensor_map.h"
#include "base/error.h"

namespace qwen3::cuda {
namespace {

constexpr int kMaxStages = 16;
constexpr int kMaxShared = 226 * 1024;  // dynamic: 227 KB less the barriers
constexpr int kBoxTiles = 4;            // row tiles per copy; what is left goes one by one
constexpr int kInFlight = 64 * 1024;    // of weights, per SM

struct SplitPlan {
  int stages;     // of the ring
  int x_bytes;    // of the inputs of one block of columns
  int in_flight;  // stages whose weights may be on their way at a time
};

// The most row tiles of a cluster up to 128 rows and beyond; registers hold no more.
constexpr int kFewRowTiles = 13, kManyRowTiles = 9;

template <int row_tiles, int warpgroups, int halves>
__global__ void __launch_bounds__((warpgroups + 1) * 128, 1)
    linear_split_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                        const __grid_constant__ CUtensorMap w_map_1, const __grid_constant__ LinearCall call,
                        const __grid_constant__ SplitPlan plan) {
#if QWEN3_SM90A
  constexpr int kWeight = row_tiles * kPackBlockBytes, kThreads = warpgroups * 128;
  constexpr int kOwn = (row_tiles + kSegments - 1) / kSegments;  // row tiles that a CTA finishes, at most
  constexpr int kSums = halves * kThreads * 32;                  // bytes of one row tile's sums
  extern __shared__ uint8_t raw_shared[];
  __shared__ uint64_t weight_barriers[kMaxStages], input_barriers[kMaxStages], empty_barriers[kMaxStages];
  __shared__ uint64_t received_barrier;
  const uint32_t ring = (shared_address(raw_shared) + 1023) & ~1023u;
  const uint32_t weights_in = shared_address(weight_barriers), inputs_in = shared_address(input_barriers);
  const uint32_t empty = shared_address(empty_barriers), received = shared_address(&received_barrier);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int stages = plan.stages, x_bytes = plan.x_bytes, stage_bytes = kWeight + x_bytes;
  const int rank = static_cast<int>(cluster_rank());
  const int cluster = blockIdx.x / kSegments, clusters = gridDim.x / kSegments;
  const int first = cluster * call.row_tiles / clusters;
  const int count = (cluster + 1) * call.row_tiles / clusters - first;
  const int begin = rank * call.col_blocks / kSegments, n = (rank + 1) * call.col_blocks / kSegments - begin;

  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; i++) {
      mbarrier_init(weights_in + i * 8, 1);
      mbarrier_init(inputs_in + i * 8, 1);
      mbarrier_init(empty + i * 8, warpgroups * 4);
    }
    mbarrier_init(received, 1);
    fence_mbarrier_init();
    const int own = (count - rank + kSegments - 1) / kSegments;
    mbarrier_expect(received, (kSegments - 1) * kSums * max(own, 0));
  }
  __syncthreads();
  griddep_launch();

  if (warp >= warpgroups * 4) {
    if constexpr (halves == 2) fewer_registers<40>();
    if (warp == warpgroups * 4 && lane == 0) {
      tensor_prefetch(&w_map);
      tensor_prefetch(&w_map_1);
      const uint64_t policy = evict_first();
      int at = 0, oldest = 0;
      uint32_t parity = 1, oldest_parity = 0;  // a fresh barrier is past parity 1
      for (int i = 0; i < n; i++) {
        mbarrier_wait(empty + at * 8, parity);
        if (i >= plan.in_flight) {
          mbarrier_wait(weights_in + oldest * 8, oldest_parity);
          if (++oldest == stages) {
            oldest = 0;
            oldest_parity ^= 1;
          }
        }
        const uint32_t barrier = weights_in + at * 8, to = ring + at * stage_bytes;
        mbarrier_expect(barrier, count * kPackBlockBytes);
        int r = 0;
        for (; r + kBoxTiles <= count; r += kBoxTiles) {
          tensor_load_3d(to + r * kPackBlockBytes, &w_map, 0, begin + i, first + r, barrier, policy);
        }
        for (; r < count; r++)
          tensor_load_3d(to + r * kPackBlockBytes, &w_map_1, 0, begin + i, first + r, barrier, policy);
        if (++at == stages) {
          at = 0;
          parity ^= 1;
        }
      }
    }
    if (warp == warpgroups * 4 + 1 && lane == 0) {
      tensor_prefetch(&x_map);
      griddep_wait();
      int at = 0;
      uint32_t parity = 1;
      for (int i = 0; i < n; i++) {
        mbarrier_wait(empty + at * 8, parity);
        mbarrier_expect(inputs_in + at * 8, x_bytes);
        tensor_load_2d(ring + at * stage_bytes + kWeight, &x_map, (begin + i) * kPackCols, 0, inputs_in + at * 8);
        if (++at == stages) {
          at = 0;
          parity ^= 1;
        }
      }
    }
    __syncwarp();
    cluster_sync();
  } else {
    if constexpr (halves == 2) more_registers<232>();
    griddep_wait();
    float acc[halves][row_tiles * 8];
#pragma unroll
    for (int i = 0; i < halves * row_tiles * 8; i++) acc[i / (row_tiles * 8)][i % (row_tiles * 8)] = 0.0f;
    int at = 0, before = -1;
    uint32_t parity = 0;
#pragma unroll 1
    for (int i = 0; i < n; i++) {
      mbarrier_wait(inputs_in + at * 8, parity);
      mbarrier_wait(weights_in + at * 8, parity);
      const uint32_t stage = ring + at * stage_bytes;
      const uint64_t a = swizzled_descriptor(stage + kWeight + warp / 4 * halves * 64 * 128);
      const uint64_t b = plain_descriptor(stage);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; step++) {
#pragma unroll
        for (int h = 0; h < halves; h++) {
          wgmma<row_tiles * 16>(acc[h], a + h * (64 * 128 >> 4) + step * 2, b + step * 16, 1);
        }
      }
      wgmma_commit();
      if (before >= 0) {
        wgmma_wait<1>();
        if (lane == 0) mbarrier_arrive(empty + before * 8);
      }
      before = at;
      if (++at == stages) {
        at = 0;
        parity ^= 1;
      }
    }
    wgmma_wait<0>();
#pragma unroll
    for (int h = 0; h < halves; h++) wgmma_results(acc[h]);
    cluster_sync();  // all rings of the cluster are free

    const int q = lane % 4;
    auto row_of = [&](int h) { return (warp / 4 * halves + h) * 64 + warp % 4 * 16 + lane / 4; };
    float own[halves][kOwn][8];
#pragma unroll
    for (int p = 0; p < row_tiles; p++) {
      if (p >= count) continue;
      const int to = p % kSegments;
      const int slot = (rank - (rank > to ? 1 : 0)) * kOwn + p / kSegments;
      const uint32_t address = cluster_address(ring + slot * kSums + threadIdx.x * 16, to);
      const uint32_t barrier = cluster_address(received, to);
#pragma unroll
      for (int h = 0; h < halves; h++) {
        const float* v = acc[h] + p * 8;
        if (to == rank) {
#pragma unroll
          for (int i = 0; i < 8; i++) own[h][p / kSegments][i] = v[i];
        } else {
          cluster_store_async(address + h * kThreads * 32, make_float4(v[0], v[1], v[2], v[3]), barrier);
          cluster_store_async(address + h * kThreads * 32 + kThreads * 16, make_float4(v[4], v[5], v[6], v[7]),
                              barrier);
        }
      }
    }
    auto column_of = [&](int k) { return (first + k * kSegments + rank) * kPackRows + q * 2; };
    const bool accumulate = call.mode == LinearMode::kAccumulate;
    float old[halves][kOwn][8];  // what is added to, fetched while the sums travel
#pragma unroll
    for (int j = 0; j < halves * kOwn; j++) {
      const int h = j / kOwn, k = j % kOwn;
      if (accumulate && k * kSegments + rank < count) load_sums<16>(call, old[h][k], row_of(h), column_of(k));
    }
    mbarrier_wait_cluster(received, 0);
    const uint8_t* sums = raw_shared + (ring - shared_address(raw_shared)) + threadIdx.x * 16;
#pragma unroll
    for (int j = 0; j < halves * kOwn; j++) {
      const int h = j / kOwn, k = j % kOwn;
      if (k * kSegments + rank >= count) continue;
      float y[8];
#pragma unroll
      for (int part = 0; part < 2; part++) {
        float4 v[kSegments];
#pragma unroll
        for (int s = 0; s < kSegments; s++) {
          const int slot = (s - (s > rank ? 1 : 0)) * kOwn + k;
          const float* mine = own[h][k] + part * 4;
          v[s] = s == rank ? make_float4(mine[0], mine[1], mine[2], mine[3])
                           : *reinterpret_cast<const float4*>(sums + slot * kSums + (h * 2 + part) * kThreads * 16);
        }
        const float4 sum = sum_segments(v);
        y[part * 4] = sum.x;
        y[part * 4 + 1] = sum.y;
        y[part * 4 + 2] = sum.z;
        y[part * 4 + 3] = sum.w;
      }
      if (call.mode == LinearMode::kGateUp) {
        store_gated<16>(call, y, row_of(h), column_of(k) + q * 2);
        continue;
      }
      if (accumulate) {
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = __fadd_rn(old[h][k][i], y[i]);
      }
      store_sums<16>(call, y, row_of(h), column_of(k), false);
    }
  }
#endif
}

// Clusters of 4 CTAs with this much shared memory that run at once; fewer than a quarter of the SMs where the GPU's
// groups of SMs are uneven (30 on an H200 of 132 SMs).
int clusters_at_once(const Context& ctx) {
  static std::atomic<int> known{0};  // the same for all GPUs that run this kernel
  int clusters = known.load(std::memory_order_relaxed);
  if (clusters == 0) {
    configure<linear_split_kernel<4, 1, 1>>(kMaxShared);
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {kSegments, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(ctx.sm_count / kSegments * kSegments));
    config.blockDim = dim3(256);
    config.dynamicSmemBytes = kMaxShared;
    config.attrs = &attribute;
    config.numAttrs = 1;
    check(cudaOccupancyMaxActiveClusters(&clusters, linear_split_kernel<4, 1, 1>, &config), "counting clusters");
    known.store(clusters, std::memory_order_relaxed);
  }
  return clusters;
}

template <int row_tiles, int warpgroups, int halves>
void run(const LinearCall& call, const Context& ctx, int clusters) {
  constexpr int kOwn = (row_tiles + kSegments - 1) / kSegments;
  configure<linear_split_kernel<row_tiles, warpgroups, halves>>(kMaxShared);
  SplitPlan plan;
  const int x_rows = loaded_rows(call.n_rows);
  plan.x_bytes = x_rows * 128;
  const int stage = row_tiles * kPackBlockBytes + plan.x_bytes;
  // To align; rows of the operand that no input fills.
  const int fixed = 1024 + (warpgroups * halves * 64 - x_rows) * 128;
  const int longest = (call.col_blocks + kSegments - 1) / kSegments;
  plan.stages = std::max(2, std::min({(kMaxShared - fixed) / stage, kMaxStages, longest}));
  // At most the ring: an older stage's barrier has gone on.
  plan.in_flight = std::min(plan.stages, std::max(2, kInFlight / (row_tiles * kPackBlockBytes)));
  const int sums = (kSegments - 1) * kOwn * warpgroups * halves * 128 * 32 + 1024;
  const Grid grid{dim3(static_cast<unsigned>(clusters * kSegments)), dim3((warpgroups + 1) * 128),
                  static_cast<size_t>(std::max(fixed + plan.stages * stage, sums)), kSegments};
  launch("a matrix product split over clusters", linear_split_kernel<row_tiles, warpgroups, halves>, grid, ctx,
         rows_map(call.x, call.n_rows, call.n_in, x_rows),
         weight_map(call.weight, call.row_tiles, call.col_blocks, kBoxTiles),
         weight_map(call.weight, call.row_tiles, call.col_blocks, 1), call, plan);
}

template <int row_tiles>
void pick(const LinearCall& call, const Context& ctx, int clusters) {
  if (call.n_rows <= 64) return run<row_tiles, 1, 1>(call, ctx, clusters);
  if (call.n_rows <= 128) return run<row_tiles, 2, 1>(call, ctx, clusters);
  if constexpr (row_tiles <= kManyRowTiles) run<row_tiles, 2, 2>(call, ctx, clusters);
}

}  // namespace

bool linear_split_serves(const LinearCall& call, const Context& ctx) {
  if (call.n_rows > kMaxSplitRows) return false;
  return call.row_tiles <= clusters_at_once(ctx) * (call.n_rows <= 128 ? kFewRowTiles : kManyRowTiles);
}

void linear_split(const LinearCall& call, const Context& ctx) {
  if (!linear_split_serves(call, ctx)) {
    throw Error(Status::kInternal, "linear_split got " + std::to_string(call.n_rows) + " rows and " +
                                       std::to_string(call.row_tiles) + " row tiles; ask linear_split_serves first");
  }
  const int fitting = clusters_at_once(ctx);
  const int per_cluster = (call.row_tiles + fitting - 1) / fitting;
  if (per_cluster <= 4) return pick<4>(call, ctx, (call.row_tiles + 3) / 4);
  if (per_cluster <= kManyRowTiles) return pick<kManyRowTiles>(call, ctx, fitting);
  pick<kFewRowTiles>(call, ctx, fitting);
}

}  // namespace qwen3::cuda

// Matrix product of up to 256 rows on Hopper for weights so narrow that there is not one row tile of 16 outputs per SM.
// Bound by latency.
//
// A cluster of 4 CTAs owns 64 weight rows and all input rows; CTA r of the cluster takes segment r of K. In a CTA one
// warp fills a ring of stages ([4 row tiles x 2 KB of weights][inputs of the same 64 columns, 128-byte swizzle]) by the
// copy engine, weights of the whole ring before griddep_wait(); a warpgroup multiplies by wgmma, the weights as M,
// `tokens` inputs as N. At the end every CTA leaves its float32 partial [token][rows] in its shared memory, and CTA r
// adds the four of every token r, r + 4, ... in order through distributed shared memory.
//
// Measured on an H200 (bench/results/2026-11-29-h200-linear-2.txt): 0.6B o and down, 1,024 outputs, at 16 to 64
// rows 3.5 to 4.5 us; linear_split, which sends its sums, takes 0.3 to 1.2 us more there.
#include <algorithm>
#include <string>

#include "backend/cuda/launch.h"
#include "backend/cuda/linear_epilogue.cuh"
#include "backend/cuda/linear_kernels.h"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/tensor_map.h"
#include "base/error.h"

namespace qwen3::cuda {
namespace {

constexpr int kMaxStages = 12;
constexpr int kMaxShared = 226 * 1024;  // dynamic: 227 KB less the barriers
constexpr int kThreads = 128 + 32;
constexpr int kTiles = 4;  // packed row tiles of a cluster
constexpr int kRows = kTiles * kPackRows;
constexpr int kWeight = kTiles * kPackBlockBytes;  // of a stage
// Floats between tokens of a partial: rows + 4, so that a warp's stores of accumulators meet no bank twice.
constexpr int kStride = kRows + 4;

__host__ __device__ constexpr int stage_bytes(int tokens) {
  return kWeight + tokens * 128;
}

template <int tokens>
__global__ void __launch_bounds__(kThreads)
    linear_cluster_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                          const __grid_constant__ LinearCall call, int stages) {
#if QWEN3_SM90A
  constexpr int kStage = stage_bytes(tokens);
  extern __shared__ uint8_t raw_shared[];
  __shared__ uint64_t full_barriers[kMaxStages], empty_barriers[kMaxStages];
  const uint32_t base = (shared_address(raw_shared) + 1023) & ~1023u;
  const uint32_t full = shared_address(full_barriers), empty = shared_address(empty_barriers);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int rank = static_cast<int>(cluster_rank());
  const int tile = blockIdx.x / kSegments;
  const int begin = rank * call.col_blocks / kSegments, end = (rank + 1) * call.col_blocks / kSegments;
  const int n = end - begin;

  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; i++) {
      mbarrier_init(full + i * 8, 1);
      mbarrier_init(empty + i * 8, 4);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  griddep_launch();

  if (warp == 4) {
    if (lane == 0) {
      tensor_prefetch(&w_map);
      tensor_prefetch(&x_map);
      const uint64_t policy = evict_first();
      const int tile_row = tile * kTiles;  // row tiles beyond the matrix are read as zeros
      const int ahead = n < stages ? n : stages;
      for (int i = 0; i < ahead; i++) {
        mbarrier_expect(full + i * 8, kStage);
        tensor_load_3d(base + i * kStage, &w_map, 0, begin + i, tile_row, full + i * 8, policy);
      }
      griddep_wait();
      for (int i = 0; i < ahead; i++) {
        tensor_load_2d(base + i * kStage + kWeight, &x_map, (begin + i) * kPackCols, 0, full + i * 8);
      }
      int at = 0;
      uint32_t parity = 0;
      for (int i = ahead; i < n; i++) {
        mbarrier_wait(empty + at * 8, parity);
        mbarrier_expect(full + at * 8, kStage);
        tensor_load_3d(base + at * kStage, &w_map, 0, begin + i, tile_row, full + at * 8, policy);
        tensor_load_2d(base + at * kStage + kWeight, &x_map, (begin + i) * kPackCols, 0, full + at * 8);
        if (++at == stages) {
          at = 0;
          parity ^= 1;
        }
      }
    }
    __syncwarp();
    griddep_wait();  // the other lanes too: they take part in the sums
  } else {
    griddep_wait();
    float acc[tokens / 2];
#pragma unroll
    for (int i = 0; i < tokens / 2; i++) acc[i] = 0.0f;
    int at = 0, before = 0;
    uint32_t parity = 0;
    for (int i = 0; i < n; i++) {
      mbarrier_wait(full + at * 8, parity);
      const uint32_t stage = base + at * kStage;
      const uint64_t a = plain_descriptor(stage);
      const uint64_t b = swizzled_descriptor(stage + kWeight);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; step++) wgmma<tokens>(acc, a + step * 16, b + step * 2, 1);
      wgmma_commit();
      if (i > 0) {
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
    wgmma_results(acc);
    named_barrier(1, 128);  // nobody reads the ring any more
    float* partial = reinterpret_cast<float*>(raw_shared + (base - shared_address(raw_shared)));
    const int row = warp * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < tokens / 8; j++) {
      float* to = partial + (j * 8 + column) * kStride + row;
      to[0] = acc[j * 4];
      to[kStride] = acc[j * 4 + 1];
      to[8] = acc[j * 4 + 2];
      to[kStride + 8] = acc[j * 4 + 3];
    }
  }

  cluster_sync();
  uint32_t partials[kSegments];
#pragma unroll
  for (int s = 0; s < kSegments; s++) partials[s] = cluster_address(base, s);
  auto total = [&](int token, int row) {
    const uint32_t offset = (token * kStride + row) * 4;
    float4 v[kSegments];
#pragma unroll
    for (int s = 0; s < kSegments; s++) v[s] = cluster_load_float4(partials[s] + offset);
    return sum_segments(v);
  };
  const int n_out = call.n_out;
  const int own_tokens = (call.n_rows - rank + kSegments - 1) / kSegments;  // tokens rank, rank + 4, ...
  if (call.mode == LinearMode::kGateUp) {
    constexpr int kItems = kRows / 8;  // groups of 4 gated outputs
    for (int i = threadIdx.x; i < own_tokens * kItems; i += kThreads) {
      const int token = i / kItems * kSegments + rank, item = i % kItems;
      const int row = item / 2 * 16 + item % 2 * 4, out = tile * (kRows / 2) + item * 4;
      if (out >= n_out) continue;
      const float4 gate = total(token, row), up = total(token, row + 8);
      const float v[4] = {silu_times(gate.x, up.x), silu_times(gate.y, up.y), silu_times(gate.z, up.z),
                          silu_times(gate.w, up.w)};
      uint16_t* to = call.gated + static_cast<int64_t>(token) * n_out + out;
      if (n_out % 4 == 0) {
        *reinterpret_cast<uint2*>(to) = make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
      } else {
#pragma unroll
        for (int e = 0; e < 4; e++) {
          if (out + e < n_out) to[e] = to_bf16(v[e]);
        }
      }
    }
  } else {
    constexpr int kItems = kRows / 4;
    const bool accumulate = call.mode == LinearMode::kAccumulate;
    for (int i = threadIdx.x; i < own_tokens * kItems; i += kThreads) {
      const int token = i / kItems * kSegments + rank, row = i % kItems * 4;
      const int out = tile * kRows + row;
      if (out >= n_out) continue;
      float* to = call.out + static_cast<int64_t>(token) * n_out + out;
      if (n_out % 4 == 0) {
        float4 old = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (accumulate) old = *reinterpret_cast<const float4*>(to);
        float4 y = total(token, row);
        if (accumulate) {
          y = make_float4(__fadd_rn(old.x, y.x), __fadd_rn(old.y, y.y), __fadd_rn(old.z, y.z), __fadd_rn(old.w, y.w));
        }
        *reinterpret_cast<float4*>(to) = y;
      } else {
        const float4 y = total(token, row);
        const float v[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
          if (out + e < n_out) to[e] = accumulate ? __fadd_rn(to[e], v[e]) : v[e];
        }
      }
    }
  }
  __syncwarp();
  cluster_sync();  // the partials must live until the others have read them
#endif
}

template <int tokens>
void run(const LinearCall& call, const Context& ctx) {
  constexpr int kStage = stage_bytes(tokens);
  // All the copies at once. At least two stages, for one is freed when the next is at work.
  const int longest = (call.col_blocks + kSegments - 1) / kSegments;
  const int stages = std::max(2, std::min({kMaxStages, longest, (kMaxShared - 1024) / kStage}));
  const int bytes = std::max(stages * kStage, tokens * kStride * 4) + 1024;
  configure<linear_cluster_kernel<tokens>>(kMaxShared);
  const int tiles = (call.row_tiles + kTiles - 1) / kTiles;
  const Grid grid{dim3(static_cast<unsigned>(tiles * kSegments)), dim3(kThreads), static_cast<size_t>(bytes),
                  kSegments};
  launch("a narrow matrix product", linear_cluster_kernel<tokens>, grid, ctx,
         rows_map(call.x, call.n_rows, call.n_in, tokens),
         weight_map(call.weight, call.row_tiles, call.col_blocks, kTiles), call, stages);
}

}  // namespace

void linear_cluster(const LinearCall& call, const Context& ctx) {
  if (call.n_rows > kMaxClusterRows) {
    throw Error(Status::kInternal, "linear_cluster got " + std::to_string(call.n_rows) + " rows; its limit is 256");
  }
  if (call.n_rows <= 16) return run<16>(call, ctx);
  if (call.n_rows <= 32) return run<32>(call, ctx);
  if (call.n_rows <= 64) return run<64>(call, ctx);
  if (call.n_rows <= 128) return run<128>(call, ctx);
  run<256>(call, ctx);
}

}  // namespace qwen3::cuda

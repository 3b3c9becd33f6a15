// Matrix product of many rows on Hopper, bound by the tensor cores.
//
// Persistent and warp-specialised: CTAs walk output tiles of 128 rows x `tile` outputs; in a CTA, warpgroup 0 gives its
// registers away and one of its threads fills a ring of stages by the copy engine (inputs 128 rows x 64 columns,
// 128-byte swizzle; weights tile x 64, packed, unswizzled); warpgroups 1 and 2 take 64 rows each and multiply by wgmma,
// inputs as M, weights as N.
//
// Registers: two sets of tile / 2 per thread, the accumulator of the current segment of K and the sum of the finished
// ones. The sum starts at -0, to which adding is exact, so after four segments it is ((s0 + s1) + s2) + s3.
//
// Order of tiles: groups of rows (group_rows); inside a group down the rows first, so that the CTAs at work share
// inputs and weights in the second-level cache.
//
// Measured on an H200 (bench/results/2026-11-29-h200-linear.txt): 8B at 512 to 8,192 rows 595 to 730 TFLOP/s: qkv and
// gate_up 90 to 94% of cuBLAS, down 89 to 92%, o 76 to 85%. Clusters of 2 with multicast, stores spread over the next
// tile and prefetching the output lost (LOG.md).
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

constexpr int kTileRows = 128;  // per CTA
constexpr int kThreads = 384;
[[maybe_unused]] constexpr int kConsumerWarps = 8;

// Rows of a group; 128-wide tiles need more of the cache's bandwidth and gain from small groups.
constexpr int group_rows(int tile) {
  return tile == 192 ? 2048 : 1024;
}
__host__ __device__ constexpr int stage_bytes(int tile) {
  return kTileRows * 128 + tile * 128;
}
__host__ __device__ constexpr int stage_count(int tile) {
  return tile == 192 ? 5 : 6;
}
__host__ __device__ constexpr int shared_bytes(int tile) {
  return stage_count(tile) * stage_bytes(tile) + 1024;
}

struct Tiles {
  int rows;     // tiles along the rows
  int columns;  // tiles along the outputs
  int group;    // row tiles in a group
};

// Tile t of the walk.
[[maybe_unused]] __device__ __forceinline__ void place_tile(const Tiles& tiles, int t, int& row_tile,
                                                            int& column_tile) {
  const int per_group = tiles.group * tiles.columns;
  const int first = t / per_group * tiles.group, inside = t % per_group;
  const int rows = min(tiles.group, tiles.rows - first);
  row_tile = first + inside % rows;
  column_tile = inside / rows;
}

template <int tile>
__global__ void __launch_bounds__(kThreads, 1)
    linear_hopper_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                         const __grid_constant__ LinearCall call, const __grid_constant__ Tiles tiles) {
#if QWEN3_SM90A
  constexpr int kStages = stage_count(tile), kStage = stage_bytes(tile), kInput = kTileRows * 128;
  extern __shared__ uint8_t raw_shared[];
  __shared__ uint64_t full_barriers[kStages], empty_barriers[kStages];
  const uint32_t base = (shared_address(raw_shared) + 1023) & ~1023u;
  const uint32_t full = shared_address(full_barriers), empty = shared_address(empty_barriers);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int n_tiles = tiles.rows * tiles.columns;
  const int n_blocks = call.col_blocks;

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; i++) {
      mbarrier_init(full + i * 8, 1);
      mbarrier_init(empty + i * 8, kConsumerWarps);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  griddep_launch();

  if (warp < 4) {
    fewer_registers<40>();
    if (warp == 0 && lane == 0) {
      tensor_prefetch(&x_map);
      tensor_prefetch(&w_map);
      griddep_wait();
      int at = 0;
      uint32_t parity = 1;  // a fresh barrier is past this
      for (int t = blockIdx.x; t < n_tiles; t += gridDim.x) {
        int row_tile, column_tile;
        place_tile(tiles, t, row_tile, column_tile);
        const int row = row_tile * kTileRows;
        for (int block = 0; block < n_blocks; block++) {
          const uint32_t stage = base + at * kStage, barrier = full + at * 8;
          mbarrier_wait(empty + at * 8, parity);
          mbarrier_expect(barrier, kStage);
          tensor_load_2d(stage, &x_map, block * kPackCols, row, barrier);
          tensor_load_3d(stage + kInput, &w_map, 0, block, column_tile * (tile / 16), barrier);
          if (++at == kStages) {
            at = 0;
            parity ^= 1;
          }
        }
      }
    }
  } else {
    more_registers<232>();
    griddep_wait();
    const int group = warp / 4 - 1;
    float acc[tile / 2], sum[tile / 2];
#pragma unroll
    for (int i = 0; i < tile / 2; i++) acc[i] = 0.0f;
    auto release = [&](int stage) {
      if (lane == 0) mbarrier_arrive(empty + stage * 8);
    };
    int at = 0;
    uint32_t parity = 0;
    for (int t = blockIdx.x; t < n_tiles; t += gridDim.x) {
#pragma unroll
      for (int i = 0; i < tile / 2; i++) sum[i] = -0.0f;
#pragma unroll 1
      for (int s = 0; s < kSegments; s++) {
        const int begin = s * n_blocks / kSegments, end = (s + 1) * n_blocks / kSegments;
        if (begin == end) {  // an empty segment is +0
#pragma unroll
          for (int i = 0; i < tile / 2; i++) sum[i] = __fadd_rn(sum[i], 0.0f);
          continue;
        }
        int before = -1;
#pragma unroll 1
        for (int block = begin; block < end; block++) {
          mbarrier_wait(full + at * 8, parity);
          const uint32_t stage = base + at * kStage;
          const uint64_t a = swizzled_descriptor(stage + group * 64 * 128);
          const uint64_t b = plain_descriptor(stage + kInput);
          wgmma_fence();
          wgmma<tile>(acc, a, b, block > begin);
          wgmma<tile>(acc, a + 2, b + 16, 1);
          wgmma<tile>(acc, a + 4, b + 32, 1);
          wgmma<tile>(acc, a + 6, b + 48, 1);
          wgmma_commit();
          if (before >= 0) {
            wgmma_wait<1>();
            release(before);
          }
          before = at;
          if (++at == kStages) {
            at = 0;
            parity ^= 1;
          }
        }
        wgmma_wait<0>();
        release(before);
        wgmma_results(acc);
#pragma unroll
        for (int i = 0; i < tile / 2; i++) sum[i] = __fadd_rn(sum[i], acc[i]);
      }
      int row_tile, column_tile;
      place_tile(tiles, t, row_tile, column_tile);
      const int row = row_tile * kTileRows + group * 64 + warp % 4 * 16 + lane / 4;
      if (call.mode == LinearMode::kGateUp) {
        store_gated<tile>(call, sum, row, column_tile * tile + lane % 4 * 4);
      } else {
        store_sums<tile>(call, sum, row, column_tile * tile + lane % 4 * 2);
      }
    }
  }
#endif
}

template <int tile>
void run(const LinearCall& call, const Context& ctx) {
  configure<linear_hopper_kernel<tile>>(shared_bytes(tile));
  Tiles tiles;
  tiles.rows = (call.n_rows + kTileRows - 1) / kTileRows;
  tiles.columns = (call.row_tiles * kPackRows + tile - 1) / tile;
  tiles.group = std::min(tiles.rows, group_rows(tile) / kTileRows);
  const int ctas = std::min(ctx.sm_count, tiles.rows * tiles.columns);
  const Grid grid{dim3(static_cast<unsigned>(ctas)), dim3(kThreads), static_cast<size_t>(shared_bytes(tile))};
  launch("a large matrix product", linear_hopper_kernel<tile>, grid, ctx,
         rows_map(call.x, call.n_rows, call.n_in, kTileRows),
         weight_map(call.weight, call.row_tiles, call.col_blocks, tile / 16), call, tiles);
}

// Microseconds of one variant: waves of tiles; a tile costs its blocks of columns and some constant work, more when it
// must read what it adds to. Fitted to the four projections of 8B at 256 to 8,192 rows on an H200: within 6%.
double cost(const LinearCall& call, const Context& ctx, int tile) {
  const int rows = (call.n_rows + kTileRows - 1) / kTileRows;
  const int columns = (call.row_tiles * kPackRows + tile - 1) / tile;
  const int waves = (rows * columns + ctx.sm_count - 1) / ctx.sm_count;
  const bool accumulate = call.mode == LinearMode::kAccumulate;
  const double per_tile = tile == 192 ? call.col_blocks * 0.55 + (accumulate ? 2.8 : 2.0)
                                      : call.col_blocks * 0.366 + (accumulate ? 5.3 : 2.5);
  return waves * per_tile;
}

}  // namespace

void linear_hopper(const LinearCall& call, const Context& ctx, int tile) {
  if (tile == 0) tile = cost(call, ctx, 192) <= cost(call, ctx, 128) ? 192 : 128;
  if (tile == 192) return run<192>(call, ctx);
  run<128>(call, ctx);
}

}  // namespace qwen3::cuda

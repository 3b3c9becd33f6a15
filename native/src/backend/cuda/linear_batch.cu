// Matrix product of up to 64 rows on Hopper, bound by reading the weights once.
//
// Persistent, one CTA per SM, walking output tiles of all rows x `tile` outputs; the tile's width is chosen so that the
// tiles fill the SMs evenly. In a CTA one warp fills a ring of stages by the copy engine; a stage holds one block of 64
// columns of each of the 4 segments of K: [4][weights, tile x 64, packed], then [4][inputs of the same columns,
// 128-byte swizzle]. The weights of the whole first ring are asked for before griddep_wait(). Warpgroup s multiplies
// the blocks of segment s by wgmma, inputs as M, weights as N.
//
// The segments meet in shared memory, [tile / 8 accumulators][128 threads] float4: warpgroup 0 leaves its sums there,
// 1 and 2 add theirs, 3 adds its own in registers and stores; meanwhile the others are at the next tile. Inputs are
// loaded in groups of 8 rows; the rest of the 64 rows of wgmma's operand is whatever follows in shared memory, and
// its results are never stored.
//
// Measured on an H200 (bench/results/2026-11-29-h200-linear-2.txt), 8B, share of 4.57 TB/s: 32 rows gate_up 85%,
// lm_head 91%; 64 rows 80, 88%. Bound by what the second-level cache delivers of the inputs, and by filling and
// draining the pipeline once per tile. The producer's address arithmetic is on the critical path: two divisions per
// block made the whole kernel 1.7 times slower.
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

constexpr int kMaxStages = 16;
constexpr int kMaxShared = 226 * 1024;  // dynamic: 227 KB less the barriers
constexpr int kThreads = kSegments * 128 + 32;

__host__ __device__ constexpr int sums_bytes(int tile) {
  return 64 * tile * 4;
}

struct BatchTiles {
  int count;
  int stages;   // of the ring
  int x_bytes;  // of the inputs of one block of columns
};

template <int tile>
__global__ void __launch_bounds__(kThreads, 1)
    linear_batch_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                        const __grid_constant__ LinearCall call, const __grid_constant__ BatchTiles tiles) {
#if QWEN3_SM90A
  constexpr int kWeight = tile * 128, kAcc = tile / 2;
  extern __shared__ uint8_t raw_shared[];
  __shared__ uint64_t full_barriers[kMaxStages], empty_barriers[kMaxStages];
  const uint32_t aligned = (shared_address(raw_shared) + 1023) & ~1023u;
  const uint32_t ring = aligned + sums_bytes(tile);
  const uint32_t full = shared_address(full_barriers), empty = shared_address(empty_barriers);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int stages = tiles.stages, x_bytes = tiles.x_bytes, stage_bytes = kSegments * (kWeight + x_bytes);
  const int n_blocks = call.col_blocks;
  const int first = blockIdx.x, step_tiles = gridDim.x;
  // Rounds: the r-th takes the r-th block of each segment; in the last one some segments may have none left.
  const int rounds = (n_blocks + kSegments - 1) / kSegments;
  auto begin_of = [&](int segment) { return segment * n_blocks / kSegments; };

  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; i++) {
      mbarrier_init(full + i * 8, 1);
      mbarrier_init(empty + i * 8, kSegments * 4);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  griddep_launch();

  if (warp == kSegments * 4) {
    if (lane == 0) {
      tensor_prefetch(&w_map);
      tensor_prefetch(&x_map);
      int begin[kSegments], length[kSegments];
#pragma unroll
      for (int s = 0; s < kSegments; s++) {
        begin[s] = begin_of(s);
        length[s] = begin_of(s + 1) - begin[s];
      }
      const uint64_t policy = evict_first();
      auto load_weights = [&](int row_tile, int round, int at) {
        const uint32_t barrier = full + at * 8, to = ring + at * stage_bytes;
        mbarrier_expect(barrier, min(kSegments, n_blocks - round * kSegments) * (kWeight + x_bytes));
#pragma unroll
        for (int s = 0; s < kSegments; s++) {
          if (round < length[s])
            tensor_load_3d(to + s * kWeight, &w_map, 0, begin[s] + round, row_tile, barrier, policy);
        }
      };
      auto load_inputs = [&](int round, int at) {
        const uint32_t barrier = full + at * 8, to = ring + at * stage_bytes + kSegments * kWeight;
#pragma unroll
        for (int s = 0; s < kSegments; s++) {
          if (round < length[s]) tensor_load_2d(to + s * x_bytes, &x_map, (begin[s] + round) * kPackCols, 0, barrier);
        }
      };
      int at = 0;
      uint32_t parity = 1;  // a fresh barrier is past this
      for (int t = first; t < tiles.count; t += step_tiles) {
        const int row_tile = t * (tile / 16);
        int round = 0;
        if (t == first) {
          const int ahead = min(stages, rounds);
          for (int i = 0; i < ahead; i++) load_weights(row_tile, i, i);
          griddep_wait();
          for (int i = 0; i < ahead; i++) load_inputs(i, i);
          round = ahead;
          at = ahead == stages ? 0 : ahead;
          parity = ahead == stages ? 0 : 1;
        }
        for (; round < rounds; round++) {
          mbarrier_wait(empty + at * 8, parity);
          load_weights(row_tile, round, at);
          load_inputs(round, at);
          if (++at == stages) {
            at = 0;
            parity ^= 1;
          }
        }
      }
    }
    __syncwarp();
  } else {
    griddep_wait();
    const int segment = warp / 4, thread = threadIdx.x % 128;
    const int length = begin_of(segment + 1) - begin_of(segment);
    float4* sums = reinterpret_cast<float4*>(raw_shared + (aligned - shared_address(raw_shared))) + thread;
    float acc[kAcc];
    int at = 0;
    uint32_t parity = 0;
    for (int t = first; t < tiles.count; t += step_tiles) {
#pragma unroll 1
      for (int round = 0; round < rounds; round++) {
        mbarrier_wait(full + at * 8, parity);
        if (round < length) {
          const uint32_t stage = ring + at * stage_bytes;
          const uint64_t b = plain_descriptor(stage + segment * kWeight);
          const uint64_t a = swizzled_descriptor(stage + kSegments * kWeight + segment * x_bytes);
          wgmma_fence();
#pragma unroll
          for (int step = 0; step < 4; step++) {
            wgmma<tile>(acc, a + step * 2, b + step * 16, step > 0 || round > 0);
          }
          wgmma_commit();
          wgmma_wait<0>();
          wgmma_results(acc);
        }
        if (lane == 0) mbarrier_arrive(empty + at * 8);
        if (++at == stages) {
          at = 0;
          parity ^= 1;
        }
      }
      if (length == 0) {
#pragma unroll
        for (int i = 0; i < kAcc; i++) acc[i] = 0.0f;  // the sum of no blocks
      }
      const int row = warp % 4 * 16;
      const bool last = t + step_tiles >= tiles.count;
      // Barrier s: warpgroup s - 1 has left its sums; barrier 4: warpgroup 3 has taken the previous tile's.
      if (segment > 0) {
        named_barrier(segment, 256);
      } else if (t != first) {
        named_barrier(kSegments, 256);
      }
      if (row < call.n_rows) {
#pragma unroll
        for (int i = 0; i < kAcc; i += 4) {
          float4* place = sums + i / 4 * 128;
          if (segment > 0) {
            const float4 v = *place;
            acc[i] = __fadd_rn(v.x, acc[i]);
            acc[i + 1] = __fadd_rn(v.y, acc[i + 1]);
            acc[i + 2] = __fadd_rn(v.z, acc[i + 2]);
            acc[i + 3] = __fadd_rn(v.w, acc[i + 3]);
          }
          if (segment < kSegments - 1) *place = make_float4(acc[i], acc[i + 1], acc[i + 2], acc[i + 3]);
        }
      }
      if (segment < kSegments - 1) {
        named_arrive(segment + 1, 256);
        continue;
      }
      if (!last) named_arrive(kSegments, 256);
      if (call.mode == LinearMode::kGateUp) {
        store_gated<tile>(call, acc, row + lane / 4, t * tile + lane % 4 * 4);
      } else {
        store_sums<tile>(call, acc, row + lane / 4, t * tile + lane % 4 * 2, call.mode == LinearMode::kAccumulate);
      }
    }
  }
#endif
}

template <int tile>
void run(const LinearCall& call, const Context& ctx) {
  const int x_rows = (call.n_rows + 7) / 8 * 8;
  BatchTiles tiles;
  tiles.count = (call.row_tiles + tile / 16 - 1) / (tile / 16);
  tiles.x_bytes = x_rows * 128;
  const int stage = kSegments * (tile * 128 + tiles.x_bytes);
  // To align; the sums; rows of the last stage's operand that no input fills.
  const int fixed = 1024 + sums_bytes(tile) + (64 - x_rows) * 128;
  tiles.stages = std::min((kMaxShared - fixed) / stage, kMaxStages);
  configure<linear_batch_kernel<tile>>(kMaxShared);
  const Grid grid{dim3(static_cast<unsigned>(std::min(tiles.count, ctx.sm_count))), dim3(kThreads),
                  static_cast<size_t>(fixed + tiles.stages * stage)};
  launch("a matrix product of a batch", linear_batch_kernel<tile>, grid, ctx,
         rows_map(call.x, call.n_rows, call.n_in, x_rows),
         weight_map(call.weight, call.row_tiles, call.col_blocks, tile / 16), call, tiles);
}

}  // namespace

void linear_batch(const LinearCall& call, const Context& ctx, int tile) {
  if (call.n_rows > kMaxBatchRows) {
    throw Error(Status::kInternal, "linear_batch got " + std::to_string(call.n_rows) + " rows; its limit is 64");
  }
  // The narrowest that takes one wave; beyond three row tiles per SM wide ones, for they read the inputs less often.
  if (tile == 0) tile = call.row_tiles <= 2 * ctx.sm_count ? 32 : call.row_tiles <= 3 * ctx.sm_count ? 48 : 64;
  if (tile == 32) return run<32>(call, ctx);
  if (tile == 48) return run<48>(call, ctx);
  run<64>(call, ctx);
}

}  // namespace qwen3::cuda

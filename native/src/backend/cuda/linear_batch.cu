// Matrix product of up to 64 rows on Hopper, bound by reading the weights once.
//
// Persistent, one CTA per SM, walking output tiles of all rows x `tile` outputs; the tile's width is chosen so that the
// tiles fill the SMs evenly. Each of the 4 segments of K has a ring of stages for weights (a stage: tile x 64 columns,
// packed) and one for inputs (the same columns, 128-byte swizzle); one warp fills the former by the copy engine,
// another the latter. Inputs come from the second-level cache and need two stages; weights get what is left of shared
// memory, for how much of them is in flight decides the speed: lm_head streams at 4.06, 4.33, 4.53 TB/s with 96, 128,
// 160 KB per SM. They are asked for before griddep_wait(). Warpgroup s multiplies the blocks of segment s by wgmma,
// inputs as M, weights as N.
//
// The segments meet in shared memory, [tile / 8 accumulators][128 threads] float4: warpgroup 0 leaves its sums there,
// 1 and 2 add theirs, 3 adds its own in registers and stores; meanwhile the others are at the next tile. Inputs are
// loaded in groups of 8 rows; the rest of the 64 rows of wgmma's operand is whatever follows in shared memory, and
// its results are never stored.
//
// Measured on an H200 (bench/results/2026-11-30-h200-2.txt), 8B, share of 4.57 TB/s: 32 rows gate_up 87%, lm_head 93%;
// 64 rows 86, 88%; cuBLAS is 1 to 2% slower. Filling and draining the pipeline once per product is what gate_up loses.
// The producer's address arithmetic is on the critical path: two divisions per block made the whole kernel 1.7 times
// slower.
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

// Of a segment's rings, at most.
constexpr int kMaxWeightStages = 10, kMaxInputStages = 4;
constexpr int kMaxShared = 226 * 1024;  // dynamic: 227 KB less the barriers
constexpr int kThreads = kSegments * 128 + 64;

__host__ __device__ constexpr int sums_bytes(int tile) {
  return 64 * tile * 4;
}

struct BatchTiles {
  int count;
  int weight_stages, input_stages;  // of a segment
  int x_bytes;                      // of the inputs of one block of columns
};

// One ring of stages per segment, the segments behind one another.
struct Ring {
  uint32_t full, empty;  // barriers, one per stage
  uint32_t data;
  int stages;  // of a segment
  int bytes;   // of a stage
};

#if QWEN3_SM90A
__device__ __forceinline__ void init(const Ring& ring) {
  for (int i = 0; i < kSegments * ring.stages; i++) {
    mbarrier_init(ring.full + i * 8, 1);
    mbarrier_init(ring.empty + i * 8, 1);
  }
}

// The stage of a segment's next block.
struct Place {
  int stage;  // counted over all segments
  uint32_t parity;

  __device__ __forceinline__ void next(const Ring& ring, int segment) {
    if (++stage == (segment + 1) * ring.stages) {
      stage = segment * ring.stages;
      parity ^= 1;
    }
  }
};

// Calls load(tile, block, destination, barrier) for all blocks of all tiles of this CTA, as stages become free.
template <class Load>
__device__ __forceinline__ void fill(const Ring& ring, int n_blocks, int n_tiles, Load load) {
  Place places[kSegments];
#pragma unroll
  for (int s = 0; s < kSegments; s++) places[s] = {s * ring.stages, 1};
  const int rounds = (n_blocks + kSegments - 1) / kSegments;
  int n_filled = 0;  // the most stages that a segment has filled; a fresh one needs no waiting
  for (int t = blockIdx.x; t < n_tiles; t += gridDim.x) {
    for (int round = 0; round < rounds; round++, n_filled++) {
#pragma unroll
      for (int s = 0; s < kSegments; s++) {
        const int begin = s * n_blocks / kSegments;
        if (begin + round >= (s + 1) * n_blocks / kSegments) continue;
        Place& place = places[s];
        if (n_filled >= ring.stages) mbarrier_wait(ring.empty + place.stage * 8, place.parity);
        mbarrier_expect(ring.full + place.stage * 8, ring.bytes);
        load(t, begin + round, ring.data + place.stage * ring.bytes, ring.full + place.stage * 8);
        place.next(ring, s);
      }
    }
  }
}
#endif

template <int tile>
__global__ void __launch_bounds__(kThreads, 1)
    linear_batch_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                        const __grid_constant__ LinearCall call, const __grid_constant__ BatchTiles tiles) {
#if QWEN3_SM90A
  constexpr int kAcc = tile / 2;
  extern __shared__ uint8_t raw_shared[];
  __shared__ uint64_t barriers[2 * kSegments * (kMaxWeightStages + kMaxInputStages)];
  const uint32_t aligned = (shared_address(raw_shared) + 1023) & ~1023u;
  const int n_weights = kSegments * tiles.weight_stages, n_inputs = kSegments * tiles.input_stages;
  Ring weights, inputs;
  weights.full = shared_address(barriers);
  weights.empty = weights.full + n_weights * 8;
  weights.data = aligned + sums_bytes(tile);
  weights.stages = tiles.weight_stages;
  weights.bytes = tile * 128;
  inputs.full = weights.empty + n_weights * 8;
  inputs.empty = inputs.full + n_inputs * 8;
  inputs.data = weights.data + n_weights * weights.bytes;
  inputs.stages = tiles.input_stages;
  inputs.bytes = tiles.x_bytes;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int n_blocks = call.col_blocks;

  if (threadIdx.x == 0) {
    init(weights);
    init(inputs);
    fence_mbarrier_init();
  }
  __syncthreads();
  griddep_launch();

  if (warp == kSegments * 4) {
    if (lane == 0) {
      tensor_prefetch(&w_map);
      const uint64_t policy = evict_first();
      fill(weights, n_blocks, tiles.count, [&](int t, int block, uint32_t to, uint32_t barrier) {
        tensor_load_3d(to, &w_map, 0, block, t * (tile / 16), barrier, policy);
      });
    }
    __syncwarp();
  } else if (warp > kSegments * 4) {
    if (lane == 0) {
      tensor_prefetch(&x_map);
      griddep_wait();
      fill(inputs, n_blocks, tiles.count, [&](int, int block, uint32_t to, uint32_t barrier) {
        tensor_load_2d(to, &x_map, block * kPackCols, 0, barrier);
      });
    }
    __syncwarp();
  } else {
    griddep_wait();
    const int segment = warp / 4, thread = threadIdx.x % 128;
    const int length = (segment + 1) * n_blocks / kSegments - segment * n_blocks / kSegments;
    float4* sums = reinterpret_cast<float4*>(raw_shared + (aligned - shared_address(raw_shared))) + thread;
    float acc[kAcc];
    Place weight{segment * weights.stages, 0}, input{segment * inputs.stages, 0};
    const int first = blockIdx.x, step_tiles = gridDim.x;
    for (int t = first; t < tiles.count; t += step_tiles) {
#pragma unroll 1
      for (int i = 0; i < length; i++) {
        mbarrier_wait(inputs.full + input.stage * 8, input.parity);
        mbarrier_wait(weights.full + weight.stage * 8, weight.parity);
        const uint64_t b = plain_descriptor(weights.data + weight.stage * weights.bytes);
        const uint64_t a = swizzled_descriptor(inputs.data + input.stage * inputs.bytes);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++) {
          wgmma<tile>(acc, a + step * 2, b + step * 16, step > 0 || i > 0);
        }
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(acc);
        // A wgmma is the whole warpgroup's, so when one warp's is done, the warpgroup has read both stages.
        if (thread == 0) {
          mbarrier_arrive(weights.empty + weight.stage * 8);
          mbarrier_arrive(inputs.empty + input.stage * 8);
        }
        weight.next(weights, segment);
        input.next(inputs, segment);
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
  const int x_rows = loaded_rows(call.n_rows);
  BatchTiles tiles;
  tiles.count = (call.row_tiles + tile / 16 - 1) / (tile / 16);
  tiles.x_bytes = x_rows * 128;
  // To align; the sums; rows of the last stage's operand that no input fills.
  const int fixed = 1024 + sums_bytes(tile) + (64 - x_rows) * 128;
  // Two stages of inputs, which come from the second-level cache; weights take the rest, and inputs what they leave.
  const int weight_round = kSegments * tile * 128, input_round = kSegments * tiles.x_bytes;
  tiles.input_stages = 2;
  const int ctas = std::min(tiles.count, ctx.sm_count);
  const int rounds = (call.col_blocks + kSegments - 1) / kSegments * ((tiles.count + ctas - 1) / ctas);
  tiles.weight_stages = std::min({(kMaxShared - fixed - 2 * input_round) / weight_round, kMaxWeightStages, rounds});
  int bytes = fixed + tiles.weight_stages * weight_round + 2 * input_round;
  for (; tiles.input_stages < kMaxInputStages && bytes + input_round <= kMaxShared; tiles.input_stages++) {
    bytes += input_round;
  }
  configure<linear_batch_kernel<tile>>(kMaxShared);
  const Grid grid{dim3(static_cast<unsigned>(ctas)), dim3(kThreads), static_cast<size_t>(bytes)};
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

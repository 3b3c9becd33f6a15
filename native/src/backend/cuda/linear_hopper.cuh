// The main loop of large matrix products on Hopper, bound by the tensor cores and, under sustained load, by the card's
// power. What becomes of a tile's sums is the Epilogue's affair (linear_hopper.cu, qkv_hopper.cu).
//
// Persistent and warp-specialised: CTAs walk output tiles of 128 rows x `tile` outputs; in a CTA, warpgroup 0 gives its
// registers away and one or two of its threads fill stages by the copy engine (inputs 128 rows x 64 columns, 128-byte
// swizzle; weights tile x 64, packed, unswizzled); warpgroups 1 and 2 take 64 rows each and multiply by wgmma, inputs
// as M, weights as N. One warpgroup's epilogue runs while the other multiplies: it may be a ring's length behind. How
// the stages are cut depends on how many rows there are (Rows).
//
// Registers: two sets of tile / 2 per thread, the accumulator of the current segment of K and the sum of the finished
// ones. The sum starts at -0, to which adding is exact, so after four segments it is ((s0 + s1) + s2) + s3. A tile of
// 256 has no room for that: the sums of its outputs 128 to 255 wait in shared memory, in the warp's staging area
// (Sums).
//
// Addresses and descriptors are uniform over a warp and known to be (shuffles): 45 instead of 78 instructions per
// block. Under load the card is at its power limit, so that instructions and bytes cost speed even where no unit is
// busy.
//
// Order of tiles: groups of rows (group_rows); inside a group down the rows first, so that the CTAs at work share
// inputs and weights in the second-level cache. With one group weights are read once, and their lines are the first
// that this cache drops, as in all products of few rows: inputs and outputs stay. With more groups they are the last.
#pragma once

#include <algorithm>
#include <type_traits>

#include "backend/cuda/launch.h"
#include "backend/cuda/linear_kernels.h"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/tensor_map.h"

namespace qwen3::cuda::hopper {

inline constexpr int kTileRows = 128;  // per CTA
inline constexpr int kThreads = 384;
inline constexpr int kWarpRows = 16;
inline constexpr int kConsumerWarps = 8;
inline constexpr int kInputBytes = kTileRows * 128;  // of a stage
inline constexpr int kBarrierBytes = 1024;           // full barriers, then empty ones from the middle on
inline constexpr int kBoxBytes = kWarpRows * 128;    // of finished sums in shared memory, on their way out

// How many rows a product has.
// kMany: one ring of stages that hold weights and inputs.
// kFew, one tile, bound by reading the weights: a ring of their own, deeper than that of the inputs, which come from
// the second-level cache and so arrive sooner. kPair, two tiles: as kFew, and the two CTAs of a cluster, each with one
// of the row tiles, load half of the weights each and send it to both.
enum class Rows { kFew, kPair, kMany };
inline Rows rows_of(int n_rows) {
  return n_rows <= kTileRows ? Rows::kFew : n_rows <= 2 * kTileRows ? Rows::kPair : Rows::kMany;
}

template <int tile, Rows rows>
struct Shape {
  static_assert(tile == 128 || tile == 192 || tile == 256);
  static constexpr bool one_ring = rows == Rows::kMany;
  static constexpr int weight_bytes = tile * 128;  // of a stage
  static constexpr int n_weights = one_ring ? (tile == 128 ? 6 : 4) : tile == 128 ? 8 : tile == 192 ? 6 : 4;  // stages
  static constexpr int n_inputs = one_ring ? n_weights : tile == 192 ? 3 : 4;
  // From stage to stage. In one ring inputs and weights of a stage are neighbours.
  static constexpr int input_step = one_ring ? kInputBytes + weight_bytes : kInputBytes;
  static constexpr int weight_step = one_ring ? input_step : weight_bytes;
  static constexpr int weights_at = one_ring ? kInputBytes : n_inputs * kInputBytes;
  static constexpr int ring_bytes = n_inputs * kInputBytes + n_weights * weight_bytes;
  static constexpr int n_boxes = tile == 192 && one_ring ? 4 : 2;  // a warp's staging area
  static constexpr int n_kept = tile == 256 ? 96 : tile / 2;       // sums in registers
  static constexpr int n_pieces = tile / 64;                       // of 64 outputs, 32 accumulators
  static constexpr int shared_bytes =
      1024 + kBarrierBytes + ring_bytes + kConsumerWarps * n_boxes * kBoxBytes;  // 1,024 to align
  static constexpr int group_rows = tile == 128 ? 1024 : 2048;  // narrow tiles read more from the second-level cache
  static_assert((tile / 2 - n_kept) * 128 <= n_boxes * kBoxBytes && shared_bytes <= 227 * 1024);
};

struct Tiles {
  int rows;       // tiles along the rows
  int columns;    // tiles along the outputs
  int group;      // row tiles in a group
  int last_rows;  // of the last row tile; the others have kTileRows
};

inline int tile_count(int n, int tile) {
  return (n + tile - 1) / tile;
}

#if QWEN3_SM90A
// Tile t of the walk.
__device__ __forceinline__ void place_tile(const Tiles& tiles, int t, int& row_tile, int& column_tile) {
  const int per_group = tiles.group * tiles.columns;
  const int first = t / per_group * tiles.group, inside = t % per_group;
  const int rows = min(tiles.group, tiles.rows - first);
  row_tile = first + inside % rows;
  column_tile = inside / rows;
}

__device__ __forceinline__ uint64_t descriptor(uint32_t low, uint32_t high) {
  return static_cast<uint64_t>(high) << 32 | low;
}

// Finished sums of a warp: 16 rows x `tile` outputs, taken in pieces of 64 outputs, the last one first: its sums may be
// in shared memory, where staging will be written.
template <int tile, Rows rows>
struct Sums {
  using S = Shape<tile, rows>;
  static constexpr int n_spilled = (tile / 2 - S::n_kept) / 32;  // pieces
  static_assert(n_spilled <= 1);
  float kept[S::n_kept];
  float last[tile / 2];  // accumulators of the last segment
  uint32_t spill;        // this lane's first 16 bytes

  __device__ static constexpr int piece(int turn) { return S::n_pieces - 1 - turn; }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < S::n_kept; i++) kept[i] = -0.0f;
  }
  // Adds the accumulators of segment s. The staging area must be free by segment 0.
  __device__ __forceinline__ void add(int s) {
#pragma unroll
    for (int i = 0; i < S::n_kept; i++) kept[i] = __fadd_rn(kept[i], last[i]);
    if constexpr (n_spilled > 0) {
      if (s == kSegments - 1) return;
#pragma unroll
      for (int i = S::n_kept; i < tile / 2; i += 4) {
        const uint32_t at = spill + (i - S::n_kept) * 128;
        float4 v = make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
        if (s > 0) v = shared_load_float4(at);
        shared_store_float4(at, make_float4(__fadd_rn(v.x, last[i]), __fadd_rn(v.y, last[i + 1]),
                                            __fadd_rn(v.z, last[i + 2]), __fadd_rn(v.w, last[i + 3])));
      }
    }
  }
  // The 32 sums of piece(turn), in the order of wgmma's accumulators. `turn` must be known at compile time.
  __device__ __forceinline__ void take(int turn, float (&y)[32]) const {
    const int first = piece(turn) * 32;
    if (turn < n_spilled) {
#pragma unroll
      for (int i = 0; i < 32; i += 4) {
        const float4 v = shared_load_float4(spill + i * 128);
        y[i] = __fadd_rn(v.x, last[first + i]);
        y[i + 1] = __fadd_rn(v.y, last[first + i + 1]);
        y[i + 2] = __fadd_rn(v.z, last[first + i + 2]);
        y[i + 3] = __fadd_rn(v.w, last[first + i + 3]);
      }
      __syncwarp();  // all lanes have read what one of them may overwrite
    } else {
#pragma unroll
      for (int i = 0; i < 32; i++) y[i] = kept[first + i < S::n_kept ? first + i : 0];
    }
  }
};
#endif

// Grid: CTAs of kThreads; kPair: an even number of them, in clusters of 2, and 2 row tiles.
//
// Rows that are not there cost as little as can be: they are not loaded, a warpgroup that has none does not multiply, a
// warp that has none does not finish. x_last_map: of the last row tile.
//
// Epilogue: begin() in a producer thread; finish(sums, row, column, staging, lane) in each consumer warp for 16 rows
// from `row`, one of which is there at least, outputs from `column`; what it sends by the copy engine is sent by lane
// 0. n_blocks: column blocks, at least kSegments for a tile of 256.
template <int tile, Rows rows, class Epilogue>
__global__ void __launch_bounds__(kThreads, 1)
    linear_hopper_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap x_last_map,
                         const __grid_constant__ CUtensorMap w_map, const __grid_constant__ Epilogue epilogue,
                         const __grid_constant__ Tiles tiles, const int n_blocks) {
#if QWEN3_SM90A
  using S = Shape<tile, rows>;
  constexpr bool kPair = rows == Rows::kPair;
  extern __shared__ uint8_t raw_shared[];
  const uint32_t full = __shfl_sync(0xffffffffu, (shared_address(raw_shared) + 1023) & ~1023u, 0);
  const uint32_t empty = full + kBarrierBytes / 2, base = full + kBarrierBytes;
  // Inputs' own barriers, where they have a ring of their own.
  const uint32_t inputs_full = S::one_ring ? full : full + kBarrierBytes / 4;
  const uint32_t inputs_empty = S::one_ring ? empty : empty + kBarrierBytes / 4;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = threadIdx.x % 32;
  const int n_tiles = tiles.rows * tiles.columns;

  if (threadIdx.x == 0) {
    for (int i = 0; i < S::n_weights; i++) {
      mbarrier_init(full + i * 8, 1);
      mbarrier_init(empty + i * 8, kPair ? 4 : 2);
    }
    for (int i = 0; i < S::n_inputs && !S::one_ring; i++) {
      mbarrier_init(inputs_full + i * 8, 1);
      mbarrier_init(inputs_empty + i * 8, 2);
    }
    fence_mbarrier_init();
  }
  if constexpr (kPair) {
    cluster_sync();
  } else {
    __syncthreads();
  }
  griddep_launch();

  if (warp < 4) {
    fewer_registers<24>();
    if (lane == 0 && warp < (S::one_ring ? 1 : 2)) {
      int row_tile, column_tile;
      const CUtensorMap* inputs;
      uint32_t input_bytes;
      const uint64_t policy = tiles.rows > tiles.group ? evict_last() : evict_first();
      auto enter = [&](int t) {
        place_tile(tiles, t, row_tile, column_tile);
        const bool is_last = row_tile == tiles.rows - 1;
        inputs = is_last ? &x_last_map : &x_map;
        input_bytes = is_last ? loaded_rows(tiles.last_rows) * 128 : kInputBytes;
      };
      auto load_weights = [&](int block, int at) {
        const uint32_t to = base + S::weights_at + at * S::weight_step;
        mbarrier_expect(full + at * 8, S::weight_bytes + (S::one_ring ? input_bytes : 0));
        if constexpr (kPair) {
          const int rank = static_cast<int>(cluster_rank());
          constexpr int kHalf = tile / kPackRows / 2;
          tensor_load_3d_for_both(to + rank * (S::weight_bytes / 2), &w_map, 0, block, (column_tile * 2 + rank) * kHalf,
                                  full + at * 8, policy);
        } else {
          tensor_load_3d(to, &w_map, 0, block, column_tile * (tile / kPackRows), full + at * 8, policy);
        }
      };
      auto load_inputs = [&](int block, int at) {
        tensor_load_2d(base + at * S::input_step, inputs, block * kPackCols, row_tile * kTileRows,
                       inputs_full + at * 8);
      };
      // Loads all blocks of all tiles from `block` of this CTA's first one on, as their stages become free.
      auto load_all = [&](auto stages, uint32_t stage_empty, int block, auto load) {
        constexpr int n_stages = decltype(stages)::value;
        int at = block == n_stages ? 0 : block;
        uint32_t parity = block == n_stages ? 0 : 1;  // a fresh barrier is past 1
        for (int t = blockIdx.x; t < n_tiles; t += gridDim.x) {
          enter(t);
          for (; block < n_blocks; block++) {
            mbarrier_wait(stage_empty + at * 8, parity);
            load(block, at);
            if (++at == n_stages) {
              at = 0;
              parity ^= 1;
            }
          }
          block = 0;
        }
      };
      if constexpr (S::one_ring) {
        tensor_prefetch(&x_map);
        tensor_prefetch(&x_last_map);
        tensor_prefetch(&w_map);
        epilogue.begin();
        enter(blockIdx.x);
        // The first ring's weights come while the kernel before ends.
        const int early = min(S::n_weights, n_blocks);
        for (int i = 0; i < early; i++) load_weights(i, i);
        griddep_wait();
        for (int i = 0; i < early; i++) load_inputs(i, i);
        load_all(std::integral_constant<int, S::n_weights>(), empty, early, [&](int block, int at) {
          load_weights(block, at);
          load_inputs(block, at);
        });
      } else if (warp == 0) {
        tensor_prefetch(&w_map);
        load_all(std::integral_constant<int, S::n_weights>(), empty, 0, load_weights);
      } else {
        tensor_prefetch(&x_map);
        tensor_prefetch(&x_last_map);
        epilogue.begin();
        griddep_wait();
        load_all(std::integral_constant<int, S::n_inputs>(), inputs_empty, 0, [&](int block, int at) {
          mbarrier_expect(inputs_full + at * 8, input_bytes);
          load_inputs(block, at);
        });
      }
    }
    if constexpr (kPair) __syncwarp();
  } else {
    more_registers<240>();
    griddep_wait();
    const int group = warp / 4 - 1;
    const uint32_t staging = base + S::ring_bytes + (warp - 4) * S::n_boxes * kBoxBytes;
    const uint64_t a_first = swizzled_descriptor(base + group * 64 * 128);
    const uint64_t b_first = plain_descriptor(base + S::weights_at);
    const uint32_t a_low = static_cast<uint32_t>(a_first), a_high = static_cast<uint32_t>(a_first >> 32);
    const uint32_t b_low = static_cast<uint32_t>(b_first), b_high = static_cast<uint32_t>(b_first >> 32);
    // A wgmma is the whole warpgroup's, so when one warp's is done, the warpgroup has read the stage.
    const bool tells = warp % 4 == 0 && lane == 0;
    Sums<tile, rows> sums;
    sums.spill = staging + lane * 16;
    int at = 0, input_at = 0;  // stages of the two rings, or of the one
    uint32_t parity = 0, input_parity = 0;
    auto release = [&](int stage, int input_stage) {
      if (!tells) return;
      mbarrier_arrive(empty + stage * 8);
      if constexpr (kPair) mbarrier_arrive_at(cluster_address(empty + stage * 8, cluster_rank() ^ 1));
      if constexpr (!S::one_ring) mbarrier_arrive(inputs_empty + input_stage * 8);
    };
    auto multiply = [&](auto first) {  // the block of stage `at`
      if constexpr (!S::one_ring) mbarrier_wait(inputs_full + input_at * 8, input_parity);
      mbarrier_wait(full + at * 8, parity);
      const uint32_t a = a_low + (S::one_ring ? at : input_at) * (S::input_step / 16);
      const uint32_t b = b_low + at * (S::weight_step / 16);
      wgmma_fence();
      if constexpr (decltype(first)::value) {
        wgmma_first<tile>(sums.last, descriptor(a, a_high), descriptor(b, b_high));
      } else {
        wgmma<tile>(sums.last, descriptor(a, a_high), descriptor(b, b_high), 1);
      }
      wgmma<tile>(sums.last, descriptor(a + 2, a_high), descriptor(b + 16, b_high), 1);
      wgmma<tile>(sums.last, descriptor(a + 4, a_high), descriptor(b + 32, b_high), 1);
      wgmma<tile>(sums.last, descriptor(a + 6, a_high), descriptor(b + 48, b_high), 1);
      wgmma_commit();
    };
    auto next = [&] {
      if (++at == S::n_weights) {
        at = 0;
        parity ^= 1;
      }
      if constexpr (!S::one_ring) {
        if (++input_at == S::n_inputs) {
          input_at = 0;
          input_parity ^= 1;
        }
      }
    };
    for (int t = blockIdx.x; t < n_tiles; t += gridDim.x) {
      int row_tile, column_tile;
      place_tile(tiles, t, row_tile, column_tile);
      if (row_tile == tiles.rows - 1 && group * 64 >= tiles.last_rows) {
        // None of this warpgroup's rows is there. One warp lets the stages go, and the others wait for it.
#pragma unroll 1
        for (int block = 0; block < n_blocks; block++) {
          if (warp % 4 == 0) {
            if constexpr (!S::one_ring) mbarrier_wait(inputs_full + input_at * 8, input_parity);
            mbarrier_wait(full + at * 8, parity);
            release(at, input_at);
          }
          next();
        }
        named_barrier(1 + group, 128);
        continue;
      }
      sums.clear();
      if (lane == 0) bulk_wait_read<0>();  // the last tile has left the staging area
      __syncwarp();
#pragma unroll 1
      for (int s = 0; s < kSegments; s++) {
        const int begin = s * n_blocks / kSegments, end = (s + 1) * n_blocks / kSegments;
        if (begin == end) {  // an empty segment is +0
#pragma unroll
          for (int i = 0; i < S::n_kept; i++) sums.kept[i] = __fadd_rn(sums.kept[i], 0.0f);
          continue;
        }
        multiply(std::true_type());
        int before = at, input_before = input_at;
        next();
#pragma unroll 1
        for (int block = begin + 1; block < end; block++) {
          multiply(std::false_type());
          wgmma_wait<1>();
          release(before, input_before);
          before = at;
          input_before = input_at;
          next();
        }
        wgmma_wait<0>();
        release(before, input_before);
        wgmma_results(sums.last);
        sums.add(s);
      }
      place_tile(tiles, t, row_tile, column_tile);  // again: no registers are kept for it
      const int row = row_tile * kTileRows + group * 64 + warp % 4 * kWarpRows;
      if (row < (tiles.rows - 1) * kTileRows + tiles.last_rows) {
        epilogue.finish(sums, row, column_tile * tile, staging, lane);
      }
    }
    if (lane == 0) bulk_wait_read<0>();
    if constexpr (kPair) __syncwarp();
  }
  if constexpr (kPair) cluster_sync();  // nobody sends to a CTA that has ended
#endif
}

template <int tile, Rows rows, class Epilogue>
void run_hopper(const char* what, const LinearCall& call, const Epilogue& epilogue, const Context& ctx) {
  using S = Shape<tile, rows>;
  constexpr int kCluster = rows == Rows::kPair ? 2 : 1;
  configure<linear_hopper_kernel<tile, rows, Epilogue>>(S::shared_bytes);
  Tiles tiles;
  tiles.rows = tile_count(call.n_rows, kTileRows);
  tiles.columns = tile_count(call.row_tiles * kPackRows, tile);
  tiles.group = std::min(tiles.rows, S::group_rows / kTileRows);
  tiles.last_rows = call.n_rows - (tiles.rows - 1) * kTileRows;
  const int ctas = std::min(ctx.sm_count / kCluster * kCluster, tiles.rows * tiles.columns);
  const Grid grid{dim3(static_cast<unsigned>(ctas)), dim3(kThreads), static_cast<size_t>(S::shared_bytes), kCluster};
  launch(what, linear_hopper_kernel<tile, rows, Epilogue>, grid, ctx,
         rows_map(call.x, call.n_rows, call.n_in, kTileRows),
         rows_map(call.x, call.n_rows, call.n_in, loaded_rows(tiles.last_rows)),
         weight_map(call.weight, call.row_tiles, call.col_blocks, tile / kPackRows / kCluster), epilogue, tiles,
         call.col_blocks);
}

// Microseconds: waves of tiles; a tile costs its blocks of columns and some work at its end. Fitted to the four
// projections of 8B at 512 to 8,192 rows on an H200: within 6%.
inline double hopper_cost(const LinearCall& call, const Context& ctx, int tile) {
  struct Cost {
    double per_block, store, accumulate, gate_up;
  };
  const Cost cost = tile == 256   ? Cost{0.64, 5.0, 8.0, 4.2}
                    : tile == 192 ? Cost{0.49, 3.5, 5.2, 2.6}
                                  : Cost{0.35, 2.0, 5.0, 2.0};
  const int n_tiles = tile_count(call.n_rows, kTileRows) * tile_count(call.row_tiles * kPackRows, tile);
  const double end = call.mode == LinearMode::kStore        ? cost.store
                     : call.mode == LinearMode::kAccumulate ? cost.accumulate
                                                            : cost.gate_up;
  return tile_count(n_tiles, ctx.sm_count) * (call.col_blocks * cost.per_block + end);
}

}  // namespace qwen3::cuda::hopper

// Matrix product of up to 32 rows on Hopper whose CTAs are small, for wide gate_up weights and short residual products.
// Bound by reading the weights once.
//
// Two or three CTAs stand on an SM, and so the next kernel's beside the last of this one: it has asked for its first
// weights when this one ends. In the model that is worth more than what a product alone shows (bench/LOG.md,
// 2026-11-30: alone 48.9 us for gate_up of 8B where linear_batch takes 48.4; a decode step of 32 sequences some 1.7%
// faster by it). Its borders were measured on 8B alone.
//
// Weights are the M of wgmma, inputs the N, so that of the 64 rows of an instruction none is padding. A CTA has
// `groups` slabs of 64 outputs, one for each consumer warpgroup, and two warps that fill rings by the copy engine: one
// with weights (64 columns of all slabs, packed), kEarly stages of it before griddep_wait(); one with the same columns
// of all inputs (128-byte swizzle). Gate_up's CTAs take all segments of K, one after another. Where outputs are few a
// cluster of four CTAs has one tile and each CTA one segment of it: every warp sends its sums to the CTA that finishes
// them, a quarter of the outputs each, by st.async, and that one adds the segments in order.
#include <string>

#include "backend/cuda/launch.h"
#include "backend/cuda/linear_epilogue.cuh"
#include "backend/cuda/linear_kernels.h"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/tensor_map.h"
#include "base/error.h"

namespace qwen3::cuda {
namespace {

constexpr int kTokens = kMaxSlabRows;                           // N of wgmma
constexpr int kSums = kTokens / 2;                              // accumulators of a thread
constexpr int kPackedSlabBytes = kSlabTiles * kPackBlockBytes;  // of one block of columns
constexpr int kInputBytes = kTokens * 128;                      // of the same block
constexpr int kInputStages = 4;
[[maybe_unused]] constexpr int kEarly = 2;  // stages of weights
// Columns of inputs. From the least on no segment is empty; beyond the most, down_proj's, a split stream is long enough
// for linear_split's deeper ring to win.
constexpr int kLeastIn = 4096, kMostSplitIn = 8192;

template <int groups, bool split>
struct Shape {
  static constexpr int threads = groups * 128 + 64;
  static constexpr int per_sm = groups == 1 ? 3 : 2;
  static constexpr int weight_bytes = groups * kPackedSlabBytes;  // of a stage
  // What three other CTAs send: [3][groups warps][kSums / 4][32 lanes] float4.
  static constexpr int received_bytes = split ? 3 * groups * kSums * 32 * 4 : 0;
  static constexpr int room = 227 * 1024 / per_sm - 2048 - received_bytes;  // 1,024 to align, 1,024 the system's
  static constexpr int n_weights = (room - kInputStages * kInputBytes) / weight_bytes;
  static constexpr int shared_bytes = 1024 + received_bytes + kInputStages * kInputBytes + n_weights * weight_bytes;
  static_assert(n_weights >= 4);
};

template <int groups, bool split>
__global__ void __launch_bounds__(Shape<groups, split>::threads, Shape<groups, split>::per_sm)
    linear_slabs_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                        const __grid_constant__ LinearCall call) {
#if QWEN3_SM90A
  using S = Shape<groups, split>;
  extern __shared__ uint8_t raw_shared[];
  __shared__ uint64_t barriers[2 * (S::n_weights + kInputStages) + 1];
  const uint32_t inputs_data = (shared_address(raw_shared) + 1023) & ~1023u;
  const uint32_t weights_data = inputs_data + kInputStages * kInputBytes;
  const uint32_t received_data = weights_data + S::n_weights * S::weight_bytes;
  const uint32_t weights_full = shared_address(barriers), weights_empty = weights_full + S::n_weights * 8;
  const uint32_t inputs_full = weights_empty + S::n_weights * 8, inputs_empty = inputs_full + kInputStages * 8;
  const uint32_t received = inputs_empty + kInputStages * 8;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = threadIdx.x % 32;
  const int rank = split ? static_cast<int>(cluster_rank()) : 0;
  const int tile = static_cast<int>(blockIdx.x) / (split ? kSegments : 1);
  const int first_segment = split ? rank : 0, end_segment = split ? rank + 1 : kSegments;
  const auto border = [&](int segment) { return segment * call.col_blocks / kSegments; };

  if (threadIdx.x == 0) {
    for (int i = 0; i < S::n_weights; i++) {
      mbarrier_init(weights_full + i * 8, 1);
      mbarrier_init(weights_empty + i * 8, groups);
    }
    for (int i = 0; i < kInputStages; i++) {
      mbarrier_init(inputs_full + i * 8, 1);
      mbarrier_init(inputs_empty + i * 8, groups);
    }
    mbarrier_init(received, 1);
    fence_mbarrier_init();
    if constexpr (split) mbarrier_expect(received, S::received_bytes);
  }
  __syncthreads();
  if constexpr (split) cluster_arrive();  // `received` is there when the others have waited for this
  griddep_launch();

  if (warp >= groups * 4) {
    const int begin = border(first_segment), end = border(end_segment);
    if (warp == groups * 4 && lane == 0) {
      tensor_prefetch(&w_map);
      const uint64_t policy = evict_first();
      RingPlace<S::n_weights> place;
      for (int block = begin; block < end; block++) {
        if (block - begin == kEarly) griddep_wait();
        const uint32_t full = weights_full + place.stage * 8;
        mbarrier_wait(weights_empty + place.stage * 8, place.parity ^ 1);
        mbarrier_expect(full, S::weight_bytes);
        tensor_load_3d(weights_data + place.stage * S::weight_bytes, &w_map, 0, block, tile * groups * kSlabTiles, full,
                       policy);
        place.next();
      }
    }
    if (warp == groups * 4 + 1 && lane == 0) {
      tensor_prefetch(&x_map);
      griddep_wait();
      RingPlace<kInputStages> place;
      for (int block = begin; block < end; block++) {
        const uint32_t full = inputs_full + place.stage * 8;
        mbarrier_wait(inputs_empty + place.stage * 8, place.parity ^ 1);
        mbarrier_expect(full, loaded_rows(call.n_rows) * 128);
        tensor_load_2d(inputs_data + place.stage * kInputBytes, &x_map, block * kPackCols, 0, full);
        place.next();
      }
    }
    __syncwarp();
    if constexpr (split) cluster_wait();
    return;
  }

  griddep_wait();
  const int group = warp / 4, row_tile = (tile * groups + group) * kSlabTiles + warp % 4;
  // A wgmma is the whole warpgroup's, so when one warp's is done, the warpgroup has read the stage.
  const bool tells = warp % 4 == 0 && lane == 0;
  const uint64_t a_first = plain_descriptor(weights_data + group * kPackedSlabBytes);
  const uint64_t b_first = swizzled_descriptor(inputs_data);
  RingPlace<S::n_weights> weight;
  RingPlace<kInputStages> input;
  float sums[kSums];
  float last[kSums];  // of the segment at hand
#pragma unroll
  for (int i = 0; i < kSums; i++) sums[i] = -0.0f;  // adding to it is exact
#pragma unroll 1
  for (int s = first_segment; s < end_segment; s++) {
    const int blocks = border(s + 1) - border(s);
    int weight_before = 0, input_before = 0;
    const auto release = [&] {
      if (!tells) return;
      mbarrier_arrive(weights_empty + weight_before * 8);
      mbarrier_arrive(inputs_empty + input_before * 8);
    };
#pragma unroll 1
    for (int block = 0; block < blocks; block++) {
      mbarrier_wait(inputs_full + input.stage * 8, input.parity);
      mbarrier_wait(weights_full + weight.stage * 8, weight.parity);
      const uint64_t a = a_first + weight.stage * (S::weight_bytes / 16),
                     b = b_first + input.stage * (kInputBytes / 16);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; step++) wgmma<kTokens>(last, a + step * 16, b + step * 2, step > 0 || block > 0);
      wgmma_commit();
      if (block > 0) {
        wgmma_wait<1>();
        release();
      }
      weight_before = weight.stage;
      input_before = input.stage;
      weight.next();
      input.next();
    }
    wgmma_wait<0>();
    release();
    wgmma_results(last);
#pragma unroll
    for (int i = 0; i < kSums; i++) sums[i] = __fadd_rn(sums[i], last[i]);
  }
  if constexpr (!split) {
    store_gated_slab(call, sums, row_tile, lane);
  } else {
    // CTA r finishes the outputs of warps r * groups .. r * groups + groups - 1.
    const int to = warp / groups;
    const auto place_of = [&](int from, int part) {  // of CTA `from`'s sums of this warp in CTA `to`
      const int slot = from - (from > to ? 1 : 0);
      return received_data + (((slot * groups + warp % groups) * (kSums / 4) + part) * 32 + lane) * 16;
    };
    cluster_wait();
    if (to != rank) {
      const uint32_t barrier = cluster_address(received, to);
#pragma unroll
      for (int i = 0; i < kSums; i += 4) {
        cluster_store_async(cluster_address(place_of(rank, i / 4), to),
                            make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]), barrier);
      }
      return;
    }
    float old[kSums];  // asked for while the others' sums travel
    for_each_output<kSums>(call, row_tile, lane, [&](int i, int token, int out) {
      old[i] = call.out[static_cast<int64_t>(token) * call.n_out + out];
    });
    mbarrier_wait_cluster(received, 0);
    float y[kSums];
#pragma unroll
    for (int i = 0; i < kSums; i += 4) {
      float4 v[kSegments];
#pragma unroll
      for (int s = 0; s < kSegments; s++) {
        v[s] = s == rank ? make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3])
                         : shared_load_float4(place_of(s, i / 4));
      }
      const float4 sum = sum_segments(v);
      y[i] = sum.x;
      y[i + 1] = sum.y;
      y[i + 2] = sum.z;
      y[i + 3] = sum.w;
    }
    for_each_output<kSums>(call, row_tile, lane, [&](int i, int token, int out) {
      call.out[static_cast<int64_t>(token) * call.n_out + out] = __fadd_rn(old[i], y[i]);
    });
  }
#endif
}

template <int groups, bool split>
void run(const LinearCall& call, const Context& ctx) {
  using S = Shape<groups, split>;
  configure<linear_slabs_kernel<groups, split>>(S::shared_bytes);
  constexpr int kTile = groups * kSlabTiles, kCluster = split ? kSegments : 1;
  const int tiles = (call.row_tiles + kTile - 1) / kTile;
  const Grid grid{dim3(static_cast<unsigned>(tiles * kCluster)), dim3(S::threads), static_cast<size_t>(S::shared_bytes),
                  kCluster};
  launch("a matrix product by slabs", linear_slabs_kernel<groups, split>, grid, ctx,
         rows_map(call.x, call.n_rows, call.n_in, loaded_rows(call.n_rows)),
         weight_map(call.weight, call.row_tiles, call.col_blocks, kTile), call);
}

}  // namespace

bool linear_slabs_serves(const LinearCall& call, const Context& ctx) {
  if (call.n_rows > kMaxSlabRows || call.n_in < kLeastIn) return false;
  // Wide: two CTAs per SM at least. Split: all CTAs at once, two per SM; a tile of two slabs has four of them.
  if (call.mode == LinearMode::kGateUp) return call.row_tiles >= 2 * kSlabTiles * ctx.sm_count;
  return call.mode == LinearMode::kAccumulate && call.n_in <= kMostSplitIn &&
         call.row_tiles / kSlabTiles <= ctx.sm_count;
}

void linear_slabs(const LinearCall& call, const Context& ctx) {
  if (!linear_slabs_serves(call, ctx)) {
    throw Error(Status::kInternal, "linear_slabs got " + std::to_string(call.n_rows) + " rows and " +
                                       std::to_string(call.row_tiles) + " row tiles; ask linear_slabs_serves first");
  }
  if (call.mode == LinearMode::kGateUp) return run<1, false>(call, ctx);
  run<2, true>(call, ctx);
}

}  // namespace qwen3::cuda

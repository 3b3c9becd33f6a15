// Matrix product of few rows on Hopper with coded weights (kernels.h): wide ones up to 64 rows, narrow ones up to 96.
// Bound by reading them once.
//
// Weights are the M of wgmma and come from registers, inputs the N: a consumer warpgroup has a slab of 64 outputs, each
// of its warps expands a row tile, block by block of 64 columns. A product of few outputs takes as long as the way
// through a warpgroup's blocks, so while a block is multiplied the next one is expanded and the one after it read.
//
// Wide weights: a CTA has three slabs, and each warpgroup walks all segments of K of its own. Narrow ones: a slab has
// four seats, a warpgroup for each segment, in a cluster of two CTAs. Seat q finishes row tile q: the others' warps
// send their sums of it by st.async, and it adds the segments in order.
//
// Two warps fill a ring of stages by the copy engine, one with a block of all the CTA's slabs (or of both its
// segments), kEarly of them before griddep_wait(), one with the same columns of all inputs (128-byte swizzle).
//
// Measured on an H200 (bench/results/2026-11-30-h200-4.txt), 8B, us at 32 / 64 rows against the bf16 form: gate_up 40
// / 41 (50 / 51), down 22.8 / 24.4 (27.4 / 27.5), lm_head 239 / 260 (292 / 311). At 96 rows a step of the model is 1.3%
// faster with down_proj coded than packed.
#include <string>

#include "backend/cuda/coded_weight.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/linear_epilogue.cuh"
#include "backend/cuda/linear_kernels.h"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/tensor_map.h"
#include "base/error.h"

namespace qwen3::cuda {
namespace {

[[maybe_unused]] constexpr int kEarly = 3;  // stages of weights
constexpr int kMaxWideRows = 64;            // of wide weights

template <int tokens, bool narrow>
struct Shape {
  static constexpr int groups = narrow ? 2 : 3;  // consumer warpgroups
  static constexpr int cluster = narrow ? kSegments / groups : 1;
  static constexpr int threads = groups * 128 + 64;
  static constexpr int sums = tokens / 2;                      // accumulators of a thread
  static constexpr int n_inputs = narrow ? groups : 1;         // blocks of columns of a stage
  static constexpr int input_bytes = n_inputs * tokens * 128;  // of a stage
  static constexpr int weight_bytes = groups * kSlabBytes;     // of a stage
  static constexpr int piece_bytes = sums * 32 * 4;            // a warp's sums: [sums / 4][32 lanes] float4
  static constexpr int received_bytes = narrow ? 3 * groups * piece_bytes : 0;  // [3 other seats][groups]
  static constexpr int room = 226 * 1024 - 1024 - received_bytes;               // the barriers; to align
  static constexpr int stages = room / (input_bytes + weight_bytes);
  static constexpr int shared_bytes = 1024 + received_bytes + stages * (input_bytes + weight_bytes);
  static_assert(stages > kEarly);
};

template <int tokens, bool narrow>
__global__ void __launch_bounds__(Shape<tokens, narrow>::threads, 1)
    linear_coded_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ LinearCall call) {
#if QWEN3_SM90A
  using S = Shape<tokens, narrow>;
  constexpr int kSums = S::sums, groups = S::groups;
  extern __shared__ uint8_t raw_shared[];
  __shared__ uint64_t barriers[2 * S::stages + 1];
  const uint32_t inputs_data = (shared_address(raw_shared) + 1023) & ~1023u;
  const uint32_t received_data = inputs_data + S::stages * S::input_bytes;
  const uint32_t weights_data = received_data + S::received_bytes;
  const uint32_t full = shared_address(barriers), empty = full + S::stages * 8, received = empty + S::stages * 8;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = lane_id();
  const int rank = narrow ? static_cast<int>(cluster_rank()) : 0;
  const int tile = static_cast<int>(blockIdx.x) / S::cluster;  // of one slab, or `groups` slabs
  const int segment_blocks = call.col_blocks / kSegments;
  const int n_blocks = narrow ? segment_blocks : call.col_blocks;  // of a warpgroup, and so stages to fill
  const auto slab_of = [&](int group) { return narrow ? tile : tile * groups + group; };
  const auto first_block_of = [&](int group) { return narrow ? (rank * groups + group) * segment_blocks : 0; };

  if (threadIdx.x == 0) {
    for (int i = 0; i < S::stages; i++) {
      mbarrier_init(full + i * 8, 2);  // weights and inputs
      mbarrier_init(empty + i * 8, groups * 4);
    }
    mbarrier_init(received, 1);
    fence_mbarrier_init();
    if constexpr (narrow) mbarrier_expect(received, S::received_bytes);
  }
  __syncthreads();
  if constexpr (narrow) cluster_arrive();  // `received` is there when the others have waited for this
  griddep_launch();

  if (warp >= groups * 4) {
    if (warp == groups * 4) {
      // A lane per slab; one past the end takes the last once more, for outputs that are not stored.
      const int slab = min(slab_of(lane), (call.row_tiles - 1) / kSlabTiles);
      const uint8_t* from =
          call.coded + (static_cast<int64_t>(slab) * call.col_blocks + first_block_of(lane)) * kSlabBytes;
      const uint64_t policy = evict_first();
      RingPlace<S::stages> place;
      for (int i = 0; i < n_blocks; i++) {
        if (i == kEarly) griddep_wait();
        mbarrier_wait(empty + place.stage * 8, place.parity ^ 1);
        if (lane == 0) mbarrier_expect(full + place.stage * 8, S::weight_bytes);
        __syncwarp();
        if (lane < groups) {
          bulk_load(weights_data + place.stage * S::weight_bytes + lane * kSlabBytes, from, kSlabBytes,
                    full + place.stage * 8, policy);
        }
        from += kSlabBytes;
        place.next();
      }
    } else if (lane == 0) {
      tensor_prefetch(&x_map);
      griddep_wait();
      RingPlace<S::stages> place;
      for (int i = 0; i < n_blocks; i++) {
        mbarrier_wait(empty + place.stage * 8, place.parity ^ 1);
        mbarrier_expect(full + place.stage * 8, S::n_inputs * loaded_rows(call.n_rows) * 128);
#pragma unroll
        for (int k = 0; k < S::n_inputs; k++) {
          tensor_load_2d(inputs_data + place.stage * S::input_bytes + k * tokens * 128, &x_map,
                         (first_block_of(k) + i) * kPackCols, 0, full + place.stage * 8);
        }
        place.next();
      }
    }
    __syncwarp();
    if constexpr (narrow) cluster_wait();
    return;
  }

  const int group = warp / 4, row_tile = slab_of(group) * kSlabTiles + warp % 4;
  const CodedLane own(call.coded_bases + min(row_tile, call.row_tiles - 1) * kPackRows, lane);
  griddep_wait();
  const uint32_t weights_at = weights_data + group * kSlabBytes;
  const uint64_t b_first = swizzled_descriptor(inputs_data + (narrow ? group * tokens * 128 : 0));
  float y[kSums], last[kSums];  // the sum of segments before, and the segment at hand
#pragma unroll
  for (int i = 0; i < kSums; i++) {
    y[i] = -0.0f;  // adding to it is exact
    last[i] = 0.0f;
  }
  // While a block is multiplied the next one is expanded, and the one after it read from the ring.
  CodedBlock block;
  uint32_t a[2][4][4];
  int unread = n_blocks;
  RingPlace<S::stages> reading;
  const auto is_there = [&] { return unread > 0 && mbarrier_test(full + reading.stage * 8, reading.parity); };
  const auto read = [&](bool there) {
    if (unread == 0) return;
    unread--;
    if (!there) mbarrier_wait(full + reading.stage * 8, reading.parity);
    const uint32_t slab = weights_at + reading.stage * S::weight_bytes;
    block.load(slab + warp % 4 * kCodedTileBytes, slab + kEscapesAt + warp % 4 * kEscapeBytes, own);
    reading.next();
  };
  read(false);
  block.expand_all(own, a[0]);
  read(false);
  int left = n_blocks, left_of_segment = segment_blocks;
  bool add = false;
  int stage = 0;
  const auto multiply = [&](const uint32_t (&now)[4][4], uint32_t (&next)[4][4]) {
    const uint64_t b = b_first + stage * (S::input_bytes / 16);
    wgmma_fence();
    wgmma<tokens>(last, now[0], b, add);
    wgmma<tokens>(last, now[1], b + 2, 1);
    wgmma<tokens>(last, now[2], b + 4, 1);
    wgmma<tokens>(last, now[3], b + 6, 1);
    wgmma_commit();
    const bool there = is_there();
    block.expand_all(own, next);
    read(there);
    wgmma_wait<0>();
    wgmma_operands(now);
    __syncwarp();  // all lanes' loads
    if (lane == 0) mbarrier_arrive(empty + stage * 8);
    if (++stage == S::stages) stage = 0;
    add = --left_of_segment > 0;
    if (!add) {
      wgmma_results(last);
#pragma unroll
      for (int i = 0; i < kSums; i++) y[i] = __fadd_rn(y[i], last[i]);
      left_of_segment = segment_blocks;
    }
    return --left > 0;
  };
  while (multiply(a[0], a[1]) && multiply(a[1], a[0])) {
  }
  if constexpr (narrow) {
    // Seat q finishes row tile q.
    const int seat = rank * groups + group, to = warp % 4;
    const auto place_of = [&](int from, int finisher) {  // of a seat's sums, in the finisher's CTA
      const int piece = from - (from > finisher ? 1 : 0);
      return received_data + (piece * groups + finisher % groups) * S::piece_bytes + lane * 16;
    };
    cluster_wait();
    if (to != seat) {
      const uint32_t barrier = cluster_address(received, to / groups),
                     place = cluster_address(place_of(seat, to), to / groups);
#pragma unroll
      for (int i = 0; i < kSums; i += 4) {
        cluster_store_async(place + i * 128, make_float4(y[i], y[i + 1], y[i + 2], y[i + 3]), barrier);
      }
      return;
    }
    mbarrier_wait_cluster(received, 0);
#pragma unroll
    for (int i = 0; i < kSums; i += 4) {
      float4 v[kSegments];
#pragma unroll
      for (int s = 0; s < kSegments; s++) {
        v[s] = s == seat ? make_float4(y[i], y[i + 1], y[i + 2], y[i + 3])
                         : shared_load_float4(place_of(s, seat) + i * 128);
      }
      y[i] = sum_segments(v[0].x, v[1].x, v[2].x, v[3].x);
      y[i + 1] = sum_segments(v[0].y, v[1].y, v[2].y, v[3].y);
      y[i + 2] = sum_segments(v[0].z, v[1].z, v[2].z, v[3].z);
      y[i + 3] = sum_segments(v[0].w, v[1].w, v[2].w, v[3].w);
    }
  }
  finish_slab<kSums>(call, y, row_tile, lane);
#endif
}

template <int tokens, bool narrow>
void run(const LinearCall& call, const Context& ctx) {
  using S = Shape<tokens, narrow>;
  configure<linear_coded_kernel<tokens, narrow>>(S::shared_bytes);
  const int slabs = slab_count(call.row_tiles), tiles = narrow ? slabs : (slabs + S::groups - 1) / S::groups;
  const Grid grid{dim3(static_cast<unsigned>(tiles * S::cluster)), dim3(S::threads),
                  static_cast<size_t>(S::shared_bytes), S::cluster};
  launch("a product with coded weights", linear_coded_kernel<tokens, narrow>, grid, ctx,
         rows_map(call.x, call.n_rows, call.n_in, loaded_rows(call.n_rows)), call);
}

// All slabs' CTAs at once, and not much of the GPU idle.
bool is_narrow(const LinearCall& call, const Context& ctx) {
  const int ctas = slab_count(call.row_tiles) * Shape<32, true>::cluster;
  return ctas <= ctx.sm_count && ctas * 4 >= ctx.sm_count * 3;
}

}  // namespace

bool is_wide(const LinearCall& call, const Context& ctx) {
  return slab_count(call.row_tiles) >= 2 * ctx.sm_count;
}

bool linear_coded_serves(const LinearCall& call, const Context& ctx) {
  if (call.coded == nullptr || call.col_blocks % kSegments != 0) return false;
  return is_wide(call, ctx) ? call.n_rows <= kMaxWideRows : call.n_rows <= kMaxCodedRows && is_narrow(call, ctx);
}

void linear_coded(const LinearCall& call, const Context& ctx) {
  if (!linear_coded_serves(call, ctx)) {
    throw Error(Status::kInternal, "linear_coded got " + std::to_string(call.n_rows) + " rows and " +
                                       std::to_string(call.row_tiles) + " row tiles; ask linear_coded_serves first");
  }
  const bool few = call.n_rows <= 32;
  if (is_wide(call, ctx)) return few ? run<32, false>(call, ctx) : run<64, false>(call, ctx);
  if (call.n_rows <= 64) return few ? run<32, true>(call, ctx) : run<64, true>(call, ctx);
  run<96, true>(call, ctx);
}

}  // namespace qwen3::cuda

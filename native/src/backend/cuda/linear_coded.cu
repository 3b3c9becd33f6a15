// Matrix product of few rows on Hopper with coded weights (kernels.h): wide ones up to 64 rows, others up to 128. Bound
// by reading them once.
//
// Weights are the M of wgmma and come from registers, inputs the N: a consumer warpgroup has a slab of 64 outputs, each
// of its warps expands a row tile, block by block of 64 columns. A product of few outputs takes as long as the way
// through a warpgroup's blocks, so while a block is multiplied the next one is expanded and the one after it read.
//
// A CTA has two or three slabs. Wide weights: each warpgroup walks all segments of K. Others: the segments are those of
// four CTAs, which meet in memory. (With a slab and all of K in a cluster of two, inputs were read by twice as many
// CTAs, and that held the product up; clusters of four do not fill all GPCs.)
//
// Two warps fill a ring of stages by the copy engine, one with a block of all the CTA's slabs, kEarly of them before
// griddep_wait(), one with the same columns of all inputs (128-byte swizzle).
//
// The meeting of a row tile's four warps: each finishes a quarter of the rows. Words that have not come yet are
// kNothing, a NaN that no sum is, and who has read a word puts that back: a sum is there as soon as it differs, without
// a flag, a fence and a second way through the second-level cache (which cost 1.4 to 2.6 us more). The warps wait for
// each other, so all CTAs must be able to run at once: slabs_per_cta(). Those of a tile are neighbours and start one
// after another (as GPUs do; CUDA does not promise it), so that beside another kernel on the GPU, another engine's of
// this kind too, all tiles but the last one begun are complete, end, and make room.
//
// Measured on an H200 (bench/results/2026-12-01-h200.txt), 8B, us at 32 / 64 / 96 / 128 rows against the packed form:
// gate_up 40 / 41 (50 / 51), lm_head 239 / 260 (292 / 311), down 21.4 / 22.3 / 23.5 / 27.0 (27.0 / 27.0 / 29.3 / 29.7),
// qkv 12.7 / 14.3 / 16.0 / 18.3 (15.4 / 15.5 / 17.7 / 17.8).
#include <algorithm>
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

template <int tokens, int slabs>
struct Shape {
  static constexpr int threads = slabs * 128 + 64;
  static constexpr int sums = tokens / 2;                  // accumulators of a thread
  static constexpr int input_bytes = tokens * 128;         // of a stage
  static constexpr int weight_bytes = slabs * kSlabBytes;  // of a stage
  static constexpr int stages = std::min(12, 225 * 1024 / (input_bytes + weight_bytes));
  static constexpr int shared_bytes = 1024 + stages * (input_bytes + weight_bytes);  // 1,024: to align
  static_assert(stages > kEarly);
};
constexpr int kMaxSlabs = 3;

// Row tiles of the widest weight whose segments are those of different CTAs.
int most_split_row_tiles(int sm_count) {
  return sm_count / kSegments * kMaxSlabs * kSlabTiles;
}

#if QWEN3_SM90A
constexpr uint32_t kNothing = 0xffffffff;

// The pieces of a row tile: what `from`'s warp has for the part that `to`'s finishes, [part / 4][32 lanes] float4.
template <int part>
__device__ __forceinline__ float* piece_of(float* meeting, int row_tile, int to, int from, int lane) {
  return meeting + ((static_cast<int64_t>(row_tile) * kSegments + to) * kSegments + from) * (part * 32) + lane * 4;
}
__device__ __forceinline__ float something(float x) {
  return __float_as_uint(x) == kNothing ? __uint_as_float(0x7fffffff) : x;
}
__device__ __forceinline__ void post(float* to, const float4& v) {
  global_store_relaxed(to, make_float4(something(v.x), something(v.y), something(v.z), something(v.w)));
}
__device__ __forceinline__ bool has_come(const float4& v) {
  const auto is = [](float x) { return __float_as_uint(x) != kNothing; };
  return is(v.x) && is(v.y) && is(v.z) && is(v.w);
}

// This warp's row tile, of which it has `segment`, from the sums of all segments to the output.
template <int tokens, int sums>
__device__ __forceinline__ void meet(const LinearCall& call, float* meeting, const float (&y)[sums], int row_tile,
                                     int segment, int lane) {
  constexpr int kPart = sums / kSegments, kPieces = kPart / 4;
  float4 own[kPieces];
#pragma unroll
  for (int to = 0; to < kSegments; to++) {
#pragma unroll
    for (int k = 0; k < kPieces; k++) {
      const int i = to * kPart + k * 4;
      const float4 piece = make_float4(y[i], y[i + 1], y[i + 2], y[i + 3]);
      if (to == segment) {
        own[k] = piece;
      } else {
        post(piece_of<kPart>(meeting, row_tile, to, segment, lane) + k * 128, piece);
      }
    }
  }
  // use(i, output) for each of the part's outputs that there are.
  const auto for_each = [&](auto use) {
#pragma unroll
    for (int i = 0; i < kPart; i++) {
      const int token = segment * (tokens / kSegments) + i / 4 * 8 + lane % 4 * 2 + i % 2;
      const int out = row_tile * kPackRows + lane / 4 + i / 2 % 2 * 8;
      if (token < call.n_rows && out < call.n_out) use(i, call.out + static_cast<int64_t>(token) * call.n_out + out);
    }
  };
  float old[kPart];
  if (call.mode == LinearMode::kAccumulate) for_each([&](int i, const float* from) { old[i] = *from; });
  float4 v[kSegments][kPieces];
  bool all_there;
  do {
    all_there = true;
#pragma unroll
    for (int from = 0; from < kSegments; from++) {
      if (from == segment) continue;
#pragma unroll
      for (int k = 0; k < kPieces; k++) {
        v[from][k] = global_load_relaxed(piece_of<kPart>(meeting, row_tile, segment, from, lane) + k * 128);
      }
    }
#pragma unroll
    for (int from = 0; from < kSegments; from++) {
      if (from == segment) continue;
#pragma unroll
      for (int k = 0; k < kPieces; k++) all_there &= has_come(v[from][k]);
    }
  } while (!all_there);
  float sum[kPart];
#pragma unroll
  for (int k = 0; k < kPieces; k++) {
#pragma unroll
    for (int from = 0; from < kSegments; from++) {
      if (from == segment) {
        v[from][k] = own[k];
      } else {
        *reinterpret_cast<uint4*>(piece_of<kPart>(meeting, row_tile, segment, from, lane) + k * 128) =
            make_uint4(kNothing, kNothing, kNothing, kNothing);
      }
    }
    sum[4 * k] = sum_segments(v[0][k].x, v[1][k].x, v[2][k].x, v[3][k].x);
    sum[4 * k + 1] = sum_segments(v[0][k].y, v[1][k].y, v[2][k].y, v[3][k].y);
    sum[4 * k + 2] = sum_segments(v[0][k].z, v[1][k].z, v[2][k].z, v[3][k].z);
    sum[4 * k + 3] = sum_segments(v[0][k].w, v[1][k].w, v[2][k].w, v[3][k].w);
  }
  for_each([&](int i, float* to) { *to = call.mode == LinearMode::kAccumulate ? __fadd_rn(old[i], sum[i]) : sum[i]; });
}
#endif

// split: a CTA has one segment of K; else all. meeting: the context's, for the first.
template <int tokens, int slabs, bool split>
__global__ void __launch_bounds__(Shape<tokens, slabs>::threads, 1)
    linear_coded_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ LinearCall call,
                        float* const meeting) {
#if QWEN3_SM90A
  using S = Shape<tokens, slabs>;
  constexpr int kSums = S::sums;
  extern __shared__ uint8_t raw_shared[];
  __shared__ uint64_t barriers[2 * S::stages];
  const uint32_t inputs_data = (shared_address(raw_shared) + 1023) & ~1023u;
  const uint32_t weights_data = inputs_data + S::stages * S::input_bytes;
  const uint32_t full = shared_address(barriers), empty = full + S::stages * 8;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = lane_id();
  const int tile = static_cast<int>(blockIdx.x) / (split ? kSegments : 1);
  const int segment = split ? static_cast<int>(blockIdx.x) % kSegments : 0;
  const int segment_blocks = call.col_blocks / kSegments;
  const int n_blocks = split ? segment_blocks : call.col_blocks;  // and so stages to fill
  const int first_block = segment * segment_blocks;

  if (threadIdx.x == 0) {
    for (int i = 0; i < S::stages; i++) {
      mbarrier_init(full + i * 8, 2);  // weights and inputs
      mbarrier_init(empty + i * 8, slabs * 4);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  griddep_launch();

  if (warp >= slabs * 4) {
    if (warp == slabs * 4) {
      // A lane per slab; one past the end takes the last once more, for outputs that are not stored.
      const int slab = min(tile * slabs + lane, (call.row_tiles - 1) / kSlabTiles);
      const uint8_t* from = call.coded + (static_cast<int64_t>(slab) * call.col_blocks + first_block) * kSlabBytes;
      const uint64_t policy = evict_first();
      RingPlace<S::stages> place;
      for (int i = 0; i < n_blocks; i++) {
        if (i == kEarly) griddep_wait();
        mbarrier_wait(empty + place.stage * 8, place.parity ^ 1);
        if (lane == 0) mbarrier_expect(full + place.stage * 8, S::weight_bytes);
        __syncwarp();
        if (lane < slabs) {
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
        mbarrier_expect(full + place.stage * 8, loaded_rows(call.n_rows) * 128);
        tensor_load_2d(inputs_data + place.stage * S::input_bytes, &x_map, (first_block + i) * kPackCols, 0,
                       full + place.stage * 8);
        place.next();
      }
    }
    return;
  }

  const int slab = warp / 4, row_tile = (tile * slabs + slab) * kSlabTiles + warp % 4;
  const CodedLane own(call.coded_bases + min(row_tile, call.row_tiles - 1) * kPackRows, lane);
  griddep_wait();
  const uint32_t weights_at = weights_data + slab * kSlabBytes;
  const uint64_t b_first = swizzled_descriptor(inputs_data);
  float last[kSums];           // the segment at hand
  float y[split ? 1 : kSums];  // the sum of those before
#pragma unroll
  for (float& each : last) each = 0.0f;
#pragma unroll
  for (float& each : y) each = -0.0f;  // adding to it is exact
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
    const uint32_t at = weights_at + reading.stage * S::weight_bytes;
    block.load(at + warp % 4 * kCodedTileBytes, at + kEscapesAt + warp % 4 * kEscapeBytes, own);
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
    if constexpr (!split) {
      if (!add) {
        wgmma_results(last);
#pragma unroll
        for (int i = 0; i < kSums; i++) y[i] = __fadd_rn(y[i], last[i]);
        left_of_segment = segment_blocks;
      }
    }
    return --left > 0;
  };
  while (multiply(a[0], a[1]) && multiply(a[1], a[0])) {
  }
  if constexpr (split) {
    wgmma_results(last);
    if (row_tile < call.row_tiles) meet<tokens>(call, meeting, last, row_tile, segment, lane);
  } else {
    finish_slab<kSums>(call, y, row_tile, lane);
  }
#endif
}

template <int tokens, int slabs, bool split>
void run(const LinearCall& call, const Context& ctx) {
  using S = Shape<tokens, slabs>;
  configure<linear_coded_kernel<tokens, slabs, split>>(S::shared_bytes);
  const int tiles = (slab_count(call.row_tiles) + slabs - 1) / slabs;
  const Grid grid{dim3(static_cast<unsigned>(split ? tiles * kSegments : tiles)), dim3(S::threads),
                  static_cast<size_t>(S::shared_bytes)};
  launch("a product with coded weights", linear_coded_kernel<tokens, slabs, split>, grid, ctx,
         rows_map(call.x, call.n_rows, call.n_in, loaded_rows(call.n_rows)), call, ctx.meeting);
}

template <int slabs>
void run_split(const LinearCall& call, const Context& ctx) {
  if (call.n_rows <= 32) return run<32, slabs, true>(call, ctx);
  if (call.n_rows <= 64) return run<64, slabs, true>(call, ctx);
  if (call.n_rows <= 96) return run<96, slabs, true>(call, ctx);
  run<128, slabs, true>(call, ctx);
}

// Of a weight that is not wide: slabs of a CTA so that all CTAs run at once and not much of the GPU idles; 0: there is
// no such number.
int slabs_per_cta(const LinearCall& call, const Context& ctx) {
  for (int slabs = 2; slabs <= kMaxSlabs; slabs++) {
    const int ctas = (slab_count(call.row_tiles) + slabs - 1) / slabs * kSegments;
    if (ctas <= ctx.sm_count && ctas * 4 >= ctx.sm_count * 3) return slabs;
  }
  return 0;
}

}  // namespace

bool is_wide(const LinearCall& call, const Context& ctx) {
  return slab_count(call.row_tiles) >= 2 * ctx.sm_count;
}

bool linear_coded_serves(const LinearCall& call, const Context& ctx) {
  if (call.coded == nullptr || call.col_blocks % kSegments != 0) return false;
  if (is_wide(call, ctx)) return call.n_rows <= kMaxWideRows;
  return call.n_rows <= kMaxCodedRows && call.mode != LinearMode::kGateUp && ctx.meeting != nullptr &&
         slabs_per_cta(call, ctx) > 0;
}

size_t meeting_bytes(int sm_count) {
  constexpr size_t kPiece = kMaxCodedRows / 2 / kSegments * 32 * sizeof(float);
  return static_cast<size_t>(most_split_row_tiles(sm_count)) * kSegments * kSegments * kPiece;
}

void linear_coded(const LinearCall& call, const Context& ctx) {
  if (!linear_coded_serves(call, ctx)) {
    throw Error(Status::kInternal, "linear_coded got " + std::to_string(call.n_rows) + " rows and " +
                                       std::to_string(call.row_tiles) + " row tiles; ask linear_coded_serves first");
  }
  if (is_wide(call, ctx)) return call.n_rows <= 32 ? run<32, 3, false>(call, ctx) : run<64, 3, false>(call, ctx);
  slabs_per_cta(call, ctx) == 2 ? run_split<2>(call, ctx) : run_split<3>(call, ctx);
}

}  // namespace qwen3::cuda

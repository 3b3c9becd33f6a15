// Matrix product of few rows on Hopper with coded weights (kernels.h): wide ones up to 64 rows, half a product of
// others up to 256. Bound by reading them once.
//
// Weights are the M of wgmma and come from registers, inputs the N: a consumer warpgroup has a slab of 64 outputs, each
// of its warps expands a row tile, block by block of 64 columns. A product of few outputs takes as long as the way
// through a warpgroup's blocks, so while a block is multiplied the next one is expanded and the one after it read.
//
// A CTA has two or three slabs. Wide weights: each warpgroup walks all segments of K, and stores its outputs. Others:
// the segments are those of four CTAs, and each leaves its sums in memory, where the reader of the product adds them up
// (linear_sums() in linear_kernels.h). If the CTAs met here instead, all of them would stand still meanwhile: 1.4 to 3
// us, measured through the second-level cache and through the shared memory of clusters.
//
// Two warps fill a ring of stages by the copy engine, one with a block of all the CTA's slabs, kEarly of them before
// griddep_wait(), one with the same columns of all inputs (128-byte swizzle).
//
// Measured on an H200, 8B, us against the packed form. At 32 / 64 rows gate_up 40 / 41 (50 / 51), lm_head 239 / 260
// (292 / 311). At 128 / 160 / 192 / 256, with add_sums() behind it, o 14.2 / 16.2 / 17.0 / 20.7 (13.2 / 20.2 / 20.4
// / 20.6), down 29.3 / 34.9 / 35.8 / 44.1 (30.8 / 44.5 / 45.1 / 46.1): bench/results/2026-12-01-h200-2.txt.
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
// Of a thread, where registers move; of a CTA of 384 threads: ptxas gives each the most that is a multiple of 8.
[[maybe_unused]] constexpr int kConsumerRegisters = 224, kProducerRegisters = 40, kRegisters = 384 * 168;

template <int tokens, int slabs>
struct Shape {
  // Consumers of many tokens need more registers than there are for all threads: a whole warpgroup gives its own away.
  static constexpr bool moves_registers = tokens > 192;
  static constexpr int threads = slabs * 128 + (moves_registers ? 128 : 64);
  static_assert(!moves_registers || slabs * 128 * kConsumerRegisters + 128 * kProducerRegisters <= kRegisters);
  static constexpr int sums = tokens / 2;                  // accumulators of a thread
  static constexpr int input_bytes = tokens * 128;         // of a stage
  static constexpr int weight_bytes = slabs * kSlabBytes;  // of a stage
  static constexpr int stages = std::min(12, 225 * 1024 / (input_bytes + weight_bytes));
  static constexpr int shared_bytes = 1024 + stages * (input_bytes + weight_bytes);  // 1,024: to align
  static_assert(stages > kEarly);
};
constexpr int kMaxSlabs = 3;
constexpr int kMaxRowsOfThree = 128;  // that registers hold the sums of, with three slabs

// split: a CTA has one segment of K, and call.out room for the sums of all: [kSegments, n_rows, n_out]; else all of K.
template <int tokens, int slabs, bool split>
__global__ void __launch_bounds__(Shape<tokens, slabs>::threads, 1)
    linear_coded_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ LinearCall call) {
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
    if constexpr (S::moves_registers) fewer_registers<kProducerRegisters>();
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
    } else if (warp == slabs * 4 + 1 && lane == 0) {
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

  if constexpr (S::moves_registers) more_registers<kConsumerRegisters>();
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
    float* const sums = call.out + static_cast<int64_t>(segment) * call.n_rows * call.n_out;
    for_each_output<kSums>(call, row_tile, lane, [&](int i, int token, int out) {
      sums[static_cast<int64_t>(token) * call.n_out + out] = last[i];
    });
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
         rows_map(call.x, call.n_rows, call.n_in, loaded_rows(call.n_rows)), call);
}

template <int slabs>
void run_split(const LinearCall& call, const Context& ctx) {
  if (call.n_rows <= 32) return run<32, slabs, true>(call, ctx);
  if (call.n_rows <= 64) return run<64, slabs, true>(call, ctx);
  if (call.n_rows <= 96) return run<96, slabs, true>(call, ctx);
  if (call.n_rows <= kMaxRowsOfThree) return run<128, slabs, true>(call, ctx);
  if constexpr (slabs == 2) call.n_rows <= 192 ? run<192, slabs, true>(call, ctx) : run<256, slabs, true>(call, ctx);
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

void require(bool serves, const LinearCall& call) {
  if (serves) return;
  throw Error(Status::kInternal, "a product with coded weights got " + std::to_string(call.n_rows) + " rows and " +
                                     std::to_string(call.row_tiles) + " row tiles; ask whether it serves first");
}

}  // namespace

bool is_wide(const LinearCall& call, const Context& ctx) {
  return slab_count(call.row_tiles) >= 2 * ctx.sm_count;
}

bool linear_coded_serves(const LinearCall& call, const Context& ctx) {
  return call.coded != nullptr && call.col_blocks % kSegments == 0 && call.n_rows <= kMaxWideRows && is_wide(call, ctx);
}

bool linear_sums_serves(const LinearCall& call, const Context& ctx) {
  if (!ctx.hopper || ctx.sums == nullptr || call.coded == nullptr || call.mode == LinearMode::kGateUp) return false;
  if (call.col_blocks % kSegments != 0 || call.n_out % 4 != 0 || is_wide(call, ctx)) return false;
  const int slabs = slabs_per_cta(call, ctx);
  return slabs > 0 && call.n_rows <= (slabs == 2 ? kMaxSumsRows : kMaxRowsOfThree);
}

size_t sums_bytes(int sm_count) {
  const size_t slab_rows = std::max(2 * kMaxSumsRows, kMaxSlabs * kMaxRowsOfThree);  // rows x slabs of a CTA
  const size_t tiles = static_cast<size_t>(sm_count / kSegments);
  return kSegments * tiles * slab_rows * kSlabTiles * kPackRows * sizeof(float);
}

void linear_coded(const LinearCall& call, const Context& ctx) {
  require(linear_coded_serves(call, ctx), call);
  call.n_rows <= 32 ? run<32, 3, false>(call, ctx) : run<64, 3, false>(call, ctx);
}

void linear_sums(const LinearCall& call, const Context& ctx) {
  require(linear_sums_serves(call, ctx), call);
  LinearCall to_sums = call;
  to_sums.out = ctx.sums;
  slabs_per_cta(call, ctx) == 2 ? run_split<2>(to_sums, ctx) : run_split<3>(to_sums, ctx);
}

}  // namespace qwen3::cuda

// Matrix product of 65 to 128 rows on Hopper with wide coded weights (kernels.h). Bound by reading them once, and by
// the card's power.
//
// As linear_coded.cu: weights are the M of wgmma and come from registers, inputs the N; each of three consumer
// warpgroups has a slab of 64 outputs and walks all segments of K; while a block of 64 columns is multiplied the next
// one is expanded and the one after it read. What differs follows from there being more inputs. A tile is a
// cluster's six slabs; its two CTAs load half of the inputs each and send it to both. Weights and inputs have rings of
// their own, because a block of weights is free as soon as it has become operands; each warpgroup has its own ring of
// weights, filled by a warp of its own. Registers hold the sums of past segments only in part, or not at all: the rest
// waits in shared memory. Clusters are persistent and take every n-th tile.
//
// Measured on an H200 (bench/results/2026-11-30-h200-5.txt), 8B, us at 96 / 128 rows against the bf16 form: gate_up 44
// / 49 (56 / 57), lm_head 262 / 295.
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

constexpr int kCluster = 2, kGroups = 3;       // consumer warpgroups
constexpr int kTile = kCluster * kGroups;      // slabs of a cluster
constexpr int kThreads = (kGroups + 1) * 128;  // the last warpgroup's warps fill the rings
[[maybe_unused]] constexpr int kConsumerRegisters = 160, kProducerRegisters = 32;  // of a thread
static_assert(kGroups * 128 * kConsumerRegisters + 128 * kProducerRegisters <= 65536);
[[maybe_unused]] constexpr int kEarly = 2;  // stages of weights before griddep_wait()

template <int tokens>
struct Shape {
  static constexpr int sums = tokens / 2;            // accumulators of a thread
  static constexpr int held = tokens > 96 ? 0 : 32;  // sums of past segments in registers,
  static constexpr int kept = sums - held;           // and in shared memory: [kept / 4][32 lanes] float4 a warp
  static constexpr int kept_bytes = kGroups * 4 * kept * 128;
  static constexpr int input_bytes = tokens * 128;                                      // of a stage
  static constexpr int n_inputs = tokens > 96 ? 3 : 6;                                  // stages
  static constexpr int room = 226 * 1024 - 1024 - kept_bytes - n_inputs * input_bytes;  // 1,024 to align
  static constexpr int n_weights = room / (kGroups * kSlabBytes);
  static constexpr int shared_bytes = 1024 + kept_bytes + n_inputs * input_bytes + kGroups * n_weights * kSlabBytes;
  static_assert(n_weights > kEarly);
};

template <int tokens>
__global__ void __launch_bounds__(kThreads, 1)
    linear_coded_wide_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ LinearCall call,
                             const int n_tiles) {
#if QWEN3_SM90A
  using S = Shape<tokens>;
  constexpr int kSums = S::sums;
  extern __shared__ uint8_t raw_shared[];
  __shared__ uint64_t barriers[2 * (kGroups * S::n_weights + S::n_inputs)];
  const uint32_t inputs_data = (shared_address(raw_shared) + 1023) & ~1023u;
  const uint32_t weights_data = inputs_data + S::n_inputs * S::input_bytes;
  const uint32_t kept_data = weights_data + kGroups * S::n_weights * kSlabBytes;
  const uint32_t weights_full = shared_address(barriers), weights_empty = weights_full + kGroups * S::n_weights * 8;
  const uint32_t inputs_full = weights_empty + kGroups * S::n_weights * 8, inputs_empty = inputs_full + S::n_inputs * 8;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = lane_id();
  const int rank = static_cast<int>(cluster_rank());
  const int first_tile = static_cast<int>(blockIdx.x) / kCluster, step = static_cast<int>(gridDim.x) / kCluster;
  const int n_blocks = call.col_blocks, segment_blocks = n_blocks / kSegments;
  const auto slab_of = [&](int tile, int group) { return tile * kTile + rank * kGroups + group; };

  if (threadIdx.x == 0) {
    for (int i = 0; i < kGroups * S::n_weights; i++) {
      mbarrier_init(weights_full + i * 8, 1);
      mbarrier_init(weights_empty + i * 8, 4);
    }
    for (int i = 0; i < S::n_inputs; i++) {
      mbarrier_init(inputs_full + i * 8, 1);
      mbarrier_init(inputs_empty + i * 8, kCluster * kGroups * 4);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  cluster_arrive();  // the barriers are there when the other CTA has waited for this
  griddep_launch();

  if (warp >= kGroups * 4) {
    fewer_registers<kProducerRegisters>();
    const int group = warp - kGroups * 4;
    if (group < kGroups) {
      if (lane == 0) {
        const uint32_t full = weights_full + group * S::n_weights * 8, empty = weights_empty + group * S::n_weights * 8;
        const uint32_t to = weights_data + group * S::n_weights * kSlabBytes;
        const uint64_t policy = evict_first();
        RingPlace<S::n_weights> place;
        int early = kEarly;
        for (int tile = first_tile; tile < n_tiles; tile += step) {
          // One past the end takes the last once more, for outputs that are not stored.
          const int slab = min(slab_of(tile, group), (call.row_tiles - 1) / kSlabTiles);
          const uint8_t* from = call.coded + static_cast<int64_t>(slab) * n_blocks * kSlabBytes;
          for (int i = 0; i < n_blocks; i++) {
            if (early-- == 0) griddep_wait();
            mbarrier_wait(empty + place.stage * 8, place.parity ^ 1);
            mbarrier_expect(full + place.stage * 8, kSlabBytes);
            bulk_load(to + place.stage * kSlabBytes, from, kSlabBytes, full + place.stage * 8, policy);
            from += kSlabBytes;
            place.next();
          }
        }
      }
      __syncwarp();
      cluster_wait();
    } else {
      if (lane == 0) tensor_prefetch(&x_map);
      cluster_wait();
      if (lane == 0) {
        griddep_wait();
        RingPlace<S::n_inputs> place;
        for (int tile = first_tile; tile < n_tiles; tile += step) {
          for (int i = 0; i < n_blocks; i++) {
            mbarrier_wait(inputs_empty + place.stage * 8, place.parity ^ 1);
            mbarrier_expect(inputs_full + place.stage * 8, S::input_bytes);
            tensor_load_2d_for_both(inputs_data + place.stage * S::input_bytes + rank * (S::input_bytes / kCluster),
                                    &x_map, i * kPackCols, rank * (tokens / kCluster), inputs_full + place.stage * 8);
            place.next();
          }
        }
      }
      __syncwarp();
    }
    cluster_sync();
    return;
  }

  more_registers<kConsumerRegisters>();
  const int group = warp / 4;
  const auto lane_of = [&](int tile) {
    const int row_tile = min(slab_of(tile, group) * kSlabTiles + warp % 4, call.row_tiles - 1);
    return CodedLane(call.coded_bases + row_tile * kPackRows, lane);
  };
  CodedLane own = lane_of(first_tile);
  cluster_wait();
  griddep_wait();
  const uint32_t own_full = weights_full + group * S::n_weights * 8;
  const uint32_t own_empty = weights_empty + group * S::n_weights * 8;
  const uint32_t other_inputs_empty = cluster_address(inputs_empty, static_cast<uint32_t>(rank) ^ 1);
  const uint32_t own_data = weights_data + group * S::n_weights * kSlabBytes;
  const uint32_t weights_at = own_data + warp % 4 * kCodedTileBytes;
  const uint32_t escapes_at = own_data + kEscapesAt + warp % 4 * kEscapeBytes;
  const uint64_t b_first = swizzled_descriptor(inputs_data);
  const uint32_t kept_at = kept_data + warp * S::kept * 128 + lane * 16;
  RingPlace<S::n_weights> weight;  // to be read
  int weight_stage = 0;            // to be multiplied
  RingPlace<S::n_inputs> input;
  CodedBlock block;
  uint32_t a[2][4][4];
  float last[kSums];  // the segment at hand, and in the end the sum of all
#pragma unroll
  for (int i = 0; i < kSums; i++) last[i] = 0.0f;
#pragma unroll 1
  for (int tile = first_tile; tile < n_tiles; tile += step) {
    const CodedLane after = lane_of(tile + step);
    float held[S::held > 0 ? S::held : 1];  // of the segments before, as what is in shared memory
#pragma unroll
    for (int i = 0; i < S::held; i++) held[i] = -0.0f;  // adding to it is exact
    int unread = n_blocks;
    const auto is_there = [&] { return unread > 0 && mbarrier_test(own_full + weight.stage * 8, weight.parity); };
    const auto read = [&](bool there) {
      if (unread == 0) return;
      unread--;
      if (!there) mbarrier_wait(own_full + weight.stage * 8, weight.parity);
      block.load(weights_at + weight.stage * kSlabBytes, escapes_at + weight.stage * kSlabBytes, own);
      weight.next();
    };
    read(false);
    block.expand_all(own, a[0]);
    read(false);
    int left = n_blocks, left_of_segment = segment_blocks;
    bool add = false, inputs_there = false;
    const auto multiply = [&](const uint32_t (&now)[4][4], uint32_t (&next)[4][4]) {
      if (!inputs_there) mbarrier_wait(inputs_full + input.stage * 8, input.parity);
      const uint64_t b = b_first + input.stage * (S::input_bytes / 16);
      wgmma_fence();
      wgmma<tokens>(last, now[0], b, add);
      wgmma<tokens>(last, now[1], b + 2, 1);
      wgmma<tokens>(last, now[2], b + 4, 1);
      wgmma<tokens>(last, now[3], b + 6, 1);
      wgmma_commit();
      // Not sooner: that the loads have been issued does not mean that they are over, and the copy engine does not wait
      // for them. Products do.
      __syncwarp();  // all lanes' loads
      if (lane == 0) mbarrier_arrive(own_empty + weight_stage * 8);
      if (++weight_stage == S::n_weights) weight_stage = 0;
      const bool there = is_there();
      block.expand_all(own, next);
      read(there);
      const int stage = input.stage;
      input.next();
      inputs_there = mbarrier_test(inputs_full + input.stage * 8, input.parity);
      wgmma_wait<0>();
      wgmma_operands(now);
      if (lane == 0) {
        mbarrier_arrive(inputs_empty + stage * 8);
        mbarrier_arrive_at(other_inputs_empty + stage * 8);
      }
      add = --left_of_segment > 0;
      left--;
      if (!add) {
        wgmma_results(last);
#pragma unroll
        for (int i = 0; i < S::held; i++) held[i] = __fadd_rn(held[i], last[i]);
        const bool first = left == n_blocks - segment_blocks;
#pragma unroll
        for (int i = S::held; i < kSums; i += 4) {
          const uint32_t at = kept_at + (i - S::held) * 128;
          if (!first) {
            const float4 v = shared_load_float4(at);
            last[i] = __fadd_rn(v.x, last[i]);
            last[i + 1] = __fadd_rn(v.y, last[i + 1]);
            last[i + 2] = __fadd_rn(v.z, last[i + 2]);
            last[i + 3] = __fadd_rn(v.w, last[i + 3]);
          }
          if (left > 0) shared_store_float4(at, make_float4(last[i], last[i + 1], last[i + 2], last[i + 3]));
        }
        left_of_segment = segment_blocks;
      }
      return left > 0;
    };
    while (multiply(a[0], a[1]) && multiply(a[1], a[0])) {
    }
#pragma unroll
    for (int i = 0; i < S::held; i++) last[i] = held[i];
    finish_slab<16>(call, last, slab_of(tile, group) * kSlabTiles + warp % 4, lane);
    own = after;
  }
  cluster_sync();  // nobody sends to a CTA that has ended
#endif
}

template <int tokens>
void run(const LinearCall& call, const Context& ctx) {
  using S = Shape<tokens>;
  configure<linear_coded_wide_kernel<tokens>>(S::shared_bytes);
  const int n_tiles = (slab_count(call.row_tiles) + kTile - 1) / kTile;
  const int ctas = std::min(n_tiles, ctx.sm_count / kCluster) * kCluster;
  const Grid grid{dim3(static_cast<unsigned>(ctas)), dim3(kThreads), static_cast<size_t>(S::shared_bytes), kCluster};
  launch("a product of many rows with coded weights", linear_coded_wide_kernel<tokens>, grid, ctx,
         rows_map(call.x, call.n_rows, call.n_in, tokens / kCluster), call, n_tiles);
}

}  // namespace

bool linear_coded_wide_serves(const LinearCall& call, const Context& ctx) {
  return call.coded != nullptr && call.n_rows <= kMaxCodedWideRows && call.col_blocks % kSegments == 0 &&
         is_wide(call, ctx);
}

void linear_coded_wide(const LinearCall& call, const Context& ctx) {
  if (!linear_coded_wide_serves(call, ctx)) {
    throw Error(Status::kInternal, "linear_coded_wide got " + std::to_string(call.n_rows) + " rows and " +
                                       std::to_string(call.row_tiles) +
                                       " row tiles; ask linear_coded_wide_serves first");
  }
  call.n_rows <= 96 ? run<96>(call, ctx) : run<128>(call, ctx);
}

}  // namespace qwen3::cuda

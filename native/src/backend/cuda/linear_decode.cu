// Matrix product of 1 to 64 rows, bound by reading the weights once.
//
// A CTA owns one row tile (16 weight rows, 16 outputs) and all input rows; its 4 warps each take one of the 4 segments
// of K, sum it with mma.sync (weights as the 16-row operand A, inputs as B in groups of 8 rows) and meet in shared
// memory, where the segments are added in order. Each warp streams its own contiguous piece of the weight through a
// ring of slots: [weight block, packed or coded][inputs of the same 64 columns, groups x 1 KB, 128-byte swizzle].
//
// Coded weights (kernels.h) are expanded in registers, a block's beside the products of the block before.
//
// Copies are cp.async, 16 bytes a lane; the weights of the whole ring are fetched before griddep_wait(), by the CTAs
// that run at once only `early` blocks at a time per warp: all of them together would queue up for microseconds in
// front of what the kernel before still reads, and of this one's inputs. Shared memory stays below 99 KB, the limit of
// 86, 89 and 120.
//
// 0.6B's products of up to 8 rows are over so soon that the loop's own instructions, met for the first time in each
// launch, are what takes time: for its lengths of K all of it is one straight line, 300 of 1,000 ns shorter.
//
// Measured on an H200 (bench/results/2026-11-29-h200-linear-2.txt), share of 4.57 TB/s: 8B at 1 to 8 rows qkv 87 to
// 89%, o 84 to 87%, gate_up 94%, down 88 to 90%, lm_head 98 to 99%; 0.6B qkv 71 to 73%, o 30%, gate_up 70%, down 36%,
// lm_head 89 to 94%, there bound by latency. A form with bulk copies and tensor-map inputs was up to 1.3 times slower
// on 8B (LOG.md).
//
// Row n of the output tile and token t: accumulators c0 (n = g, t = 2q), c1 (g, 2q + 1), c2 (g + 8, 2q), c3; g and q
// as in ptx.cuh. Rows past the end of x are zeros, never stored.
#include <string>
#include <utility>

#include "backend/cuda/coded_weight.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/linear_epilogue.cuh"
#include "backend/cuda/linear_kernels.h"
#include "backend/cuda/ptx.cuh"
#include "base/error.h"

namespace qwen3::cuda {
namespace {

constexpr int kThreads = 32 * kSegments;  // 8 tokens of a tile, an output each
static_assert(kThreads == 8 * kPackRows);
constexpr int kSumStride = 20;  // floats between tokens of a partial sum [token][16 rows]: no bank conflicts

// Of a block in a slot.
__host__ __device__ constexpr int block_bytes(bool coded) {
  return coded ? kCodedTileBytes + kEscapeBytes : kPackBlockBytes;
}
// Where a slot's inputs begin: aligned for their swizzle.
__host__ __device__ constexpr int inputs_at(bool coded) {
  return (block_bytes(coded) + 127) / 128 * 128;
}
__host__ __device__ constexpr int slot_bytes(bool coded, int groups) {
  return inputs_at(coded) + groups * 1024;
}
constexpr size_t shared_bytes(bool coded, int groups, int ring) {
  return static_cast<size_t>(kSegments) * ring * slot_bytes(coded, groups) + 1024;  // 1,024: to align the base
}

// A block's weights as mma.sync takes them: 4 steps of 16 columns.
struct PackedBlock {
  uint32_t a[4][4];
};

// The same block of columns of the inputs.
template <int groups>
struct Inputs {
  uint32_t b[2][groups][4];  // two steps each

  // rows: this lane's (below).
  __device__ __forceinline__ void load_half(int half, uint32_t rows) {
#pragma unroll
    for (int j = 0; j < groups; j++) ldmatrix_x4(b[half][j], (rows ^ half * 64) + j * 1024);
  }
  template <int step>
  __device__ __forceinline__ void multiply(const uint32_t (&a)[4], float (&acc)[groups][4]) const {
#pragma unroll
    for (int j = 0; j < groups; j++) {
      const uint32_t (&in)[4] = b[step / 2][j];
      mma_bf16(acc[j], a, in[step % 2 * 2], in[step % 2 * 2 + 1]);
    }
  }
};

// Reads a block and its inputs from shared memory. All is asked for at once, so that its latency shows once.
template <int groups>
__device__ __forceinline__ void load(PackedBlock& block, uint32_t weights, Inputs<groups>& to, uint32_t inputs,
                                     const CodedLane&) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    ldmatrix_x4(block.a[2 * half], weights + half * 512);
    to.load_half(half, inputs);
    ldmatrix_x4(block.a[2 * half + 1], weights + half * 512 + 256);
  }
}
template <int groups>
__device__ __forceinline__ void load(CodedBlock& block, uint32_t weights, Inputs<groups>& to, uint32_t inputs,
                                     const CodedLane& own) {
  block.load(weights, weights + kCodedTileBytes, own);
  to.load_half(0, inputs);
  to.load_half(1, inputs);
}

// Where a lane's rows of packed weights begin. Matrices of a ldmatrix: (rows 0-7, k 0-7), (8-15, 0-7), (0-7, 8-15),
// (8-15, 8-15).
__device__ __forceinline__ uint32_t weight_rows(int lane) {
  return lane / 8 % 2 * 1024 + lane / 16 * 128 + lane % 8 * 16;
}
// Matrices of a ldmatrix of inputs: chunks 4 half .. 4 half + 3 of 8 columns, which the swizzle has 64 bytes apart.
__device__ __forceinline__ uint32_t input_rows(int lane) {
  return lane % 8 * 128 + ((lane / 8 ^ lane % 8) << 4);
}

// first_wave: CTAs that run at once, and so wait for the kernel before. blocks: of a segment, if it is known: the loop
// becomes a straight line. 0: any number.
template <bool coded, int groups, int ring, int early, int blocks>
__global__ void __launch_bounds__(kThreads)
    linear_decode_kernel(const __grid_constant__ LinearCall call, int first_wave) {
  extern __shared__ uint8_t raw_shared[];
  constexpr int kSlot = slot_bytes(coded, groups), kBlock = block_bytes(coded), kInputsAt = inputs_at(coded);
  const int warp = threadIdx.x / 32, lane = coded ? lane_id() : static_cast<int>(threadIdx.x % 32);
  const int begin = warp * call.col_blocks / kSegments, end = (warp + 1) * call.col_blocks / kSegments;
  const int n = blocks > 0 ? blocks : end - begin;
  const uint32_t base = (shared_address(raw_shared) + 1023) & ~1023u;
  const uint32_t slots = base + warp * ring * kSlot;
  const int n_rows = call.n_rows, n_in = call.n_in;
  float acc[groups][4] = {};

  // This lane's part of a block's weights: 16 of every 512 bytes; of its inputs: a chunk of 8 columns of row lane / 8
  // and of every fourth row from there. Both walk from block to block, so that little arithmetic stands between a wait
  // and the products.
  const int tile = static_cast<int>(blockIdx.x), slab_tile = tile % kSlabTiles;
  const uint8_t* weight =
      coded ? call.coded + (static_cast<int64_t>(tile / kSlabTiles) * call.col_blocks + begin) * kSlabBytes +
                  slab_tile * kCodedTileBytes + lane * 16
            : reinterpret_cast<const uint8_t*>(call.weight) +
                  (static_cast<int64_t>(blockIdx.x) * call.col_blocks + begin) * kPackBlockBytes + lane * 16;
  const int escapes_from = kEscapesAt + slab_tile * (kEscapeBytes - kCodedTileBytes);  // from `weight`
  auto fill_weight = [&](uint32_t to) {
#pragma unroll
    for (int c = 0; c < kBlock / 512; c++) cp_async_16(to + c * 512, weight + c * 512, 16);
    if constexpr (coded) {
      if (lane < kEscapeBytes / 16) cp_async_16(to + kCodedTileBytes, weight + escapes_from, 16);
    }
    weight += coded ? kSlabBytes : kPackBlockBytes;
  };
  const int x_col = begin * kPackCols + lane % 8 * 8;
  const uint16_t* x = call.x + static_cast<int64_t>(lane / 8) * n_in + x_col;
  int x_left = n_in - x_col;
  const int rows_from_lane = n_rows - lane / 8;
  auto fill_input = [&](uint32_t to) {
#pragma unroll
    for (int c = 0; c < 2 * groups; c++) {
      cp_async_16((c % 2 == 0 ? to : (to ^ 64) + 512) + c / 2 * 1024, x + static_cast<int64_t>(c * 4) * n_in,
                  x_left > 0 && c * 4 < rows_from_lane ? 16 : 0);
    }
    x += kPackCols;
    x_left -= kPackCols;
  };
  uint32_t weight_to = slots + lane * 16;
  uint32_t input_to = slots + kInputsAt + lane / 8 * 128 + ((lane % 8 ^ lane / 8) << 4);
  const CodedLane coded_lane = coded ? CodedLane(call.coded_bases + blockIdx.x * kPackRows, lane) : CodedLane();
  griddep_launch();
#pragma unroll
  for (int i = 0; i < ring; i++) {
    if (i < n) fill_weight(weight_to + i * kSlot);
    if (static_cast<int>(blockIdx.x) < first_wave) {
      cp_async_commit();
      cp_async_wait<early - 1>();
    }
  }
  griddep_wait();
#pragma unroll
  for (int i = 0; i < ring; i++) {
    if (i < n) fill_input(input_to + i * kSlot);
    if (blocks == 0) cp_async_commit();
  }
  if (blocks > 0) cp_async_commit();
  // What the residual add adds to: asked for here, it is there when the sums are; a load behind them would be waited
  // for. Output i of a thread is element threadIdx.x + i * kThreads of the tile [token][16].
  auto place_of = [&](int i, int& token, int& out) {
    const int element = threadIdx.x + i * kThreads;
    token = element / 16;
    out = blockIdx.x * 16 + element % 16;
    return token < n_rows && out < call.n_out;
  };
  float old[groups];
#pragma unroll
  for (int i = 0; i < groups; i++) {
    int token, out;
    old[i] = 0.0f;
    if (call.mode == LinearMode::kAccumulate && place_of(i, token, out)) {
      old[i] = call.out[static_cast<int64_t>(token) * call.n_out + out];
    }
  }
  uint32_t weight_at = slots + (coded ? 0 : weight_rows(lane)), input_at = slots + kInputsAt + input_rows(lane);
  int slot = 0;
  // Reads block i from shared memory; all is asked for at once, so that its latency shows once. Then its slot is free.
  auto take = [&](int i, auto& block, Inputs<groups>& to) {
    cp_async_wait<ring - 1>();
    __syncwarp();
    load(block, weight_at, to, input_at, coded_lane);
    __syncwarp();
    if (i + ring < n) {
      fill_weight(weight_to);
      fill_input(input_to);
    }
    cp_async_commit();
    const bool last = ++slot == ring;
    const uint32_t step = last ? static_cast<uint32_t>((1 - ring) * kSlot) : kSlot;  // to the next slot
    if (last) slot = 0;
    weight_at += step;
    input_at += step;
    weight_to += step;
    input_to += step;
  };
  // Two blocks at hand: what the next one needs before its products happens beside this one's, a chain that waits for
  // nothing but itself.
  Inputs<groups> inputs[2];
  if constexpr (coded) {
    CodedBlock block;
    uint32_t a[2][4][4];
    if (n > 0) {
      take(0, block, inputs[0]);
      block.expand_all(coded_lane, a[0]);
    }
    if (n > 1) take(1, block, inputs[1]);
    for (int i = 0; i < n; i += 2) {
#pragma unroll
      for (int odd = 0; odd < 2; odd++) {
        if (i + odd >= n) continue;
        const uint32_t escapes = block.escapes();  // in the last turn of a block long gone, for nothing
        inputs[odd].template multiply<0>(a[odd][0], acc);
        block.expand<0>(coded_lane, a[1 - odd][0]);
        inputs[odd].template multiply<1>(a[odd][1], acc);
        block.expand<1>(coded_lane, a[1 - odd][1]);
        inputs[odd].template multiply<2>(a[odd][2], acc);
        block.expand<2>(coded_lane, a[1 - odd][2]);
        inputs[odd].template multiply<3>(a[odd][3], acc);
        block.expand<3>(coded_lane, a[1 - odd][3]);
        block.put_escapes(escapes, coded_lane, a[1 - odd]);
        if (i + odd + 2 < n) take(i + odd + 2, block, inputs[odd]);
      }
    }
  } else if constexpr (blocks > 0) {
    static_assert(ring <= blocks && blocks <= 2 * ring);
    PackedBlock weights[2];
    const auto take_known = [&]<int i>() {
      if constexpr (i == 0) cp_async_wait<0>();
      if constexpr (i >= ring) cp_async_wait<blocks - 1 - i>();
      if constexpr (i == 0 || i >= ring) __syncwarp();
      constexpr uint32_t kAt = i % ring * kSlot;
      load(weights[i % 2], weight_at + kAt, inputs[i % 2], input_at + kAt, coded_lane);
      if constexpr (i + ring < blocks) {
        __syncwarp();
        fill_weight(weight_to + kAt);
        fill_input(input_to + kAt);
        cp_async_commit();
      }
    };
    const auto step_known = [&]<int i>() {
      if constexpr (i + 1 < blocks) take_known.template operator()<i + 1>();
      inputs[i % 2].template multiply<0>(weights[i % 2].a[0], acc);
      inputs[i % 2].template multiply<1>(weights[i % 2].a[1], acc);
      inputs[i % 2].template multiply<2>(weights[i % 2].a[2], acc);
      inputs[i % 2].template multiply<3>(weights[i % 2].a[3], acc);
    };
    take_known.template operator()<0>();
    [&]<int... i>(std::integer_sequence<int, i...>) {
      (step_known.template operator()<i>(), ...);
    }(std::make_integer_sequence<int, blocks>());
  } else {
    PackedBlock weights[2];
    if (n > 0) take(0, weights[0], inputs[0]);
    for (int i = 0; i < n; i += 2) {
#pragma unroll
      for (int odd = 0; odd < 2; odd++) {
        if (i + odd + 1 < n) take(i + odd + 1, weights[1 - odd], inputs[1 - odd]);
        if (i + odd >= n) continue;
        inputs[odd].template multiply<0>(weights[odd].a[0], acc);
        inputs[odd].template multiply<1>(weights[odd].a[1], acc);
        inputs[odd].template multiply<2>(weights[odd].a[2], acc);
        inputs[odd].template multiply<3>(weights[odd].a[3], acc);
      }
    }
  }
  cp_async_wait<0>();
  __syncwarp();

  // Partial sums, each warp's into its own first slot (its copies are all done).
  const uint32_t shift = base - shared_address(raw_shared);
  float* sums = reinterpret_cast<float*>(raw_shared + shift);  // warp w: + w * ring * kSlot / 4
  const int warp_stride = ring * kSlot / 4;
  float* own = sums + warp * warp_stride;
  const int g = lane / 4, q = lane % 4;
#pragma unroll
  for (int j = 0; j < groups; j++) {
    float* at = own + (j * 8 + q * 2) * kSumStride + g;
    at[0] = acc[j][0];
    at[kSumStride] = acc[j][1];
    at[8] = acc[j][2];
    at[kSumStride + 8] = acc[j][3];
  }
  __syncthreads();
  auto total = [&](int token, int row) {
    const float* at = sums + token * kSumStride + row;
    return sum_segments(at[0], at[warp_stride], at[2 * warp_stride], at[3 * warp_stride]);
  };
  if (call.mode == LinearMode::kGateUp) {
    for (int i = threadIdx.x; i < groups * 8 * 8; i += kThreads) {
      const int row = i % 8, token = i / 8;
      const int out = blockIdx.x * 8 + row;
      if (token < call.n_rows && out < call.n_out) {
        call.gated[static_cast<int64_t>(token) * call.n_out + out] =
            to_bf16(silu_times(total(token, row), total(token, row + 8)));
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < groups; i++) {
      int token, out;
      if (!place_of(i, token, out)) continue;
      const float y = total(token, out % 16);
      call.out[static_cast<int64_t>(token) * call.n_out + out] =
          call.mode == LinearMode::kAccumulate ? __fadd_rn(old[i], y) : y;
    }
  }
}

template <bool coded, int groups, int ring, int early, int blocks = 0>
void run(const LinearCall& call, const Context& ctx) {
  constexpr size_t kBytes = shared_bytes(coded, groups, ring);
  static_assert(kBytes <= 99 * 1024);
  configure<linear_decode_kernel<coded, groups, ring, early, blocks>>(kBytes);
  // 228 KB of shared memory per SM, of which the system takes 1 KB per CTA. Without dependent launch nothing to wait
  // for.
  constexpr int kPerSm = static_cast<int>(228 * 1024 / (kBytes + 1024));
  const int first_wave = ctx.pdl ? kPerSm * ctx.sm_count : 0;
  const Grid grid{dim3(static_cast<unsigned>(call.row_tiles)), dim3(kThreads), kBytes};
  launch("a small matrix product", linear_decode_kernel<coded, groups, ring, early, blocks>, grid, ctx, call,
         first_wave);
}

template <bool coded>
void run_form(const LinearCall& call, const Context& ctx, int ring) {
  if (call.n_rows <= 8) {
    if (ring == 8) return run<coded, 1, 8, 2>(call, ctx);
    if (ring == 6) return run<coded, 1, 6, 1>(call, ctx);
    return run<coded, 1, 4, 1>(call, ctx);
  }
  if (call.n_rows <= 16) {
    if (ring == 8) return run<coded, 2, 6, 2>(call, ctx);
    return run<coded, 2, 4, 1>(call, ctx);
  }
  if (call.n_rows <= 32) return run<coded, 4, 3, 1>(call, ctx);
  run<coded, 8, 2, 1>(call, ctx);
}

// False: there is no straight line for this K with this ring.
bool run_known(const LinearCall& call, const Context& ctx, int ring) {
  const auto is = [&](int ring_of, int blocks) { return ring == ring_of && call.col_blocks == kSegments * blocks; };
  if (is(4, 4)) {
    run<false, 1, 4, 1, 4>(call, ctx);
  } else if (is(8, 8)) {
    run<false, 1, 8, 2, 8>(call, ctx);
  } else if (is(8, 12)) {
    run<false, 1, 8, 2, 12>(call, ctx);
  } else {
    return false;
  }
  return true;
}

}  // namespace

void linear_decode(const LinearCall& call, const Context& ctx, int ring) {
  if (call.n_rows > kMaxDecodeRows) {
    throw Error(Status::kInternal, "linear_decode got " + std::to_string(call.n_rows) + " rows; its limit is 64");
  }
  // With few CTAs per SM each needs more in flight; a ring longer than a warp's piece is of no use.
  const int longest = (call.col_blocks + kSegments - 1) / kSegments;
  if (ring == 0) {
    ring = longest <= 4 || (call.coded != nullptr && call.row_tiles > 4 * ctx.sm_count) ? 4
           : call.row_tiles <= 2 * ctx.sm_count                                         ? 8
                                                                                        : 6;
    if (call.coded == nullptr && call.n_rows <= 8 && run_known(call, ctx, ring)) return;
  }
  call.coded != nullptr ? run_form<true>(call, ctx, ring) : run_form<false>(call, ctx, ring);
}

}  // namespace qwen3::cuda

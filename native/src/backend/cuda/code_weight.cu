// Packed weights -> the coded form of kernels.h, once at load.
//
// A CTA has one row tile. It counts the exponents of each row, takes as base the start of the window that holds most of
// them, and then its warps code a block each, at a time. Padding counts as no weight and becomes whatever its row's
// base makes of code 0: inputs are 0 there. Not time critical: reads the weights twice and writes them once.
#include "backend/cuda/coded_weight.cuh"
#include "backend/cuda/launch.h"

namespace qwen3::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kExponents = 256, kWindow = 16;
constexpr int kWindows = (kExponents - kWindow) / 2 + 1;  // each begins at an even exponent
static_assert(kThreads >= kWindows);

// The pair a[i / 4][i % 4] of a lane in a packed block, as an index of words.
__device__ __forceinline__ int word_of(int i, int lane) {
  return i % 2 * 256 + (i / 4 * 2 + i % 4 / 2) * 32 + lane;
}
__device__ __forceinline__ int column_of(int i, int lane) {
  return i / 4 * 16 + i % 4 / 2 * 8 + lane % 4 * 2;
}

__global__ void __launch_bounds__(kThreads) code_kernel(CodeArgs args) {
  griddep_wait();
  __shared__ int counts[kPackRows][kExponents];
  __shared__ int best[kPackRows];  // weights in the window * kWindows + its number
  __shared__ uint32_t escapes[kWarps][kCodedEscapes];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = blockIdx.x;
  for (int i = threadIdx.x; i < kPackRows * kExponents; i += kThreads) counts[i / kExponents][i % kExponents] = 0;
  if (threadIdx.x < kPackRows) best[threadIdx.x] = 0;
  __syncthreads();

  const uint32_t* packed = reinterpret_cast<const uint32_t*>(args.packed) +
                           static_cast<int64_t>(tile) * args.col_blocks * (kPackBlockBytes / 4);
  const auto is_weight = [&](int block, int i, int half) {
    return block * kPackCols + column_of(i, lane) + half < args.n_in;
  };
  const auto row_of = [&](int i) { return lane / 4 + i % 2 * 8; };
  for (int block = warp; block < args.col_blocks; block += kWarps) {
    for (int i = 0; i < 16; i++) {
      const uint32_t pair = packed[block * (kPackBlockBytes / 4) + word_of(i, lane)];
      for (int half = 0; half < 2; half++) {
        if (is_weight(block, i, half)) atomicAdd(&counts[row_of(i)][pair >> (half * 16 + 7) & 255], 1);
      }
    }
  }
  __syncthreads();
  for (int row = 0; row < kPackRows; row++) {
    if (threadIdx.x >= kWindows) break;
    int within = 0;
    for (int i = 0; i < kWindow; i++) within += counts[row][2 * threadIdx.x + i];
    atomicMax(&best[row], within * kWindows + static_cast<int>(threadIdx.x));
  }
  __syncthreads();
  if (threadIdx.x < kPackRows)
    args.bases[tile * kPackRows + threadIdx.x] = static_cast<uint8_t>(best[threadIdx.x] % kWindows);

  const uint32_t below = (1u << lane) - 1;
  for (int block = warp; block < args.col_blocks; block += kWarps) {
    if (lane < kCodedEscapes) escapes[warp][lane] = kNoEscape;
    __syncwarp();
    uint32_t values[8] = {}, codes[4] = {};
    int n_escapes = 0;
    for (int i = 0; i < 16; i++) {
      const uint32_t pair = packed[block * (kPackBlockBytes / 4) + word_of(i, lane)];
      const int first = best[row_of(i)] % kWindows * 2, step = i / 4, in_g8 = i % 2;
      for (int half = 0; half < 2; half++) {
        const uint32_t bits = pair >> (half * 16) & 0xFFFF;
        const int j = i % 4 / 2 * 2 + half;  // of the row's weights in this step
        const int exponent = static_cast<int>(bits >> 7 & 255) - first;
        const bool inside = exponent >= 0 && exponent < kWindow, weight = is_weight(block, i, half);
        if (inside && weight) {
          const int low_at = j / 2 + j % 2 * 2, code_at = 1 - j / 2 + j % 2 * 2;  // coded_weight.cuh
          values[step * 2 + in_g8] |= (bits & 255) << (low_at * 8);
          codes[step] |= static_cast<uint32_t>(exponent / 2) << ((in_g8 * 4 + code_at) * 4);
          codes[step] |= (bits >> 15) << (code_at * 8 + (in_g8 == 0 ? 7 : 3));
        }
        const uint32_t all = __ballot_sync(0xffffffffu, !inside && weight);
        const int place = n_escapes + __popc(all & below);
        if (!inside && weight && place < kCodedEscapes) {
          escapes[warp][place] = bits | static_cast<uint32_t>(half) << 16 | static_cast<uint32_t>(i) << 17 |
                                 static_cast<uint32_t>(lane) << 21;
        }
        n_escapes += __popc(all);
      }
    }
    __syncwarp();
    uint8_t* slab = args.blocks + (static_cast<int64_t>(tile / kSlabTiles) * args.col_blocks + block) * kSlabBytes;
    uint4* lanes = reinterpret_cast<uint4*>(slab + tile % kSlabTiles * kCodedTileBytes);
    lanes[lane] = make_uint4(values[0], values[1], values[2], values[3]);
    lanes[32 + lane] = make_uint4(values[4], values[5], values[6], values[7]);
    lanes[64 + lane] = make_uint4(codes[0], codes[1], codes[2], codes[3]);
    uint32_t* place = reinterpret_cast<uint32_t*>(slab + kEscapesAt + tile % kSlabTiles * kEscapeBytes);
    if (lane < kCodedEscapes) place[lane] = escapes[warp][lane];
    if (lane == 0 && n_escapes > kCodedEscapes) atomicAdd(args.overflows, 1);
    __syncwarp();
  }
}

}  // namespace

void code_weight(const CodeArgs& args, const Context& ctx) {
  Grid grid{dim3(static_cast<unsigned>(args.row_tiles)), dim3(kThreads)};
  launch("coding a weight", code_kernel, grid, ctx, args);
}

}  // namespace qwen3::cuda

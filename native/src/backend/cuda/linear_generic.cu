// Matrix product of any number of rows on sm_80 and newer.
//
// A CTA of 8 warps owns 128 input rows x 128 outputs; a ring of 3 stages of 64 columns is filled by cp.async (inputs
// with a 128-byte swizzle, weights as packed) and read by ldmatrix; warps in 2 x 4, each 64 rows x 32 outputs of
// mma.sync with inputs as A. Two sets of 64 accumulators: the current segment of K and the sum of the finished ones
// (which starts at -0, to which adding is exact). 96 KB of shared memory: the limit of 86, 89 and 120 is 99.
// Grid: x over row tiles, y over output tiles, so that neighbours in time share weights.
#include "backend/cuda/launch.h"
#include "backend/cuda/linear_epilogue.cuh"
#include "backend/cuda/linear_kernels.h"
#include "backend/cuda/ptx.cuh"

namespace qwen3::cuda {
namespace {

constexpr int kTile = 128;
constexpr int kThreads = 256;
constexpr int kStages = 3;
constexpr int kInput = kTile * 128;
constexpr int kStage = kInput + kTile * 128;
constexpr int kShared = kStages * kStage;
static_assert(kShared <= 99 * 1024);

__global__ void __launch_bounds__(kThreads, 1) linear_generic_kernel(const __grid_constant__ LinearCall call) {
  extern __shared__ __align__(128) uint8_t raw_shared[];
  const uint32_t base = shared_address(raw_shared);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int first_row = blockIdx.x * kTile, first_tile = blockIdx.y * (kTile / kPackRows);
  const int n_blocks = call.col_blocks;
  const uint8_t* weight = reinterpret_cast<const uint8_t*>(call.weight);
  const uint16_t* x = call.x;

  auto fill = [&](int block) {
    if (block < n_blocks) {
      const uint32_t stage = base + block % kStages * kStage;
      const int col = block * kPackCols + thread % 8 * 8;
#pragma unroll
      for (int i = 0; i < 4; i++) {  // 128 rows x 8 chunks
        const int row = i * 32 + thread / 8;
        const bool inside = first_row + row < call.n_rows && col < call.n_in;
        cp_async_16(stage + row * 128 + ((thread % 8 ^ row % 8) << 4),
                    inside ? x + static_cast<int64_t>(first_row + row) * call.n_in + col : x, inside ? 16 : 0);
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {  // 8 blocks x 128 chunks
        const int tile = i * 2 + thread / 128, chunk = thread % 128;
        const bool inside = first_tile + tile < call.row_tiles;
        const uint8_t* from = weight + (static_cast<int64_t>(first_tile + tile) * n_blocks + block) * kPackBlockBytes;
        cp_async_16(stage + kInput + tile * kPackBlockBytes + chunk * 16, inside ? from + chunk * 16 : weight,
                    inside ? 16 : 0);
      }
    }
    cp_async_commit();
  };

  float acc[4][4][4], sum[4][4][4];
#pragma unroll
  for (int i = 0; i < 64; i++) {
    (&acc[0][0][0])[i] = 0.0f;
    (&sum[0][0][0])[i] = -0.0f;
  }
  const int warp_row = warp / 4 * 64, warp_tile = warp % 4 * 2;  // 32 outputs: 2 row tiles of the weight
  griddep_launch();
  griddep_wait();
  fill(0);
  fill(1);
  int segment = 0;
  int segment_end = n_blocks / kSegments;
  auto finish_segments = [&](int block) {  // adds segments that end at `block`, empty ones too
    while (segment < kSegments && segment_end == block) {
#pragma unroll
      for (int i = 0; i < 64; i++) {
        float& a = (&acc[0][0][0])[i];
        float& s = (&sum[0][0][0])[i];
        s = __fadd_rn(s, a);
        a = 0.0f;
      }
      segment++;
      segment_end = (segment + 1) * n_blocks / kSegments;
    }
  };
  finish_segments(0);
  for (int block = 0; block < n_blocks; block++) {
    cp_async_wait<1>();
    __syncthreads();
    fill(block + 2);  // into the stage read in the last round, which everybody has left
    const uint32_t stage = base + block % kStages * kStage;
#pragma unroll
    for (int step = 0; step < 4; step++) {
      uint32_t a[4][4], b[2][4];
#pragma unroll
      for (int m = 0; m < 4; m++) {  // rows lane % 16, chunk 2 step + lane / 16
        const int row = warp_row + m * 16 + lane % 16;
        ldmatrix_x4(a[m], stage + row * 128 + (((step * 2 + lane / 16) ^ (row % 8)) << 4));
      }
#pragma unroll
      for (int p = 0; p < 2; p++) {  // (rows 0-7, k 0-7), (0-7, 8-15), (8-15, 0-7), (8-15, 8-15)
        ldmatrix_x4(b[p], stage + kInput + (warp_tile + p) * kPackBlockBytes + lane / 16 * 1024 + step * 256 +
                              lane / 8 % 2 * 128 + lane % 8 * 16);
      }
#pragma unroll
      for (int m = 0; m < 4; m++) {
#pragma unroll
        for (int j = 0; j < 4; j++) mma_bf16(acc[m][j], a[m], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
      }
    }
    finish_segments(block + 1);
  }

  const int n_out = call.n_out, q = lane % 4;
#pragma unroll
  for (int m = 0; m < 4; m++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int row = first_row + warp_row + m * 16 + h * 8 + lane / 4;
      if (row >= call.n_rows) continue;
      if (call.mode == LinearMode::kGateUp) {
        uint16_t* to = call.gated + static_cast<int64_t>(row) * n_out;
#pragma unroll
        for (int p = 0; p < 2; p++) {
          const int out = (first_tile + warp_tile + p) * 8 + q * 2;
#pragma unroll
          for (int e = 0; e < 2; e++) {
            if (out + e < n_out)
              to[out + e] = to_bf16(silu_times(sum[m][p * 2][h * 2 + e], sum[m][p * 2 + 1][h * 2 + e]));
          }
        }
      } else {
        float* to = call.out + static_cast<int64_t>(row) * n_out;
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const int out = (first_tile + warp_tile) * kPackRows + j * 8 + q * 2;
#pragma unroll
          for (int e = 0; e < 2; e++) {
            const float y = sum[m][j][h * 2 + e];
            if (out + e < n_out) to[out + e] = call.mode == LinearMode::kAccumulate ? __fadd_rn(to[out + e], y) : y;
          }
        }
      }
    }
  }
}

}  // namespace

void linear_generic(const LinearCall& call, const Context& ctx) {
  configure<linear_generic_kernel>(kShared);
  const Grid grid{dim3(static_cast<unsigned>((call.n_rows + kTile - 1) / kTile),
                       static_cast<unsigned>((call.row_tiles * kPackRows + kTile - 1) / kTile)),
                  dim3(kThreads), kShared};
  launch("a matrix product", linear_generic_kernel, grid, ctx, call);
}

}  // namespace qwen3::cuda

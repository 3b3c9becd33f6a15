// Large matrix products on Hopper: the main loop of linear_hopper.cuh with outputs that are stored, added or gated.
//
// Measured on an H200 (bench/results/2026-11-29-h200-prefill.txt): 8B at 512 to 8,192 rows 614 to 784 TFLOP/s in short
// bursts: of cuBLAS, which writes bf16 and adds nothing, qkv 96 to 99%, o 91 to 93%, gate_up and down 97 to 100%. What
// was tried and lost: LOG.md.
#include "backend/cuda/linear_epilogue.cuh"
#include "backend/cuda/linear_hopper.cuh"

namespace qwen3::cuda {
namespace {

using namespace hopper;

// out = y, out += y, or gated = silu(gate) * up: staged in shared memory, 64 outputs of a warp at a time, and sent by
// the copy engine, which also adds: nothing is loaded into the SM, and nobody waits for memory. Each output gets one
// addition per launch, so its bits are those of x + y. Boxes in the staging area: kStore, kAccumulate 16 rows x 32
// float32, 128-byte swizzle; kGateUp 16 x 32 bf16, 64-byte.
struct StoreEpilogue {
  CUtensorMap map;  // of the output
  LinearMode mode;
  int n_rows;
  int n_out;

#if QWEN3_SM90A
  __device__ __forceinline__ void begin() const { tensor_prefetch(&map); }

  // 16 rows x 32 outputs of a gated piece. row: of the warp. g, q: row and quad lane of the thread.
  __device__ __forceinline__ void stage_gated(const float (&y)[32], uint32_t to, int row, int g, int q) const {
#pragma unroll
    for (int h = 0; h < 2; h++) {               // rows g and g + 8
      if (row + g + h * 8 >= n_rows) continue;  // whatever it holds may take silu_times' long way
      float gate[8], up[8], out[8];
#pragma unroll
      for (int b = 0; b < 4; b++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
          gate[b * 2 + e] = y[b * 8 + h * 2 + e];
          up[b * 2 + e] = y[b * 8 + 4 + h * 2 + e];
        }
      }
      silu_times(gate, up, out);
#pragma unroll
      for (int b = 0; b < 4; b++) {
        shared_store(to + g * 64 + q * 4 + h * 512 + ((b ^ (g / 2)) << 4), pack_bf16(out[b * 2], out[b * 2 + 1]));
      }
    }
  }
  // 16 rows x 32 sums: `box` 0 or 1 of a piece.
  __device__ __forceinline__ void stage_sums(const float (&y)[32], int box, uint32_t to, int g, int q) const {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const uint32_t chunk = (j * 2 + q / 2) ^ g;
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int i = (box * 4 + j) * 4 + h * 2;
        shared_store_float2(to + g * 128 + h * 1024 + (chunk << 4) + q % 2 * 8, y[i], y[i + 1]);
      }
    }
  }

  template <int tile, Rows rows>
  __device__ __forceinline__ void finish(Sums<tile, rows>& sums, int row, int column, uint32_t staging,
                                         int lane) const {
    using S = Shape<tile, rows>;
    const int g = lane / 4, q = lane % 4;
#pragma unroll
    for (int turn = 0; turn < S::n_pieces; turn++) {
      float y[32];
      sums.take(turn, y);
      const int first = column + Sums<tile, rows>::piece(turn) * 64;
      if (mode == LinearMode::kGateUp) {
        const uint32_t to = staging + turn * 1024;
        stage_gated(y, to, row, g, q);
        fence_to_copy_engine();
        __syncwarp();
        if (lane == 0 && first / 2 < n_out) tensor_store_2d(&map, first / 2, row, to);
        if (lane == 0) bulk_commit();
        continue;
      }
#pragma unroll
      for (int box = 0; box < 2; box++) {
        const int n = turn * 2 + box, x = first + box * 32;
        const uint32_t to = staging + n % S::n_boxes * kBoxBytes;
        if (n >= S::n_boxes) {
          if (lane == 0) bulk_wait_read<S::n_boxes - 1>();
          __syncwarp();
        }
        stage_sums(y, box, to, g, q);
        fence_to_copy_engine();
        __syncwarp();
        if (lane == 0 && x < n_out) {
          if (mode == LinearMode::kAccumulate) {
            tensor_add_2d(&map, x, row, to);
          } else {
            tensor_store_2d(&map, x, row, to);
          }
        }
        if (lane == 0) bulk_commit();
      }
    }
  }
#endif
};

template <int tile>
void run(const LinearCall& call, const Context& ctx) {
  StoreEpilogue epilogue;
  epilogue.map = call.mode == LinearMode::kGateUp ? bf16_store_map(call.gated, call.n_rows, call.n_out, kWarpRows)
                                                  : float_store_map(call.out, call.n_rows, call.n_out, kWarpRows);
  epilogue.mode = call.mode;
  epilogue.n_rows = call.n_rows;
  epilogue.n_out = call.n_out;
  const char* const what = "a large matrix product";
  const Rows rows = rows_of(call.n_rows);
  if (rows == Rows::kFew) return run_hopper<tile, Rows::kFew>(what, call, epilogue, ctx);
  if (rows == Rows::kPair) return run_hopper<tile, Rows::kPair>(what, call, epilogue, ctx);
  run_hopper<tile, Rows::kMany>(what, call, epilogue, ctx);
}

}  // namespace

void linear_hopper(const LinearCall& call, const Context& ctx, int tile) {
  // The copy engine wants rows of outputs at multiples of 16 bytes; real models have them.
  if (call.n_out % (call.mode == LinearMode::kGateUp ? 8 : 4) != 0) return linear_generic(call, ctx);
  if (tile == 0) {
    tile = 128;
    for (const int wider : {192, 256}) {
      if (hopper_cost(call, ctx, wider) <= hopper_cost(call, ctx, tile)) tile = wider;
    }
  }
  // A tile of 256 has no empty segments.
  if (tile == 256 && call.col_blocks >= kSegments) return run<256>(call, ctx);
  if (tile >= 192) return run<192>(call, ctx);
  run<128>(call, ctx);
}

}  // namespace qwen3::cuda

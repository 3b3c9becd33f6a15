// Row-major weights -> the packed layout of kernels.h, once at load.
//
// One thread moves one chunk of 8 columns of one row (16 bytes). Grid: blocks of 256 threads over chunks x rows, a warp
// takes 32 chunks of one row, so reads are contiguous. Not time critical: copying over PCIe is slower.
#include "backend/cuda/launch.h"
#include "backend/cuda/ptx.cuh"

namespace qwen3::cuda {
namespace {

__global__ void pack_kernel(const uint16_t* rows, int n_rows, int first_row, int n_in, bool gate_up, int part_offset,
                            uint16_t* packed) {
  griddep_wait();
  const int n_chunks = (n_in + 7) / 8, col_blocks = (n_in + kPackCols - 1) / kPackCols;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= static_cast<int64_t>(n_chunks) * n_rows) return;
  const int row = static_cast<int>(index / n_chunks), chunk = static_cast<int>(index % n_chunks);
  const int part_row = first_row + row;
  const int to_row = gate_up ? part_row / 8 * 16 + part_offset * 8 + part_row % 8 : part_offset + part_row;
  const uint16_t* from = rows + static_cast<int64_t>(row) * n_in + chunk * 8;
  const int64_t block = static_cast<int64_t>(to_row / kPackRows) * col_blocks + chunk / 8;
  uint16_t* to = packed + block * (kPackRows * kPackCols) + to_row % 16 / 8 * 512 + chunk % 8 * 64 + to_row % 8 * 8;
  if (n_in % 8 == 0) {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
  } else {
    for (int i = 0; i < 8 && chunk * 8 + i < n_in; i++) to[i] = from[i];
  }
}

}  // namespace

void pack(const PackArgs& args, const Context& ctx) {
  if (args.n_rows == 0) return;
  const int64_t n = static_cast<int64_t>((args.n_in + 7) / 8) * args.n_rows;
  Grid grid{dim3(static_cast<unsigned>((n + 255) / 256)), dim3(256)};
  launch("packing a weight", pack_kernel, grid, ctx, args.rows, args.n_rows, args.first_row, args.n_in,
         args.layout == LinearLayout::kGateUp, args.part_offset, args.packed);
}

}  // namespace qwen3::cuda

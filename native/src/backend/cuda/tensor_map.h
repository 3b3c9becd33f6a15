// Descriptors for the copy engine (TMA), encoded on the host through the driver's own function, found at run time so
// that libcuda is not linked. About 0.2 us each.
#pragma once

#include <cuda.h>

#include "backend/cuda/kernels.h"

namespace qwen3::cuda {

// x [rows, cols] bf16 row-major -> boxes of 64 columns x box_rows, 128-byte swizzle, zeros outside. cols % 8 == 0.
CUtensorMap rows_map(const bf16* x, int rows, int cols, int box_rows);

// Packed weight -> boxes of 1 column block x box_tiles row tiles (box_tiles x 2 KB); coordinates (0, block, tile).
CUtensorMap weight_map(const bf16* packed, int row_tiles, int col_blocks, int box_tiles);

// Outputs [rows, cols], for stores of boxes of 32 columns x box_rows: float32 with 128-byte swizzle (cols % 4 == 0),
// bf16 with 64-byte swizzle (cols % 8 == 0).
CUtensorMap float_store_map(float* out, int rows, int cols, int box_rows);
CUtensorMap bf16_store_map(bf16* out, int rows, int cols, int box_rows);

}  // namespace qwen3::cuda

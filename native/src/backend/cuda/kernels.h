// The CUDA backend's kernels as host functions: one per op, the twins of the CPU backend's ops.
//
// Each function launches its kernels on ctx.stream and returns. None synchronises, allocates, or reads device memory,
// so any of them can be captured in a CUDA graph; grids follow from numbers that the host knows. All pointers inside
// the Args are device memory (SampleArgs excepted, see sample.h). Runs on the engine's worker thread.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "ops/ops.h"

namespace qwen3::cuda {

inline constexpr int kSegments = 4;  // of K, whose sums make an output of a product (linear_kernels.h)

struct Context {
  cudaStream_t stream;
  int sm_count;
  bool hopper;  // use the sm_90a kernels
  bool pdl;     // programmatic dependent launch (sm_90 and newer)
  // Where a product leaves the sums of its segments of K (linear_sums() in linear_kernels.h): [sums_bytes()].
  float* sums = nullptr;
};

// Throws Error(kDeviceError) saying which action failed and why.
void check(cudaError_t error, const char* what);

// last_tokens: tokens of the rows of the last sampled step, for ids below 0; may be nullptr if there are none.
void embed(const EmbedArgs& args, const int32_t* last_tokens, const Context& ctx);
void rope_angles(const RopeAnglesArgs& args, const Context& ctx);  // (cos, sin) pairs: [n_tokens, 64] float2
void rms_norm(const RmsNormArgs& args, const Context& ctx);
// The same after x += the product whose segments' sums are in ctx.sums: [kSegments, n_rows, hidden]. x is what args.x
// points to, all its rows.
void rms_norm_of_sums(const RmsNormArgs& args, float* x, const Context& ctx);
void linear(const LinearArgs& args, const Context& ctx);
void gate_up(const GateUpArgs& args, const Context& ctx);
void qk_norm_rope(const QkNormRopeArgs& args, const Context& ctx);

// ---- packed weights (pack.cu). Columns are padded with zeros to a multiple of 64, rows to a multiple of 16. The
// matrix is cut in blocks of 16 rows x 64 columns = 2,048 bytes, in the order [rows / 16][columns / 64]; inside a block
// [2 groups of 8 rows][8 chunks of 8 columns][8 rows][8 columns]. kConcat keeps the order of the rows; kGateUp puts
// 8 gate rows and the 8 up rows of the same outputs in one block.
inline constexpr int kPackRows = 16;
inline constexpr int kPackCols = 64;
inline constexpr int kPackBlockBytes = kPackRows * kPackCols * 2;

inline int pack_col_blocks(int n_in) {
  return (n_in + kPackCols - 1) / kPackCols;
}
// Row tiles of 16 of a packed weight whose parts have n_out rows together.
inline int pack_row_tiles(int n_out, LinearLayout layout) {
  return layout == LinearLayout::kGateUp ? (n_out / 2 + 7) / 8 : (n_out + kPackRows - 1) / kPackRows;
}
inline size_t packed_bytes(int n_out, int n_in, LinearLayout layout) {
  return static_cast<size_t>(pack_row_tiles(n_out, layout)) * pack_col_blocks(n_in) * kPackBlockBytes;
}

struct PackArgs {
  const bf16* rows;  // [n_rows, n_in] bf16 row-major, device memory
  int n_rows;        // rows in this call
  int first_row;     // their place in the part
  int n_in;
  LinearLayout layout;
  int part_offset;  // kConcat: rows of the parts before this one; kGateUp: 0 for gate, 1 for up
  bf16* packed;     // the whole packed weight; the caller has zeroed it, for the padding
};
void pack(const PackArgs& args, const Context& ctx);

// ---- coded weights (code_weight.cu): the same weights in 12.25 bits instead of 16, exactly; for products of few rows,
// which take as long as their weights take to read.
//
// The exponents of a trained row lie close together. Each row gets a window of 16 exponents from 2 `base` on, and of
// each weight a code of 3 bits, exponent / 2 - base, stands for all of the exponent but its last bit, which stays with
// sign and mantissa. What lies outside of its window (zeros too, one in ten thousand of normal weights) is an escape:
// place and bits in one of 8 words that each block has for them. A weight with a block of more than 8 escapes has no
// coded form.
//
// Blocks are those of packed weights. Four row tiles are a slab, [slabs][column blocks][6,272 bytes], so that copies
// are of whole lines of 128 bytes: four times [2][32 lanes][4] words of low bytes, [32 lanes][4] words of codes and
// signs, and then the escapes, [4 row tiles][8]. A lane's words are the weights that it holds as an operand A of four
// products of 16 x 16 (mma.sync and wgmma agree); coded_weight.cuh has the bits. Behind the blocks are the rows' bases,
// a byte each.
inline constexpr int kSlabTiles = 4;
inline constexpr int kCodedEscapes = 8;
inline constexpr int kCodesAt = kPackRows * kPackCols;           // of a row tile's block
inline constexpr int kCodedTileBytes = kCodesAt + kCodesAt / 2;  // of a block in memory, without its escapes
inline constexpr int kEscapeBytes = kCodedEscapes * 4;
inline constexpr int kEscapesAt = kSlabTiles * kCodedTileBytes;  // of a slab's block
inline constexpr int kSlabBytes = kEscapesAt + kSlabTiles * kEscapeBytes;

inline int slab_count(int row_tiles) {
  return (row_tiles + kSlabTiles - 1) / kSlabTiles;
}
inline size_t coded_blocks_bytes(int row_tiles, int col_blocks) {
  return static_cast<size_t>(slab_count(row_tiles)) * col_blocks * kSlabBytes;
}
inline size_t coded_bytes(int row_tiles, int col_blocks) {
  return coded_blocks_bytes(row_tiles, col_blocks) + static_cast<size_t>(row_tiles) * kPackRows;
}

struct CodeArgs {
  const bf16* packed;
  int row_tiles;
  int col_blocks;
  int n_in;
  uint8_t* blocks;     // coded_blocks_bytes(), 128-byte aligned
  uint8_t* bases;      // [row_tiles][16]
  int32_t* overflows;  // is increased for every block with more escapes than there is room for
};
void code_weight(const CodeArgs& args, const Context& ctx);

}  // namespace qwen3::cuda

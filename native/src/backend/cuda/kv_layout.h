// Where a key's and a value's elements lie inside a KV block on the GPU: known to qk_norm_rope and attention_step,
// which write them, to attention, which reads them, and to their tests.
//
// Block b, head h of k and of v each own kHeadBlock consecutive bf16 (8 KB) at (b * n_kv_heads + h) * kHeadBlock, laid
// out as core matrices of 8 tokens x 8 elements (8 rows of 16 bytes = 128 bytes):
//   [token group of 8: 4][d chunk of 8: 16][token 8][d 8]
// A plain copy of a block to shared memory is thus ready for ldmatrix (each matrix is 128 contiguous bytes, free of
// bank conflicts) and for wgmma without swizzle: keys as a K-major operand, values as an MN-major one.
#pragma once

#include "ops/ops.h"

namespace qwen3::cuda {

inline constexpr int kHeadDim = 128;
inline constexpr int kHeadBlock = kBlockSize * kHeadDim;  // bf16 elements of one head in one block
inline constexpr int kTokenGroup = 8 * kHeadDim;          // bf16 elements of 8 tokens of a head

// Offset of element d (0..127) of slot (0..kBlockSize-1) within a head's part of a block.
#if defined(__CUDACC__)
__host__ __device__
#endif
    constexpr int kv_offset(int slot, int d) {
  return (slot / 8) * kTokenGroup + (d / 8) * 64 + (slot % 8) * 8 + d % 8;
}

}  // namespace qwen3::cuda

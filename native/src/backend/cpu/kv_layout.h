// Where a key's and a value's elements lie inside a KV block: known to qk_norm_rope, which writes them, to attention,
// which reads them, and to their tests. Pure constants; the same for every instruction set.
//
// Block b, head h of k and of v each own kHeadBlock consecutive bf16 at (b * n_kv_heads + h) * kHeadBlock:
//   k: [head_dim / 2][kBlockSize][2]. One 64-byte line holds the pair (d, d + 1) of 16 keys, so that a vector lane is a
//      key: a score is one accumulator that walks d upwards, without a sum over lanes at the end, and vdpbf16ps takes
//      the line as it is.
//   v: [head_dim / 32][kBlockSize][32]. A line holds 32 values of one key: the low and the high halves of its 16 words
//      widen to float32 with one instruction each, and the keys of a block follow each other in memory.
#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace qwen3::cpu {

inline constexpr int kHeadDim = 128;
inline constexpr int kHeadBlock = kBlockSize * kHeadDim;  // bf16 elements of one head in one block
inline constexpr int kValueChunk = 32;                    // consecutive elements of a value that share a line

// Offsets within a head's part of a block, slot 0..kBlockSize-1, d 0..kHeadDim-1.
constexpr int key_offset(int slot, int d) {
  return (d / 2) * (2 * kBlockSize) + slot * 2 + d % 2;
}
constexpr int value_offset(int slot, int d) {
  return (d / kValueChunk) * (kBlockSize * kValueChunk) + slot * kValueChunk + d % kValueChunk;
}

}  // namespace qwen3::cpu

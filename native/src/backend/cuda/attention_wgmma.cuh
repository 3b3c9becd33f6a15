// Of attention_hopper.cu and its bench: the two wgmma products and how a launch's tiles are numbered. sm_90a code only.
//
// The operands' layout is kv_layout.h's: core matrices of 8 x 8 without swizzle. Arithmetic: attention.cuh.
#pragma once

#include "backend/cuda/attention.cuh"

#if QWEN3_SM90A
namespace qwen3::cuda {

// Operands without swizzle. Keys and queries are K-major: the next core matrix along d 128 bytes on, the next 8 rows
// 2,048. Values are MN-major: the next 8 keys (along the sum) 2,048 bytes on, the next 8 columns 128.
__device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t leading, uint32_t stride) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
         static_cast<uint64_t>(stride >> 4) << 32;
}

#define QWEN3_ROW(x, j) "+f"(x[j][0]), "+f"(x[j][1]), "+f"(x[j][2]), "+f"(x[j][3])
#define QWEN3_ROW4(x, j) QWEN3_ROW(x, j), QWEN3_ROW(x, j + 1), QWEN3_ROW(x, j + 2), QWEN3_ROW(x, j + 3)

// s[64 x 64] (+)= q[64 x 16] * k[64 x 16]^T
__device__ __forceinline__ void wgmma_scores(float (&s)[8][4], uint64_t q, uint64_t k, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" QWEN3_L32 "}, %32, %33, p, 1, 1, 0, 0;\n}"
      : QWEN3_ROW4(s, 0), QWEN3_ROW4(s, 4)
      : "l"(q), "l"(k), "r"(add)
      : "memory");
}

// o[64 x 128] (+)= p[64 x 16] * v[16 x 128]
__device__ __forceinline__ void wgmma_values(float (&o)[16][4], const uint32_t (&p)[4], uint64_t v, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" QWEN3_L64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}"
      : QWEN3_ROW4(o, 0), QWEN3_ROW4(o, 4), QWEN3_ROW4(o, 8), QWEN3_ROW4(o, 12)
      : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(v), "r"(add)
      : "memory");
}

template <int kTiles>
__device__ __forceinline__ void results(float (&x)[kTiles][4]) {
#pragma unroll
  for (int j = 0; j < kTiles; j++) wgmma_results(x[j]);
}

// Rows [first_row, first_row + kRows) of a sequence, for one KV head. n_rows 0: no tile.
struct Tile {
  int kv_head;
  int seq;
  int token0;     // the sequence's first row among the batch's tokens
  int first_row;  // of the tile
  int n_rows;     // of the sequence
  int start;      // position of its first new token
};

// The tile at place `turn` of the launch's order, by whole warps: the KV head fastest, then the last and thus longest
// tiles of a sequence first.
template <int kRows>
__device__ __forceinline__ Tile tile_at(const AttentionParams& p, int turn, int n_tiles, int lane) {
  const TileOf of = find_tile_warp<kRows>(p, n_tiles - 1 - turn / p.n_kv_heads, lane);
  Tile tile;
  tile.kv_head = turn % p.n_kv_heads;
  tile.seq = of.seq;
  tile.first_row = of.first_row;
  tile.token0 = p.query_start[of.seq];
  tile.n_rows = (p.query_start[of.seq + 1] - tile.token0) * p.group;
  tile.start = p.positions[tile.token0];
  return tile;
}
template <int kRows>
__device__ __forceinline__ int last_position(const AttentionParams& p, const Tile& tile) {
  return tile.start + (min(tile.first_row + kRows, tile.n_rows) - 1) / p.group;
}

}  // namespace qwen3::cuda
#endif

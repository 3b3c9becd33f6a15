// Attention of prompt chunks on mma.sync, for sm_80 and newer: the generic path.
//
// Grid (KV head, fastest; then query tiles, the last and thus longest first), 128 threads. A CTA takes kPrefillRows =
// 64 rows (token x query head of the group, token-major) of one sequence and walks the keys up to its last row's
// position in steps of 64; warp w owns rows [16w, 16w + 16) with its scores, P and output in registers. Keys and values
// are double buffered by cp.async. Each split of 256 keys is accumulated from an empty state and merged into a second
// set of accumulators, so that the bits are those of the decode kernel. Arithmetic: attention.cuh.
//
// Shared memory: 2 x (16 KB keys + 16 KB values) + 16 KB queries = 80 KB: two CTAs per SM on sm_80 and 90.
#include "backend/cuda/attention.cuh"
#include "backend/cuda/attention.h"
#include "backend/cuda/launch.h"

namespace qwen3::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kTileBytes = kPrefillRows * kHeadDim * 2;
constexpr int kSharedBytes = 4 * kStepBytes + kTileBytes;
static_assert(kSharedBytes <= 99 * 1024);

__global__ void __launch_bounds__(kThreads, 2) attention_prefill_kernel(const AttentionParams p) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ int found[2 + kThreads / 32];
  const uint32_t k_smem = shared_address(shared);
  const uint32_t v_smem = k_smem + 2 * kStepBytes;
  const uint32_t q_smem = v_smem + 2 * kStepBytes;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int column = lane % 4 * 2;
  const int kv_head = static_cast<int>(blockIdx.x) % p.n_kv_heads;
  const int n_tiles = static_cast<int>(gridDim.x) / p.n_kv_heads;

  griddep_launch();
  griddep_wait();
  const TileOf tile =
      find_tile<kPrefillRows, kThreads>(p, n_tiles - 1 - static_cast<int>(blockIdx.x) / p.n_kv_heads, found, thread);
  if (tile.seq < 0) return;
  const int token0 = p.query_start[tile.seq];
  const int n_rows = (p.query_start[tile.seq + 1] - token0) * p.group;
  const int last_row = min(tile.first_row + kPrefillRows, n_rows) - 1;
  const int first_position = p.positions[token0 + tile.first_row / p.group];
  const int last = p.positions[token0 + last_row / p.group];
  const int32_t* table = p.block_tables + static_cast<int64_t>(tile.seq) * p.max_blocks;
  const int n_steps = last / kStep + 1;

  const auto load = [&](const bf16* pool, int step, uint32_t smem) {
    if (step < n_steps) {
      const int start = step * kStep;
      load_step(pool, kv_head, p.n_kv_heads, block_of(table, start, last), block_of(table, start + kBlockSize, last),
                start, last, smem + step % 2 * kStepBytes, thread);
    }
    cp_async_commit();
  };
  load_queries<kPrefillRows, kThreads>(p, token0, kv_head, tile.first_row, n_rows, q_smem, thread);
  load(p.k, 0, k_smem);
  load(p.v, 0, v_smem);

  const int row0 = tile.first_row + warp * 16 + lane / 4;
  const int position0 = p.positions[token0 + min(row0, n_rows - 1) / p.group];
  const int position1 = p.positions[token0 + min(row0 + 8, n_rows - 1) / p.group];
  const int matrix = lane / 8;
  const int matrix_row = lane % 8 * 16;
  const uint32_t q_lane = q_smem + (warp * 2 + matrix % 2) * 2048 + matrix / 2 * 128 + matrix_row;
  const uint32_t k_lane = k_smem + matrix / 2 * 2048 + matrix % 2 * 128 + matrix_row;
  const uint32_t v_lane = v_smem + matrix % 2 * 2048 + matrix / 2 * 128 + matrix_row;

  Running<16> running;
  running.clear();
  float o[16][4], m[2], l[2][4];
  start_split(o, m, l);

  for (int step = 0; step < n_steps; step++) {
    cp_async_wait<1>();  // the step's keys; its values may be on their way
    __syncthreads();     // and all warps are past the last step's keys
    load(p.k, step + 1, k_smem);
    float s[8][4] = {};
    const uint32_t k_stage = k_lane + step % 2 * kStepBytes;
#pragma unroll
    for (int k = 0; k < 8; k++) {
      uint32_t q[4];
      ldmatrix_x4(q, q_lane + k * 256);
#pragma unroll
      for (int j = 0; j < 4; j++) {  // pairs of 8-key tiles
        uint32_t b[4];
        ldmatrix_x4(b, k_stage + j * 4096 + k * 256);
        mma_bf16(s[2 * j], q, b[0], b[1]);
        mma_bf16(s[2 * j + 1], q, b[2], b[3]);
      }
    }
    const int start = step * kStep;
    float alpha[2];
    if (start + kStep - 1 > first_position) {
      softmax_step<true>(s, p.scale, column, position0 - start, position1 - start, m, l, alpha);
    } else {
      softmax_step<false>(s, p.scale, column, 0, 0, m, l, alpha);
    }
    rescale(o, alpha);
    cp_async_wait<1>();  // the step's values; the next keys may be on their way
    __syncthreads();     // and all warps are past the last step's values
    load(p.v, step + 1, v_smem);
    const uint32_t v_stage = v_lane + step % 2 * kStepBytes;
#pragma unroll
    for (int t = 0; t < 4; t++) {
      uint32_t a[4];
      pack_fragment(s[2 * t], s[2 * t + 1], a);
#pragma unroll
      for (int j = 0; j < 8; j++) {  // pairs of 8-wide column tiles
        uint32_t b[4];
        ldmatrix_x4_trans(b, v_stage + t * 4096 + j * 256);
        mma_bf16(o[2 * j], a, b[0], b[1]);
        mma_bf16(o[2 * j + 1], a, b[2], b[3]);
      }
    }
    if (step + 1 == n_steps || (step + 1) % kSplitSteps == 0) {
      finish_split(running, o, m, l);
      start_split(o, m, l);
    }
  }

  write_tile_rows(p, running, token0, kv_head, row0, n_rows, column);
}

}  // namespace

void attention_prefill(const AttentionParams& p, int n_tiles, const Context& ctx) {
  configure<attention_prefill_kernel>(kSharedBytes);
  const dim3 blocks(static_cast<unsigned>(n_tiles * p.n_kv_heads));
  launch("launching attention_prefill", attention_prefill_kernel, {blocks, dim3(kThreads), kSharedBytes}, ctx, p);
}

}  // namespace qwen3::cuda

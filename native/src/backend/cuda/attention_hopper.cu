// Attention of prompt chunks on Hopper: wgmma fed by the copy engine.
//
// Persistent: one CTA per SM, 384 threads, one producer warp and two consumer warpgroups, walks tiles of kHopperRows =
// 128 rows (token x query head of the group, token-major) of one sequence and KV head: the KV head fastest, then the
// last and thus longest tiles first, whoever is free takes the next. A tile walks the keys up
// to its last row's position in steps of 64; each warpgroup owns 64 rows. The pool's blocks are core matrices already
// (kv_layout.h), so a step's keys are two bulk copies of 8 KB, its values two more; a ring of kStages steps on
// mbarriers runs on from tile to tile; keys older than the step's tokens are read before griddep_wait()
// (attention_decode.cuh says why that is right). A warpgroup loads its next tile's queries in the last step of the one
// before. Per step a warpgroup turns its scores into P in registers (wgmma's A operand), then issues P V of this step
// and Q K of the next one together; the other warpgroup's softmax fills the gaps. Every split of 256 keys is
// accumulated from an empty state and merged into a second set of accumulators: the bits are those of the other
// attention kernels. Arithmetic: attention.cuh.
//
// Shared memory: 4 x (16 KB keys + 16 KB values) + 32 KB queries. Registers: 240 per consumer thread.
#include <algorithm>

#include "backend/cuda/attention.cuh"
#include "backend/cuda/attention.h"
#include "backend/cuda/launch.h"

namespace qwen3::cuda {
namespace {

constexpr int kStages = 4;
constexpr int kThreads = 384;
constexpr int kGroupRows = 64;  // of a warpgroup
constexpr int kGroupBytes = kGroupRows * kHeadDim * 2;
constexpr int kTurns = 8;  // slots of tiles to come; the producer is at most 5 tiles ahead (a tile has a step or more)
constexpr int kBarrierBytes = (4 * kStages + kTurns) * 8 + kTurns * 4;
constexpr int kSharedBytes = kStages * 2 * kStepBytes + 2 * kGroupBytes + kBarrierBytes;
[[maybe_unused]] constexpr int kConsumerWarps = 8;  // sm_90a code only

#if QWEN3_SM90A
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

// o[64 x 128] += p[64 x 16] * v[16 x 128]
__device__ __forceinline__ void wgmma_values(float (&o)[16][4], const uint32_t (&p)[4], uint64_t v) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" QWEN3_L64
               "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
               : QWEN3_ROW4(o, 0), QWEN3_ROW4(o, 4), QWEN3_ROW4(o, 8), QWEN3_ROW4(o, 12)
               : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(v)
               : "memory");
}

template <int kTiles>
__device__ __forceinline__ void results(float (&x)[kTiles][4]) {
#pragma unroll
  for (int j = 0; j < kTiles; j++) wgmma_results(x[j]);
}

// One tile.
struct Tile {
  int kv_head;
  int seq;
  int token0;     // the sequence's first row among the batch's tokens
  int first_row;  // of the tile
  int n_rows;     // of the sequence
  int start;      // position of its first new token
};

// The tile at place `turn` of the launch's order, by whole warps.
__device__ __forceinline__ Tile find(const AttentionParams& p, int turn, int n_tiles, int lane) {
  const TileOf of = find_tile_warp<kHopperRows>(p, n_tiles - 1 - turn / p.n_kv_heads, lane);
  Tile tile;
  tile.kv_head = turn % p.n_kv_heads;
  tile.seq = of.seq;
  tile.first_row = of.first_row;
  tile.token0 = p.query_start[of.seq];
  tile.n_rows = (p.query_start[of.seq + 1] - tile.token0) * p.group;
  tile.start = p.positions[tile.token0];
  return tile;
}
__device__ __forceinline__ int last_position(const AttentionParams& p, const Tile& tile) {
  return tile.start + (min(tile.first_row + kHopperRows, tile.n_rows) - 1) / p.group;
}
#endif

__global__ void __launch_bounds__(kThreads, 1) attention_hopper_kernel(const AttentionParams p, int n_tiles) {
#if QWEN3_SM90A
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t k_smem = shared_address(shared);
  const uint32_t v_smem = k_smem + kStages * kStepBytes;
  const uint32_t q_smem = v_smem + kStages * kStepBytes;
  const uint32_t barriers = q_smem + 2 * kGroupBytes;
  const auto full_k = [&](int stage) { return barriers + stage * 8; };
  const auto full_v = [&](int stage) { return barriers + (kStages + stage) * 8; };
  const auto empty_k = [&](int stage) { return barriers + (2 * kStages + stage) * 8; };
  const auto empty_v = [&](int stage) { return barriers + (3 * kStages + stage) * 8; };
  const auto turn_known = [&](int i) { return barriers + (4 * kStages + i % kTurns) * 8; };
  // The place of the tile after this CTA's i-th, or n_turns and more: no tile.
  volatile int* const turns = reinterpret_cast<int*>(shared + kSharedBytes - kTurns * 4);
  const int thread = static_cast<int>(threadIdx.x);
  const int warpgroup = thread / 128;
  const int lane = thread % 32;
  const int n_turns = n_tiles * p.n_kv_heads;

  if (thread == 0) {
    for (int i = 0; i < kStages; i++) {
      mbarrier_init(full_k(i), 1);
      mbarrier_init(full_v(i), 1);
      mbarrier_init(empty_k(i), kConsumerWarps);
      mbarrier_init(empty_v(i), kConsumerWarps);
    }
    for (int i = 0; i < kTurns; i++) mbarrier_init(turn_known(i), 1);
    fence_mbarrier_init();
  }
  griddep_launch();
  __syncthreads();

  if (warpgroup == 0) {  // ---- producer
    fewer_registers<24>();
    if (thread >= 32) return;
    int at = 0;  // steps so far
    bool waited = false;
    int turn = static_cast<int>(blockIdx.x);
    for (int i = 0; turn < n_turns; i++) {
      const Tile tile = find(p, turn, n_tiles, lane);
      const int last = last_position(p, tile);
      const int n_steps = last / kStep + 1;
      if (lane == 0) {
        const int32_t* table = p.block_tables + static_cast<int64_t>(tile.seq) * p.max_blocks;
        int block0 = block_of(table, 0, last);
        int block1 = block_of(table, kBlockSize, last);
        for (int step = 0; step < n_steps; step++) {
          if (!waited && (step + 1) * kStep > tile.start) {  // keys of this step's tokens come from the kernels before
            griddep_wait();
            waited = true;
          }
          const int stage = (at + step) % kStages;
          const uint32_t parity = ((at + step) / kStages & 1) ^ 1;
          const int64_t from0 = (static_cast<int64_t>(block0) * p.n_kv_heads + tile.kv_head) * kHeadBlock;
          const int64_t from1 = (static_cast<int64_t>(block1) * p.n_kv_heads + tile.kv_head) * kHeadBlock;
          block0 = block_of(table, (step + 1) * kStep, last);
          block1 = block_of(table, (step + 1) * kStep + kBlockSize, last);
          const uint32_t k_to = k_smem + stage * kStepBytes;
          const uint32_t v_to = v_smem + stage * kStepBytes;
          mbarrier_wait(empty_k(stage), parity);
          mbarrier_expect(full_k(stage), kStepBytes);
          bulk_load(k_to, p.k + from0, kStepBytes / 2, full_k(stage));
          bulk_load(k_to + kStepBytes / 2, p.k + from1, kStepBytes / 2, full_k(stage));
          mbarrier_wait(empty_v(stage), parity);
          mbarrier_expect(full_v(stage), kStepBytes);
          bulk_load(v_to, p.v + from0, kStepBytes / 2, full_v(stage));
          bulk_load(v_to + kStepBytes / 2, p.v + from1, kStepBytes / 2, full_v(stage));
        }
      }
      at += n_steps;
      if (lane == 0) {
        // All CTAs together fetch n_turns times, so the counter is 0 again at the end.
        turn = static_cast<int>(gridDim.x + atomicInc(p.turn_counter, static_cast<unsigned>(n_turns - 1)));
        turns[i % kTurns] = turn;
        mbarrier_arrive(turn_known(i));
      }
      turn = __shfl_sync(0xffffffffu, turn, 0);
    }
  } else {  // ---- consumers
    more_registers<240>();
    const int group = warpgroup - 1;
    const int group_thread = thread % 128;
    const int column = lane % 4 * 2;
    const int group_row = group * kGroupRows + group_thread / 32 * 16 + lane / 4;  // within the tile
    const uint32_t q_group = q_smem + group * kGroupBytes;
    const uint64_t q = descriptor(q_group, 128, 2048);
    const auto load_tile_queries = [&](const Tile& tile) {
      load_queries<kGroupRows, 128>(p, tile.token0, tile.kv_head, tile.first_row + group * kGroupRows, tile.n_rows,
                                    q_group, group_thread);
      cp_async_commit();
    };
    float s[8][4];
    const auto score = [&](int stage) {
      const uint64_t k = descriptor(k_smem + stage * kStepBytes, 128, 2048);
#pragma unroll
      for (int i = 0; i < 8; i++) wgmma_scores(s, q + i * (256 >> 4), k + i * (256 >> 4), i == 0 ? 0 : 1);
      wgmma_commit();
    };

    float o[16][4];
    uint32_t a[4][4];
    const auto values = [&](int stage) {
      const uint64_t v = descriptor(v_smem + stage * kStepBytes, 2048, 128);
#pragma unroll
      for (int t = 0; t < 4; t++) wgmma_values(o, a[t], v + t * (4096 >> 4));
      wgmma_commit();
    };
    const auto pack = [&] {
#pragma unroll
      for (int t = 0; t < 4; t++) pack_fragment(s[2 * t], s[2 * t + 1], a[t]);
    };

    int at = 0;  // steps so far
    int turn = static_cast<int>(blockIdx.x);
    Tile tile = find(p, turn, n_tiles, lane);
    griddep_wait();
    load_tile_queries(tile);
    for (int i = 0; turn < n_turns; i++) {
      const int last = last_position(p, tile);
      const int last_step = last / kStep;
      const int row0 = tile.first_row + group_row;
      const int first_position = tile.start + min(tile.first_row + group * kGroupRows, tile.n_rows - 1) / p.group;
      const int position0 = tile.start + min(row0, tile.n_rows - 1) / p.group;
      const int position1 = tile.start + min(row0 + 8, tile.n_rows - 1) / p.group;
      Running<16> running;
      running.clear();
      float m[2], l[2][4], alpha[2];
      const auto softmax = [&](int step) {
        const int start = step * kStep;
        if (start + kStep - 1 > first_position) {
          softmax_step<true>(s, p.scale, column, position0 - start, position1 - start, m, l, alpha);
        } else {
          softmax_step<false>(s, p.scale, column, 0, 0, m, l, alpha);
        }
      };
      start_split(o, m, l);
      cp_async_wait<0>();
      fence_to_copy_engine();
      named_barrier(1 + group, 128);
      mbarrier_wait(full_k(at % kStages), at / kStages & 1);
      wgmma_fence();
      score(at % kStages);
      wgmma_wait<0>();
      results(s);
      if (lane == 0) mbarrier_arrive(empty_k(at % kStages));

      for (int step = 0; step < last_step; step++, at++) {
        const int stage = at % kStages;
        const int next_stage = (at + 1) % kStages;
        softmax(step);
        if (step % kSplitSteps != 0) rescale(o, alpha);
        pack();
        mbarrier_wait(full_v(stage), at / kStages & 1);
        mbarrier_wait(full_k(next_stage), (at + 1) / kStages & 1);
        wgmma_fence();
        values(stage);
        score(next_stage);
        wgmma_wait<1>();
        results(o);
        if (lane == 0) mbarrier_arrive(empty_v(stage));
        if ((step + 1) % kSplitSteps == 0) {
          finish_split(running, o, m, l);
          start_split(o, m, l);
        }
        wgmma_wait<0>();
        results(s);
        if (lane == 0) mbarrier_arrive(empty_k(next_stage));
      }

      // The last step. Slots after `last` hold whatever the block held before; P is 0 there, and so must they be, lest
      // a stale NaN comes through. Each warpgroup does it for itself; both write the same zeros.
      softmax(last_step);
      if (last_step % kSplitSteps != 0) rescale(o, alpha);
      pack();
      const int stage = at % kStages;
      mbarrier_wait(full_v(stage), at / kStages & 1);
      const int valid = last - last_step * kStep + 1;
      for (int piece = group_thread; piece < (kStep - valid) * 16; piece += 128) {
        const int slot = valid + piece / 16;
        const uint32_t offset = (slot / 8) * 2048 + piece % 16 * 128 + slot % 8 * 16;
        *reinterpret_cast<uint4*>(shared + (kStages + stage) * kStepBytes + offset) = make_uint4(0, 0, 0, 0);
      }
      fence_to_copy_engine();
      named_barrier(1 + group, 128);  // also: all are past the tile's queries
      wgmma_fence();
      values(stage);
      at++;
      const int kv_head = tile.kv_head;
      const int token0 = tile.token0;
      const int n_rows = tile.n_rows;
      mbarrier_wait(turn_known(i), (i / kTurns) & 1);
      turn = turns[i % kTurns];
      if (turn < n_turns) {
        tile = find(p, turn, n_tiles, lane);
        load_tile_queries(tile);
      }
      wgmma_wait<0>();
      results(o);
      if (lane == 0) mbarrier_arrive(empty_v(stage));
      finish_split(running, o, m, l);

      write_tile_rows(p, running, token0, kv_head, row0, n_rows, column);
    }
  }
#endif
}

}  // namespace

void attention_hopper(const AttentionParams& p, int n_tiles, const Context& ctx) {
  configure<attention_hopper_kernel>(kSharedBytes);
  const dim3 blocks(static_cast<unsigned>(std::min(n_tiles * p.n_kv_heads, ctx.sm_count)));
  launch("launching attention_hopper", attention_hopper_kernel, {blocks, dim3(kThreads), kSharedBytes}, ctx, p,
         n_tiles);
}

}  // namespace qwen3::cuda

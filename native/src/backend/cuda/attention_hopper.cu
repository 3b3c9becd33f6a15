// Attention of prompt chunks on Hopper: wgmma fed by the copy engine, two or three consumer warpgroups per CTA whose
// softmax runs under the others' products.
//
// Persistent: one CTA per SM, one producer warp and kGroups consumer warpgroups. A tile is kGroups x 64 rows (token x
// query head of the group, token-major) of one sequence and KV head: the KV head fastest, then the last and thus
// longest tiles first, whoever is free takes the next. A tile walks the keys up to its last row's position in steps of
// 64, each warpgroup 64 rows. The pool's blocks are core matrices already (kv_layout.h), so a step's keys are two bulk
// copies of 8 KB, its values two more; rings of stages run on from tile to tile; keys older than the step's tokens are
// read before griddep_wait() (attention_decode.cuh says why that is right).
//   a step        a warpgroup turns its scores into P in registers (wgmma's A operand), then issues P V of this step
//   and
//                 Q K of the next one together. Warpgroups issue in turns (named barriers), so that one's products run
//                 while the others are in their softmax, instead of all sharing the tensor cores and then all waiting
//                 for MUFU
//   merged state  every split of 256 keys is accumulated from an empty state: the bits are those of the other attention
//                 kernels. The accumulators of all finished splits lie in shared memory, each thread's own, and are
//                 touched once per split; a context of one split never touches them. A warpgroup thus holds no more
//                 than the accumulators, scores and P of a step, and three of them fit
//   tiles         the producer finds the next tile three steps before the present one ends and publishes it in a slot.
//                 A tile's last products go out together with the next tile's first Q K, whose queries came under the
//                 last softmax; the end of a tile and its rows, which the copy engine writes, run under that Q K
// Arithmetic: attention.cuh.
//
// Budget of a step of 64 rows x 64 keys of one warpgroup, in cycles (a scheduler has one warp of each group), and what
// `cuda_wgmma_bench budget` measures with two and three warpgroups at work:
//   tensor cores   Q K: 8 x m64n64k16 at 32; P V: 4 x m64n128k16 at 64                               512, measured 512
//   MUFU           32 exponentials and 2 factors per thread, 4 lanes a cycle       272, softmax in all 295 and 277
//   shared memory  128 bytes a cycle. Q K: 128 queries, 128 keys; P V: 128; copies: 256 / kGroups; merge: 64 KB
//                  per split, 128                                                   640 (2 groups), 597 (3 groups)
// Measured on an H200 (bench/results/2026-11-30-h200.txt): three groups 573 TFLOP/s at 8,192 tokens, 474 at
// 16 x 2,048.
//
// Shared memory: 5 or 8 stages of 16 KB, 16 KB of queries and 32 KB of state per group: 224 KB in both shapes.
// Registers per consumer thread: 232 (2 groups), 160 (3).
#include <algorithm>

#include "backend/cuda/attention.cuh"
#include "backend/cuda/attention.h"
#include "backend/cuda/attention_wgmma.cuh"
#include "backend/cuda/launch.h"

namespace qwen3::cuda {
namespace {

constexpr int kGroupRows = 64;  // of a warpgroup
constexpr int kGroupBytes = kGroupRows * kHeadDim * 2;
constexpr int kWarpBytes = 16 * kHeadDim * 4;                  // a warp's merged accumulators
[[maybe_unused]] constexpr int kRowBytes = kHeadDim * 2 + 16;  // sm_90a code only; of an output row on its way
constexpr int kSlots = 8;       // of tiles to come; a tile has a step or more, so the producer is at most 6 ahead
constexpr int kSlotBytes = 32;  // of a Tile

template <int kGroups>
struct Shape {
  static_assert(kGroups == 2 || kGroups == 3);
  static constexpr int kThreads = (kGroups + 1) * 128;
  static constexpr int kKeyStages = kGroups == 2 ? 4 : 3;
  static constexpr int kValueStages = kGroups == 2 ? 4 : 2;
  // Of a thread. setmaxnreg shares out what the CTA was launched with; asking for more waits for ever.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = kGroups == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kGroups == 2 ? 232 : 160;
  static_assert(kProducerRegisters + kGroups * kConsumerRegisters <= (kGroups + 1) * kLaunchRegisters);
  // Shared memory, in bytes.
  static constexpr int kValues = kKeyStages * kStepBytes;
  static constexpr int kQueries = kValues + kValueStages * kStepBytes;
  static constexpr int kStates = kQueries + kGroups * kGroupBytes;
  static constexpr int kTiles = kStates + kGroups * 4 * kWarpBytes;
  static constexpr int kBarriers = kTiles + kSlots * kSlotBytes;
  static constexpr int kSharedBytes = kBarriers + (2 * kKeyStages + 2 * kValueStages + kSlots) * 8;
  static_assert(kSharedBytes <= 232448);
};

#if QWEN3_SM90A
static_assert(sizeof(Tile) <= kSlotBytes);

constexpr int kGroupBarrier = 1;  // + group: its 128 threads
constexpr int kTurnBarrier = 4;   // + group: its 128 threads wait for 128 of the group before
#endif

template <int kGroups>
__global__ void __launch_bounds__(Shape<kGroups>::kThreads, 1)
    attention_hopper_kernel(const AttentionParams p, int n_tiles) {
#if QWEN3_SM90A
  using S = Shape<kGroups>;
  constexpr int kRows = kGroups * kGroupRows;
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t k_smem = shared_address(shared);
  const uint32_t v_smem = k_smem + S::kValues;
  const uint32_t barriers = k_smem + S::kBarriers;
  const auto full_k = [&](int stage) { return barriers + stage * 8; };
  const auto empty_k = [&](int stage) { return barriers + (S::kKeyStages + stage) * 8; };
  const auto full_v = [&](int stage) { return barriers + (2 * S::kKeyStages + stage) * 8; };
  const auto empty_v = [&](int stage) { return barriers + (2 * S::kKeyStages + S::kValueStages + stage) * 8; };
  const auto known = [&](int i) { return barriers + (2 * S::kKeyStages + 2 * S::kValueStages + i % kSlots) * 8; };
  const auto slot = [&](int i) { return reinterpret_cast<Tile*>(shared + S::kTiles + i % kSlots * kSlotBytes); };
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warpgroup = __shfl_sync(0xffffffffu, thread / 128, 0);  // uniform, and the compiler sees it

  if (thread == 0) {
    for (int i = 0; i < S::kKeyStages; i++) {
      mbarrier_init(full_k(i), 1);
      mbarrier_init(empty_k(i), 4 * kGroups);
    }
    for (int i = 0; i < S::kValueStages; i++) {
      mbarrier_init(full_v(i), 1);
      mbarrier_init(empty_v(i), 4 * kGroups);
    }
    for (int i = 0; i < kSlots; i++) mbarrier_init(known(i), 1);
    fence_mbarrier_init();
  }
  griddep_launch();
  __syncthreads();

  if (warpgroup == 0) {  // ---- producer
    fewer_registers<S::kProducerRegisters>();
    if (thread >= 32) return;
    const int n_turns = n_tiles * p.n_kv_heads;
    const auto publish = [&](int i, const Tile& tile) {
      if (lane == 0) {
        *slot(i) = tile;
        mbarrier_arrive(known(i));
      }
    };
    RingPlace<S::kKeyStages> key;
    RingPlace<S::kValueStages> value;
    bool waited = false;
    Tile tile = tile_at<kRows>(p, static_cast<int>(blockIdx.x), n_tiles, lane);
    publish(0, tile);
    for (int i = 1; tile.n_rows > 0; i++) {
      const int last = last_position<kRows>(p, tile);
      const int n_steps = last / kStep + 1;
      const int32_t* table = p.block_tables + static_cast<int64_t>(tile.seq) * p.max_blocks;
      const int kv_head = tile.kv_head;
      int block0 = block_of(table, 0, last);
      int block1 = block_of(table, kBlockSize, last);
#pragma unroll 1
      for (int step = 0; step < n_steps; step++) {
        // The next tile is found while the ring is full. All CTAs together ask n_turns times, so the counter is 0 again
        // at the end.
        const bool ask = step == max(0, n_steps - 3);
        // Keys of this step's tokens come from the kernels before, one of which may still use the counter.
        if (!waited && (ask || (step + 1) * kStep > tile.start)) {
          griddep_wait();
          waited = true;
        }
        if (ask) {
          unsigned asked = 0;
          if (lane == 0) asked = atomicInc(p.turn_counter, static_cast<unsigned>(n_turns - 1));
          const int turn = static_cast<int>(gridDim.x + __shfl_sync(0xffffffffu, asked, 0));
          tile = turn < n_turns ? tile_at<kRows>(p, turn, n_tiles, lane) : Tile{};
          publish(i, tile);
        }
        const int64_t from0 = int64_t{block0 * p.n_kv_heads + kv_head} * kHeadBlock;
        const int64_t from1 = int64_t{block1 * p.n_kv_heads + kv_head} * kHeadBlock;
        block0 = block_of(table, (step + 1) * kStep, last);
        block1 = block_of(table, (step + 1) * kStep + kBlockSize, last);
        mbarrier_wait(empty_k(key.stage), key.parity ^ 1);
        if (lane == 0) {
          const uint32_t to = k_smem + key.stage * kStepBytes;
          mbarrier_expect(full_k(key.stage), kStepBytes);
          bulk_load(to, p.k + from0, kStepBytes / 2, full_k(key.stage));
          bulk_load(to + kStepBytes / 2, p.k + from1, kStepBytes / 2, full_k(key.stage));
        }
        key.next();
        mbarrier_wait(empty_v(value.stage), value.parity ^ 1);
        if (lane == 0) {
          const uint32_t to = v_smem + value.stage * kStepBytes;
          mbarrier_expect(full_v(value.stage), kStepBytes);
          bulk_load(to, p.v + from0, kStepBytes / 2, full_v(value.stage));
          bulk_load(to + kStepBytes / 2, p.v + from1, kStepBytes / 2, full_v(value.stage));
        }
        value.next();
      }
    }
    return;
  }

  // ---- consumers
  more_registers<S::kConsumerRegisters>();
  const int group = warpgroup - 1;
  const int group_thread = thread % 128;
  const int warp = __shfl_sync(0xffffffffu, group_thread / 32, 0);
  const int column = lane % 4 * 2;
  const uint32_t q_group = k_smem + S::kQueries + group * kGroupBytes;
  // A warp's own 8 KB: the merged accumulators of its rows, [column tile][lane] float4; at the end of a tile its rows
  // of the output on their way to memory.
  const int warp_area = S::kStates + (group * 4 + warp) * kWarpBytes;
  float4* const state = reinterpret_cast<float4*>(shared + warp_area) + lane;

  float s[8][4];
  float o[16][4] = {};
  uint32_t a[4][4];
  float m[2], l[2][4], alpha[2];
  float merged_m[2], merged_l[2];
  RingPlace<S::kKeyStages> key;
  RingPlace<S::kValueStages> value;

  // As load_queries(), in few registers: not unrolled.
  const auto load_tile_queries = [&](const Tile& tile) {
    const int first = tile.first_row + group * kGroupRows + group_thread / 16;
    uint32_t to = q_group + group_thread % 16 * 128 + group_thread / 16 * 16;
#pragma unroll 1
    for (int r = first; r < first + kGroupRows; r += 8, to += 2048) {
      const bool valid = r < tile.n_rows;
      const bf16* row = p.q + (valid ? row_offset(p, tile.token0, tile.kv_head, r) : 0);
      cp_async_16(to, row + group_thread % 16 * 8, valid ? 16 : 0);
    }
    cp_async_commit();
  };
  const auto issue_scores = [&] {
    const uint64_t q = descriptor(q_group, 128, 2048);
    const uint64_t k = descriptor(k_smem + key.stage * kStepBytes, 128, 2048);
#pragma unroll
    for (int i = 0; i < 8; i++) wgmma_scores(s, q + i * (256 >> 4), k + i * (256 >> 4), i == 0 ? 0 : 1);
    wgmma_commit();
  };
  const auto issue_values = [&](int step) {  // the first step of a split starts from 0
    const uint64_t v = descriptor(v_smem + value.stage * kStepBytes, 2048, 128);
#pragma unroll
    for (int t = 0; t < 4; t++) wgmma_values(o, a[t], v + t * (4096 >> 4), t == 0 ? step % kSplitSteps : 1);
    wgmma_commit();
  };
  const auto release_keys = [&] {
    if (lane == 0) mbarrier_arrive(empty_k(key.stage));
    key.next();
  };
  const auto release_values = [&] {
    if (lane == 0) mbarrier_arrive(empty_v(value.stage));
    value.next();
  };
  const auto take_turn = [&] { named_barrier(kTurnBarrier + group, 256); };
  const auto end_turn = [&] { named_arrive(kTurnBarrier + (group + 1 == kGroups ? 0 : group + 1), 256); };
  const auto pack = [&] {
#pragma unroll
    for (int t = 0; t < 4; t++) pack_fragment(s[2 * t], s[2 * t + 1], a[t]);
  };
  const auto start_split = [&] {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      m[h] = -__builtin_inff();
#pragma unroll
      for (int t = 0; t < 4; t++) l[h][t] = 0.0f;
    }
  };
  // The output rows of the tile before have left the warp's area.
  const auto area_free = [&] {
    bulk_wait_read<0>();
    __syncwarp();
  };
  // The split (o, split_m, split_l) that ends with `step`, not the tile's last, into the merged state. Merged into an
  // empty state, a split is its own result but for the sign of zeros, which finish() drops.
  const auto merge_split = [&](int step, const float (&split_m)[2], const float (&split_l)[2]) {
    if (step < kSplitSteps) {
      area_free();
#pragma unroll
      for (int h = 0; h < 2; h++) {
        merged_m[h] = split_m[h];
        merged_l[h] = split_l[h];
      }
#pragma unroll
      for (int j = 0; j < 16; j++) state[j * 32] = make_float4(o[j][0], o[j][1], o[j][2], o[j][3]);
      return;
    }
    const MergeFactors f0 = merge_max(merged_m[0], split_m[0]);
    const MergeFactors f1 = merge_max(merged_m[1], split_m[1]);
    merged_l[0] = merge(merged_l[0], split_l[0], f0);
    merged_l[1] = merge(merged_l[1], split_l[1], f1);
#pragma unroll
    for (int j = 0; j < 16; j++) {
      float4 x = state[j * 32];
      x.x = merge(x.x, o[j][0], f0);
      x.y = merge(x.y, o[j][1], f0);
      x.z = merge(x.z, o[j][2], f1);
      x.w = merge(x.w, o[j][3], f1);
      state[j * 32] = x;
    }
  };
  // The tile's last split (o, m, l), which ends with `last_step`, is merged in registers; rows go through the warp's
  // area, kRowBytes apart against bank conflicts, to memory, each by one lane.
  const auto write_rows = [&](const Tile& tile, int last_step) {
    float inverse[2];
    if (last_step < kSplitSteps) area_free();
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float sum = quad_sum(l[h][0], l[h][1], l[h][2], l[h][3]);
      if (last_step >= kSplitSteps) {
        const MergeFactors f = merge_max(merged_m[h], m[h]);
        sum = merge(merged_l[h], sum, f);
#pragma unroll
        for (int j = 0; j < 16; j++) {
          const float2 x = reinterpret_cast<const float2*>(state + j * 32)[h];
          o[j][2 * h] = merge(x.x, o[j][2 * h], f);
          o[j][2 * h + 1] = merge(x.y, o[j][2 * h + 1], f);
        }
      }
      inverse[h] = __fdiv_rn(1.0f, sum);
    }
    __syncwarp();  // all lanes have read their state
#pragma unroll
    for (int h = 0; h < 2; h++) {
      uint8_t* row = shared + warp_area + (lane / 4 + 8 * h) * kRowBytes + column * 2;
#pragma unroll
      for (int j = 0; j < 16; j++) {
        *reinterpret_cast<uint32_t*>(row + j * 16) =
            pack_bf16(finish(o[j][2 * h], inverse[h]), finish(o[j][2 * h + 1], inverse[h]));
      }
    }
    fence_to_copy_engine();
    __syncwarp();
    const int r = tile.first_row + group * kGroupRows + warp * 16 + lane;
    if (lane < 16 && r < tile.n_rows) {
      bulk_store(p.out + row_offset(p, tile.token0, tile.kv_head, r), k_smem + warp_area + lane * kRowBytes,
                 kHeadDim * 2);
    }
    bulk_commit();
  };

  if (group == kGroups - 1) named_arrive(kTurnBarrier, 256);  // the first turn is group 0's
  mbarrier_wait(known(0), 0);
  Tile tile = *slot(0);
  griddep_wait();
  load_tile_queries(tile);
  cp_async_wait<0>();
  fence_to_copy_engine();
  named_barrier(kGroupBarrier + group, 128);
  mbarrier_wait(full_k(key.stage), key.parity);
  wgmma_fence();
  issue_scores();
  wgmma_wait<0>();
  results(s);
  release_keys();

  for (int i = 0;; i++) {  // s: the raw scores of the tile's first step
    const int last = last_position<kRows>(p, tile);
    const int last_step = last / kStep;
    const int group_row = tile.first_row + group * kGroupRows;
    const int row0 = group_row + warp * 16 + lane / 4;
    const int first_position = tile.start + min(group_row, tile.n_rows - 1) / p.group;
    const int position0 = tile.start + min(row0, tile.n_rows - 1) / p.group;
    const int position1 = tile.start + min(row0 + 8, tile.n_rows - 1) / p.group;
    const auto softmax = [&](int step) {
      const int start = step * kStep;
      if (start + kStep - 1 > first_position) {
        softmax_step<true>(s, p.scale, column, position0 - start, position1 - start, m, l, alpha);
      } else {
        softmax_step<false>(s, p.scale, column, 0, 0, m, l, alpha);
      }
    };
    // The products with the tile's queries are done; the next tile's queries come while the last softmax runs.
    const auto fetch_next = [&] {
      named_barrier(kGroupBarrier + group, 128);
      mbarrier_wait(known(i + 1), ((i + 1) / kSlots) & 1);
      if (slot(i + 1)->n_rows > 0) load_tile_queries(*slot(i + 1));
    };
    start_split();
    for (int step = 0; step < last_step; step++) {
      const bool split_ends = (step + 1) % kSplitSteps == 0;
      float split_m[2], split_l[2];
      softmax(step);
      if (step % kSplitSteps != 0) rescale(o, alpha);
      pack();
      mbarrier_wait(full_v(value.stage), value.parity);
      mbarrier_wait(full_k(key.stage), key.parity);
      take_turn();
      wgmma_fence();
      issue_values(step);
      issue_scores();
      end_turn();
      wgmma_wait<1>();
      results(o);
      release_values();
      if (split_ends) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
          split_m[h] = m[h];
          split_l[h] = quad_sum(l[h][0], l[h][1], l[h][2], l[h][3]);
        }
        start_split();
        merge_split(step, split_m, split_l);
      }
      wgmma_wait<0>();
      results(s);
      release_keys();
    }

    fetch_next();
    softmax(last_step);
    if (last_step % kSplitSteps != 0) rescale(o, alpha);
    pack();
    // Slots after `last` hold whatever the block held before; P is 0 there, and so must they be, lest a stale NaN comes
    // through. Each warpgroup does it for itself; all write the same zeros.
    mbarrier_wait(full_v(value.stage), value.parity);
    const int valid = last - last_step * kStep + 1;
    for (int piece = group_thread; piece < (kStep - valid) * 16; piece += 128) {
      const int key_slot = valid + piece / 16;
      const uint32_t offset = (key_slot / 8) * 2048 + piece % 16 * 128 + key_slot % 8 * 16;
      *reinterpret_cast<uint4*>(shared + S::kValues + value.stage * kStepBytes + offset) = make_uint4(0, 0, 0, 0);
    }
    cp_async_wait<0>();
    fence_to_copy_engine();
    named_barrier(kGroupBarrier + group, 128);
    // The next tile's first scores run under this one's end. Without a next tile they are of what lies there, and
    // nobody reads them.
    const bool more = slot(i + 1)->n_rows > 0;
    if (more) mbarrier_wait(full_k(key.stage), key.parity);
    take_turn();
    wgmma_fence();
    issue_values(last_step);
    issue_scores();
    end_turn();
    wgmma_wait<1>();
    results(o);
    release_values();
    write_rows(tile, last_step);
    wgmma_wait<0>();
    results(s);
    if (!more) break;
    release_keys();
    tile = *slot(i + 1);
  }
  bulk_wait_read<0>();
#endif
}

template <int kGroups>
void launch_groups(const AttentionParams& p, int n_tiles, const Context& ctx) {
  using S = Shape<kGroups>;
  configure<attention_hopper_kernel<kGroups>>(S::kSharedBytes);
  const dim3 blocks(static_cast<unsigned>(std::min(n_tiles * p.n_kv_heads, ctx.sm_count)));
  launch("launching attention_hopper", attention_hopper_kernel<kGroups>, {blocks, dim3(S::kThreads), S::kSharedBytes},
         ctx, p, n_tiles);
}

}  // namespace

void attention_hopper(const AttentionParams& p, int n_tiles, int n_groups, const Context& ctx) {
  if (n_groups == 3) return launch_groups<3>(p, n_tiles, ctx);
  launch_groups<2>(p, n_tiles, ctx);
}

}  // namespace qwen3::cuda

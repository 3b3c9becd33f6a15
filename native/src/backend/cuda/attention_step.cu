// Attention of a decode step on Hopper, from qkv: every sequence has one new token. Makes q, and the new key and value,
// writes the latter to the KV block and attends. Bound by reading K and V.
//
// Persistent: two CTAs per SM, each of a warpgroup that computes (consumers) and one that feeds it: a producer warp and
// three preparers. The work is a line of splits, of which each CTA has a piece, perhaps of whole pairs, so that no
// states travel: attention_plan.h.
//   producer   streams the splits' keys and values through a ring of kSlots slots (a step's keys or values, 16 KB) by
//              bulk copies, running on from split to split. All that it reads was there before the step, so it never
//              waits for the kernels before (attention_decode.cuh says why that is right)
//   preparers  normalise and rotate the pair's queries, one pair ahead; in the CTA that has the pair's last split also
//              the new key, which they write to the KV block with the value
//   consumers  warp w scores keys [16w, 16w + 16) of every step, the maxima of the split's steps meet in shared memory,
//              P goes through shared memory as bf16, and warp w accumulates output columns [32w, 32w + 32). The new key
//              and value are placed into their slots. Pairs that span CTAs leave the state of each split in the
//              workspace; the CTA that comes last merges
// Arithmetic: attention.cuh and head_norm.cuh; the bits are those of qk_norm_rope and the other attention kernels.
// Registers: kConsumerRegisters and kFeederRegisters of the 128 that a thread has on average.
// Measured: 64 sequences of 512 tokens 34.0 us, 88% of 4.5 TB/s, of 4,096 tokens 97% (native/bench/results/
// 2026-12-01-h200-3.txt). Keys and values are read once per step: evict_first, or they drive out what comes again.
//
// A row of the batch belongs to the sequence of that number or is padding (seq_of -1), which is skipped.
#include <algorithm>

#include "backend/cuda/attention.cuh"
#include "backend/cuda/attention.h"
#include "backend/cuda/attention_step.cuh"
#include "backend/cuda/attention_step_line.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/segments.cuh"

namespace qwen3::cuda {
namespace {

using namespace step_line;

#if QWEN3_SM90A
__device__ __forceinline__ void produce(const StepParams& p, Shared& shared, const Piece& piece, int lane) {
  const uint64_t policy = evict_first();
  Walk walk = piece.walk;
  RingPlace<kSlots> place;
  // Lane i < 8 holds KV block i of a split; those of the next split are fetched ahead.
  const auto block_of_lane = [&](const Walk& w) {
    if (!piece.has(w)) return 0;
    const int block = min(w.split * (kSplit / kBlockSize) + lane % 8, w.last / kBlockSize);
    return p.block_tables[static_cast<int64_t>(w.seq) * p.max_blocks + block];
  };
  int next_block = piece.block;
  while (piece.has(walk)) {
    const int block = next_block;
    const int head = walk.head;
    const int n_steps = walk.n_steps();
    const int n_tokens = min(walk.last - walk.split * kSplit, kSplit);  // in memory: the new token is not
    walk.next(shared, p.n_seqs, p.n_kv_heads);
    next_block = block_of_lane(walk);
#pragma unroll 1
    for (int i = 0; i < 2 * n_steps; i++) {  // keys of all steps, then values
      const bool values = i >= n_steps;
      const int step = values ? i - n_steps : i;
      const int64_t block0 = __shfl_sync(0xffffffffu, block, 2 * step);
      const int64_t block1 = __shfl_sync(0xffffffffu, block, 2 * step + 1);
      if (lane == 0) {
        const bf16* pool = values ? p.v : p.k;
        const int bytes = (min(max(n_tokens - step * kStep, 0), kStep) + 7) / 8 * (kTokenGroup * 2);
        const int bytes0 = min(bytes, kStepBytes / 2);
        const uint32_t full = shared_address(&shared.full[place.stage]);
        const uint32_t to = shared_address(shared.ring[place.stage]);
        mbarrier_wait(shared_address(&shared.empty[place.stage]), place.parity ^ 1);
        mbarrier_expect(full, bytes);
        if (bytes0 > 0) bulk_load(to, pool + (block0 * p.n_kv_heads + head) * kHeadBlock, bytes0, full, policy);
        if (bytes > bytes0) {
          bulk_load(to + kStepBytes / 2, pool + (block1 * p.n_kv_heads + head) * kHeadBlock, bytes - bytes0, full,
                    policy);
        }
      }
      place.next();
    }
  }
}

// A head of which the product's segments have left their sums, `segment` elements apart.
__device__ __forceinline__ HeadLane load_head_of_sums(const float* head, int64_t segment, int lane) {
  HeadLane s[kSegments];
#pragma unroll
  for (int i = 0; i < kSegments; i++) s[i] = load_head(head + i * segment, lane);
  const auto sum = [&](auto of) { return sum_segments(of(s[0]), of(s[1]), of(s[2]), of(s[3])); };
  return {
      make_float2(sum([](const HeadLane& h) { return h.low.x; }), sum([](const HeadLane& h) { return h.low.y; })),
      make_float2(sum([](const HeadLane& h) { return h.high.x; }), sum([](const HeadLane& h) { return h.high.y; }))};
}

// One of the kPreparers warps. Queries, then the new key, then the new value are dealt to them in turn.
__device__ __forceinline__ void prepare(const StepParams& p, Shared& shared, const Piece& piece, int preparer,
                                        int lane) {
  Prepared& to = shared.pair;
  for (int i = preparer * 32 + lane; i < static_cast<int>(sizeof to.q) / 16; i += kPreparers * 32) {
    reinterpret_cast<uint4*>(to.q)[i] = make_uint4(0, 0, 0, 0);
  }
  named_barrier(2, kPreparers * 32);
  const HeadLane q_norm = load_norm_weight(p.q_norm, lane);
  const HeadLane k_norm = load_norm_weight(p.k_norm, lane);
  const int64_t segment = static_cast<int64_t>(p.n_seqs) * (p.n_heads + 2 * p.n_kv_heads) * kHeadDim;
  Walk walk = piece.walk;
  RingPlace<1> place;
  griddep_wait();
  while (piece.has(walk)) {
    const bool has_new = piece.end_split(walk) == walk.n_splits;
    const int n_tasks = has_new ? p.group + 2 : p.group;
    const float* row = p.qkv + static_cast<int64_t>(walk.seq) * (p.n_heads + 2 * p.n_kv_heads) * kHeadDim;
    const float4 angles = p.angles[static_cast<int64_t>(walk.seq) * 32 + lane];
    const int64_t block = p.block_tables[static_cast<int64_t>(walk.seq) * p.max_blocks + walk.last / kBlockSize];
    const auto load = [&](int task) {
      const int head = task < p.group    ? walk.head * p.group + task
                       : task == p.group ? p.n_heads + walk.head
                                         : p.n_heads + p.n_kv_heads + walk.head;
      const float* from = row + min(head, p.n_heads + 2 * p.n_kv_heads - 1) * kHeadDim;
      return p.of_sums ? load_head_of_sums(from, segment, lane) : load_head(from, lane);
    };
    const auto store = [&](int task, const HeadLane& head) {
      if (task >= n_tasks) return;
      if (task < p.group) {
        place_head(to.q, task, lane, norm_rope(head, q_norm, angles, p.eps));
        return;
      }
      const bool is_key = task == p.group;
      const HeadWords words = is_key
                                  ? norm_rope(head, k_norm, angles, p.eps)
                                  : HeadWords{head_word(head.low.x, head.low.y), head_word(head.high.x, head.high.y)};
      uint32_t* mine = is_key ? to.key : to.value;
      mine[lane] = words.low;
      mine[32 + lane] = words.high;
      uint32_t* pool =
          reinterpret_cast<uint32_t*>((is_key ? p.k : p.v) + (block * p.n_kv_heads + walk.head) * kHeadBlock);
      pool[kv_offset(walk.last % kBlockSize, 2 * lane) / 2] = words.low;
      pool[kv_offset(walk.last % kBlockSize, 64 + 2 * lane) / 2] = words.high;
    };
    HeadLane head0 = load(preparer);
    HeadLane head1 = load(preparer + kPreparers);
    mbarrier_wait(shared_address(&shared.taken), place.parity ^ 1);
    for (int task = preparer; task < n_tasks; task += 2 * kPreparers) {
      if (task != preparer) {
        head0 = load(task);
        head1 = load(task + kPreparers);
      }
      store(task, head0);
      store(task + kPreparers, head1);
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared_address(&shared.ready));
    place.next();
    walk.next_pair(shared, p.n_seqs, p.n_kv_heads);
  }
}

// Merges the states of a pair's splits from the workspace, in ascending order. Warp w takes rows w, w + 4, ..; a lane 4
// of the 128 columns.
__device__ __forceinline__ void merge_states(const StepParams& p, const float* states, int n_splits, bf16* out,
                                             int warp, int lane) {
  constexpr int kAhead = 8;
  const int stride = p.group * kPartialRow;
  for (int r = warp; r < p.group; r += kWarps) {
    const float* from = states + r * kPartialRow;
    RowState row;
    row.clear();
    for (int first = 0; first < n_splits; first += kAhead) {
      float4 o[kAhead];
      float2 ml[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; i++) {
        const float* state = from + static_cast<int64_t>(min(first + i, n_splits - 1)) * stride;
        o[i] = __ldcg(reinterpret_cast<const float4*>(state + lane * 4));
        ml[i] = __ldcg(reinterpret_cast<const float2*>(state + kHeadDim));
      }
#pragma unroll
      for (int i = 0; i < kAhead; i++) {
        if (first + i < n_splits) row.add(o[i], ml[i].x, ml[i].y);
      }
    }
    row.write(out + r * kHeadDim + lane * 4);
  }
}

// Word i of the warp's 32 columns of a value row.
__device__ __forceinline__ void place_value(uint8_t* tile, int row, int warp, int i, uint32_t word) {
  *reinterpret_cast<uint32_t*>(tile + row / 8 * 2048 + (4 * warp + i / 4) * 128 + row % 8 * 16 + i % 4 * 4) = word;
}

// Leaves a split's state of `group` heads at to [group, kPartialRow].
__device__ __forceinline__ void leave_state(float* to, int group, const SplitLane& at, const float (&o)[kTiles][4],
                                            const Heads& m, const Heads& l) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    if (at.head + h >= group) continue;
    float* row = to + (at.head + h) * kPartialRow;
#pragma unroll
    for (int j = 0; j < kTiles; j++) {
#pragma unroll
      for (int i = 0; i < 2; i++) row[at.warp * 32 + j * 16 + i * 8 + at.g] = o[j][2 * i + h];
    }
    if (at.warp == 0 && at.g == 0) {
      *reinterpret_cast<float2*>(row + kHeadDim) = h == 0 ? make_float2(m.a, l.a) : make_float2(m.b, l.b);
    }
  }
}

__device__ __forceinline__ void consume(const StepParams& p, Shared& shared, const Piece& piece, int thread) {
  const SplitLane at(thread);
  const int warp = at.warp;
  const int lane = at.lane;
  const auto barrier = [] { named_barrier(1, kConsumers); };
  const uint32_t ring = shared_address(shared.ring);
  const uint32_t own_values = value_row<2048>(32 * warp, lane);

  Walk walk = piece.walk;
  RingPlace<kSlots> place;
  RingPlace<1> pair_place;
  griddep_wait();
  while (piece.has(walk)) {  // one pair's splits
    const int seq = walk.seq;
    const int head = walk.head;
    const int last = walk.last;
    const int n_splits = walk.n_splits;
    const int first_split = walk.split;
    const int states = walk.state;
    const int end_split = piece.end_split(walk);
    const bool whole = first_split == 0 && end_split == n_splits;
    const int key_row = last % kStep;  // of the new key in its step
    const bool key_owner = warp == key_row / 16;
    mbarrier_wait(shared_address(&shared.ready), pair_place.parity);
    pair_place.next();
    uint32_t q[4][4];
    load_step_queries(q, shared_address(shared.pair.q), at);

    // The new key and value, if they are this CTA's.
    const HeadWords key_words{shared.pair.key[lane], shared.pair.key[32 + lane]};
    const uint32_t value_word = shared.pair.value[16 * warp + lane % 16];
    __syncwarp();
    // What follows is ordinary stores, which the arrival orders behind these loads; the copy engine's would need a
    // fence.
    if (lane == 0) mbarrier_arrive(shared_address(&shared.taken));

    RunningHeads<kTiles> running;
    running.clear();
    for (int split = first_split; split < end_split; split++) {
      const int n_steps = min(last / kStep + 1 - split * kSplitSteps, kSplitSteps);
      const bool has_last = split == n_splits - 1;
      float s[kSplitSteps][4];
#pragma unroll
      for (int i = 0; i < kSplitSteps; i++) {
        if (i >= n_steps) break;
        const bool last_step = has_last && i == n_steps - 1;
        mbarrier_wait(shared_address(&shared.full[place.stage]), place.parity);
        if (last_step && key_owner) {
          place_head(shared.ring[place.stage], key_row, lane, key_words);
          fence_to_copy_engine();  // before the slot is filled again
        }
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 4; j++) s[i][j] = 0.0f;
        const uint32_t from = ring + place.stage * kStepBytes + at.k;
#pragma unroll
        for (int k = 0; k < 8; k++) {
          uint32_t keys[4];
          ldmatrix_x4(keys, from + k * 256);
          add_scores(s[i], keys, q, k);
        }
        fence_to_copy_engine();  // the last loads may still be on their way
        __syncwarp();
        if (lane == 0) mbarrier_arrive(shared_address(&shared.empty[place.stage]));
        place.next();
        leave_top(shared.scratch, at, i, mask_and_top(at, s[i], last_step ? key_row : kStep));
      }
      barrier();

      Heads m, alpha[kSplitSteps];
      softmax_split(shared.scratch, at, s, n_steps, p.scale, alpha, m);
      barrier();

      float o[kTiles][4] = {};
#pragma unroll
      for (int i = 0; i < kSplitSteps; i++) {
        if (i >= n_steps) break;
        const bool last_step = has_last && i == n_steps - 1;
        rescale(o, alpha[i]);
        mbarrier_wait(shared_address(&shared.full[place.stage]), place.parity);
        if (last_step) {
          // The new value, and zeros behind it up to the end of its 16 keys: P is 0 there, and stale memory may be NaN.
          uint8_t* slot = shared.ring[place.stage];
          if (lane < 16) place_value(slot, key_row, warp, lane, value_word);
#pragma unroll
          for (int half = 0; half < 2; half++) {
            const int token_group = key_row / 16 * 2 + half;
            if (token_group * 8 + lane / 4 <= key_row) continue;
            *reinterpret_cast<uint4*>(slot + token_group * 2048 + (4 * warp + lane % 4) * 128 + lane / 4 * 16) =
                make_uint4(0, 0, 0, 0);
          }
          fence_to_copy_engine();
        }
        __syncwarp();
        uint32_t probabilities[kStep / 32][4];
        load_probabilities(probabilities, shared_address(shared.scratch.p_words[i]), at);
        add_values<2048>(o, probabilities, ring + place.stage * kStepBytes + own_values,
                         last_step ? key_row / 16 + 1 : kStep / 16);
        fence_to_copy_engine();  // the last loads may still be on their way
        __syncwarp();
        if (lane == 0) mbarrier_arrive(shared_address(&shared.empty[place.stage]));
        place.next();
      }
      const Heads l = split_sums(shared.scratch, at);
      if (whole) {
        running.add(o, m, l);
      } else {
        leave_state(p.partials + static_cast<int64_t>(states + split) * p.group * kPartialRow, p.group, at, o, m, l);
      }
    }

    bf16* out = p.out + (static_cast<int64_t>(seq) * p.n_heads + head * p.group) * kHeadDim;
    if (whole) {
      running.write(out, 32 * warp, p.group, at);
    } else {
      // Who comes last changes nothing about the result.
      __threadfence();
      barrier();
      int32_t* counter = p.counters + seq * p.n_kv_heads + head;
      if (thread == 0) {
        const int n = end_split - first_split;
        shared.last_cta = atomicAdd(counter, n) + n == n_splits ? 1 : 0;
      }
      barrier();
      if (shared.last_cta != 0) {
        __threadfence();
        if (thread == 0) *counter = 0;  // ready for the next launch
        merge_states(p, p.partials + static_cast<int64_t>(states) * p.group * kPartialRow, n_splits, out, warp, lane);
      }
    }
    walk.split = end_split - 1;
    walk.next(shared, p.n_seqs, p.n_kv_heads);
  }
}
#endif

__global__ void __launch_bounds__(kThreads, kStepCtasPerSm) attention_step_kernel(const StepParams p) {
#if QWEN3_SM90A
  extern __shared__ __align__(128) uint8_t memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int i = 0; i < kSlots; i++) {
      mbarrier_init(shared_address(&shared.full[i]), 1);
      mbarrier_init(shared_address(&shared.empty[i]), kWarps);
    }
    mbarrier_init(shared_address(&shared.ready), kPreparers);
    mbarrier_init(shared_address(&shared.taken), kWarps);
    fence_mbarrier_init();
  }
  griddep_launch();
  const Piece piece = take_piece(p, shared, thread);  // a barrier for all, too
  if (thread >= kConsumers) {
    fewer_registers<kFeederRegisters>();
    const int warp = thread / 32 - kWarps;
    if (warp == kPreparers) {
      produce(p, shared, piece, thread % 32);
    } else {
      prepare(p, shared, piece, warp, thread % 32);
    }
  } else {
    more_registers<kConsumerRegisters>();
    consume(p, shared, piece, thread);
  }
#endif
}

}  // namespace

void attention_step_stream(const StepParams& p, const Context& ctx) {
  configure<attention_step_kernel>(sizeof(Shared));
  launch("launching attention_step", attention_step_kernel,
         {dim3(static_cast<unsigned>(p.n_ctas)), dim3(kThreads), sizeof(Shared)}, ctx, p);
}

}  // namespace qwen3::cuda

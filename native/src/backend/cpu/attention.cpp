// Causal attention over the paged KV cache.
//
// Unit of work: a tile of up to 48 rows of one sequence and one KV head, a row being a (token, query head of the group)
// pair; each KV block is read once for all rows of the tile. Letters: q query rows, k keys, v values, s scores and, in
// place, probabilities, o the float32 output accumulator, m the running maximum, l the running sum.
//
// One arithmetic for decode, prefill and any tile shape (rows never mix, every order is fixed):
//   score       one float32 accumulator per (row, key) that walks the 64 pairs of d upwards; times 1/sqrt(128)
//   step        the 32 keys of a block: maximum, exp, o and l rescaled, keys added upwards in one accumulator
//               per (row, d); probabilities stay float32
//   split       kSplit keys start from an empty state
//   result      splits are merged one by one in ascending order, then o / l
// Keys after a row's own position get probability 0, which changes no bit; keys after the tile's last position are not
// touched. Whether splits of a tile run one after the other in one thread or in several threads is a matter of load
// only: the same states are merged in the same order.
//
// Any thread of the pool; working memory is one thread_scratch buffer a thread, 100 KB.
#include "backend/cpu/kernels.h"
#include "backend/cpu/kv_layout.h"
#include "backend/cpu/scratch.h"
#include "backend/cpu/simd.h"

namespace qwen3::cpu::QWEN3_ISA {
namespace {

constexpr int kStep = kBlockSize;                // keys per online-softmax step
constexpr int kSplit = 512;                      // positions per split of the context
constexpr int kTileRows = 48;                    // 4 row groups of 12: o and s of a tile stay in 48 KB
constexpr int kUnits = kHeadDim / (2 * kLanes);  // vectors of pairs in a value
constexpr int64_t kMaxPartialBytes = int64_t{64} << 20;

// Rows per register tile. AVX-512 has 32 registers: 12 rows x 2 accumulators + operands; AVX2 16.
#if defined(QWEN3_SIMD_AVX512)
constexpr int kScoreRows = 12;
constexpr int kValueRows = 12;
#elif defined(QWEN3_SIMD_AVX2)
constexpr int kScoreRows = 4;
constexpr int kValueRows = 6;
#else
constexpr int kScoreRows = 4;
constexpr int kValueRows = 4;
#endif

// Queries as the score kernel wants them: bf16 pairs for vdpbf16ps, else widened once.
#if defined(QWEN3_SIMD_AVX512BF16)
using Query = bf16;
QWEN3_INLINE F32 dot_query(F32 acc, const Query* q, BF16 key) {
  return dot(acc, broadcast_pair(q), key);
}
#else
using Query = float;
QWEN3_INLINE F32 dot_query(F32 acc, const Query* q, BF16 key) {
  return fma(set1(q[1]), odd(key), fma(set1(q[0]), even(key), acc));
}
#endif

QWEN3_INLINE void prefetch(const bf16* p) {
  __builtin_prefetch(p, 0, 3);
}

// A thread's working set.
struct Tile {
  alignas(64) float s[kTileRows * kStep];        // [row][key of the step]
  alignas(64) float o[2][kTileRows * kHeadDim];  // [row][unit][even d, odd d][lane]; 0: merged, 1: the split's own
  alignas(64) float m[2][kTileRows];
  alignas(64) float l[2][kTileRows];
  alignas(64) float alpha[kTileRows];
  alignas(64) Query q[kTileRows * kHeadDim];
  int32_t position[kTileRows];
};

// What one tile is; every tile is done for each KV head.
struct TilePlan {
  int32_t sequence;
  int32_t first_row;  // row = (token - query_start) * group + head in group
  int32_t n_rows;
  int32_t last_position;  // of its rows
  int64_t partial;        // index of its first partial row in the partials buffer, for KV head 0
};

constexpr int kPartialFloats = kHeadDim + 16;  // o, then m and l; a multiple of 64 bytes

// s[row][key] of one block: q [kRows][128], k one head's keys of a block, s [kRows][kStep]. Meanwhile `next`, the keys
// that follow, come into the cache: blocks lie anywhere in memory, so the processor's own prefetcher starts anew at
// each.
template <int kRows>
[[gnu::noinline]] void score_tile(const Query* q, const bf16* k, const bf16* next, float scale, float* s) {
  constexpr int kVectors = 2;
  for (int key = 0; key < kBlockSize; key += kVectors * kLanes) {
    F32 acc[kRows][kVectors];
#pragma GCC unroll 12
    for (int r = 0; r < kRows; r++) acc[r][0] = acc[r][1] = zero();
    for (int d = 0; d < kHeadDim; d += 2) {
      const BF16 k0 = load_pairs(k + key_offset(key, d));
      const BF16 k1 = load_pairs(k + key_offset(key + kLanes, d));
      prefetch(next + key_offset(key, d));
      if (kVectors * kLanes > 16) prefetch(next + key_offset(key + 16, d));
#pragma GCC unroll 12
      for (int r = 0; r < kRows; r++) {
        acc[r][0] = dot_query(acc[r][0], q + r * kHeadDim + d, k0);
        acc[r][1] = dot_query(acc[r][1], q + r * kHeadDim + d, k1);
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < kRows; r++) {
      store(s + r * kStep + key, acc[r][0] * set1(scale));
      store(s + r * kStep + key + kLanes, acc[r][1] * set1(scale));
    }
  }
}

// o[row] = o[row] * alpha[row] + sum over the first n_keys keys of s[row][key] * v[key]; v, next as in score_tile.
template <int kRows>
[[gnu::noinline]] void value_tile(const float* s, const float* alpha, const bf16* v, const bf16* next, int n_keys,
                                  float* o) {
  for (int unit = 0; unit < kUnits; unit++) {
    F32 low[kRows], high[kRows];
    float* o_unit = o + unit * 2 * kLanes;
#pragma GCC unroll 12
    for (int r = 0; r < kRows; r++) {
      low[r] = load(o_unit + r * kHeadDim) * set1(alpha[r]);
      high[r] = load(o_unit + r * kHeadDim + kLanes) * set1(alpha[r]);
    }
    const bf16* line = v + value_offset(0, unit * 2 * kLanes);
    const bf16* next_line = next + value_offset(0, unit * 2 * kLanes);
    for (int key = 0; key < n_keys; key++, line += kValueChunk, next_line += kValueChunk) {
      const BF16 pair = load_pairs(line);
      prefetch(next_line);
      const F32 v_even = even(pair);
      const F32 v_odd = odd(pair);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; r++) {
        const F32 weight = set1(s[r * kStep + key]);
        low[r] = fma(weight, v_even, low[r]);
        high[r] = fma(weight, v_odd, high[r]);
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < kRows; r++) {
      store(o_unit + r * kHeadDim, low[r]);
      store(o_unit + r * kHeadDim + kLanes, high[r]);
    }
  }
}

// Rows [row, n_rows) of a tile through the largest register tiles that fit.
void score(Tile& tile, int row, int n_rows, const bf16* k, const bf16* next, float scale) {
  while (row < n_rows) {
    const Query* q = tile.q + row * kHeadDim;
    float* s = tile.s + row * kStep;
    const int rest = n_rows - row;
    if (kScoreRows >= 12 && rest >= 12) {
      score_tile<kScoreRows>(q, k, next, scale, s);
      row += kScoreRows;
    } else if (kScoreRows >= 8 && rest >= 8) {
      score_tile<(kScoreRows >= 8 ? 8 : 1)>(q, k, next, scale, s);
      row += 8;
    } else if (rest >= 4) {
      score_tile<4>(q, k, next, scale, s);
      row += 4;
    } else if (rest >= 2) {
      score_tile<2>(q, k, next, scale, s);
      row += 2;
    } else {
      score_tile<1>(q, k, next, scale, s);
      row += 1;
    }
  }
}

void add_values(Tile& tile, int row, int n_rows, const bf16* v, const bf16* next, int n_keys, float* o) {
  while (row < n_rows) {
    const float* s = tile.s + row * kStep;
    const float* alpha = tile.alpha + row;
    float* to = o + row * kHeadDim;
    const int rest = n_rows - row;
    if (kValueRows >= 12 && rest >= 12) {
      value_tile<(kValueRows >= 12 ? 12 : 1)>(s, alpha, v, next, n_keys, to);
      row += 12;
    } else if (kValueRows >= 8 && rest >= 8) {
      value_tile<(kValueRows >= 8 ? 8 : 1)>(s, alpha, v, next, n_keys, to);
      row += 8;
    } else if (kValueRows >= 6 && rest >= 6) {
      value_tile<(kValueRows >= 6 ? 6 : 1)>(s, alpha, v, next, n_keys, to);
      row += 6;
    } else if (rest >= 4) {
      value_tile<4>(s, alpha, v, next, n_keys, to);
      row += 4;
    } else if (rest >= 2) {
      value_tile<2>(s, alpha, v, next, n_keys, to);
      row += 2;
    } else {
      value_tile<1>(s, alpha, v, next, n_keys, to);
      row += 1;
    }
  }
}

// 0, 1, 2, ... as floats.
struct Iota {
  alignas(64) float value[kStep];
};
constexpr Iota make_iota() {
  Iota iota{};
  for (int i = 0; i < kStep; i++) iota.value[i] = static_cast<float>(i);
  return iota;
}
constexpr Iota kIota = make_iota();

// Scores of rows [row, n_rows) become probabilities; m, l and alpha follow. start: position of the step's first key;
// n_keys: keys of the step that any row may see. A score that is NaN makes its row NaN.
void softmax_step(Tile& tile, int row, int n_rows, int start, int n_keys, float* m, float* l) {
  const int n_vectors = (n_keys + kLanes - 1) / kLanes;
  const F32 lowest = set1(-__builtin_inff());
  alignas(64) float m_new[kTileRows];
  for (int r = row; r < n_rows; r++) {
    float* s = tile.s + r * kStep;
    const int n_seen = tile.position[r] + 1 - start;  // >= 1
    F32 top = lowest;
    if (n_seen < n_vectors * kLanes) {
      for (int i = 0; i < n_vectors; i++) {
        const Mask seen = less(load(kIota.value + i * kLanes), set1(static_cast<float>(n_seen)));
        const F32 value = select(seen, load(s + i * kLanes), lowest);
        store(s + i * kLanes, value);
        top = max(top, value);
      }
    } else {
      for (int i = 0; i < n_vectors; i++) top = max(top, load(s + i * kLanes));
    }
    const float highest = reduce_max(top);
    m_new[r] = highest > m[r] ? highest : m[r];
  }
  for (int r = row / kLanes * kLanes; r < n_rows; r += kLanes) {
    const int n = n_rows - r;
    store_n(tile.alpha + r, exp(load_n(m + r, n) - load_n(m_new + r, n)), n);
  }
  for (int r = row; r < n_rows; r++) {
    float* s = tile.s + r * kStep;
    const F32 shift = set1(m_new[r]);
    F32 sum = zero();
    for (int i = 0; i < n_vectors; i++) {
      const F32 p = exp(load(s + i * kLanes) - shift);
      store(s + i * kLanes, p);
      sum = sum + p;
    }
    m[r] = m_new[r];
    l[r] = l[r] * tile.alpha[r] + reduce_add(sum);
  }
}

struct Sequence {
  const int32_t* blocks;  // its row of the block table
  const bf16* k;          // the pools, at this KV head
  const bf16* v;
  int64_t stride;  // elements from one block to the next
  int n_blocks;    // that the tile reads
};

// The tile's rows over positions [begin, end) from an empty state, into o, m, l. begin is a multiple of kSplit.
void attend(Tile& tile, int n_rows, const Sequence& sequence, int begin, int end, float scale, float* o, float* m,
            float* l) {
  for (int r = 0; r < n_rows; r++) {
    m[r] = -__builtin_inff();
    l[r] = 0.0f;
  }
  for (int i = 0; i < n_rows * kHeadDim; i += kLanes) store(o + i, zero());
  for (int start = begin; start < end; start += kStep) {
    int row = 0;
    while (row < n_rows && tile.position[row] < start) row++;
    if (row == n_rows) return;
    const int n_keys = end - start < kStep ? end - start : kStep;
    const int block = start / kBlockSize;
    const int64_t here = sequence.blocks[block] * sequence.stride;
    const int64_t next = sequence.blocks[block + 1 < sequence.n_blocks ? block + 1 : block] * sequence.stride;
    score(tile, row, n_rows, sequence.k + here, sequence.k + next, scale);
    softmax_step(tile, row, n_rows, start, n_keys, m, l);
    add_values(tile, row, n_rows, sequence.v + here, sequence.v + next, n_keys, o);
  }
}

// State a takes in the state b of the keys that follow: one row of o [128], m, l each. An empty b changes nothing.
QWEN3_INLINE void merge(float* a_o, float* a_m, float* a_l, const float* b_o, float b_m, float b_l) {
  if (b_l == 0.0f && b_m == -__builtin_inff()) return;
  const float m = b_m > *a_m ? b_m : *a_m;
  alignas(64) float weight[2][kLanes];
  store(weight[0], exp(set1(*a_m - m)));
  store(weight[1], exp(set1(b_m - m)));
  const F32 a = set1(weight[0][0]);
  const F32 b = set1(weight[1][0]);
  for (int i = 0; i < kHeadDim; i += kLanes) store(a_o + i, fma(load(b_o + i), b, load(a_o + i) * a));
  *a_l = *a_l * weight[0][0] + b_l * weight[1][0];
  *a_m = m;
}

// o / l of one row in natural order: out [128] bf16. Adding 0 turns -0 into 0: whether a masked key was skipped or
// added with probability 0 must not show.
QWEN3_INLINE void write_row(const float* o, float l, bf16* out) {
  const F32 inverse = set1(1.0f / l);
  for (int unit = 0; unit < kUnits; unit++) {
    alignas(64) bf16 half[2][kLanes];
    store_bf16(half[0], load(o + unit * 2 * kLanes) * inverse + zero());
    store_bf16(half[1], load(o + unit * 2 * kLanes + kLanes) * inverse + zero());
    bf16* to = out + unit * 2 * kLanes;
    for (int i = 0; i < kLanes; i++) {
      to[2 * i] = half[0][i];
      to[2 * i + 1] = half[1][i];
    }
  }
}

// What all items of a call share.
struct Call {
  const AttentionArgs* args;
  const TilePlan* tiles;
  float* partials;  // [partial row][kPartialFloats]
  int group;        // query heads per KV head
  float scale;
};

QWEN3_INLINE bf16* output_row(const Call& call, const TilePlan& plan, int kv_head, int r) {
  const AttentionArgs& args = *call.args;
  const int row = plan.first_row + r;
  const int64_t token = args.batch->query_start[plan.sequence] + row / call.group;
  return args.out + (token * args.n_heads + kv_head * call.group + row % call.group) * kHeadDim;
}

// Gathers the tile's queries and positions.
void load_tile(const Call& call, const TilePlan& plan, int kv_head, Tile& tile) {
  const AttentionArgs& args = *call.args;
  for (int r = 0; r < plan.n_rows; r++) {
    const int row = plan.first_row + r;
    const int64_t token = args.batch->query_start[plan.sequence] + row / call.group;
    const bf16* q = args.q + (token * args.n_heads + kv_head * call.group + row % call.group) * kHeadDim;
    tile.position[r] = args.batch->positions[token];
    Query* to = tile.q + r * kHeadDim;
#if defined(QWEN3_SIMD_AVX512BF16)
    __builtin_memcpy(to, q, kHeadDim * sizeof(bf16));
#else
    for (int d = 0; d < kHeadDim; d += kLanes) store(to + d, load_bf16(q + d));
#endif
  }
}

Sequence sequence_of(const Call& call, const TilePlan& plan, int kv_head) {
  const AttentionArgs& args = *call.args;
  const int64_t head = static_cast<int64_t>(kv_head) * kHeadBlock;
  return {args.batch->block_tables + static_cast<int64_t>(plan.sequence) * args.batch->max_blocks, args.kv.k + head,
          args.kv.v + head, static_cast<int64_t>(args.n_kv_heads) * kHeadBlock, plan.last_position / kBlockSize + 1};
}

// All splits of a tile in one thread.
void whole_tile(const Call& call, const TilePlan& plan, int kv_head) {
  Tile& tile = *static_cast<Tile*>(thread_scratch(Scratch::kAttentionTile, sizeof(Tile)));
  load_tile(call, plan, kv_head, tile);
  const Sequence sequence = sequence_of(call, plan, kv_head);
  const int end = plan.last_position + 1;
  for (int begin = 0; begin < end; begin += kSplit) {
    const int part = begin == 0 ? 0 : 1;
    const int stop = begin + kSplit < end ? begin + kSplit : end;
    attend(tile, plan.n_rows, sequence, begin, stop, call.scale, tile.o[part], tile.m[part], tile.l[part]);
    if (part == 0) continue;
    for (int r = 0; r < plan.n_rows; r++) {
      merge(tile.o[0] + r * kHeadDim, &tile.m[0][r], &tile.l[0][r], tile.o[1] + r * kHeadDim, tile.m[1][r],
            tile.l[1][r]);
    }
  }
  for (int r = 0; r < plan.n_rows; r++) {
    write_row(tile.o[0] + r * kHeadDim, tile.l[0][r], output_row(call, plan, kv_head, r));
  }
}

QWEN3_INLINE float* partial_row(const Call& call, const TilePlan& plan, int kv_head, int n_splits, int split, int r) {
  const int64_t index = plan.partial + (static_cast<int64_t>(kv_head) * n_splits + split) * plan.n_rows + r;
  return call.partials + index * kPartialFloats;
}

void one_split(const Call& call, const TilePlan& plan, int kv_head, int split) {
  Tile& tile = *static_cast<Tile*>(thread_scratch(Scratch::kAttentionTile, sizeof(Tile)));
  load_tile(call, plan, kv_head, tile);
  const int end = plan.last_position + 1;
  const int n_splits = (end + kSplit - 1) / kSplit;
  const int begin = split * kSplit;
  const int stop = begin + kSplit < end ? begin + kSplit : end;
  attend(tile, plan.n_rows, sequence_of(call, plan, kv_head), begin, stop, call.scale, tile.o[1], tile.m[1], tile.l[1]);
  for (int r = 0; r < plan.n_rows; r++) {
    float* to = partial_row(call, plan, kv_head, n_splits, split, r);
    __builtin_memcpy(to, tile.o[1] + r * kHeadDim, kHeadDim * sizeof(float));
    to[kHeadDim] = tile.m[1][r];
    to[kHeadDim + 1] = tile.l[1][r];
  }
}

void merge_splits(const Call& call, const TilePlan& plan, int kv_head) {
  const int n_splits = plan.last_position / kSplit + 1;
  for (int r = 0; r < plan.n_rows; r++) {
    float* a = partial_row(call, plan, kv_head, n_splits, 0, r);
    for (int split = 1; split < n_splits; split++) {
      const float* b = partial_row(call, plan, kv_head, n_splits, split, r);
      merge(a, a + kHeadDim, a + kHeadDim + 1, b, b[kHeadDim], b[kHeadDim + 1]);
    }
    write_row(a, a[kHeadDim + 1], output_row(call, plan, kv_head, r));
  }
}

}  // namespace

void attention(const AttentionArgs& args, ThreadPool& pool) {
  const BatchView& batch = *args.batch;
  if (batch.n_tokens == 0) return;
  const int group = args.n_heads / args.n_kv_heads;
  const int n_kv_heads = args.n_kv_heads;

  // The plan: tiles of all sequences. A sequence of n tokens has n * group rows.
  const int64_t max_tiles = static_cast<int64_t>(batch.n_tokens) * group / kTileRows + batch.n_seqs;
  TilePlan* tiles = static_cast<TilePlan*>(
      thread_scratch(Scratch::kAttentionPlan, static_cast<size_t>(max_tiles) * sizeof(TilePlan)));
  int64_t n_tiles = 0;
  int64_t n_partials = 0;
  int max_splits = 0;
  for (int s = 0; s < batch.n_seqs; s++) {
    const int first_token = batch.query_start[s];
    const int n_rows = (batch.query_start[s + 1] - first_token) * group;
    for (int row = 0; row < n_rows; row += kTileRows) {
      const int n = n_rows - row < kTileRows ? n_rows - row : kTileRows;
      const int last = batch.positions[first_token + (row + n - 1) / group];  // positions of a sequence ascend
      const int n_splits = last / kSplit + 1;
      tiles[n_tiles++] = {s, row, n, last, n_partials};
      n_partials += static_cast<int64_t>(n_splits) * n * n_kv_heads;
      if (n_splits > max_splits) max_splits = n_splits;
    }
  }

  Call call{&args, tiles, nullptr, group, 1.0f / __builtin_sqrtf(static_cast<float>(kHeadDim))};
  const int64_t n_items = n_tiles * n_kv_heads;
  const int64_t partial_bytes = n_partials * kPartialFloats * static_cast<int64_t>(sizeof(float));
  const bool enough_items = n_items >= 4 * static_cast<int64_t>(pool.n_threads()) || pool.n_threads() == 1;
  if (enough_items || max_splits == 1 || partial_bytes > kMaxPartialBytes) {
    // Late tiles of a prompt have the most keys: they go first.
    pool.parallel_for(n_items, 1, [&call, n_items, n_kv_heads](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; i++) {
        const int64_t item = n_items - 1 - i;
        whole_tile(call, call.tiles[item / n_kv_heads], static_cast<int>(item % n_kv_heads));
      }
    });
    return;
  }
  call.partials = static_cast<float*>(thread_scratch(Scratch::kAttentionPartials, static_cast<size_t>(partial_bytes)));
  pool.parallel_for(n_items * max_splits, 1, [&call, n_kv_heads, max_splits](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) {
      const TilePlan& plan = call.tiles[i / max_splits / n_kv_heads];
      const int split = static_cast<int>(i % max_splits);
      if (split > plan.last_position / kSplit) continue;
      one_split(call, plan, static_cast<int>(i / max_splits % n_kv_heads), split);
    }
  });
  pool.parallel_for(n_items, 4, [&call, n_kv_heads](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) {
      merge_splits(call, call.tiles[i / n_kv_heads], static_cast<int>(i % n_kv_heads));
    }
  });
}

}  // namespace qwen3::cpu::QWEN3_ISA

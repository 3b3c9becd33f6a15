// Matrix products: linear and gate_up, for one row (decode), a few rows and thousands (prefill), by one micro-kernel.
//
// Order of the sums, the same for every output whatever the number of rows, their place and the threads: K is walked
// upwards in steps of 2 * kLanes elements into one vector accumulator by simd.h's dot(); lanes are added at the end by
// reduce_add's tree; the last step is padded with zeros. A tile of kRows weight rows x up to kTokens inputs keeps its
// accumulators in registers; where K is long they rest in memory between blocks of K, whole vectors, which changes no
// bit.
//
// Work items are (chunk of outputs) x (block of inputs). An item copies its inputs into `packed`, in the order in which
// the micro-kernel reads them (and widened to float32 where there is no bf16 dot product), then runs over its weights
// in sub-blocks small enough for the caches. Weights are read where they are: bf16, row-major, aligned to 2 bytes.
//
// Runs on the engine's worker thread and the pool's helpers.
#include "backend/cpu/kernels.h"
#include "backend/cpu/scratch.h"
#include "backend/cpu/simd.h"

namespace qwen3::cpu::QWEN3_ISA {
namespace {

// ---- sizes; native/bench/LOG.md has the measurements behind them
// A tile: 4 weight rows x 6 inputs fill 24 of 32 registers, 4 x 3 fill 12 of 16. Tiles of few inputs wait for memory,
// not for arithmetic: 8 rows keep more loads in flight.
constexpr int kRows = 4;
constexpr int kMostRows = 8;
#if defined(QWEN3_SIMD_AVX512)
constexpr int kTokens = 6;
constexpr int kFewTokens = 2;
#else
constexpr int kTokens = 3;
constexpr int kFewTokens = 1;
#endif
constexpr int kBlockTokens = 96;   // inputs of an item, at most; a multiple of kTokens
constexpr int kBlockRows = 64;     // weight rows of a sub-block: what the second-level cache holds beside the inputs
constexpr int kFewTiles = 4;       // up to here weights are the larger part of the traffic, see run_item
constexpr int kStep = 2 * kLanes;  // elements of K per step
// Elements of K per block, so that a tile's inputs (6 x 2048 bf16 or 6 x 1024 float32) fill half of a 48 KB first-level
// cache.
#if defined(QWEN3_SIMD_AVX512BF16)
constexpr int kBlockSteps = 2048 / kStep;
#else
constexpr int kBlockSteps = 1024 / kStep;
#endif

// One step of one input.
#if defined(QWEN3_SIMD_AVX512BF16)
struct Input {
  BF16 pair;
};
QWEN3_INLINE Input make_input(BF16 x) {
  return {x};
}
QWEN3_INLINE F32 multiply(F32 acc, BF16 w, const Input& x) {
  return dot(acc, x.pair, w);
}
#else
struct Input {
  F32 even, odd;
};
QWEN3_INLINE Input make_input(BF16 x) {
  return {even(x), odd(x)};
}
// As dot(), with the widening of x done before.
QWEN3_INLINE F32 multiply(F32 acc, BF16 w, const Input& x) {
  return fma(odd(w), x.odd, fma(even(w), x.even, acc));
}
#endif

struct Tile {
  const bf16* rows[kMostRows];  // at the first step
  const Input* input;           // [n_steps, n_tokens]
  int n_steps;                  // whole steps
  int tail;                     // elements in the step after them, or 0
  int64_t ahead;                // elements from a weight to one that is wanted soon, see run_item; 0: none
  F32* saved;                   // [rows, n_tokens] accumulators between blocks of K
  float* sums;                  // [n_tokens, kBlockRows]
};

// One step of a tile at element k of its rows: as multiply() for each accumulator.
template <int n_rows, int n_tokens>
QWEN3_INLINE void step_tile(F32 (&acc)[n_rows][n_tokens], const bf16* const (&rows)[n_rows], int64_t k,
                            const Input* input) {
#if defined(QWEN3_SIMD_AVX512)
  BF16 w[n_rows];
#pragma GCC unroll 8
  for (int r = 0; r < n_rows; r++) w[r] = load_pairs(rows[r] + k);
#pragma GCC unroll 8
  for (int t = 0; t < n_tokens; t++) {
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; r++) acc[r][t] = multiply(acc[r][t], w[r], input[t]);
  }
#else
  // 12 accumulators leave 4 registers: even and odd elements in turn, so that 3 inputs and one weight are all that
  // lives. The compiler must not hold weights over both halves (it would spill accumulators); the empty asm makes it
  // load anew.
#pragma GCC unroll 8
  for (int r = 0; r < n_rows; r++) {
    const F32 w = even(load_pairs(rows[r] + k));
#pragma GCC unroll 8
    for (int t = 0; t < n_tokens; t++) acc[r][t] = fma(w, input[t].even, acc[r][t]);
  }
  asm volatile("" ::: "memory");
#pragma GCC unroll 8
  for (int r = 0; r < n_rows; r++) {
    const F32 w = odd(load_pairs(rows[r] + k));
#pragma GCC unroll 8
    for (int t = 0; t < n_tokens; t++) acc[r][t] = fma(w, input[t].odd, acc[r][t]);
  }
  asm volatile("" ::: "memory");
#endif
}

// Accumulates one tile over one block of K: from zero or from what `saved` holds, into `saved` or, reduced, into
// `sums`.
template <int n_rows, int n_tokens, bool prefetch>
void run_tile(const Tile& tile, bool first, bool last) {
  F32 acc[n_rows][n_tokens];
#pragma GCC unroll 8
  for (int r = 0; r < n_rows; r++) {
#pragma GCC unroll 8
    for (int t = 0; t < n_tokens; t++) acc[r][t] = first ? zero() : tile.saved[r * n_tokens + t];
  }
  const bf16* rows[n_rows];
#pragma GCC unroll 8
  for (int r = 0; r < n_rows; r++) rows[r] = tile.rows[r];
  const Input* input = tile.input;
  const int64_t ahead = tile.ahead;
  for (int64_t k = 0; k < static_cast<int64_t>(tile.n_steps) * kStep; k += kStep, input += n_tokens) {
    if constexpr (prefetch) {
#pragma GCC unroll 8
      for (int r = 0; r < n_rows; r++) __builtin_prefetch(rows[r] + k + ahead);
    }
    step_tile<n_rows, n_tokens>(acc, rows, k, input);
  }
  if (tile.tail > 0) {
    const int64_t k = static_cast<int64_t>(tile.n_steps) * kStep;
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; r++) {
      const BF16 w = load_pairs_n(rows[r] + k, tile.tail);
#pragma GCC unroll 8
      for (int t = 0; t < n_tokens; t++) acc[r][t] = multiply(acc[r][t], w, input[t]);
    }
  }
  if (last) {
#pragma GCC unroll 8
    for (int t = 0; t < n_tokens; t++) {
#pragma GCC unroll 2
      for (int r = 0; r < n_rows; r += 4) {
        reduce_add4(acc[r][t], acc[r + 1][t], acc[r + 2][t], acc[r + 3][t], tile.sums + t * kBlockRows + r);
      }
    }
  } else {
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; r++) {
#pragma GCC unroll 8
      for (int t = 0; t < n_tokens; t++) tile.saved[r * n_tokens + t] = acc[r][t];
    }
  }
}

// Weight rows of a tile with this many inputs.
constexpr int tile_rows(int n_tokens) {
  return n_tokens <= kFewTokens ? kMostRows : kRows;
}

template <bool prefetch>
void run_tile(int n_tokens, const Tile& tile, bool first, bool last) {
  switch (n_tokens) {
    case 1:
      return run_tile<tile_rows(1), 1, prefetch>(tile, first, last);
    case 2:
      return run_tile<tile_rows(2), 2, prefetch>(tile, first, last);
    case 3:
      return run_tile<tile_rows(3), 3, prefetch>(tile, first, last);
#if defined(QWEN3_SIMD_AVX512)
    case 4:
      return run_tile<tile_rows(4), 4, prefetch>(tile, first, last);
    case 5:
      return run_tile<tile_rows(5), 5, prefetch>(tile, first, last);
    case 6:
      return run_tile<tile_rows(6), 6, prefetch>(tile, first, last);
#endif
  }
}

QWEN3_INLINE int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
QWEN3_INLINE int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// What both ops share. Outputs are "columns" of the result; an output of gate_up has two weight rows.
struct Product {
  const bf16* x;  // [n_rows, n_in]
  int n_rows;
  const LinearWeight* weight;
  int n_out;  // outputs: weight rows, or half of them for gate_up
  bool gate_up;
  bool accumulate;  // linear only
  float* out;       // [n_rows, n_out], linear
  bf16* out_bf16;   // [n_rows, n_out], gate_up
};

const bf16* weight_row(const LinearWeight& weight, int64_t row) {
  int part = 0;
  while (part + 1 < weight.n_parts && row >= weight.parts[static_cast<size_t>(part)].rows) {
    row -= weight.parts[static_cast<size_t>(part)].rows;
    part++;
  }
  return weight.parts[static_cast<size_t>(part)].data + row * weight.n_in;
}

// Tiles of nearly equal size: tile i of the block's n inputs begins at this one.
QWEN3_INLINE int tile_begin(int i, int n_tiles, int n) {
  return i * n / n_tiles;
}

// packed: per tile [n_steps (a last part one included), tile's inputs]
void pack_inputs(const bf16* x, int n_in, int n_tokens, int n_tiles, Input* packed) {
  const int n_steps = n_in / kStep, tail = n_in % kStep;
  for (int i = 0; i < n_tiles; i++) {
    const int begin = tile_begin(i, n_tiles, n_tokens), size = tile_begin(i + 1, n_tiles, n_tokens) - begin;
    for (int t = 0; t < size; t++) {
      const bf16* row = x + static_cast<int64_t>(begin + t) * n_in;
      Input* to = packed + t;
      for (int s = 0; s < n_steps; s++, to += size) *to = make_input(load_pairs(row + static_cast<int64_t>(s) * kStep));
      if (tail > 0) *to = make_input(load_pairs_n(row + static_cast<int64_t>(n_steps) * kStep, tail));
    }
    packed += static_cast<int64_t>(divide_up(n_in, kStep)) * size;
  }
}

void write_linear(const Product& p, const float* sums, int64_t token, int n_tokens, int64_t output, int n) {
  for (int t = 0; t < n_tokens; t++, sums += kBlockRows) {
    float* out = p.out + (token + t) * p.n_out + output;
    for (int i = 0; i < n; i += kLanes) {
      F32 y = load(sums + i);
      if (p.accumulate) y = load_n(out + i, n - i) + y;
      store_n(out + i, y, n - i);
    }
  }
}

void write_gate_up(const Product& p, const float* sums, int64_t token, int n_tokens, int64_t output, int n) {
  for (int t = 0; t < n_tokens; t++, sums += kBlockRows) {
    bf16* out = p.out_bf16 + (token + t) * p.n_out + output;
    for (int i = 0; i < n; i += kLanes) {
      store_bf16_n(out + i, silu(load(sums + i)) * load(sums + kBlockRows / 2 + i), n - i);
    }
  }
}

// One thread's working memory.
struct Memory {
  Input* packed;  // a block's inputs
  F32* saved;     // [kBlockRows, kBlockTokens] accumulators
  float* sums;    // [kBlockTokens, kBlockRows]
};

// Inputs token .. token + n_tokens times outputs begin .. end.
void run_item(const Product& p, const Memory& scratch, int64_t token, int n_tokens, int n_tiles, int64_t begin,
              int64_t end) {
  const int n_in = p.weight->n_in;
  const int all_steps = static_cast<int>(divide_up(n_in, kStep));
  // Few inputs: each tile of weights is read from memory and used for all inputs while the next one is fetched; K in
  // one go. Many: each tile of inputs stays in the first-level cache while the sub-block's weights pass from the
  // second.
  const bool few = n_tiles <= kFewTiles;
  const int block_steps = few ? all_steps : kBlockSteps;
  const int rows_per_tile = tile_rows(tile_begin(1, n_tiles, n_tokens));  // all tiles are on one side of kFewTokens
  const int outputs_per_block = p.gate_up ? kBlockRows / 2 : kBlockRows;
  for (int64_t output = begin; output < end; output += outputs_per_block) {
    const int n = static_cast<int>(smaller(outputs_per_block, end - output));
    // Weight rows of the sub-block; where it is not full the last one stands in, and its results are not written.
    const bf16* rows[kBlockRows];
    const int n_rows = static_cast<int>(divide_up(n, kMostRows)) * kMostRows;
    for (int r = 0; r < n_rows; r++) {
      rows[r] = weight_row(*p.weight, output + (r < n ? r : n - 1));
      if (p.gate_up) rows[kBlockRows / 2 + r] = weight_row(*p.weight, p.n_out + output + (r < n ? r : n - 1));
    }
    for (int step = 0; step < all_steps; step += block_steps) {
      const bool last = step + block_steps >= all_steps;
      const int n_steps = last ? n_in / kStep - step : block_steps;
      const int row_tiles = (p.gate_up ? 2 : 1) * n_rows / rows_per_tile;
      for (int j = 0; j < row_tiles * n_tiles; j++) {
        const int i = few ? j % n_tiles : j / row_tiles;
        const int first_token = tile_begin(i, n_tiles, n_tokens);
        const int size = tile_begin(i + 1, n_tiles, n_tokens) - first_token;
        int r = (few ? j / n_tiles : j % row_tiles) * rows_per_tile;
        if (r >= n_rows) r += kBlockRows / 2 - n_rows;  // the rows of up
        Tile tile;
        for (int l = 0; l < rows_per_tile; l++) tile.rows[l] = rows[r + l] + static_cast<int64_t>(step) * kStep;
        tile.input = scratch.packed + static_cast<int64_t>(first_token) * all_steps + static_cast<int64_t>(step) * size;
        tile.n_steps = n_steps;
        tile.tail = last ? n_in % kStep : 0;
        tile.ahead = static_cast<int64_t>(rows_per_tile) * n_in;
        tile.saved = scratch.saved + r * kBlockTokens + first_token * rows_per_tile;
        tile.sums = scratch.sums + first_token * kBlockRows + r;
        if (i == 0) {
          run_tile<true>(size, tile, step == 0, last);
        } else {
          run_tile<false>(size, tile, step == 0, last);
        }
      }
    }
    if (p.gate_up) {
      write_gate_up(p, scratch.sums, token, n_tokens, output, n);
    } else {
      write_linear(p, scratch.sums, token, n_tokens, output, n);
    }
  }
}

void run_product(const Product& p, ThreadPool& pool) {
  if (p.n_rows <= 0 || p.n_out <= 0) return;
  // Blocks of inputs: as few as possible, of nearly equal size, whole tiles.
  const int64_t n_blocks = divide_up(p.n_rows, kBlockTokens);
  const int64_t block_tokens = divide_up(divide_up(p.n_rows, n_blocks), kTokens) * kTokens;
  // Chunks of outputs: large, as each packs its inputs anew, but 8 items per thread to even out.
  const int64_t chunk_wanted = divide_up(p.n_out * n_blocks, 8 * static_cast<int64_t>(pool.n_threads()));
  const int64_t chunk = smaller(512, divide_up(chunk_wanted, 16) * 16);
  const int64_t n_chunks = divide_up(p.n_out, chunk);
  const size_t packed_bytes = sizeof(Input) * static_cast<size_t>(block_tokens * divide_up(p.weight->n_in, kStep));
  const size_t saved_bytes = sizeof(F32) * kBlockRows * kBlockTokens;
  const size_t sums_bytes = sizeof(float) * kBlockTokens * kBlockRows;
  // Blocks of one chunk follow each other: threads that work at the same time share the chunk's weights in the cache.
  pool.parallel_for(n_chunks * n_blocks, 1, [&](int64_t item, int64_t item_end, int) {
    char* memory = static_cast<char*>(thread_scratch(Scratch::kLinear, packed_bytes + saved_bytes + sums_bytes));
    const Memory scratch{reinterpret_cast<Input*>(memory), reinterpret_cast<F32*>(memory + packed_bytes),
                         reinterpret_cast<float*>(memory + packed_bytes + saved_bytes)};
    for (; item < item_end; item++) {
      const int64_t token = item % n_blocks * block_tokens;
      const int n_tokens = static_cast<int>(smaller(block_tokens, p.n_rows - token));
      if (n_tokens <= 0) continue;  // rounding up to whole tiles has left nothing for the last block
      const int n_tiles = static_cast<int>(divide_up(n_tokens, kTokens));
      const int64_t begin = item / n_blocks * chunk;
      pack_inputs(p.x + token * p.weight->n_in, p.weight->n_in, n_tokens, n_tiles, scratch.packed);
      run_item(p, scratch, token, n_tokens, n_tiles, begin, smaller(begin + chunk, p.n_out));
    }
  });
}

}  // namespace

void linear(const LinearArgs& args, ThreadPool& pool) {
  Product p{};
  p.x = args.x;
  p.n_rows = args.n_rows;
  p.weight = args.weight;
  p.n_out = args.weight->n_out;
  p.accumulate = args.accumulate;
  p.out = args.out;
  run_product(p, pool);
}

void gate_up(const GateUpArgs& args, ThreadPool& pool) {
  Product p{};
  p.x = args.x;
  p.n_rows = args.n_rows;
  p.weight = args.weight;
  p.n_out = args.weight->n_out / 2;
  p.gate_up = true;
  p.out_bf16 = args.out;
  run_product(p, pool);
}

}  // namespace qwen3::cpu::QWEN3_ISA

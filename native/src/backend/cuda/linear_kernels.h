// The implementations of one matrix product, for the dispatch in linear.cu, its tests and its benchmark.
//
// One arithmetic (docs/numerics.md): the blocks of 64 columns are cut in 4 segments, segment s = blocks
// [s * n / 4, (s + 1) * n / 4); inside a segment k ascends in steps of 16 into one float32 accumulator that starts at
// 0; the result is ((s0 + s1) + s2) + s3 in float32. All give the same bits for a row, whatever the other rows.
#pragma once

#include "backend/cuda/kernels.h"

namespace qwen3::cuda {

enum class LinearMode : int {
  kStore,       // out = y
  kAccumulate,  // out += y
  kGateUp,      // gated = silu(gate) * up of a kGateUp weight
};

// x [n_rows, n_in] times a packed weight.
struct LinearCall {
  LinearMode mode;
  const bf16* x;  // [n_rows, n_in], 16-byte aligned; n_in a multiple of 8
  int n_rows;
  int n_in;
  const bf16* weight;          // packed, [row_tiles][col_blocks][2 KB]
  const uint8_t* coded;        // the same, coded (kernels.h); nullptr: there is no such form
  const uint8_t* coded_bases;  // [row_tiles][16], a byte for each row
  int row_tiles;
  int col_blocks;
  int n_out;    // columns of the output: of `gated` in mode kGateUp
  float* out;   // [n_rows, n_out], modes kStore and kAccumulate
  bf16* gated;  // [n_rows, n_out], mode kGateUp
};

// Rows of inputs that the copy engine brings in one load: those that there are, and what completes an atom of 8. What
// lies behind them in shared memory is multiplied too, and its results are not stored.
__host__ __device__ inline int loaded_rows(int n_rows) {
  return (n_rows + 7) / 8 * 8;
}

LinearCall make_linear_call(LinearMode mode, const bf16* x, int n_rows, const LinearWeight& weight);
LinearCall make_linear_call(const LinearArgs& args);

// Up to 64 rows, sm_80 and newer; reads coded weights if there are any. ring: blocks in flight per warp: 4, 6 or 8 (up
// to 8 rows), 0 = chosen.
inline constexpr int kMaxDecodeRows = 64;
void linear_decode(const LinearCall& call, const Context& ctx, int ring = 0);

// Up to 64 rows, Hopper only. tile: outputs per CTA and turn: 32, 48 or 64, 0 = chosen.
inline constexpr int kMaxBatchRows = 64;
void linear_batch(const LinearCall& call, const Context& ctx, int tile = 0);

// Up to 32 rows, Hopper only, n_in from 4,096: kGateUp of wide weights, and kAccumulate of up to 8,192 columns.
inline constexpr int kMaxSlabRows = 32;
bool linear_slabs_serves(const LinearCall& call, const Context& ctx);
void linear_slabs(const LinearCall& call, const Context& ctx);

// Hopper only, wide coded weights, up to 64 rows.
bool is_wide(const LinearCall& call, const Context& ctx);  // two slabs of 64 outputs for each SM, or more
bool linear_coded_serves(const LinearCall& call, const Context& ctx);
void linear_coded(const LinearCall& call, const Context& ctx);

// Half a product, for who reads it to finish: leaves the sums of the four segments of each output in ctx.sums,
// [kSegments, n_rows, n_out] float32, until the next product that does so. call.out is not touched. Hopper only, kStore
// and kAccumulate with coded weights that are not wide, if CTAs of two or three slabs of 64 outputs and a segment of K
// are no more than the SMs and three quarters of them at least; with three slabs, up to 128 rows.
inline constexpr int kMaxSumsRows = 256;
bool linear_sums_serves(const LinearCall& call, const Context& ctx);
void linear_sums(const LinearCall& call, const Context& ctx);
// Bytes of ctx.sums, for any weight.
size_t sums_bytes(int sm_count);
// Whether a product is faster so, where its reader adds.
bool linear_sums_pays(const LinearCall& call, const Context& ctx);
// call.out, by call.mode, from what linear_sums() has left.
void add_sums(const LinearCall& call, const Context& ctx);

// Up to 128 rows, Hopper only, wide coded weights; linear_coded is faster where it serves.
inline constexpr int kMaxCodedWideRows = 128;
bool linear_coded_wide_serves(const LinearCall& call, const Context& ctx);
void linear_coded_wide(const LinearCall& call, const Context& ctx);

// Up to 256 rows, Hopper only, for weights with very few rows: K is split over a cluster.
inline constexpr int kMaxClusterRows = 256;
void linear_cluster(const LinearCall& call, const Context& ctx);

// Up to 256 rows, Hopper only, K split over a cluster, every output of the weight at once: only for weights that are
// narrow enough, which linear_split_serves() tells (up to 6,240 outputs on an H200, 4,320 beyond 128 rows).
inline constexpr int kMaxSplitRows = 256;
bool linear_split_serves(const LinearCall& call, const Context& ctx);
void linear_split(const LinearCall& call, const Context& ctx);

// Any number of rows, Hopper only. tile: 128, 192 or 256 outputs per CTA, 0 = chosen by a model of the time.
void linear_hopper(const LinearCall& call, const Context& ctx, int tile = 0);

// qkv_proj with qk_norm_rope in its epilogue, Hopper only: args.q and args.kv are made, args.qkv is not. Worth it for
// large batches: qkv_hopper_serves().
bool qkv_hopper_serves(const SelfAttentionArgs& args, const Context& ctx);
void qkv_hopper(const SelfAttentionArgs& args, const Context& ctx);

// Any number of rows, sm_80 and newer.
void linear_generic(const LinearCall& call, const Context& ctx);

// Chooses one by the number of rows and the device.
void linear_any(const LinearCall& call, const Context& ctx);

}  // namespace qwen3::cuda

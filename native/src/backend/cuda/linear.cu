// The ops linear and gate_up: checks shapes and picks the kernel by the number of rows and the device. All kernels give
// the same bits (linear_kernels.h), so the borders below are only about speed.
#include <string>

#include "backend/cuda/linear_kernels.h"
#include "base/error.h"

namespace qwen3::cuda {
namespace {

// Rows up to which linear_decode is the fastest; measured on an H200, native/bench/LOG.md. Elsewhere: its limit.
constexpr int kHopperDecodeRows = 16;
// Up to here it is as fast as linear_split, and attention, which follows qkv_proj, can begin beside its small CTAs.
constexpr int kHopperDecodeRowsOfQkv = 32;
// In place of the first for wide coded weights, which linear_coded serves.
constexpr int kHopperDecodeRowsOfWide = 12;
// Columns of inputs from which linear_coded_wide is known to be faster than linear_hopper: its tiles end without
// another one beginning beneath, which a short K (0.6B's lm_head) would feel most.
constexpr int kLeastWideIn = 2048;
// Rows from which, and up to which, segments' sums that their reader adds are faster: of qkv_proj, and of o_proj.
constexpr int kLeastSumsRowsOfQkv = 33;
constexpr int kLeastSumsRowsOfO = 65;
constexpr int kMostSumsRowsOfO = 192;
// A residual product of so many columns of inputs (down_proj) is faster so beyond kHopperDecodeRows, even if a kernel
// of its own has to add.
constexpr int kLeastLongIn = 8192;

}  // namespace

LinearCall make_linear_call(LinearMode mode, const bf16* x, int n_rows, const LinearWeight& weight) {
  if (weight.n_in % 8 != 0) {
    throw Error(Status::kUnsupported, "a weight has " + std::to_string(weight.n_in) +
                                          " input columns; the CUDA backend needs a multiple of 8");
  }
  const LinearLayout layout = mode == LinearMode::kGateUp ? LinearLayout::kGateUp : LinearLayout::kConcat;
  LinearCall call = {};
  call.mode = mode;
  call.x = x;
  call.n_rows = n_rows;
  call.n_in = weight.n_in;
  call.weight = weight.parts[0].data;
  call.row_tiles = pack_row_tiles(weight.n_out, layout);
  call.col_blocks = pack_col_blocks(weight.n_in);
  if (weight.coded != nullptr) {
    call.coded = static_cast<const uint8_t*>(weight.coded);
    call.coded_bases = call.coded + coded_blocks_bytes(call.row_tiles, call.col_blocks);
  }
  call.n_out = mode == LinearMode::kGateUp ? weight.n_out / 2 : weight.n_out;
  return call;
}

LinearCall make_linear_call(const LinearArgs& args) {
  LinearCall call = make_linear_call(args.accumulate ? LinearMode::kAccumulate : LinearMode::kStore, args.x,
                                     args.n_rows, *args.weight);
  call.out = args.out;
  return call;
}

void linear_any(const LinearCall& call, const Context& ctx) {
  if (call.n_rows == 0) return;
  if (!ctx.hopper) {
    if (call.n_rows <= kMaxDecodeRows) return linear_decode(call, ctx);
    return linear_generic(call, ctx);
  }
  if (call.coded != nullptr) {
    const bool wide = is_wide(call, ctx);
    if (call.n_rows <= (wide ? kHopperDecodeRowsOfWide : kHopperDecodeRows)) return linear_decode(call, ctx);
    if (linear_coded_serves(call, ctx)) return linear_coded(call, ctx);
    if (call.n_in >= kLeastWideIn && linear_coded_wide_serves(call, ctx)) return linear_coded_wide(call, ctx);
    if (call.mode == LinearMode::kStore && call.n_rows <= kHopperDecodeRowsOfQkv) return linear_decode(call, ctx);
  }
  // Narrow: not even one tile of 16 outputs per SM. 8 rows and fewer are quick anyway.
  const bool narrow = call.row_tiles < ctx.sm_count;
  if (narrow && call.n_rows > 8 && call.n_rows <= kMaxClusterRows) return linear_cluster(call, ctx);
  if (call.n_rows <= kHopperDecodeRows) return linear_decode(call, ctx);
  if (linear_slabs_serves(call, ctx)) return linear_slabs(call, ctx);
  // A short K is over before it matters how often inputs are read, except where the alternative is linear_hopper's
  // tiles of 128 rows, too few to fill the SMs.
  const bool split_pays = call.n_in >= 4096 || (call.n_rows > kMaxBatchRows && call.n_rows <= 128);
  if (split_pays && linear_split_serves(call, ctx)) {
    if (call.mode == LinearMode::kStore && call.n_rows <= kHopperDecodeRowsOfQkv) return linear_decode(call, ctx);
    return linear_split(call, ctx);
  }
  if (call.n_rows <= kMaxBatchRows) return linear_batch(call, ctx);
  linear_hopper(call, ctx);
}

bool linear_sums_pays(const LinearCall& call, const Context& ctx) {
  if (!linear_sums_serves(call, ctx)) return false;
  if (call.mode == LinearMode::kStore) return call.n_rows >= kLeastSumsRowsOfQkv;
  if (call.n_in >= kLeastLongIn) return call.n_rows > kHopperDecodeRows;
  return call.n_rows >= kLeastSumsRowsOfO && call.n_rows <= kMostSumsRowsOfO;
}

void linear(const LinearArgs& args, const Context& ctx) {
  const LinearCall call = make_linear_call(args);
  if (call.n_in >= kLeastLongIn && linear_sums_pays(call, ctx)) {
    linear_sums(call, ctx);
    return add_sums(call, ctx);
  }
  linear_any(call, ctx);
}

void gate_up(const GateUpArgs& args, const Context& ctx) {
  LinearCall call = make_linear_call(LinearMode::kGateUp, args.x, args.n_rows, *args.weight);
  call.gated = args.out;
  linear_any(call, ctx);
}

}  // namespace qwen3::cuda

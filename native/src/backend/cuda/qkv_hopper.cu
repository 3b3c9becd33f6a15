// qkv_proj with qk_norm_rope in its epilogue, for large batches on Hopper: the float32 rows between the two (201 MB per
// 8,192 tokens of 8B) are neither written nor read, and a kernel is saved.
//
// Main loop: linear_hopper.cuh with tiles of 256 outputs, two heads. Of a head's 128 elements a lane holds, for each of
// two rows, 8 j + 2 q + {0, 1} and 64 more, j = 0..7, q = lane % 4: those of lanes 4 j + q of qk_norm_rope.cu. So the
// sum of squares follows the same tree, j in the thread, q by shuffles, and all bits are equal. q leaves by the copy
// engine from the staging area (two boxes of 16 rows x 64), keys and values are stored to the KV blocks, where the 8
// rows of a store instruction are 8 tokens: 128 contiguous bytes when they start at a multiple of 8.
//
// Measured on an H200 (bench/results/2026-11-29-h200-prefill.txt): 8B at 8,192 tokens 578 us, the two kernels 664.
#include "backend/cuda/head_norm.cuh"
#include "backend/cuda/kv_layout.h"
#include "backend/cuda/linear_hopper.cuh"

namespace qwen3::cuda {
namespace {

using namespace hopper;

constexpr int kTile = 256;
constexpr int kMinTokens = 512;  // below, other kernels than linear_hopper may make qkv

struct QkvEpilogue {
  CUtensorMap q_map;            // [n_tokens, n_heads * 128] bf16, boxes of 16 x 64
  const int32_t* positions;     // [n_tokens]
  const int32_t* seq_of;        // [n_tokens]; -1: a padding token, whose keys and values go nowhere
  const int32_t* block_tables;  // [n_seqs, max_blocks]
  const bf16* q_norm;           // [128]
  const bf16* k_norm;           // [128]
  const float4* angles;         // [n_tokens, 32]: (cos, sin) of two neighbouring angles
  bf16* k;                      // [n_blocks, n_kv_heads, kHeadBlock]
  bf16* v;
  float eps;
  int n_tokens, max_blocks, n_heads, n_kv_heads;

#if QWEN3_SM90A
  __device__ __forceinline__ void begin() const { tensor_prefetch(&q_map); }

  // One head of row h (0: g, 1: g + 8) of the lane as bf16 pairs, of q and k after norm and RoPE, which read row
  // `token` of the angles.
  __device__ __forceinline__ void convert(const float (&low)[32], const float (&high)[32], int h, const bf16* weight,
                                          int token, int q, HeadWords (&words)[8]) const {
    HeadLane lanes[8];
    float part[8];
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const int i = j * 4 + h * 2;
      lanes[j] = {make_float2(low[i], low[i + 1]), make_float2(high[i], high[i + 1])};
      words[j] = {head_word(low[i], low[i + 1]), head_word(high[i], high[i + 1])};
      part[j] = head_squares(lanes[j]);
    }
    if (weight == nullptr) return;  // v
#pragma unroll
    for (int d = 4; d > 0; d /= 2) {  // lanes at distance 16, 8, 4
#pragma unroll
      for (int j = 0; j < d; j++) part[j] = __fadd_rn(part[j], part[j + d]);
    }
    float sum = part[0];
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
    const float scale = head_scale(sum, eps);
    const float4* row = angles + static_cast<int64_t>(token) * 32;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      words[j] = scale_rope(lanes[j], scale, load_norm_weight(weight, j * 4 + q), row[j * 4 + q]);
    }
  }

  template <int tile, Rows rows>
  __device__ __forceinline__ void finish(Sums<tile, rows>& sums, int row, int column, uint32_t staging,
                                         int lane) const {
    static_assert(tile == kTile);
    const int g = lane / 4, q = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float low[32], high[32];
      sums.take(half * 2, high);
      sums.take(half * 2 + 1, low);
      const int head = column / kHeadDim + Sums<tile, rows>::piece(half * 2) / 2;
      if (head >= n_heads + 2 * n_kv_heads) continue;
      const bool is_q = head < n_heads, is_k = !is_q && head < n_heads + n_kv_heads;
      const bf16* weight = is_q ? q_norm : is_k ? k_norm : nullptr;
      bf16* kv = is_k ? k : v;
      const int kv_head = head - n_heads - (is_k ? 0 : n_kv_heads);
      if (is_q && half > 0) {
        if (lane == 0) bulk_wait_read<0>();
        __syncwarp();
      }
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int token = row + g + h * 8;
        HeadWords words[8];
        convert(low, high, h, weight, min(token, n_tokens - 1), q, words);
        if (is_q) {
#pragma unroll
          for (int j = 0; j < 8; j++) {
            const uint32_t at = staging + h * 1024 + g * 128 + ((j ^ g) << 4) + q * 4;
            shared_store(at, words[j].low);
            shared_store(at + kBoxBytes, words[j].high);
          }
          continue;
        }
        const int seq = token < n_tokens ? seq_of[token] : -1;
        if (seq < 0) continue;
        const int position = positions[token];
        const int64_t block = block_tables[static_cast<int64_t>(seq) * max_blocks + position / kBlockSize];
        uint32_t* place = reinterpret_cast<uint32_t*>(kv + (block * n_kv_heads + kv_head) * kHeadBlock);
        place += kv_offset(position % kBlockSize, 2 * q) / 2;
#pragma unroll
        for (int j = 0; j < 8; j++) {
          place[kv_offset(0, 8 * j) / 2] = words[j].low;
          place[kv_offset(0, 8 * j + 64) / 2] = words[j].high;
        }
      }
      if (is_q) {
        fence_to_copy_engine();
        __syncwarp();
        if (lane == 0) {
          tensor_store_2d(&q_map, head * kHeadDim, row, staging);
          tensor_store_2d(&q_map, head * kHeadDim + 64, row, staging + kBoxBytes);
          bulk_commit();
        }
      }
    }
  }
#endif
};

}  // namespace

bool qkv_hopper_serves(const SelfAttentionArgs& args, const Context& ctx) {
  const int n = args.batch->n_tokens;
  const int n_out = (args.n_heads + 2 * args.n_kv_heads) * kHeadDim;
  if (!ctx.hopper || n < kMinTokens || args.head_dim != kHeadDim || args.qkv_proj->n_out != n_out) return false;
  const LinearCall call = make_linear_call(LinearMode::kStore, args.x, n, *args.qkv_proj);
  if (call.col_blocks < kSegments) return false;
  // What the fusion saves: a kernel that moves 6 bytes per element at 4 TB/s.
  const double saved = 2.0 + static_cast<double>(n) * n_out * 6 / 4e6;
  const double other = std::min(hopper_cost(call, ctx, 128), hopper_cost(call, ctx, 192));
  return hopper_cost(call, ctx, kTile) <= other + saved;
}

void qkv_hopper(const SelfAttentionArgs& args, const Context& ctx) {
  const BatchView& batch = *args.batch;
  QkvEpilogue epilogue;
  epilogue.q_map = rows_map(args.q, batch.n_tokens, args.n_heads * kHeadDim, kWarpRows);
  epilogue.positions = batch.positions;
  epilogue.seq_of = batch.seq_of;
  epilogue.block_tables = batch.block_tables;
  epilogue.q_norm = args.q_norm;
  epilogue.k_norm = args.k_norm;
  epilogue.angles = reinterpret_cast<const float4*>(args.angles);
  epilogue.k = args.kv.k;
  epilogue.v = args.kv.v;
  epilogue.eps = args.eps;
  epilogue.n_tokens = batch.n_tokens;
  epilogue.max_blocks = batch.max_blocks;
  epilogue.n_heads = args.n_heads;
  epilogue.n_kv_heads = args.n_kv_heads;
  run_hopper<kTile, Rows::kMany>("qkv_proj with norm and RoPE",
                                 make_linear_call(LinearMode::kStore, args.x, batch.n_tokens, *args.qkv_proj), epilogue,
                                 ctx);
}

}  // namespace qwen3::cuda

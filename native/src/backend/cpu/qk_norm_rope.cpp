// Per-head RMSNorm and RoPE of q and k, and the one place that writes the KV blocks (layout: kv_layout.h).
//
// A head of a token is computed by one thread from its 128 floats alone, in one order. Threads take groups of up to 16
// tokens of one head: 16 keys share the lines of a KV block.
//
// Angles follow transformers: position * inv_freq in float32; their cos and sin are taken in float64 and rounded, which
// is right to the last bit for any position. A row of the table: 64 cos, then 64 sin.
#include <cmath>

#include "backend/cpu/kernels.h"
#include "backend/cpu/kv_layout.h"
#include "backend/cpu/simd.h"

namespace qwen3::cpu::QWEN3_ISA {
namespace {

constexpr int kHalf = kHeadDim / 2;
constexpr int kTokenGroup = 16;

// x [128] float -> out [128] bf16; weight [128], angles [2][64].
QWEN3_INLINE void norm_rope_head(const float* x, const bf16* weight, const float* angles, float eps, bf16* out) {
  F32 sum[2] = {zero(), zero()};
  for (int i = 0; i < kHalf; i += kLanes) {
    const F32 low = load(x + i);
    const F32 high = load(x + kHalf + i);
    sum[0] = fma(low, low, sum[0]);
    sum[1] = fma(high, high, sum[1]);
  }
  const float mean = reduce_add(sum[0] + sum[1]) * (1.0f / kHeadDim);
  const F32 scale = set1(1.0f / __builtin_sqrtf(mean + eps));
  for (int i = 0; i < kHalf; i += kLanes) {
    const F32 low = (load(x + i) * scale) * load_bf16(weight + i);
    const F32 high = (load(x + kHalf + i) * scale) * load_bf16(weight + kHalf + i);
    const F32 cos = load(angles + i);
    const F32 sin = load(angles + kHalf + i);
    store_bf16(out + i, fma(low, cos, zero() - high * sin));
    store_bf16(out + kHalf + i, fma(high, cos, low * sin));
  }
}

}  // namespace

void rope_angles(const RopeAnglesArgs& args, ThreadPool& pool) {
  pool.parallel_for(args.batch->n_tokens, 8, [&args](int64_t begin, int64_t end, int) {
    for (int64_t token = begin; token < end; token++) {
      float* row = args.out + token * kHeadDim;
      const float position = static_cast<float>(args.batch->positions[token]);
      for (int i = 0; i < kHalf; i++) {
        const double angle = static_cast<double>(position * args.inv_freq[i]);
        row[i] = static_cast<float>(::cos(angle)) * args.rope_scale;
        row[kHalf + i] = static_cast<float>(::sin(angle)) * args.rope_scale;
      }
    }
  });
}

void qk_norm_rope(const QkNormRopeArgs& args, ThreadPool& pool) {
  const BatchView& batch = *args.batch;
  const int n_tokens = batch.n_tokens;
  if (n_tokens == 0) return;
  const int n_row_heads = args.n_heads + 2 * args.n_kv_heads;
  const int64_t n_groups = (n_tokens + kTokenGroup - 1) / kTokenGroup;
  // About 32 heads a piece, 3 us of work.
  const int64_t grain = n_tokens >= kTokenGroup ? 2 : (32 + n_tokens - 1) / n_tokens;
  pool.parallel_for(
      n_groups * n_row_heads, grain, [&args, &batch, n_tokens, n_row_heads](int64_t begin, int64_t end, int) {
        for (int64_t item = begin; item < end; item++) {
          const int head = static_cast<int>(item % n_row_heads);
          const int first = static_cast<int>(item / n_row_heads) * kTokenGroup;
          const int last = first + kTokenGroup < n_tokens ? first + kTokenGroup : n_tokens;
          for (int token = first; token < last; token++) {
            const float* x = args.qkv + (static_cast<int64_t>(token) * n_row_heads + head) * kHeadDim;
            const float* angles = args.angles + static_cast<int64_t>(token) * kHeadDim;
            if (head < args.n_heads) {
              bf16* q = args.q_out + (static_cast<int64_t>(token) * args.n_heads + head) * kHeadDim;
              norm_rope_head(x, args.q_norm, angles, args.eps, q);
              continue;
            }
            const int position = batch.positions[token];
            const int slot = position % kBlockSize;
            const int64_t block =
                batch
                    .block_tables[static_cast<int64_t>(batch.seq_of[token]) * batch.max_blocks + position / kBlockSize];
            if (head < args.n_heads + args.n_kv_heads) {
              bf16 key[kHeadDim];
              norm_rope_head(x, args.k_norm, angles, args.eps, key);
              bf16* k = args.kv.k + (block * args.n_kv_heads + (head - args.n_heads)) * kHeadBlock;
              for (int d = 0; d < kHeadDim; d += 2)
                __builtin_memcpy(k + key_offset(slot, d), key + d, 2 * sizeof(bf16));
            } else {
              bf16* v = args.kv.v + (block * args.n_kv_heads + (head - args.n_heads - args.n_kv_heads)) * kHeadBlock;
              for (int d = 0; d < kHeadDim; d += kLanes) store_bf16(v + value_offset(slot, d), load(x + d));
            }
          }
        }
      });
}

}  // namespace qwen3::cpu::QWEN3_ISA

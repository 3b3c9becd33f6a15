// Attention of sequences with few new tokens: up to kMaxDecodeRows rows (token x query head of a group) that read the
// whole context once. Bound by reading K and V.
//
// Grid (split, KV head, sequence), 128 threads; a CTA takes one split of kSplit keys through a ring of kStages steps of
// 32 KB each, three CTAs per SM overlap. When the workspace is short, a CTA takes a sequence whole, split after split.
// CTAs beyond a sequence's splits and CTAs of sequences with more rows exit at once, so a captured graph serves any
// lengths up to its grid. In every step of 64 keys warp w scores keys [16w, 16w + 16) for all 16 rows of the m16 tile,
// the maxima meet in shared memory, P goes through shared memory as bf16, and warp w accumulates output columns
// [32w, 32w + 32). Old keys and values are read before griddep_wait() (attention_decode.cuh). Arithmetic:
// attention.cuh. Pure decode steps on Hopper have kernels of their own (attention_step.cu).
#include "backend/cuda/attention.cuh"
#include "backend/cuda/attention.h"
#include "backend/cuda/attention_decode.cuh"
#include "backend/cuda/launch.h"

namespace qwen3::cuda {
namespace {

constexpr int kThreads = kDecodeThreads;
constexpr int kStages = 2;  // sm_86, 89 and 120 have 99 KB of shared memory

struct alignas(128) Ring {
  uint8_t q[kMaxDecodeRows * kHeadDim * 2];      // core matrices [row group 2][d chunk 16]
  uint32_t p_words[kMaxDecodeRows * kStep / 2];  // bf16 pairs: core matrices [row group 2][key chunk 8]
  float top[4][kMaxDecodeRows];                  // warp's maximum of a row
  float l[4][kMaxDecodeRows * 4];                // key group t's sum of (row, lane of the quad)
  int last_cta;
};
constexpr int kRingBytes = kStages * 2 * kStepBytes + static_cast<int>(sizeof(Ring));
static_assert(kRingBytes <= 99 * 1024 && kMergeStages * kMergeChunk <= kStages * 2 * kStepBytes);

__global__ void __launch_bounds__(kThreads) attention_decode_kernel(const AttentionParams p) {
  extern __shared__ __align__(128) uint8_t shared[];
  Ring& small = *reinterpret_cast<Ring*>(shared + kStages * 2 * kStepBytes);
  const uint32_t k_smem = shared_address(shared);
  const uint32_t v_smem = k_smem + kStages * kStepBytes;
  const uint32_t q_smem = shared_address(small.q);
  const uint32_t p_smem = shared_address(small.p_words);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int row = lane / 4;         // g: the thread's rows are g and g + 8
  const int column = lane % 4 * 2;  // 2c
  const int seq = static_cast<int>(blockIdx.z);
  const int kv_head = static_cast<int>(blockIdx.y);
  const int split = static_cast<int>(blockIdx.x);

  griddep_launch();
  DecodeWork w;
  if (!find_work(p, seq, w)) return;
  const int last = w.last;
  const int n_splits = last / kSplit + 1;
  if (split >= n_splits) return;
  const int first_step = split * kSplitSteps;
  const int all_steps = last / kStep + 1;
  const int end_step = p.whole ? all_steps : min(first_step + kSplitSteps, all_steps);
  const int32_t* table = p.block_tables + static_cast<int64_t>(seq) * p.max_blocks;

  // KV blocks of the next step to load are fetched one step ahead.
  int load_at = first_step;
  int block0 = block_of(table, load_at * kStep, last);
  int block1 = block_of(table, load_at * kStep + kBlockSize, last);
  int stage = 0;  // of load_at
  const auto load_next = [&] {
    if (load_at < end_step) {
      const int start = load_at * kStep;
      const int b0 = block0;
      const int b1 = block1;
      load_at++;
      block0 = block_of(table, load_at * kStep, last);
      block1 = block_of(table, load_at * kStep + kBlockSize, last);
      load_step(p.k, kv_head, p.n_kv_heads, b0, b1, start, last, k_smem + stage * kStepBytes, thread);
      cp_async_commit();
      load_step(p.v, kv_head, p.n_kv_heads, b0, b1, start, last, v_smem + stage * kStepBytes, thread);
      cp_async_commit();
      stage = stage + 1 == kStages ? 0 : stage + 1;
    } else {  // empty groups keep the count
      cp_async_commit();
      cp_async_commit();
    }
  };
  const int n_old = min(max(w.first_new / kStep - first_step, 0), kStages);  // steps without a new key
#pragma unroll 1
  for (int i = 0; i < n_old; i++) load_next();
  griddep_wait();
  const QueryPieces pieces = read_queries(p, w, kv_head, thread);
#pragma unroll 1
  for (int i = n_old; i < kStages; i++) load_next();
  place_queries(pieces, small.q, thread);

  const int position0 = w.first_new + min(row, w.n_rows - 1) / p.group;
  const int position1 = w.first_new + min(row + 8, w.n_rows - 1) / p.group;
  uint32_t q[8][4];
  Running<4> running;
  running.clear();
  float o[4][4] = {};
  float m[2] = {-__builtin_inff(), -__builtin_inff()};
  float l[2] = {0.0f, 0.0f};
  const int matrix = lane / 8;  // of an ldmatrix.x4
  const int matrix_row = lane % 8 * 16;
  // Offsets of this lane's row: keys of this warp, P, values of this warp.
  const uint32_t k_lane = (2 * warp + matrix / 2) * 2048 + matrix % 2 * 128 + matrix_row;
  const uint32_t p_lane = p_smem + matrix % 2 * 1024 + matrix / 2 * 128 + matrix_row;
  const uint32_t v_lane = matrix % 2 * 2048 + (4 * warp + matrix / 2) * 128 + matrix_row;

  int use_stage = 0;
  for (int step = first_step; step < end_step; step++) {
    // Groups after this step's keys: its values, then 2 for each later step that was asked for.
    if (step == first_step) {
      cp_async_wait<2 * (kStages - 1) + 1>();
    } else {
      cp_async_wait<2 * (kStages - 2) + 1>();
    }
    __syncthreads();
    if (step == first_step) {
#pragma unroll
      for (int k = 0; k < 8; k++) {
        ldmatrix_x4(q[k], q_smem + matrix % 2 * 2048 + (2 * k + matrix / 2) * 128 + matrix_row);
      }
    }
    float s[2][4] = {};
    const uint32_t k_stage = k_smem + use_stage * kStepBytes + k_lane;
#pragma unroll
    for (int k = 0; k < 8; k++) {
      uint32_t b[4];
      ldmatrix_x4(b, k_stage + k * 256);
      mma_bf16(s[0], q[k], b[0], b[1]);
      mma_bf16(s[1], q[k], b[2], b[3]);
    }
    const int start = step * kStep;
    const int first_key = warp * 16 + column;
    mask_tile(s[0], first_key, position0 - start, position1 - start);
    mask_tile(s[1], first_key + 8, position0 - start, position1 - start);
    const float top0 = quad_max(fmaxf(fmaxf(s[0][0], s[0][1]), fmaxf(s[1][0], s[1][1])));
    const float top1 = quad_max(fmaxf(fmaxf(s[0][2], s[0][3]), fmaxf(s[1][2], s[1][3])));
    if (column == 0) {
      small.top[warp][row] = top0;
      small.top[warp][row + 8] = top1;
    }
    __syncthreads();
    // All warps are past the last step's values: its stage is free.
    if (step > first_step) load_next();
    const auto highest = [&](int r) {
      return fmaxf(fmaxf(small.top[0][r], small.top[1][r]), fmaxf(small.top[2][r], small.top[3][r]));
    };
    const float m0 = fmaxf(m[0], __fmul_rn(highest(row), p.scale));
    const float m1 = fmaxf(m[1], __fmul_rn(highest(row + 8), p.scale));
    const float shift0 = finite_shift(m0);
    const float shift1 = finite_shift(m1);
    const float alpha[2] = {exp2_approx(__fsub_rn(m[0], shift0)), exp2_approx(__fsub_rn(m[1], shift1))};
    m[0] = m0;
    m[1] = m1;
    exponentiate(s[0], s[1], p.scale, shift0, shift1, alpha[0], alpha[1], l[0], l[1]);
    uint32_t a[4];
    pack_fragment(s[0], s[1], a);
    // P as core matrices [row group][key chunk]: a[0], a[2] row g of chunks 2w, 2w + 1; a[1], a[3] row g + 8.
    const int word = warp * 64 + lane;
    small.p_words[word] = a[0];
    small.p_words[word + 256] = a[1];
    small.p_words[word + 32] = a[2];
    small.p_words[word + 256 + 32] = a[3];
    rescale(o, alpha);
    cp_async_wait<2 * (kStages - 1)>();
    __syncthreads();
    const uint32_t v_stage = v_smem + use_stage * kStepBytes + v_lane;
#pragma unroll
    for (int t = 0; t < 4; t++) {
      uint32_t pa[4];
      ldmatrix_x4(pa, p_lane + t * 256);
#pragma unroll
      for (int pair = 0; pair < 2; pair++) {
        uint32_t b[4];
        ldmatrix_x4_trans(b, v_stage + t * 4096 + pair * 256);
        mma_bf16(o[2 * pair], pa, b[0], b[1]);
        mma_bf16(o[2 * pair + 1], pa, b[2], b[3]);
      }
    }
    use_stage = use_stage + 1 == kStages ? 0 : use_stage + 1;

    if (step + 1 == end_step || (step + 1) % kSplitSteps == 0) {  // the split is complete
      small.l[warp][row * 4 + lane % 4] = l[0];
      small.l[warp][(row + 8) * 4 + lane % 4] = l[1];
      __syncthreads();
      const int at0 = row * 4 + lane % 4;
      const int at1 = at0 + 32;
      const float l0 = quad_sum(small.l[0][at0], small.l[1][at0], small.l[2][at0], small.l[3][at0]);
      const float l1 = quad_sum(small.l[0][at1], small.l[1][at1], small.l[2][at1], small.l[3][at1]);
      if (!p.whole && n_splits > 1) {
        leave_split(p, w, seq, kv_head, split, n_splits, o, m, l0, l1, small.last_cta, shared, thread);
        return;
      }
      running.add(o, m, l0, l1);
#pragma unroll
      for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) o[j][i] = 0.0f;
      }
      m[0] = m[1] = -__builtin_inff();
      l[0] = l[1] = 0.0f;
    }
  }
  write_rows(p, w, kv_head, warp * 32 + column, row, running);
}

}  // namespace

void attention_decode(const AttentionParams& p, const Context& ctx) {
  const dim3 blocks(static_cast<unsigned>(p.max_splits), static_cast<unsigned>(p.n_kv_heads),
                    static_cast<unsigned>(p.n_seqs));
  configure<attention_decode_kernel>(kRingBytes);
  launch("launching attention_decode", attention_decode_kernel, {blocks, dim3(kThreads), kRingBytes}, ctx, p);
}

}  // namespace qwen3::cuda

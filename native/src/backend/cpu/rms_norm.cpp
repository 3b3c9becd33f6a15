// RMSNorm of whole rows: float32 in, bfloat16 out, rounded once at the end.
//
// The sum of squares has one order per instruction set: four accumulators of kLanes walk the row in turns, are added
// pairwise and folded by reduce_add. A row belongs to one thread, so neither batch nor threads change a bit.
#include "backend/cpu/kernels.h"
#include "backend/cpu/simd.h"

namespace qwen3::cpu::QWEN3_ISA {
namespace {

constexpr int kAccumulators = 4;
constexpr int64_t kGrainFloats = 16384;  // about 2 us of work: less does not pay for waking a thread

// x [n] -> sum of x[i]^2
QWEN3_INLINE float sum_of_squares(const float* x, int n) {
  F32 sum[kAccumulators] = {zero(), zero(), zero(), zero()};
  int i = 0;
  for (; i + kAccumulators * kLanes <= n; i += kAccumulators * kLanes) {
    for (int a = 0; a < kAccumulators; a++) {
      const F32 value = load(x + i + a * kLanes);
      sum[a] = fma(value, value, sum[a]);
    }
  }
  for (int a = 0; i < n; a++, i += kLanes) {
    const F32 value = load_n(x + i, n - i);
    sum[a] = fma(value, value, sum[a]);
  }
  return reduce_add((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

}  // namespace

void rms_norm(const RmsNormArgs& args, ThreadPool& pool) {
  const int hidden = args.hidden;
  const float* x = args.x;                    // [*, hidden]
  const bf16* weight = args.weight;           // [hidden]
  const int32_t* row_index = args.row_index;  // [n_rows] or nullptr
  const float eps = args.eps;
  bf16* out = args.out;  // [n_rows, hidden]
  const int64_t grain = hidden >= kGrainFloats ? 1 : kGrainFloats / hidden;
  pool.parallel_for(args.n_rows, grain, [=](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; row++) {
      const float* from = x + (row_index != nullptr ? row_index[row] : row) * static_cast<int64_t>(hidden);
      bf16* to = out + row * hidden;
      const float mean = sum_of_squares(from, hidden) / static_cast<float>(hidden);
      const F32 scale = set1(1.0f / __builtin_sqrtf(mean + eps));
      int i = 0;
      for (; i + kLanes <= hidden; i += kLanes) {
        store_bf16(to + i, (load(from + i) * scale) * load_bf16(weight + i));
      }
      if (i < hidden) {
        const int rest = hidden - i;
        store_bf16_n(to + i, (load_n(from + i, rest) * scale) * load_bf16_n(weight + i, rest), rest);
      }
    }
  });
}

}  // namespace qwen3::cpu::QWEN3_ISA

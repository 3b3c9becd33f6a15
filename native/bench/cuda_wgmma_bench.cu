// What the products of attention_hopper rest on: layouts of shared memory that wgmma understands, and cycles. For
// Hopper. Stand-alone: links no kernel.
//
//   cuda_wgmma_bench [probe] [budget] (none: all)
//
// probe: what wgmma makes of the strides of a transposed operand without swizzle.
// budget: cycles of what a step of attention_hopper consists of, by one, two and three warpgroups.
#include <cuda_runtime.h>

#include <string>
#include <vector>

#include "backend/cuda/attention_wgmma.cuh"
#include "backend/cuda/kv_layout.h"
#include "backend/cuda/ptx.cuh"
#include "cuda_bench.h"

using namespace qwen3;
using namespace qwen3::cuda;
using namespace bench;

namespace {

// ---------------------------------------------------------------- probe
#if QWEN3_SM90A
#define P4(x, j) "+f"(x[j]), "+f"(x[j + 1]), "+f"(x[j + 2]), "+f"(x[j + 3])
#define P16(x, j) P4(x, j), P4(x, j + 4), P4(x, j + 8), P4(x, j + 12)
#endif
constexpr int kProbeBytes = 40 * 1024;
// v [16 keys][128] as core matrices [key group 2][d chunk 16][8][8]; p = row r, key k: ((r * 7 + k * 3) % 5) - 2.
__global__ void probe_kernel(float* out, int leading, int stride) {
#if QWEN3_SM90A
  extern __shared__ __align__(1024) bf16 v[];  // wrong strides read far beyond the operand
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kProbeBytes / 2; i += 128) v[i] = 0;
  __syncthreads();
  for (int i = thread; i < 16 * 128; i += 128)
    v[kv_offset(i / 128, i % 128)] = to_bf16(static_cast<float>(i % 61 - 30));
  const int row = thread / 32 * 16 + thread % 32 / 4;
  const int c = thread % 4 * 2;
  const auto value = [](int r, int k) {
    return static_cast<uint32_t>(to_bf16(static_cast<float>((r * 7 + k * 3) % 5 - 2)));
  };
  const auto pair = [&](int r, int k) { return value(r, k) | value(r, k + 1) << 16; };
  const uint32_t p[4] = {pair(row, c), pair(row + 8, c), pair(row, c + 8), pair(row + 8, c + 8)};
  float o[64] = {};
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const uint64_t descriptor = static_cast<uint64_t>((shared_address(v) & 0x3FFFF) >> 4) |
                              static_cast<uint64_t>(leading >> 4) << 16 | static_cast<uint64_t>(stride >> 4) << 32;
  wgmma_fence();
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" QWEN3_L64
               "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
               : P16(o, 0), P16(o, 16), P16(o, 32), P16(o, 48)
               : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(descriptor)
               : "memory");
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_results(o);
  for (int i = 0; i < 64; i++) out[(row + 8 * (i / 2 % 2)) * 128 + 8 * (i / 4) + c + i % 2] = o[i];
#endif
}
void probe() {
  now = "probe";
  for (int swap = 0; swap < 2; swap++) {
    Buffer<float> out(64 * 128);
    out.poison();
    probe_kernel<<<1, 128, kProbeBytes, stream>>>(out.data, swap == 0 ? 2048 : 128, swap == 0 ? 128 : 2048);
    const std::vector<float> got = out.host();
    int wrong = 0;
    for (int r = 0; r < 64; r++) {
      for (int d = 0; d < 128; d++) {
        float want = 0;
        for (int k = 0; k < 16; k++) want += static_cast<float>(((r * 7 + k * 3) % 5 - 2) * ((k * 128 + d) % 61 - 30));
        wrong += got[static_cast<size_t>(r * 128 + d)] == want ? 0 : 1;
      }
    }
    line("probe: values operand, leading %d stride %d: %s (%d of 8192 wrong)%s", swap == 0 ? 2048 : 128,
         swap == 0 ? 128 : 2048, wrong == 0 ? "right" : "WRONG", wrong, swap == 0 ? " <- used" : "");
  }
}

// ---------------------------------------------------------------- budget
// A step of 64 rows x 64 keys, again and again, of as many warpgroups as the block has, each with its own queries and
// all with the same keys and values (zeros). cycles: of block 0.
enum Part { kScores, kValues, kProducts, kSoftmax };
constexpr int kBudgetBytes = (3 + 2) * 64 * 128 * 2;
constexpr int kBudgetSteps = 4096;
template <Part kPart>
__global__ void __launch_bounds__(384, 1) budget_kernel(int64_t* cycles) {
#if QWEN3_SM90A
  extern __shared__ __align__(1024) uint8_t shared[];
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kBudgetBytes / 16; i += static_cast<int>(blockDim.x))
    reinterpret_cast<uint4*>(shared)[i] = make_uint4(0, 0, 0, 0);
  fence_to_copy_engine();
  __syncthreads();
  const int group = __shfl_sync(0xffffffffu, thread / 128, 0);
  const uint32_t base = shared_address(shared);
  const uint64_t q = descriptor(base + group * 16384, 128, 2048);
  const uint64_t k = descriptor(base + 3 * 16384, 128, 2048);
  const uint64_t v = descriptor(base + 4 * 16384, 2048, 128);
  float s[8][4] = {}, o[16][4] = {}, m[2] = {}, l[2][4] = {}, alpha[2];
  uint32_t a[4][4] = {};
  const int64_t start = clock64();
#pragma unroll 1
  for (int step = 0; step < kBudgetSteps; step++) {
    if constexpr (kPart == kSoftmax) {
      results(s);
      softmax_step<false>(s, 0.1f, 0, 0, 0, m, l, alpha);
      rescale(o, alpha);
#pragma unroll
      for (int t = 0; t < 4; t++) {
        uint32_t p[4];
        pack_fragment(s[2 * t], s[2 * t + 1], p);
#pragma unroll
        for (int i = 0; i < 4; i++) a[t][i] ^= p[i];
      }
    } else {
      wgmma_fence();
#pragma unroll
      for (int i = 0; kPart != kValues && i < 8; i++) wgmma_scores(s, q + i * 16, k + i * 16, i == 0 ? 0 : 1);
#pragma unroll
      for (int t = 0; kPart != kScores && t < 4; t++) wgmma_values(o, a[t], v + t * 256, 1);
      wgmma_commit();
      wgmma_wait<0>();
      results(s);
      results(o);
    }
  }
  const int64_t end = clock64();
  float used = l[0][0] + l[1][3] + __uint_as_float(a[0][0] ^ a[1][1] ^ a[2][2] ^ a[3][3]);  // or all of it is dropped
#pragma unroll
  for (int i = 0; i < 64; i++) used += o[i / 4][i % 4] + s[i / 4 % 8][i % 4];
  if (used == -1.0f) *cycles = 0;
  if (blockIdx.x == 0 && thread == 0) *cycles = end - start;
#endif
}
template <Part kPart>
void budget(const char* name) {
  now = std::string("budget, ") + name;
  ok(cudaFuncSetAttribute(budget_kernel<kPart>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBudgetBytes));
  double each[3];
  for (int groups = 1; groups <= 3; groups++) {
    Buffer<int64_t> cycles(1);
    budget_kernel<kPart><<<unsigned(sm_count), unsigned(groups * 128), kBudgetBytes, stream>>>(cycles.data);
    each[groups - 1] = double(cycles.host()[0]) / kBudgetSteps / groups;
  }
  line("budget %-22s cycles per step and warpgroup: %5.0f alone, %5.0f of two, %5.0f of three", name, each[0], each[1],
       each[2]);
}
void budgets() {
  budget<kScores>("Q K");
  budget<kValues>("P V");
  budget<kProducts>("Q K and P V");
  budget<kSoftmax>("softmax");
}

}  // namespace

int main(int argc, char** argv) {
  run_sections(argc, argv, {{"probe", probe}, {"budget", budgets}});
}

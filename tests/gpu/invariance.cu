// Proves on the card it runs on what determinism rests on (docs/numerics.md): a dot product of bfloat16 operands whose
// K is walked upwards in steps of 16 into one float32 accumulator has the same bits for every tensor-core instruction.
//
//   tests/gpu/build.sh 90a-real invariance && build/gpu/invariance
//
// D = W X^T for 256 x 256 outputs, three kinds of data, four K. Variants: wgmma with 8 to 256 columns, A from shared
// memory or registers, one or four instructions per commit, the first one adding to zeros or ignoring the accumulator,
// W as A or as B; mma.sync m16n8k16 both ways round. All must equal the first variant and lie near the float64 result.
// Control: pairs of m16n8k8, which sum in another order, must not be equal, or the data could not tell. Exits 1 if a
// comparison fails, 2 without a usable GPU. On GPUs other than Hopper only mma.sync is tested
// and the control may be equal.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "backend/cuda/ptx.cuh"

using namespace qwen3::cuda;
using bf16 = __nv_bfloat16;

namespace {

constexpr int kRows = 256;  // of W and of X

void check(cudaError_t error, const std::string& during) {
  if (error == cudaSuccess) return;
  std::printf("invariance: %s: %s\n", during.c_str(), cudaGetErrorString(error));
  std::exit(2);
}

// Two neighbours (row, k), (row, k + 1) of a [kRows, k_total] matrix; zeros beyond its rows.
__device__ uint32_t pair(const bf16* m, int k_total, int row, int k) {
  return row < kRows ? *reinterpret_cast<const uint32_t*>(m + static_cast<size_t>(row) * k_total + k) : 0u;
}

#if QWEN3_SM90A
constexpr int kChunk = 64;  // of K, staged in shared memory

// The forms of wgmma that no kernel uses: 8 columns, and A from registers.
#define REGISTER_A(n, c, a0, a1, a2, a3, b, s)                                                                  \
  if constexpr (kN == n) {                                                                                      \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #s ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n           \
                 "k16.f32.bf16.bf16 {" c "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b ", p, 1, 1, 0;\n}" \
                 : QWEN3_D(n)                                                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor_b), "r"(add)                      \
                 : "memory");                                                                                   \
  }
#define QWEN3_D(n) QWEN3_D_##n
#define QWEN3_D_8 QWEN3_D4("+f", 0)
#define QWEN3_D_64 QWEN3_D32("+f", 0)
#define QWEN3_D_256 QWEN3_D128("+f", 0)
template <int kN>
__device__ __forceinline__ void wgmma_registers(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t descriptor_b,
                                                int add) {
  static_assert(kN == 8 || kN == 64 || kN == 256);
  REGISTER_A(8, "%0,%1,%2,%3", 4, 5, 6, 7, 8, 9)
  REGISTER_A(64, QWEN3_L32, 32, 33, 34, 35, 36, 37)
  REGISTER_A(256, QWEN3_L128, 128, 129, 130, 131, 132, 133)
}
template <int kN>
__device__ __forceinline__ void wgmma_shared(float (&d)[kN / 2], uint64_t descriptor_a, uint64_t descriptor_b,
                                             int add) {
  if constexpr (kN == 8) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, p, 1, 1, 0, 0;\n}"
        : QWEN3_D4("+f", 0)
        : "l"(descriptor_a), "l"(descriptor_b), "r"(add)
        : "memory");
  } else {
    wgmma<kN>(d, descriptor_a, descriptor_b, add);
  }
}
#endif

// Rows [first, first + n) x columns [k0, k0 + 64) as core matrices of 8 rows x 16 bytes, see plain_descriptor.
__device__ void stage(uint8_t* to, const bf16* m, int k_total, int first, int n, int k0) {
  for (int i = threadIdx.x; i < n * 8; i += blockDim.x) {
    const int row = i / 8, chunk = i % 8;
    const bf16* from = m + static_cast<size_t>(first + row) * k_total + k0 + chunk * 8;
    *reinterpret_cast<uint4*>(to + row / 8 * 1024 + chunk * 128 + row % 8 * 16) =
        first + row < kRows ? *reinterpret_cast<const uint4*>(from) : uint4{};
  }
}

// Grid (B tiles of kN rows, A tiles of 64 rows), one warpgroup. a, b [kRows, k_total]; out [W row][X row].
// kGroup: instructions per commit. swapped: A is X. ignore: the first instruction ignores the accumulator, which is
// NaN.
template <int kN, bool kRegisters, int kGroup>
__global__ void __launch_bounds__(128)
    wgmma_kernel(const bf16* a, const bf16* b, float* out, int k_total, bool swapped, bool ignore) {
#if QWEN3_SM90A
  __shared__ alignas(1024) uint8_t tile_a[64 * kChunk * 2];
  __shared__ alignas(1024) uint8_t tile_b[kN * kChunk * 2];
  const int warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int first_a = blockIdx.y * 64, first_b = blockIdx.x * kN, row = first_a + 16 * warp + group;
  float d[kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; i++) d[i] = ignore ? __int_as_float(0x7fc00000) : 0.0f;
  for (int k0 = 0; k0 < k_total; k0 += kChunk) {
    stage(tile_a, a, k_total, first_a, 64, k0);
    stage(tile_b, b, k_total, first_b, kN, k0);
    uint32_t registers[4][4];
#pragma unroll
    for (int s = 0; s < 4; s++) {
      const int k = k0 + 16 * s + 2 * t;
      registers[s][0] = pair(a, k_total, row, k);
      registers[s][1] = pair(a, k_total, row + 8, k);
      registers[s][2] = pair(a, k_total, row, k + 8);
      registers[s][3] = pair(a, k_total, row + 8, k + 8);
    }
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    wgmma_results(d);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; s++) {
      const int add = ignore && k0 + s == 0 ? 0 : 1;
      const uint64_t at_b = plain_descriptor(shared_address(tile_b) + s * 256);
      if constexpr (kRegisters) {
        wgmma_registers<kN>(d, registers[s], at_b, add);
      } else {
        wgmma_shared<kN>(d, plain_descriptor(shared_address(tile_a) + s * 256), at_b, add);
      }
      if ((s + 1) % kGroup == 0) {
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(d);
        if (s < 3) wgmma_fence();
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kN / 2; i++) {
    const int at_a = row + i / 2 % 2 * 8, at_b = first_b + i / 4 * 8 + 2 * t + i % 2;
    if (at_b < kRows) out[swapped ? at_b * kRows + at_a : at_a * kRows + at_b] = d[i];
  }
#endif
}

// Grid (B tiles of 8 rows, A tiles of 16 rows), one warp. kStep 16, or 8: two instructions of 8 instead of one of 16.
template <int kStep>
__global__ void __launch_bounds__(32) mma_kernel(const bf16* a, const bf16* b, float* out, int k_total, bool swapped) {
  const int group = threadIdx.x / 4, t = threadIdx.x % 4, row = blockIdx.y * 16 + group,
            column = blockIdx.x * 8 + group;
  float d[4] = {};
  for (int k = 2 * t; k < k_total; k += 16) {
    const uint32_t r[4] = {pair(a, k_total, row, k), pair(a, k_total, row + 8, k), pair(a, k_total, row, k + 8),
                           pair(a, k_total, row + 8, k + 8)};
    const uint32_t b0 = pair(b, k_total, column, k), b1 = pair(b, k_total, column, k + 8);
    if constexpr (kStep == 16) {
      mma_bf16(d, r, b0, b1);
    } else {
      const auto half = [&](uint32_t low, uint32_t high, uint32_t by) {
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(low), "r"(high), "r"(by));
      };
      half(r[0], r[1], b0);
      half(r[2], r[3], b1);
    }
  }
  for (int i = 0; i < 4; i++) {
    const int at_a = row + i / 2 * 8, at_b = blockIdx.x * 8 + 2 * t + i % 2;
    out[swapped ? at_b * kRows + at_a : at_a * kRows + at_b] = d[i];
  }
}

// Grid [kRows] of kRows threads: the sum in float64 (exact to 2^-50 of the magnitudes) and the sum of magnitudes.
__global__ void reference_kernel(const bf16* w, const bf16* x, int k_total, double* sum, double* magnitude) {
  const size_t row = blockIdx.x, column = threadIdx.x;
  double s = 0, m = 0;
  for (int k = 0; k < k_total; k++) {
    const double product = static_cast<double>(__bfloat162float(w[row * k_total + k])) *
                           static_cast<double>(__bfloat162float(x[column * k_total + k]));
    s += product;
    m += fabs(product);
  }
  sum[row * kRows + column] = s;
  magnitude[row * kRows + column] = m;
}

uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Kinds: normal; normal with a column of outliers, small on the other side, as activations and weights; 40 binades.
std::vector<bf16> random_matrix(int k_total, int kind, bool activations, uint64_t seed) {
  std::vector<bf16> m(static_cast<size_t>(kRows) * k_total);
  for (size_t i = 0; i < m.size(); i++) {
    const uint64_t bits = mix(seed * 1000003 + i), more = mix(bits);
    const double u = (static_cast<double>(bits >> 40) + 0.5) * 0x1p-24;
    const double v = (static_cast<double>(bits & 0xffffff) + 0.5) * 0x1p-24;
    double z = std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v);
    if (kind == 1) z *= activations ? (i % k_total % 97 == 0 ? 100.0 : 1.0) : 0.02;
    if (kind == 2) z *= std::exp2(static_cast<double>(more >> 40) * 0x1p-24 * 40 - 20);
    m[i] = __float2bfloat16(static_cast<float>(z));
  }
  return m;
}

template <class T>
T* device_array(size_t n) {
  void* p = nullptr;
  check(cudaMalloc(&p, n * sizeof(T)), "taking memory");
  return static_cast<T*>(p);
}

struct Variant {
  std::string name;
  std::function<void(int k_total)> launch;
  bool control = false;
};

}  // namespace

int main() {
  cudaDeviceProp card;
  check(cudaGetDeviceProperties(&card, 0), "looking for a GPU");
  constexpr int kLargest = 12288;
  constexpr size_t kOutputs = static_cast<size_t>(kRows) * kRows;
  bf16* w = device_array<bf16>(static_cast<size_t>(kRows) * kLargest);
  bf16* x = device_array<bf16>(static_cast<size_t>(kRows) * kLargest);
  float* out = device_array<float>(kOutputs);
  double* sum = device_array<double>(kOutputs);
  double* magnitude = device_array<double>(kOutputs);

  std::vector<Variant> variants;
  for (const bool swapped : {false, true}) {
    const bf16* a = swapped ? x : w;
    const bf16* b = swapped ? w : x;
    const std::string way = swapped ? ", X as A" : ", W as A";
    variants.push_back({"mma.sync k16" + way,
                        [=](int k) { mma_kernel<16><<<dim3(kRows / 8, kRows / 16), 32>>>(a, b, out, k, swapped); }});
    variants.push_back({"mma.sync 2 x k8" + way,
                        [=](int k) { mma_kernel<8><<<dim3(kRows / 8, kRows / 16), 32>>>(a, b, out, k, swapped); },
                        true});
    const auto add = [&]<int kN, bool kRegisters, int kGroup>(bool ignore) {
      variants.push_back({"wgmma n" + std::to_string(kN) + (kRegisters ? ", A in registers" : "") +
                              (kGroup == 1 ? ", one per commit" : "") + (ignore ? ", first ignores" : "") + way,
                          [=](int k) {
                            wgmma_kernel<kN, kRegisters, kGroup>
                                <<<dim3((kRows + kN - 1) / kN, kRows / 64), 128>>>(a, b, out, k, swapped, ignore);
                          }});
    };
    if (card.major == 9) {
      add.operator()<8, false, 4>(false);
      add.operator()<16, false, 4>(false);
      add.operator()<32, false, 4>(false);
      add.operator()<48, false, 4>(false);
      add.operator()<64, false, 4>(false);
      add.operator()<128, false, 4>(false);
      add.operator()<192, false, 4>(false);
      add.operator()<256, false, 4>(false);
      add.operator()<8, true, 4>(false);
      add.operator()<64, true, 4>(false);
      add.operator()<256, true, 4>(false);
      add.operator()<64, false, 1>(false);
      add.operator()<256, false, 1>(true);
      add.operator()<64, false, 4>(true);
      add.operator()<64, true, 1>(true);
    }
  }

  int compared = 0, differing = 0, wrong = 0, sensitive = 0, sets = 0;
  std::vector<float> first(kOutputs), got(kOutputs);
  std::vector<double> exact(kOutputs), size(kOutputs);
  for (int kind = 0; kind < 3; kind++) {
    for (const int k_total : {128, 1024, 4096, 12288}) {
      const size_t bytes = static_cast<size_t>(kRows) * k_total * sizeof(bf16);
      const uint64_t seed = static_cast<uint64_t>(kind * 4 + k_total);
      check(cudaMemcpy(w, random_matrix(k_total, kind, false, seed).data(), bytes, cudaMemcpyHostToDevice), "data");
      check(cudaMemcpy(x, random_matrix(k_total, kind, true, ~seed).data(), bytes, cudaMemcpyHostToDevice), "data");
      reference_kernel<<<kRows, kRows>>>(w, x, k_total, sum, magnitude);
      check(cudaMemcpy(exact.data(), sum, kOutputs * sizeof(double), cudaMemcpyDeviceToHost), "the float64 sums");
      check(cudaMemcpy(size.data(), magnitude, kOutputs * sizeof(double), cudaMemcpyDeviceToHost), "the magnitudes");
      bool told_apart = false;
      for (size_t v = 0; v < variants.size(); v++) {
        check(cudaMemset(out, 0xff, kOutputs * sizeof(float)), variants[v].name);  // NaN
        variants[v].launch(k_total);
        check(cudaGetLastError(), variants[v].name);
        check(cudaMemcpy(got.data(), out, kOutputs * sizeof(float), cudaMemcpyDeviceToHost), variants[v].name);
        if (v == 0) first = got;
        size_t off = 0, different = 0;
        for (size_t i = 0; i < kOutputs; i++) {
          // Each of k / 16 steps may cut off up to 2 units of the largest partial sum, which the magnitudes bound.
          off += !(std::fabs(static_cast<double>(got[i]) - exact[i]) <= (k_total / 16 + 2) * 0x1p-22 * size[i]);
          different += std::memcmp(&got[i], &first[i], sizeof(float)) != 0;
        }
        if (off > 0) {
          wrong++;
          std::printf("WRONG   %s, data %d, K %d: %zu outputs\n", variants[v].name.c_str(), kind, k_total, off);
        }
        if (variants[v].control) {
          told_apart = told_apart || different > 0;
          continue;
        }
        compared++;
        if (different > 0) {
          differing++;
          std::printf("DIFFERS %s, data %d, K %d: %zu outputs\n", variants[v].name.c_str(), kind, k_total, different);
        }
      }
      sets++;
      sensitive += told_apart;
    }
  }
  const bool ok = differing == 0 && wrong == 0 && (sensitive > 0 || card.major != 9);
  std::printf(
      "invariance on %s: %d of %d comparisons of %zu outputs equal, %d wrong; control differs in %d of %d sets\n",
      card.name, compared - differing, compared, kOutputs, wrong, sensitive, sets);
  return ok ? 0 : 1;
}

// What things cost in energy, on a card that is at its power limit while it works: there the joules of a step, and not
// its slowest unit, say how long it takes. For Hopper. Stand-alone: links no kernel.
//
//   cuda_energy_bench [costs] [step] (none: all)
//
// costs: a byte, a FLOP and an instruction, each looped alone for 3 s. Energy by NVML's counter, which moves in steps
// of
//   0.1 s. "beyond": without what the card takes when every SM only counts, which a step costs for each second anyway.
// step: the least that a decode step of 8B could be with cuBLAS: its products (bf16 to bf16) and a plain copy of the
//   keys' and values' bytes into shared memory, in one graph; no attention, no norms, no residuals, no sampling. Beside
//   it the project's bar for that many sequences of 512 tokens. libcublas.so.13 is loaded from where the loader looks.
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend/cuda/launch.h"
#include "backend/cuda/ptx.cuh"
#include "cuda_bench.h"
#include "cuda_cublas.h"

using namespace qwen3;
using namespace qwen3::cuda;
using namespace bench;

namespace {

constexpr double kSeconds = 3.0;

// NVML without its headers.
class PowerMeter {
 public:
  PowerMeter() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library == nullptr) throw std::runtime_error(dlerror());
    const auto start = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
    const auto find = reinterpret_cast<int (*)(unsigned, void**)>(dlsym(library, "nvmlDeviceGetHandleByIndex_v2"));
    energy_ = reinterpret_cast<Energy>(dlsym(library, "nvmlDeviceGetTotalEnergyConsumption"));
    clock_ = reinterpret_cast<Clock>(dlsym(library, "nvmlDeviceGetClockInfo"));
    if (!start || !find || !energy_ || !clock_) throw std::runtime_error("libnvidia-ml.so.1 lacks a function");
    if (start() != 0 || find(0, &device_) != 0) throw std::runtime_error("NVML does not know the first GPU");
  }
  double joules() const {
    unsigned long long millijoules = 0;
    if (energy_(device_, &millijoules) != 0) throw std::runtime_error("this GPU does not count its energy");
    return static_cast<double>(millijoules) * 1e-3;
  }
  unsigned megahertz() const {
    unsigned value = 0;
    clock_(device_, 1, &value);
    return value;
  }

 private:
  using Energy = int (*)(void*, unsigned long long*);
  using Clock = int (*)(void*, int, unsigned*);
  void* device_ = nullptr;
  Energy energy_;
  Clock clock_;
};

struct Sustained {
  double seconds, joules;  // of one issue()
  double megahertz;
  double watts() const { return joules / seconds; }
};

// issue(), some milliseconds of work, over and over.
Sustained sustain(const PowerMeter& meter, const std::function<void()>& issue) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const auto run_for = [&](double seconds, double* megahertz) {
    const Clock::time_point start = Clock::now();
    int n = 0, asked = 0;
    for (; since(start) < seconds; n += 4) {
      for (int i = 0; i < 4; i++) issue();
      if (megahertz != nullptr) *megahertz += meter.megahertz(), asked++;
      finish();
    }
    if (megahertz != nullptr) *megahertz /= asked;
    return n;
  };
  run_for(0.5, nullptr);
  double megahertz = 0;
  const double before = meter.joules();
  const Clock::time_point start = Clock::now();
  const int n = run_for(kSeconds, &megahertz);
  const double seconds = since(start);
  return {seconds / n, (meter.joules() - before) / n, megahertz};
}

// ---------------------------------------------------------------- what is looped
constexpr int kChunk = 16 * 1024, kRing = 12, kTurns = 2000;

__global__ void __launch_bounds__(128) count_kernel(int* out) {
  const long long start = clock64();
  int n = 0;
  while (clock64() - start < 20'000'000) n++;
  if (n < 0) *out = n;
}

// Copies chunks into shared memory: each CTA its share of them, or all of them.
__global__ void __launch_bounds__(64) copy_kernel(const uint8_t* from, int64_t n_chunks, int first_step, int step) {
#if QWEN3_SM90A
  extern __shared__ __align__(128) uint8_t ring[];
  __shared__ uint64_t full[kRing], empty[kRing];
  if (threadIdx.x == 0) {
    for (int i = 0; i < kRing; i++) {
      mbarrier_init(shared_address(&full[i]), 1);
      mbarrier_init(shared_address(&empty[i]), 1);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  griddep_launch();
  RingPlace<kRing> place;
  const uint64_t policy = evict_first();
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * first_step; i < n_chunks; i += step) {
    const uint32_t is_full = shared_address(&full[place.stage]), is_empty = shared_address(&empty[place.stage]);
    if (threadIdx.x == 0) {
      mbarrier_wait(is_empty, place.parity ^ 1);
      mbarrier_expect(is_full, kChunk);
      bulk_load(shared_address(ring + place.stage * kChunk), from + i * kChunk, kChunk, is_full, policy);
    } else if (threadIdx.x == 32) {
      mbarrier_wait(is_full, place.parity);
      mbarrier_arrive(is_empty);
    }
    place.next();
  }
#endif
}
enum class Readers { kShare, kAll };
void copy(const void* from, size_t bytes, Readers readers = Readers::kShare) {
  const bool share = readers == Readers::kShare;
  configure<copy_kernel>(kRing * kChunk);
  copy_kernel<<<sm_count, 64, kRing * kChunk, stream>>>(
      static_cast<const uint8_t*>(from), static_cast<int64_t>(bytes / kChunk), share ? 1 : 0, share ? sm_count : 1);
}

// Three warpgroups, 64 x 128 x 64 a stage, 4 stages of operands that stay.
constexpr int kStages = 4, kGroups = 3, kBytesA = 64 * 128, kBytesB = 128 * 128;
constexpr int kOperands = kStages * (kBytesB + kGroups * kBytesA);
__global__ void __launch_bounds__(kGroups * 128, 1) wgmma_kernel(const uint8_t* operands, float* out) {
#if QWEN3_SM90A
  extern __shared__ uint8_t raw[];
  const uint32_t base = (shared_address(raw) + 1023) & ~1023u;
  uint8_t* to = raw + (base - shared_address(raw));
  for (int i = static_cast<int>(threadIdx.x) * 16; i < kOperands; i += kGroups * 128 * 16) {
    *reinterpret_cast<uint4*>(to + i) =
        *reinterpret_cast<const uint4*>(operands + static_cast<int64_t>(blockIdx.x) * kOperands + i);
  }
  fence_to_copy_engine();
  __syncthreads();
  const uint32_t own = base + kStages * kBytesB + threadIdx.x / 128 * kStages * kBytesA;
  float sums[64] = {};
  for (int turn = 0; turn < kTurns; turn++) {
#pragma unroll
    for (int s = 0; s < kStages; s++) {
      const uint64_t a = swizzled_descriptor(own + s * kBytesA), b = swizzled_descriptor(base + s * kBytesB);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; k++) wgmma<128>(sums, a + 2 * k, b + 2 * k, 1);
      wgmma_commit();
      wgmma_wait<0>();
    }
  }
  wgmma_results(sums);
  float sum = 0;
  for (const float each : sums) sum += each;
  if (sum == 0.125f) *out = sum;
#endif
}

__global__ void __launch_bounds__(256) mma_kernel(const uint32_t* operands, float* out) {
  uint32_t a[4], b[8][2];
  float sums[8][4] = {};
  const uint32_t* own = operands + (static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x) * 20;
  for (int i = 0; i < 4; i++) a[i] = own[i];
  for (int i = 0; i < 16; i++) b[i / 2][i % 2] = own[4 + i];
  for (int turn = 0; turn < kTurns * 8; turn++) {
#pragma unroll
    for (int i = 0; i < 8; i++) mma_bf16(sums[i], a, b[i][0], b[i][1]);
  }
  float sum = 0;
  for (int i = 0; i < 32; i++) sum += sums[i / 4][i % 4];
  if (sum == 0.125f) *out = sum;
}

// What expands coded weights: multiply-add, exchange of bytes, choice of bits, 24 a turn.
constexpr int kInstructions = 24;
__global__ void __launch_bounds__(512) integer_kernel(const uint32_t* operands, int* out) {
  uint32_t x[8], y[8];
  const uint32_t* own = operands + (static_cast<int64_t>(blockIdx.x) * 512 + threadIdx.x) * 16;
  for (int i = 0; i < 8; i++) x[i] = own[i], y[i] = own[8 + i];
  const uint32_t factor = operands[7] | 1;
  for (int turn = 0; turn < kTurns * 20; turn++) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      asm volatile("mad.lo.u32 %0, %0, %2, %1;" : "+r"(x[i]) : "r"(y[i]), "r"(factor));
      asm volatile("prmt.b32 %0, %0, %1, 0x2301;" : "+r"(y[i]) : "r"(x[i]));
      asm volatile("lop3.b32 %0, %0, %1, %2, 0x96;" : "+r"(y[i]) : "r"(x[i]), "r"(factor));
    }
  }
  uint32_t sum = 0;
  for (int i = 0; i < 8; i++) sum ^= x[i] ^ y[i];
  if (sum == 12345) *out = 1;
}

struct Bits {  // all equally likely
  __device__ float operator()(uint64_t i) const {
    return from_bf16(static_cast<bf16>(mix_bits((i + 1) * kGolden) >> 40));
  }
};

// ---------------------------------------------------------------- costs
void costs() {
  const PowerMeter meter;
  constexpr size_t kBytes = size_t{8} << 30, kSmall = size_t{16} << 20;
  Buffer<bf16> data(kBytes / 2);
  Buffer<int> out(64);
  float* const out_float = reinterpret_cast<float*>(out.data);
  const auto* const bytes = reinterpret_cast<const uint8_t*>(data.data);
  const auto* const words = reinterpret_cast<const uint32_t*>(data.data);

  now = "every SM counting";
  const Sustained idle = sustain(meter, [&] { count_kernel<<<sm_count, 128, 0, stream>>>(out.data); });
  line("%-44s %6.1f W, %4.0f MHz", now.c_str(), idle.watts(), idle.megahertz);
  const auto cost = [&](const char* what, double units, const char* rate, const char* unit,
                        const std::function<void()>& issue) {
    now = what;
    const Sustained s = sustain(meter, issue);
    line("%-44s %6.1f W, %4.0f MHz  %8.2f %-7s %7.3f pJ/%s beyond", what, s.watts(), s.megahertz,
         units / s.seconds * 1e-12, rate, (s.joules - idle.watts() * s.seconds) / units * 1e12, unit);
  };
  const auto memory = [&](const char* what) {
    cost(what, static_cast<double>(kBytes), "TB/s", "byte", [&] { copy(bytes, kBytes); });
  };
  const double wgmma_flop = 2.0 * sm_count * kGroups * kTurns * kStages * 64 * 128 * 64;
  configure<wgmma_kernel>(kOperands + 1024);
  const auto wgmma_of = [&](const char* what) {
    cost(what, wgmma_flop, "TFLOP/s", "FLOP",
         [&] { wgmma_kernel<<<sm_count, kGroups * 128, kOperands + 1024, stream>>>(bytes, out_float); });
  };
  memory("copies from memory, zeros");
  wgmma_of("wgmma, 128 columns, zeros");
  fill(data.data, data.n, Bits{});
  memory("copies from memory, all bits equally likely");
  fill(data.data, data.n, 0.02f, 1);
  memory("copies from memory, normal bf16");
  cost("copies from the second-level cache", 16.0 * sm_count * kSmall, "TB/s", "byte", [&] {
    for (int i = 0; i < 16; i++) copy(bytes, kSmall, Readers::kAll);
  });
  wgmma_of("wgmma, 128 columns, normal bf16");
  cost("mma.sync, normal bf16", 2048.0 * 2 * sm_count * 8 * kTurns * 8 * 8, "TFLOP/s", "FLOP",
       [&] { mma_kernel<<<sm_count, 256, 0, stream>>>(words, out_float); });
  cost("integer instructions, of warps", static_cast<double>(sm_count) * 16 * kTurns * 20 * kInstructions, "T/s",
       "instruction", [&] { integer_kernel<<<sm_count, 512, 0, stream>>>(words, out.data); });
}

// ---------------------------------------------------------------- step
void step() {
  const PowerMeter meter;
  const Cublas cublas;
  struct Weight {
    int n_out, n_in;
  };
  constexpr Weight kLayer[] = {{6144, 4096}, {4096, 4096}, {24576, 4096}, {4096, 12288}};  // qkv, o, gate_up, down
  constexpr Weight kHead = {151936, 4096};
  constexpr int kLayers = 36, kContext = 512, kMostRows = 256, kTokenBytes = 4096;  // of a layer's keys and values
  constexpr size_t kCacheBytes = size_t{24} << 30;
  const auto elements = [](const Weight& w) { return static_cast<size_t>(w.n_out) * static_cast<size_t>(w.n_in); };
  size_t layer = 0;
  for (const Weight& w : kLayer) layer += elements(w);
  const size_t parameters = kLayers * layer + elements(kHead);
  Buffer<bf16> weights(parameters), cache(kCacheBytes / 2), x(size_t{kMostRows} * 12288), y(size_t{kMostRows} * 151936);
  fill(weights.data, weights.n, 0.02f, 1);
  fill(cache.data, cache.n, 1.0f, 2);
  fill(x.data, x.n, 1.0f, 3);
  for (const int rows : {64, 128, 256}) {
    now = "a step of " + std::to_string(rows) + " sequences";
    const size_t layer_bytes = static_cast<size_t>(rows) * kContext * kTokenBytes;
    const cudaGraphExec_t graph = [&] {
      const auto issue = [&] {
        const bf16* w = weights.data;
        const auto multiply = [&](const Weight& of) {
          cublas.multiply(x.data, rows, of.n_in, w, of.n_out, y.data);
          w += elements(of);
        };
        for (int l = 0; l < kLayers; l++) {
          multiply(kLayer[0]);
          const size_t at = static_cast<size_t>(l) % (kCacheBytes / layer_bytes) * layer_bytes;
          copy(reinterpret_cast<const uint8_t*>(cache.data) + at, layer_bytes);
          for (int i = 1; i < 4; i++) multiply(kLayer[i]);
        }
        multiply(kHead);
      };
      issue();  // loads kernels, outside the capture
      finish();
      return record(issue);
    }();
    const Sustained s = sustain(meter, [&] { ok(cudaGraphLaunch(graph, stream)); });
    ok(cudaGraphExecDestroy(graph));
    const double p = static_cast<double>(parameters), cache_bytes = static_cast<double>(layer_bytes) * kLayers;
    const double bar = 1.15 * (std::max(2 * p / 4.5e12, 2 * p * rows / 750e12) + cache_bytes / 4.5e12);
    line("%-28s %7.3f ms, bar %7.3f ms  %7.0f mJ, %6.1f W, %4.0f MHz", now.c_str(), s.seconds * 1e3, bar * 1e3,
         s.joules * 1e3, s.watts(), s.megahertz);
  }
}

}  // namespace

int main(int argc, char** argv) {
  run_sections(argc, argv, {{"costs", costs}, {"step", step}});
}

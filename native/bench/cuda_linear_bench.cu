// Checks and times every CUDA matrix product. Stand-alone: links pack.cu, linear*.cu, tensor_map.cu and memory.cu.
//
//   cuda_linear_bench [check] [chain] [decode] [batch] [prefill] [cublas] [rows=N,...] [only=NAME]
//
// Without a name: all but cublas. rows: these row counts alone. only: the variants whose name starts so.
//
// check: the generic kernel's output for 1,024 rows against float64 sums, then every kernel and variant at many row
//   counts against the generic one, bit for bit, poisoned outputs and guards included.
// chain: dependent products in a graph with programmatic dependent launch against the same without.
// decode, batch, prefill: times in a graph over rotating weights; share of 4.57 TB/s, or TFLOP/s. Prefill in short
//   bursts with pauses: under sustained load the card lowers its clock (to 1,470 MHz at 700 W), and by how much depends
//   on what ran before.
// cublas: ours and cuBLAS in turns, in the same bursts, on the same data (normal; other distributions take another
//   power). cuBLAS writes bf16 and adds nothing; "same job": it writes float32, and for o and down adds to it (what it
//   cannot do is to gate: it writes gates and ups as bf16). libcublas.so.13 is loaded from where the loader looks.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/linear_kernels.h"
#include "backend/cuda/ptx.cuh"
#include "cuda_bench.h"

using namespace qwen3;
using namespace qwen3::cuda;
using namespace bench;

namespace {

constexpr double kBandwidth = 4.57e12;  // measured read bandwidth of an H200
constexpr int kGuard = 4096;            // elements after an output that nobody may write
std::string only;                       // variants whose name starts so; empty: all
std::vector<int> only_rows;             // row counts; empty: all
int failures = 0;

template <class T>
T* allocate(size_t n) {
  void* p = nullptr;
  ok(cudaMalloc(&p, n * sizeof(T)));
  return static_cast<T*>(p);
}

__device__ uint32_t hash(uint64_t i) {
  i = (i + 1) * 0x9E3779B97F4A7C15ull;
  i ^= i >> 30;
  i *= 0xBF58476D1CE4E5B9ull;
  i ^= i >> 27;
  i *= 0x94D049BB133111EBull;
  return static_cast<uint32_t>(i >> 32);
}
__device__ float uniform(uint64_t i, float deviation) {
  return (static_cast<float>(hash(i)) * (1.0f / 4294967296.0f) - 0.5f) * 3.4641016f * deviation;
}
// About normal: the sum of four uniform numbers.
__global__ void fill_normal(uint16_t* p, size_t n, float deviation, uint64_t salt) {
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    float sum = 0.0f;
    for (int k = 0; k < 4; k++) sum += uniform(4 * i + k + salt, deviation * 0.5f);
    p[i] = __bfloat16_as_ushort(__float2bfloat16_rn(sum));
  }
}
__global__ void fill_bf16(uint16_t* p, size_t n, float deviation, uint64_t salt) {
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    p[i] = __bfloat16_as_ushort(__float2bfloat16_rn(uniform(i + salt, deviation)));
  }
}
__global__ void fill_float(float* p, size_t n, float deviation, uint64_t salt) {
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    p[i] = uniform(i + salt, deviation);
  }
}
__device__ float widen(uint16_t x) {
  return __uint_as_float(static_cast<uint32_t>(x) << 16);
}

bool wants_rows(int rows) {
  return only_rows.empty() || std::find(only_rows.begin(), only_rows.end(), rows) != only_rows.end();
}

struct Count {
  unsigned long long wrong, first;
  double worst;  // largest error over its tolerance, as ordered bits
};
template <class T>
__global__ void compare(const T* a, const T* b, size_t n, Count* count) {
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    if (a[i] != b[i]) {
      atomicAdd(&count->wrong, 1ull);
      atomicMin(&count->first, static_cast<unsigned long long>(i));
    }
  }
}

// One thread per output of sampled rows: float64 sums from row-major weights. w [n (x 2), k]: for kGateUp gate rows,
// then up rows.
__global__ void check_float64(LinearMode mode, const uint16_t* x, const uint16_t* w, const float* before,
                              const float* out, const uint16_t* gated, int n_rows, int row_step, int n_out, int k,
                              Count* count) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * row_step;
  if (column >= n_out || row >= n_rows) return;
  double y[2] = {0, 0}, size[2] = {0, 0};
  for (int part = 0; part < (mode == LinearMode::kGateUp ? 2 : 1); part++) {
    const uint16_t* wr = w + (static_cast<size_t>(part) * n_out + column) * k;
    const uint16_t* xr = x + static_cast<size_t>(row) * k;
    for (int i = 0; i < k; i++) {
      const double p = static_cast<double>(widen(wr[i])) * widen(xr[i]);
      y[part] += p;
      size[part] += fabs(p);
    }
  }
  const size_t at = static_cast<size_t>(row) * n_out + column;
  const double unit = 0x1p-24 * 24;  // tensor-core sums: 24 units of 2^-24 sum |w x|; rms is below 3
  double expected, found, tolerance;
  if (mode == LinearMode::kGateUp) {
    const double sigmoid = 1 / (1 + exp(-y[0]));
    expected = y[0] * sigmoid * y[1];
    found = widen(gated[at]);
    tolerance =
        fabs(expected) * 0x1.02p-8 + unit * (1.2 * size[0] * fabs(y[1]) + size[1] * fabs(y[0] * sigmoid)) + 1e-30;
  } else {
    expected = y[0] + (mode == LinearMode::kAccumulate ? before[at] : 0.0f);
    found = out[at];
    tolerance = unit * size[0] + 0x1p-23 * fabs(expected) + 1e-30;
  }
  const double ratio = fabs(found - expected) / tolerance;
  if (!(ratio <= 1)) {
    atomicAdd(&count->wrong, 1ull);
    atomicMin(&count->first, static_cast<unsigned long long>(at));
  }
  if (ratio > 0) {
    atomicMax(reinterpret_cast<unsigned long long*>(&count->worst),
              static_cast<unsigned long long>(__double_as_longlong(ratio)));
  }
}

Count* device_count;
void reset_count() {
  const Count zero{0, ~0ull, 0};
  ok(cudaMemcpyAsync(device_count, &zero, sizeof zero, cudaMemcpyHostToDevice, stream));
}
Count read_count() {
  Count c;
  finish();
  ok(cudaMemcpy(&c, device_count, sizeof c, cudaMemcpyDeviceToHost));
  return c;
}

struct Shape {
  const char* name;
  int n_out, n_in;
  bool gate_up;
  int most_rows;
};

struct Variant {
  std::string name;
  int most_rows;
  std::function<void(const LinearCall&, const Context&)> run;
};

std::vector<Variant> all_variants(bool hopper) {
  std::vector<Variant> v;
  v.push_back({"generic", 1 << 30, [](const LinearCall& c, const Context& x) { linear_generic(c, x); }});
  for (const int ring : {4, 6, 8}) {
    v.push_back({"decode " + std::to_string(ring), kMaxDecodeRows,
                 [=](const LinearCall& c, const Context& x) { linear_decode(c, x, ring); }});
  }
  v.push_back({"any", 1 << 30, [](const LinearCall& c, const Context& x) { linear_any(c, x); }});
  if (!hopper) return v;
  for (const int tile : {32, 48, 64}) {
    v.push_back({"batch " + std::to_string(tile), kMaxBatchRows,
                 [=](const LinearCall& c, const Context& x) { linear_batch(c, x, tile); }});
  }
  v.push_back({"split or any", kMaxSplitRows, [](const LinearCall& c, const Context& x) {
                 if (linear_split_serves(c, x)) return linear_split(c, x);
                 linear_any(c, x);
               }});
  v.push_back({"cluster", kMaxClusterRows, [](const LinearCall& c, const Context& x) { linear_cluster(c, x); }});
  for (const int tile : {128, 192, 256}) {
    v.push_back({"hopper " + std::to_string(tile), 1 << 30,
                 [=](const LinearCall& c, const Context& x) { linear_hopper(c, x, tile); }});
  }
  if (!only.empty()) std::erase_if(v, [](const Variant& each) { return !each.name.starts_with(only); });
  return v;
}

// Packs w [n_out (x 2), n_in] in two calls per part, to test first_row too.
void pack_all(const Shape& s, const bf16* w, bf16* packed, const Context& ctx) {
  const LinearLayout layout = s.gate_up ? LinearLayout::kGateUp : LinearLayout::kConcat;
  const int n_total = s.gate_up ? 2 * s.n_out : s.n_out;
  ok(cudaMemsetAsync(packed, 0, packed_bytes(n_total, s.n_in, layout), ctx.stream));
  for (int part = 0; part < 2; part++) {
    // kConcat: two parts of uneven size; kGateUp: gate and up
    const int begin = s.gate_up ? part * s.n_out : part * (s.n_out / 3);
    const int rows = s.gate_up ? s.n_out : part == 0 ? s.n_out / 3 : s.n_out - s.n_out / 3;
    const int cut = rows / 2;
    for (int half = 0; half < 2; half++) {
      PackArgs p;
      p.first_row = half * cut;
      p.n_rows = half == 0 ? cut : rows - cut;
      p.rows = w + static_cast<size_t>(begin + p.first_row) * s.n_in;
      p.n_in = s.n_in;
      p.layout = layout;
      p.part_offset = s.gate_up ? part : begin;
      p.packed = packed;
      pack(p, ctx);
    }
  }
}

LinearCall make_call(const Shape& s, LinearMode mode, const bf16* x, int rows, const bf16* packed, float* out,
                     bf16* gated) {
  const LinearLayout layout = s.gate_up ? LinearLayout::kGateUp : LinearLayout::kConcat;
  LinearCall c = {};
  c.mode = mode;
  c.x = x;
  c.n_rows = rows;
  c.n_in = s.n_in;
  c.weight = packed;
  c.row_tiles = pack_row_tiles(s.gate_up ? 2 * s.n_out : s.n_out, layout);
  c.col_blocks = pack_col_blocks(s.n_in);
  c.n_out = s.n_out;
  c.out = out;
  c.gated = gated;
  return c;
}

void check_shapes(const Context& base) {
  const Shape shapes[] = {
      {"64x48", 48, 64, false, 1024},          {"136x1001", 1001, 136, false, 1024},
      {"72x20 gu", 20, 72, true, 1024},        {"640x1536", 1536, 640, false, 1024},
      {"2432x640", 640, 2432, false, 1024},    {"640x1000", 1000, 640, false, 1024},
      {"640x2432 gu", 2432, 640, true, 1024},  {"0.6b qkv", 4096, 1024, false, 1024},
      {"0.6b o", 1024, 2048, false, 1024},     {"0.6b gate_up", 3072, 1024, true, 1024},
      {"0.6b down", 1024, 3072, false, 1024},  {"0.6b lm_head", 151936, 1024, false, 129},
      {"8b qkv", 6144, 4096, false, 1024},     {"8b o", 4096, 4096, false, 1024},
      {"8b gate_up", 12288, 4096, true, 1024}, {"8b down", 4096, 12288, false, 1024},
      {"8b lm_head", 151936, 4096, false, 17},
  };
  const int row_counts[] = {1,   2,   3,   7,   8,   9,   16,  17,  33,  64,  65,  127,
                            128, 129, 256, 257, 300, 384, 512, 600, 640, 700, 1024};
  size_t most_w = 0, most_x = 0, most_out = 0;
  for (const Shape& s : shapes) {
    const size_t n_total = static_cast<size_t>(s.n_out) * (s.gate_up ? 2 : 1);
    most_w = std::max(most_w, (n_total + 32) * (s.n_in + 64));
    most_x = std::max(most_x, static_cast<size_t>(s.most_rows) * s.n_in);
    most_out = std::max(most_out, static_cast<size_t>(s.most_rows) * s.n_out);
  }
  bf16* w = allocate<bf16>(most_w);
  bf16* packed = allocate<bf16>(most_w);
  bf16* x = allocate<bf16>(most_x);
  float* before = allocate<float>(most_out);
  float* expected = allocate<float>(most_out + kGuard);
  float* out = allocate<float>(most_out + kGuard);
  now = "filling";
  fill_bf16<<<2048, 256, 0, stream>>>(w, most_w, 0.05f, 11);
  fill_bf16<<<2048, 256, 0, stream>>>(x, most_x, 1.0f, 1ull << 40);
  fill_float<<<2048, 256, 0, stream>>>(before, most_out, 1.0f, 1ull << 41);
  finish();
  const std::vector<Variant> variants = all_variants(base.hopper);
  std::vector<int> wrong_of(variants.size(), 0), runs_of(variants.size(), 0);
  int printed = 0;
  for (const Shape& s : shapes) {
    const auto start = std::chrono::steady_clock::now();
    double worst = 0;
    int cases = 0, bad = 0;
    now = std::string("packing ") + s.name;
    pack_all(s, w, packed, base);
    finish();
    const std::vector<LinearMode> modes = s.gate_up
                                              ? std::vector<LinearMode>{LinearMode::kGateUp}
                                              : std::vector<LinearMode>{LinearMode::kStore, LinearMode::kAccumulate};
    for (const LinearMode mode : modes) {
      const size_t unit = mode == LinearMode::kGateUp ? 2 : 4;
      auto prepare = [&](float* to, int rows) {  // poison, or the values to add to; a guard behind
        const size_t n = static_cast<size_t>(rows) * s.n_out;
        ok(cudaMemsetAsync(to, 0xFF, n * unit + kGuard * unit, stream));
        if (mode == LinearMode::kAccumulate) ok(cudaMemcpyAsync(to, before, n * 4, cudaMemcpyDeviceToDevice, stream));
      };
      now = std::string("generic ") + s.name;
      prepare(expected, s.most_rows);
      linear_generic(make_call(s, mode, x, s.most_rows, packed, expected, reinterpret_cast<bf16*>(expected)), base);
      finish();
      reset_count();
      now = std::string("float64 ") + s.name;
      const int row_step = static_cast<double>(s.n_out) * s.n_in > 4e6 ? 31 : 3;
      check_float64<<<dim3((s.n_out + 127) / 128, (s.most_rows + row_step - 1) / row_step), 128, 0, stream>>>(
          mode, x, w, before, expected, reinterpret_cast<bf16*>(expected), s.most_rows, row_step, s.n_out, s.n_in,
          device_count);
      Count c = read_count();
      worst = std::max(worst, c.worst);
      if (c.wrong != 0) {
        failures++;
        std::printf("WRONG generic against float64: %s mode %d: %llu outputs, first row %llu column %llu\n", s.name,
                    static_cast<int>(mode), c.wrong, c.first / s.n_out, c.first % s.n_out);
      }
      for (const int rows : row_counts) {
        if (rows > s.most_rows || !wants_rows(rows)) continue;
        for (size_t v = 0; v < variants.size(); v++) {
          if (rows > variants[v].most_rows) continue;
          for (const bool pdl : {false, true}) {
            if (pdl && (!base.pdl || (rows != 17 && rows != 512))) continue;
            Context ctx = base;
            ctx.pdl = pdl;
            now = variants[v].name + " " + s.name + " rows " + std::to_string(rows) + " mode " +
                  std::to_string(static_cast<int>(mode));
            prepare(out, rows);
            variants[v].run(make_call(s, mode, x, rows, packed, out, reinterpret_cast<bf16*>(out)), ctx);
            reset_count();
            const size_t n = static_cast<size_t>(rows) * s.n_out;
            if (unit == 2) {
              compare<uint16_t><<<256, 256, 0, stream>>>(reinterpret_cast<uint16_t*>(out),
                                                         reinterpret_cast<uint16_t*>(expected), n, device_count);
            } else {
              compare<uint32_t><<<256, 256, 0, stream>>>(reinterpret_cast<uint32_t*>(out),
                                                         reinterpret_cast<uint32_t*>(expected), n, device_count);
            }
            c = read_count();
            cases++;
            runs_of[v]++;
            uint8_t guard[kGuard * 4];
            ok(cudaMemcpy(guard, reinterpret_cast<uint8_t*>(out) + n * unit, kGuard * unit, cudaMemcpyDeviceToHost));
            const bool guard_hit = std::any_of(guard, guard + kGuard * unit, [](uint8_t b) { return b != 0xFF; });
            if (c.wrong == 0 && !guard_hit) continue;
            bad++;
            failures++;
            wrong_of[v]++;
            if (printed++ > 40) continue;
            if (guard_hit) std::printf("GUARD WRITTEN: %s\n", now.c_str());
            if (c.wrong == 0) continue;
            uint32_t found = 0, wanted = 0;
            ok(cudaMemcpy(&found, reinterpret_cast<uint8_t*>(out) + c.first * unit, unit, cudaMemcpyDeviceToHost));
            ok(cudaMemcpy(&wanted, reinterpret_cast<uint8_t*>(expected) + c.first * unit, unit,
                          cudaMemcpyDeviceToHost));
            if (unit == 2) {
              found <<= 16;
              wanted <<= 16;
            }
            float f, e;
            std::memcpy(&f, &found, 4);
            std::memcpy(&e, &wanted, 4);
            std::printf(
                "BITS DIFFER: %s%s: %llu of %zu, first row %llu column %llu: found %.9g (%08x) expected %.9g (%08x)\n",
                now.c_str(), pdl ? " pdl" : "", c.wrong, n, c.first / s.n_out, c.first % s.n_out,
                static_cast<double>(f), found, static_cast<double>(e), wanted);
          }
        }
      }
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::printf("check %-14s %5d cases, %d bad; float64 error at most %.2f of its tolerance; %.1f s\n", s.name, cases,
                bad, worst, seconds);
    std::fflush(stdout);
  }
  for (size_t v = 0; v < variants.size(); v++) {
    std::printf("check %-22s %4d runs %4d bad\n", variants[v].name.c_str(), runs_of[v], wrong_of[v]);
  }
  for (void* p : {static_cast<void*>(w), static_cast<void*>(packed), static_cast<void*>(x), static_cast<void*>(before),
                  static_cast<void*>(expected), static_cast<void*>(out)}) {
    ok(cudaFree(p));
  }
}

class TimedGraph {
 public:
  explicit TimedGraph(const std::function<void()>& enqueue) {
    enqueue();  // loads kernels, outside the capture
    finish();
    ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    enqueue();
    cudaGraph_t graph;
    ok(cudaStreamEndCapture(stream, &graph));
    ok(cudaGraphInstantiate(&exec_, graph, 0));
    ok(cudaGraphDestroy(graph));
    ok(cudaEventCreate(&begin_));
    ok(cudaEventCreate(&end_));
  }
  ~TimedGraph() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaGraphExecDestroy(exec_);
  }
  TimedGraph(const TimedGraph&) = delete;
  TimedGraph& operator=(const TimedGraph&) = delete;

  // Microseconds per launch of the graph, back to back.
  double run(int repeats) const {
    ok(cudaEventRecord(begin_, stream));
    for (int i = 0; i < repeats; i++) ok(cudaGraphLaunch(exec_, stream));
    ok(cudaEventRecord(end_, stream));
    finish();
    float ms;
    ok(cudaEventElapsedTime(&ms, begin_, end_));
    return static_cast<double>(ms) * 1e3 / repeats;
  }
  int repeats_in(double budget_us) const {
    return std::clamp(static_cast<int>(budget_us / std::max(run(1), 1.0)), 1, 30);
  }

 private:
  cudaGraphExec_t exec_;
  cudaEvent_t begin_, end_;
};

// The best of 3 times, in us per launch of the graph.
double time_graph(const std::function<void()>& enqueue, double budget_us, int cool_ms = 0) {
  const TimedGraph graph(enqueue);
  const int repeats = graph.repeats_in(budget_us);
  double best = 1e30;
  for (int i = 0; i < 3; i++) {
    if (cool_ms > 0) usleep(cool_ms * 1000);
    best = std::min(best, graph.run(repeats));
  }
  return best;
}

// Each product of a chain reads what the one before wrote: as its inputs, or as what it adds to.
void check_chain(const Context& base) {
  const int n = 6, n_in = 2048, n_out = 2048, most_rows = 1024;
  const Shape gating{"gated", n_out, n_in, true, most_rows}, adding{"added", n_out, n_in, false, most_rows};
  const size_t bytes = packed_bytes(2 * n_out, n_in, LinearLayout::kGateUp);
  const size_t out_bytes = sizeof(float) * most_rows * n_out;
  bf16* w = allocate<bf16>(n * bytes / 2);
  bf16* buffers[2] = {allocate<bf16>(out_bytes / 2), allocate<bf16>(out_bytes / 2)};
  bf16* x = allocate<bf16>(most_rows * n_in);
  fill_bf16<<<2048, 256, 0, stream>>>(w, n * bytes / 2, 0.033f, 5);
  fill_bf16<<<2048, 256, 0, stream>>>(x, most_rows * n_in, 1.0f, 1ull << 42);
  finish();
  int runs = 0, bad = 0;
  float largest = 0;
  for (const Variant& v : all_variants(base.hopper)) {
    for (const int rows : {1, 8, 16, 64, 256, 512, 700}) {
      for (const Shape& s : {gating, adding}) {
        if (rows > v.most_rows || !wants_rows(rows)) continue;
        std::vector<uint8_t> results[2];
        for (const bool pdl : {false, true}) {
          now = std::string("chain ") + s.name + " " + v.name + " rows " + std::to_string(rows);
          Context ctx = base;
          ctx.pdl = pdl;
          auto enqueue = [&] {
            for (int i = 0; i < n; i++) {
              const bf16* packed = w + i * bytes / 2;
              if (s.gate_up) {
                v.run(make_call(s, LinearMode::kGateUp, i == 0 ? x : buffers[(i + 1) % 2], rows, packed, nullptr,
                                buffers[i % 2]),
                      ctx);
              } else {
                v.run(make_call(s, LinearMode::kAccumulate, x, rows, packed, reinterpret_cast<float*>(buffers[1]),
                                nullptr),
                      ctx);
              }
            }
          };
          // Gated: everything is written before it is read. Added: the first launches start from 0 too.
          auto prepare = [&] {
            for (bf16* b : buffers) ok(cudaMemsetAsync(b, s.gate_up ? 0xFF : 0, out_bytes, stream));
          };
          prepare();
          enqueue();
          finish();
          cudaGraph_t graph;
          cudaGraphExec_t exec;
          prepare();
          ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
          enqueue();
          ok(cudaStreamEndCapture(stream, &graph));
          ok(cudaGraphInstantiate(&exec, graph, 0));
          for (int i = 0; i < 3; i++) ok(cudaGraphLaunch(exec, stream));
          finish();
          results[pdl].resize(static_cast<size_t>(rows) * n_out * (s.gate_up ? 2 : 4));
          ok(cudaMemcpy(results[pdl].data(), buffers[1], results[pdl].size(), cudaMemcpyDeviceToHost));
          ok(cudaGraphExecDestroy(exec));
          ok(cudaGraphDestroy(graph));
        }
        runs++;
        if (results[0] != results[1]) {
          bad++;
          failures++;
          std::printf("PDL DIFFERS: %s\n", now.c_str());
        }
        for (size_t i = 0; i < results[0].size(); i += s.gate_up ? 2 : 4) {
          float f = 0;
          std::memcpy(reinterpret_cast<uint8_t*>(&f) + (s.gate_up ? 2 : 0), results[0].data() + i, s.gate_up ? 2 : 4);
          if (!std::isfinite(f)) largest = INFINITY;
          largest = std::max(largest, std::fabs(f));
        }
      }
    }
  }
  std::printf("chain: %d runs of %d dependent products with and without PDL, %d differ; largest value %.3g\n", runs, n,
              bad, static_cast<double>(largest));
  for (bf16* p : {w, buffers[0], buffers[1], x}) ok(cudaFree(p));
}

struct Pool {
  bf16* weights;  // random bits in range, taken as packed weights
  size_t bytes;
  bf16* x;
  float* out;
};

LinearCall timed_call(const Shape& s, const Pool& pool, int rows, int i, bool accumulate) {
  const LinearLayout layout = s.gate_up ? LinearLayout::kGateUp : LinearLayout::kConcat;
  const size_t bytes = packed_bytes(s.gate_up ? 2 * s.n_out : s.n_out, s.n_in, layout);
  const size_t copies = std::max<size_t>(1, pool.bytes / bytes);
  const LinearMode mode = s.gate_up ? LinearMode::kGateUp : accumulate ? LinearMode::kAccumulate : LinearMode::kStore;
  return make_call(s, mode, pool.x, rows, pool.weights + (i % copies) * (bytes / 2), pool.out,
                   reinterpret_cast<bf16*>(pool.out));
}
double weight_bytes(const Shape& s) {
  return static_cast<double>(packed_bytes(s.gate_up ? 2 * s.n_out : s.n_out, s.n_in,
                                          s.gate_up ? LinearLayout::kGateUp : LinearLayout::kConcat));
}

const Shape kTimed[] = {
    {"8b qkv", 6144, 4096, false, 0},       {"8b o", 4096, 4096, false, 0},
    {"8b gate_up", 12288, 4096, true, 0},   {"8b down", 4096, 12288, false, 0},
    {"8b lm_head", 151936, 4096, false, 0}, {"0.6b qkv", 4096, 1024, false, 0},
    {"0.6b o", 1024, 2048, false, 0},       {"0.6b gate_up", 3072, 1024, true, 0},
    {"0.6b down", 1024, 3072, false, 0},    {"0.6b lm_head", 151936, 1024, false, 0},
};
bool is_residual(const Shape& s) {
  return std::strstr(s.name, " o") != nullptr || std::strstr(s.name, "down") != nullptr;
}

// Stands for the op before a product: one CTA per row of x, which it reads, reduces and writes back.
__global__ void touch_rows(uint16_t* x, int n_in) {
  griddep_launch();
  griddep_wait();
  uint16_t* row = x + static_cast<size_t>(blockIdx.x) * n_in;
  int odd = 0;
  for (int i = threadIdx.x; i < n_in; i += blockDim.x) odd |= row[i] & 1;
  if (!__syncthreads_or(odd)) return;
  for (int i = threadIdx.x; i < n_in; i += blockDim.x) row[i] = row[i];
}

// Each time twice: products back to back, and the time of a pair of touch_rows and a product.
void time_rows(const Context& base, const Pool& pool, const std::vector<int>& row_counts) {
  for (const int rows : row_counts) {
    if (!wants_rows(rows)) continue;
    for (const Shape& s : kTimed) {
      std::vector<Variant> v;
      for (const Variant& each : all_variants(true)) {
        auto is = [&](const char* name) { return each.name.starts_with(name); };
        if (is("generic") || rows > each.most_rows || (is("decode") && rows > 16)) continue;
        if ((is("batch") && rows <= 8) || (is("hopper") && rows <= 64) || (is("cluster") && rows <= 8)) continue;
        v.push_back(each);
      }
      if (v.empty()) continue;
      const double bytes = weight_bytes(s);
      const int count = std::clamp(static_cast<int>(480e6 / bytes), 2, 96);
      std::string line[2];
      double best[2] = {1e30, 1e30};
      size_t best_v[2] = {0, 0};
      for (size_t i = 0; i < v.size(); i++) {
        now = "timing " + v[i].name + " " + s.name + " rows " + std::to_string(rows);
        for (int paired = 0; paired < 2; paired++) {
          const double us = time_graph(
                                [&] {
                                  for (int j = 0; j < count; j++) {
                                    if (paired)
                                      launch("touch", touch_rows, Grid{dim3(rows), dim3(512)}, base, pool.x, s.n_in);
                                    v[i].run(timed_call(s, pool, rows, j, is_residual(s)), base);
                                  }
                                },
                                1500) /
                            count;
          char text[64];
          std::snprintf(text, sizeof text, "%s%s %.2f", i == 0 ? "" : ", ", v[i].name.c_str(), us);
          line[paired] += text;
          if (us < best[paired]) {
            best[paired] = us;
            best_v[paired] = i;
          }
        }
      }
      const double floor = std::max(bytes / kBandwidth, 2.0 * rows * bytes / 2 / 750e12) * 1e6;
      for (int paired = 0; paired < 2; paired++) {
        std::printf("M=%-3d %-12s %-5s %-9s %7.2f %5.1f%% | %s\n", rows, s.name, paired ? "pair" : "alone",
                    v[best_v[paired]].name.c_str(), best[paired], floor / best[paired] * 100, line[paired].c_str());
      }
      std::fflush(stdout);
    }
  }
}

void time_prefill(const Context& base, const Pool& pool) {
  for (const int rows : {256, 384, 512, 1024, 2048, 4096, 8192}) {
    if (!wants_rows(rows)) continue;
    for (const Shape& s : kTimed) {
      if (std::strncmp(s.name, "8b", 2) != 0 || std::strstr(s.name, "lm_head") != nullptr) continue;
      std::vector<Variant> v;
      for (const int tile : {128, 192, 256}) {
        v.push_back(
            {std::to_string(tile), 0, [=](const LinearCall& c, const Context& x) { linear_hopper(c, x, tile); }});
      }
      if (rows == 2048)
        v.push_back({"generic", 0, [](const LinearCall& c, const Context& x) { linear_generic(c, x); }});
      v.push_back({"chosen", 0, [](const LinearCall& c, const Context& x) { linear_any(c, x); }});
      const double flop = static_cast<double>(rows) * weight_bytes(s);
      std::string line;
      double best = 0;
      for (const Variant& each : v) {
        now = "timing " + each.name + " " + s.name + " rows " + std::to_string(rows);
        const int count = rows <= 1024 ? 8 : 3;
        const double us = time_graph(
                              [&] {
                                for (int j = 0; j < count; j++)
                                  each.run(timed_call(s, pool, rows, j, is_residual(s)), base);
                              },
                              2500, 25) /
                          count;
        char text[64];
        std::snprintf(text, sizeof text, " %s %.1f us %.0f |", each.name.c_str(), us, flop / us / 1e6);
        line += text;
        best = std::max(best, flop / us / 1e6);
      }
      std::printf("M=%-5d %-11s best %4.0f TFLOP/s |%s\n", rows, s.name, best, line.c_str());
      std::fflush(stdout);
    }
  }
}

struct CannotRun : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// cuBLAS without its headers: x [rows, n_in] times w [n_out, n_in] transposed, bf16 and row-major.
class Cublas {
 public:
  Cublas() {
    void* library = dlopen("libcublas.so.13", RTLD_NOW);
    if (library == nullptr) {
      throw CannotRun(std::string(dlerror()) + "; name its folder in LD_LIBRARY_PATH");
    }
    const auto create = reinterpret_cast<int (*)(void**)>(dlsym(library, "cublasCreate_v2"));
    const auto set_stream = reinterpret_cast<int (*)(void*, cudaStream_t)>(dlsym(library, "cublasSetStream_v2"));
    const auto set_workspace = reinterpret_cast<int (*)(void*, void*, size_t)>(dlsym(library, "cublasSetWorkspace_v2"));
    gemm_ = reinterpret_cast<Gemm>(dlsym(library, "cublasGemmEx"));
    if (!create || !set_stream || !set_workspace || !gemm_) {
      throw std::runtime_error("libcublas.so.13 lacks a function");
    }
    constexpr size_t kWorkspace = size_t{64} << 20;
    good(create(&handle_));
    good(set_stream(handle_, stream));
    good(set_workspace(handle_, allocate<uint8_t>(kWorkspace), kWorkspace));
  }
  // y [rows, n_out] = the product, bf16
  void multiply(const bf16* x, int rows, int n_in, const bf16* w, int n_out, bf16* y) const {
    run(x, rows, n_in, w, n_out, y, kBf16, 0.0f);
  }
  // y = the product, float32, or y += the product: the job of LinearMode::kStore and kAccumulate
  void multiply(const bf16* x, int rows, int n_in, const bf16* w, int n_out, float* y, bool accumulate) const {
    run(x, rows, n_in, w, n_out, y, kFloat32, accumulate ? 1.0f : 0.0f);
  }

 private:
  static constexpr int kBf16 = 14, kFloat32 = 0;
  void run(const bf16* x, int rows, int n_in, const bf16* w, int n_out, void* y, int type, float beta) const {
    constexpr int kTransposed = 1, kPlain = 0, kCompute32F = 68, kDefault = -1;
    const float one = 1.0f;
    good(gemm_(handle_, kTransposed, kPlain, n_out, rows, n_in, &one, w, kBf16, n_in, x, kBf16, n_in, &beta, y, type,
               n_out, kCompute32F, kDefault));
  }
  using Gemm = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int,
                       const void*, void*, int, int, int, int);
  static void good(int status) {
    if (status != 0) throw std::runtime_error("cuBLAS returned " + std::to_string(status));
  }
  void* handle_ = nullptr;
  Gemm gemm_;
};

void time_cublas(const Context& base, const Pool& pool) {
  const Cublas cublas;
  for (const int rows : {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192}) {
    if (!wants_rows(rows)) continue;
    for (const Shape& s : kTimed) {
      const bool lm_head = std::strstr(s.name, "lm_head") != nullptr;
      if (std::strncmp(s.name, "8b", 2) != 0 || (lm_head && rows > 256)) continue;
      now = std::string("cuBLAS beside ours, ") + s.name + " rows " + std::to_string(rows);
      const int n_out = s.gate_up ? 2 * s.n_out : s.n_out;
      const size_t elements = static_cast<size_t>(n_out) * static_cast<size_t>(s.n_in);
      const size_t copies = pool.bytes / 2 / elements;
      const int count = lm_head ? 2 : rows <= 256 ? 12 : rows <= 1024 ? 8 : 3;
      const TimedGraph ours([&] {
        for (int j = 0; j < count; j++) linear_any(timed_call(s, pool, rows, j, is_residual(s)), base);
      });
      const TimedGraph theirs([&] {
        for (int j = 0; j < count; j++) {
          cublas.multiply(pool.x, rows, s.n_in, pool.weights + static_cast<size_t>(j) % copies * elements, n_out,
                          reinterpret_cast<bf16*>(pool.out));
        }
      });
      // cuBLAS cannot gate; what it leaves out there, it writes more.
      const TimedGraph same([&] {
        for (int j = 0; j < count; j++) {
          const bf16* w = pool.weights + static_cast<size_t>(j) % copies * elements;
          if (s.gate_up) {
            cublas.multiply(pool.x, rows, s.n_in, w, n_out, reinterpret_cast<bf16*>(pool.out));
          } else {
            cublas.multiply(pool.x, rows, s.n_in, w, n_out, pool.out, is_residual(s));
          }
        }
      });
      const int repeats = ours.repeats_in(2500);
      const TimedGraph* const graphs[] = {&ours, &theirs, &same};
      double best[3] = {1e30, 1e30, 1e30};
      for (int turn = 0; turn < 5; turn++) {
        for (int who = 0; who < 3; who++) {
          usleep(12000);
          best[who] = std::min(best[who], graphs[who]->run(repeats) / count);
        }
      }
      const double flop = 2.0 * rows * static_cast<double>(elements);
      std::printf(
          "M=%-5d %-11s ours %8.2f us %4.0f TFLOP/s, cuBLAS %8.2f us %4.0f TFLOP/s: %5.1f%%; same job %8.2f us: "
          "%5.1f%%\n",
          rows, s.name, best[0], flop / best[0] / 1e6, best[1], flop / best[1] / 1e6, best[1] / best[0] * 100, best[2],
          best[2] / best[0] * 100);
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::set<std::string> wanted(argv + 1, argv + argc);
  for (const std::string& each : std::set<std::string>(wanted)) {
    if (each.starts_with("only=")) {
      only = each.substr(5);
    } else if (each.starts_with("rows=")) {
      for (size_t at = 4; at != std::string::npos; at = each.find(',', at + 1)) {
        only_rows.push_back(std::atoi(each.c_str() + at + 1));
      }
      if (*std::min_element(only_rows.begin(), only_rows.end()) <= 0) {
        std::printf("%s: expected row counts with commas between them, for instance rows=512,1024\n", each.c_str());
        return 2;
      }
    } else {
      continue;
    }
    wanted.erase(each);
  }
  for (const std::string& each : wanted) {
    if (std::set<std::string>{"check", "chain", "decode", "batch", "prefill", "cublas"}.count(each) != 0) continue;
    std::printf("%s: expected check, chain, decode, batch, prefill, cublas, rows=N,... or only=NAME\n", each.c_str());
    return 2;
  }
  auto want = [&](const char* name) { return wanted.empty() || wanted.count(name) != 0; };
  cudaDeviceProp properties;
  ok(cudaGetDeviceProperties(&properties, 0));
  ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  device_count = allocate<Count>(1);
  const bool hopper = properties.major == 9 && properties.minor == 0;
  const Context ctx{stream, properties.multiProcessorCount, hopper, properties.major >= 9};
  std::printf("%s, %d SMs\n", properties.name, properties.multiProcessorCount);
  try {
    if (want("check")) check_shapes(ctx);
    if (want("chain")) check_chain(ctx);
    const bool with_cublas = wanted.count("cublas") != 0;
    if (want("decode") || want("batch") || want("prefill") || with_cublas) {
      if (!hopper) {
        std::printf("times are for Hopper only\n");
        return 1;
      }
      Pool pool;
      pool.bytes = 2600000000;
      pool.weights = allocate<bf16>(pool.bytes / 2);
      const size_t n_x = static_cast<size_t>(8192) * 12288, n_out = static_cast<size_t>(8192) * 12288;
      pool.x = allocate<bf16>(n_x);
      pool.out = allocate<float>(n_out);
      fill_normal<<<4096, 256, 0, stream>>>(pool.weights, pool.bytes / 2, 0.02f, 3);
      fill_normal<<<4096, 256, 0, stream>>>(pool.x, n_x, 1.0f, 1ull << 43);
      fill_float<<<4096, 256, 0, stream>>>(pool.out, n_out, 1.0f, 1ull << 44);
      finish();
      if (want("decode")) time_rows(ctx, pool, {1, 8});
      if (want("batch")) time_rows(ctx, pool, {16, 32, 64, 128, 256});
      if (want("prefill")) time_prefill(ctx, pool);
      if (with_cublas) time_cublas(ctx, pool);
    }
  } catch (const CannotRun& error) {
    std::printf("%s\n", error.what());
    return 77;
  } catch (const std::exception& error) {
    std::printf("FAILED during %s: %s\n", now.c_str(), error.what());
    return 1;
  }
  std::printf("%s: %d failures\n", failures == 0 ? "OK" : "NOT OK", failures);
  return failures == 0 ? 0 : 1;
}

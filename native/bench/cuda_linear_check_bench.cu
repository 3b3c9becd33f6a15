// Checks every CUDA matrix product. Stand-alone: links pack.cu, code_weight.cu, linear*.cu, tensor_map.cu and
// memory.cu.
//
//   cuda_linear_check_bench [check] [chain] [rows=N,...] [only=NAME] [shape=NAME] [repeat=N]
//
// Neither check nor chain: both. rows: these row counts alone. only: the variants whose name starts so. shape: this one
// alone. repeat: each case of check so often, for what goes wrong once in a million loads.
//
// check: the generic kernel's output for 1,024 rows against float64 sums, then every kernel and variant at many row
//   counts against the generic one, bit for bit, poisoned outputs and guards included.
// chain: dependent products in a graph with programmatic dependent launch against the same without, and every variant
//   against the first.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "backend/cuda/kernels.h"
#include "backend/cuda/linear_kernels.h"
#include "cuda_bench.h"
#include "cuda_linear_bench.h"

using namespace qwen3;
using namespace qwen3::cuda;
using namespace bench;

namespace {

constexpr int kGuard = 4096;  // elements after an output that nobody may write

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
      const double p = static_cast<double>(from_bf16(wr[i])) * from_bf16(xr[i]);
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
    found = from_bf16(gated[at]);
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
// Packs w [n_out (x 2), n_in] in two calls per part, to test first_row too.
void pack_all(const Shape& s, const bf16* w, bf16* packed, const Context& ctx) {
  ok(cudaMemsetAsync(packed, 0, s.weight_bytes(), ctx.stream));
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
      p.layout = s.layout();
      p.part_offset = s.gate_up ? part : begin;
      p.packed = packed;
      pack(p, ctx);
    }
  }
}

void check_shapes(const Context& base) {
  const Shape shapes[] = {
      {"64x48", 48, 64, false, 1024},           {"136x1001", 1001, 136, false, 1024},
      {"72x20 gu", 20, 72, true, 1024},         {"640x1536", 1536, 640, false, 1024},
      {"2432x640", 640, 2432, false, 1024},     {"640x1000", 1000, 640, false, 1024},
      {"640x2432 gu", 2432, 640, true, 1024},   {"0.6b qkv", 4096, 1024, false, 1024},
      {"0.6b o", 1024, 2048, false, 1024},      {"0.6b gate_up", 3072, 1024, true, 1024},
      {"0.6b down", 1024, 3072, false, 1024},   {"0.6b lm_head", 151936, 1024, false, 129},
      {"8b qkv", 6144, 4096, false, 1024},      {"8b o", 4096, 4096, false, 1024},
      {"8b gate_up", 12288, 4096, true, 1024},  {"8b down", 4096, 12288, false, 1024},
      {"8b lm_head", 151936, 4096, false, 129}, {"wide", 16900, 1024, false, 129},
      {"narrow", 3236, 8448, false, 257},
  };
  const int row_counts[] = {1,   2,   3,   7,   8,   9,   16,  17,  32,  33,  64,  65,  96,  97,
                            127, 128, 129, 160, 256, 257, 300, 384, 512, 600, 640, 700, 1024};
  size_t most_w = 0, most_x = 0, most_out = 0;
  for (const Shape& s : shapes) {
    most_w = std::max(most_w, (static_cast<size_t>(s.weight_rows()) + 32) * (s.n_in + 64));
    most_x = std::max(most_x, static_cast<size_t>(s.most_rows) * s.n_in);
    most_out = std::max(most_out, static_cast<size_t>(s.most_rows) * s.n_out);
  }
  bf16* w = allocate<bf16>(most_w);
  bf16* packed = allocate<bf16>(most_w);
  uint8_t* coded_data = allocate<uint8_t>(most_w * 2);
  int32_t* overflows = allocate<int32_t>(1);
  bf16* x = allocate<bf16>(most_x);
  float* before = allocate<float>(most_out);
  float* expected = allocate<float>(most_out + kGuard);
  float* out = allocate<float>(most_out + kGuard);
  now = "filling";
  fill(w, most_w, Uniform{0.05f, 11});
  fill(x, most_x, Uniform{1.0f, 1ull << 40});
  fill(before, most_out, Uniform{1.0f, 1ull << 41});
  finish();
  const std::vector<Variant> variants = all_variants(base.hopper);
  std::vector<int> wrong_of(variants.size(), 0), runs_of(variants.size(), 0);
  int printed = 0;
  for (const Shape& s : shapes) {
    if (!only_shape.empty() && only_shape != s.name) continue;
    const auto start = std::chrono::steady_clock::now();
    double worst = 0;
    int cases = 0, bad = 0;
    now = std::string("packing ") + s.name;
    pack_all(s, w, packed, base);
    const Coded coded(s, coded_data);
    ok(cudaMemsetAsync(overflows, 0, 4, stream));
    coded.make(packed, overflows, base);
    finish();
    int32_t n_overflows = 0;
    ok(cudaMemcpy(&n_overflows, overflows, 4, cudaMemcpyDeviceToHost));
    if (n_overflows != 0) fail("uniform weights have too many escapes");
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
          for (int run = 0; run < 2 * repeats; run++) {
            const bool pdl = run >= repeats;
            if (pdl &&
                (!base.pdl || (rows != 17 && rows != 96 && rows != 128 && rows != 160 && rows != 256 && rows != 512)))
              continue;
            Context ctx = base;
            ctx.pdl = pdl;
            now = variants[v].name + " " + s.name + " rows " + std::to_string(rows) + " mode " +
                  std::to_string(static_cast<int>(mode));
            prepare(out, rows);
            if (base.sums != nullptr && variants[v].name.starts_with("coded sums"))
              ok(cudaMemsetAsync(base.sums, 0xff, sums_bytes(sm_count), stream));
            const LinearCall call = make_call(s, mode, x, rows, packed, out, reinterpret_cast<bf16*>(out));
            variants[v].run(variants[v].coded ? coded.in(call) : call, ctx);
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
  for (void* p : {static_cast<void*>(w), static_cast<void*>(packed), static_cast<void*>(coded_data),
                  static_cast<void*>(overflows), static_cast<void*>(x), static_cast<void*>(before),
                  static_cast<void*>(expected), static_cast<void*>(out)}) {
    ok(cudaFree(p));
  }
}

// Each product of a chain reads what the one before wrote: as its inputs, or as what it adds to. All variants must end
// with the same bits.
void check_chain(const Context& base) {
  constexpr int n = 6;
  const Shape shapes[] = {{"gated", 2048, 2048, true, 1024},
                          {"added", 2048, 2048, false, 1024},
                          {"added, narrow", 4096, 8192, false, 256},
                          {"added, wide", 16896, 256, false, 128}};
  size_t most_x = 0, out_bytes = 0;
  for (const Shape& s : shapes) {
    most_x = std::max(most_x, static_cast<size_t>(s.most_rows) * static_cast<size_t>(s.n_in));
    out_bytes = std::max(out_bytes, static_cast<size_t>(s.most_rows) * static_cast<size_t>(s.n_out) * sizeof(float));
  }
  bf16* buffers[2] = {allocate<bf16>(out_bytes / 2), allocate<bf16>(out_bytes / 2)};
  bf16* x = allocate<bf16>(most_x);
  int32_t* overflows = allocate<int32_t>(1);
  ok(cudaMemsetAsync(overflows, 0, sizeof(int32_t), stream));
  fill(x, most_x, Uniform{1.0f, 1ull << 42});
  int runs = 0, bad = 0;
  float largest = 0;
  for (const Shape& s : shapes) {
    const size_t bytes = s.weight_bytes(), coded_each = (Coded(s, nullptr).bytes() + 127) / 128 * 128;
    bf16* w = allocate<bf16>(n * bytes / 2);
    uint8_t* coded_data = allocate<uint8_t>(n * coded_each);
    fill(w, n * bytes / 2, Uniform{0.033f, 5});
    std::vector<Coded> coded;
    for (size_t i = 0; i < n; i++) {
      coded.emplace_back(s, coded_data + i * coded_each);
      coded.back().make(w + i * bytes / 2, overflows, base);
    }
    finish();
    std::map<int, std::vector<uint8_t>> expected;  // by rows, of the first variant
    for (const Variant& v : all_variants(base.hopper)) {
      for (const int rows : {1, 8, 16, 24, 64, 96, 128, 160, 256, 512, 700}) {
        if (rows > std::min(v.most_rows, s.most_rows) || !wants_rows(rows)) continue;
        std::vector<uint8_t> results[2];
        for (const bool pdl : {false, true}) {
          now = std::string("chain ") + s.name + " " + v.name + " rows " + std::to_string(rows);
          Context ctx = base;
          ctx.pdl = pdl;
          auto enqueue = [&] {
            for (size_t i = 0; i < n; i++) {
              const bf16* packed = w + i * bytes / 2;
              const LinearCall call = s.gate_up ? make_call(s, LinearMode::kGateUp, i == 0 ? x : buffers[(i + 1) % 2],
                                                            rows, packed, nullptr, buffers[i % 2])
                                                : make_call(s, LinearMode::kAccumulate, x, rows, packed,
                                                            reinterpret_cast<float*>(buffers[1]), nullptr);
              v.run(v.coded ? coded[i].in(call) : call, ctx);
            }
          };
          // Gated: everything is written before it is read. Added: the first launches start from 0 too.
          auto prepare = [&] {
            for (bf16* b : buffers) ok(cudaMemsetAsync(b, s.gate_up ? 0xFF : 0, out_bytes, stream));
          };
          prepare();
          enqueue();
          finish();
          prepare();
          const cudaGraphExec_t exec = record(enqueue);
          for (int i = 0; i < 3; i++) ok(cudaGraphLaunch(exec, stream));
          finish();
          results[pdl].resize(static_cast<size_t>(rows) * static_cast<size_t>(s.n_out) * (s.gate_up ? 2 : 4));
          ok(cudaMemcpy(results[pdl].data(), buffers[1], results[pdl].size(), cudaMemcpyDeviceToHost));
          ok(cudaGraphExecDestroy(exec));
        }
        runs++;
        const std::vector<uint8_t>& first = expected.try_emplace(rows, results[0]).first->second;
        if (results[0] != first || results[1] != first) {
          bad++;
          failures++;
          std::printf("%s: %s\n", results[0] != results[1] ? "PDL DIFFERS" : "BITS DIFFER", now.c_str());
        }
        for (size_t i = 0; i < results[0].size(); i += s.gate_up ? 2 : 4) {
          float f = 0;
          std::memcpy(reinterpret_cast<uint8_t*>(&f) + (s.gate_up ? 2 : 0), results[0].data() + i, s.gate_up ? 2 : 4);
          if (!std::isfinite(f)) largest = INFINITY;
          largest = std::max(largest, std::fabs(f));
        }
      }
    }
    ok(cudaFree(w));
    ok(cudaFree(coded_data));
  }
  int32_t n_overflows = 0;
  ok(cudaMemcpy(&n_overflows, overflows, sizeof n_overflows, cudaMemcpyDeviceToHost));
  if (n_overflows != 0) fail("uniform weights have too many escapes");
  std::printf("chain: %d runs of %d dependent products with and without PDL, %d differ; largest value %.3g\n", runs, n,
              bad, static_cast<double>(largest));
  for (void* p : {static_cast<void*>(buffers[0]), static_cast<void*>(buffers[1]), static_cast<void*>(x),
                  static_cast<void*>(overflows)}) {
    ok(cudaFree(p));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::set<std::string> wanted = read_words(argc, argv, {"check", "chain", "repeat=N"});
  const cudaDeviceProp properties = open_device();
  const Context ctx = linear_context(properties.major == 9 && properties.minor == 0, properties.major >= 9);
  device_count = allocate<Count>(1);
  std::printf("%s, %d SMs\n", properties.name, sm_count);
  try {
    if (wanted.empty() || wanted.count("check") != 0) check_shapes(ctx);
    if (wanted.empty() || wanted.count("chain") != 0) check_chain(ctx);
  } catch (const std::exception& error) {
    std::printf("FAILED during %s: %s\n", now.c_str(), error.what());
    return 1;
  }
  std::printf("%s: %d failures\n", failures == 0 ? "OK" : "NOT OK", failures);
  return failures == 0 ? 0 : 1;
}

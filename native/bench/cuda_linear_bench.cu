// Times every CUDA matrix product (cuda_linear_check_bench.cu checks them). For Hopper. Stand-alone: links pack.cu,
// code_weight.cu, linear*.cu, tensor_map.cu and memory.cu.
//
//   cuda_linear_bench [decode] [batch] [prefill] [cublas] [rows=N,...] [only=NAME] [shape=NAME]
//
// Without a name: all but cublas. rows: these row counts alone (decode: up to 15, batch: 16 to 256). only: the variants
// whose name starts so. shape: this one alone.
//
// decode, batch, prefill: times in a graph over rotating weights; share of 4.57 TB/s, or TFLOP/s. Prefill in short
//   bursts with pauses: under sustained load the card lowers its clock (to 1,470 MHz at 700 W), and by how much depends
//   on what ran before.
// cublas: ours and cuBLAS in turns, in the same bursts, on the same data (normal; other distributions take another
//   power). cuBLAS writes bf16 and adds nothing; "same job": it writes float32, and for o and down adds to it (what it
//   cannot do is to gate: it writes gates and ups as bf16). libcublas.so.13 is loaded from where the loader looks.
#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/linear_kernels.h"
#include "backend/cuda/ptx.cuh"
#include "cuda_bench.h"
#include "cuda_cublas.h"
#include "cuda_linear_bench.h"

using namespace qwen3;
using namespace qwen3::cuda;
using namespace bench;

namespace {

constexpr double kBandwidth = 4.57e12;  // measured read bandwidth of an H200

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

struct Pool {
  bf16* weights;  // random bits in range, taken as packed weights
  size_t bytes;
  bf16* x;
  float* out;
  uint8_t* coded = nullptr;  // of one shape's weights, time_rows() has it made
};

LinearCall timed_call(const Shape& s, const Pool& pool, int rows, int i, bool accumulate, bool coded = false) {
  const size_t bytes = s.weight_bytes();
  const size_t copies = std::max<size_t>(1, pool.bytes / bytes);
  const LinearMode mode = s.gate_up ? LinearMode::kGateUp : accumulate ? LinearMode::kAccumulate : LinearMode::kStore;
  const LinearCall call = make_call(s, mode, pool.x, rows, pool.weights + (i % copies) * (bytes / 2), pool.out,
                                    reinterpret_cast<bf16*>(pool.out));
  if (!coded) return call;
  const Coded all(s, pool.coded);
  return Coded(s, pool.coded + (i % copies) * all.bytes()).in(call);
}

const Shape kTimed[] = {
    {"8b qkv", 6144, 4096, false, 0},       {"8b o", 4096, 4096, false, 0},
    {"8b gate_up", 12288, 4096, true, 0},   {"8b down", 4096, 12288, false, 0},
    {"8b lm_head", 151936, 4096, false, 0}, {"0.6b qkv", 4096, 1024, false, 0},
    {"0.6b o", 1024, 2048, false, 0},       {"0.6b gate_up", 3072, 1024, true, 0},
    {"0.6b down", 1024, 3072, false, 0},    {"0.6b lm_head", 151936, 1024, false, 0},
    {"14b gate_up", 17408, 5120, true, 0},
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
  int32_t* const overflows = allocate<int32_t>(1);
  for (const Shape& s : kTimed) {
    if (!only_shape.empty() && only_shape != s.name) continue;
    const Coded one(s, pool.coded);
    for (size_t i = 0; i < std::max<size_t>(1, pool.bytes / s.weight_bytes()); i++)
      Coded(s, pool.coded + i * one.bytes()).make(pool.weights + i * (s.weight_bytes() / 2), overflows, base);
    finish();
    for (const int rows : row_counts) {
      std::vector<Variant> v;
      for (const Variant& each : all_variants(true)) {
        auto is = [&](const char* name) { return each.name.starts_with(name); };
        if (is("generic") || rows > each.most_rows || ((is("decode") || is("coded decode")) && rows > 32)) continue;
        if ((is("batch") && rows <= 8) || (is("hopper") && rows <= 64) || (is("cluster") && rows <= 8)) continue;
        v.push_back(each);
      }
      if (v.empty()) continue;
      const double bytes = static_cast<double>(s.weight_bytes());
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
                                    v[i].run(timed_call(s, pool, rows, j, is_residual(s), v[i].coded), base);
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
      if (!only_shape.empty() && only_shape != s.name) continue;
      if (std::strncmp(s.name, "8b", 2) != 0 || std::strstr(s.name, "lm_head") != nullptr) continue;
      std::vector<Variant> v;
      for (const int tile : {128, 192, 256}) {
        v.push_back(
            {std::to_string(tile), 0, [=](const LinearCall& c, const Context& x) { linear_hopper(c, x, tile); }});
      }
      if (rows == 2048)
        v.push_back({"generic", 0, [](const LinearCall& c, const Context& x) { linear_generic(c, x); }});
      v.push_back({"chosen", 0, [](const LinearCall& c, const Context& x) { linear_any(c, x); }});
      const double flop = static_cast<double>(rows) * static_cast<double>(s.weight_bytes());
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

void time_cublas(const Context& base, const Pool& pool) {
  const Cublas cublas;
  for (const int rows : {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192}) {
    if (!wants_rows(rows)) continue;
    for (const Shape& s : kTimed) {
      if (!only_shape.empty() && only_shape != s.name) continue;
      const bool lm_head = std::strstr(s.name, "lm_head") != nullptr;
      if (std::strncmp(s.name, "8b", 2) != 0 || (lm_head && rows > 256)) continue;
      now = std::string("cuBLAS beside ours, ") + s.name + " rows " + std::to_string(rows);
      const int n_out = s.weight_rows();
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
  const std::set<std::string> wanted = read_words(argc, argv, {"decode", "batch", "prefill", "cublas"});
  const auto want = [&](const char* name) { return wanted.empty() || wanted.count(name) != 0; };
  const cudaDeviceProp properties = open_device();
  std::printf("%s, %d SMs\n", properties.name, sm_count);
  if (properties.major != 9 || properties.minor != 0) {
    std::printf("times are for Hopper only\n");
    return 1;
  }
  const Context ctx = linear_context(true);
  try {
    Pool pool;
    pool.bytes = 2600000000;
    pool.weights = allocate<bf16>(pool.bytes / 2);
    pool.coded = allocate<uint8_t>(pool.bytes);
    const size_t n_x = static_cast<size_t>(8192) * 12288, n_out = static_cast<size_t>(8192) * 12288;
    pool.x = allocate<bf16>(n_x);
    pool.out = allocate<float>(n_out);
    fill(pool.weights, pool.bytes / 2, UniformSum{0.02f, 3});
    fill(pool.x, n_x, UniformSum{1.0f, 1ull << 43});
    fill(pool.out, n_out, Uniform{1.0f, 1ull << 44});
    finish();
    if (want("decode")) time_rows(ctx, pool, chosen_rows({1, 8}, 1, 15));
    if (want("batch")) time_rows(ctx, pool, chosen_rows({16, 32, 64, 128, 256}, 16, 256));
    if (want("prefill")) time_prefill(ctx, pool);
    if (wanted.count("cublas") != 0) time_cublas(ctx, pool);
  } catch (const CannotRun& error) {
    std::printf("%s\n", error.what());
    return 77;
  } catch (const std::exception& error) {
    std::printf("FAILED during %s: %s\n", now.c_str(), error.what());
    return 1;
  }
}

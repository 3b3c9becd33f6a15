// Matrix products at the shapes of Qwen3-0.6B and 8B: `linear_bench [kernels] [0.6b|8b|all] [threads]`.
//
// Weights lie in one buffer of many layers that is walked in the model's order, so that they come from memory as in a
// real step. Times are the best of some rounds. "read" is the share of a plain read of the same bytes by the same
// threads, measured in the same run just before; "peak" the share of register-only multiply-adds of the same kernel
// set.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/machine.h"
#include "peak.h"

namespace {

using namespace qwen3;

struct Shape {
  const char* name;
  int n_out, n_in;
  bool gate_up;
};

struct Model {
  const char* name;
  int n_layers;
  std::vector<Shape> shapes;
  Shape lm_head;
};

// Cheap bf16 values around +-1 with varied mantissas.
void fill(bf16* data, size_t n) {
  uint32_t state = 1;
  for (size_t i = 0; i < n; i++) {
    state = state * 1664525u + 1013904223u;
    data[i] = static_cast<bf16>(0x3c00u | (state >> 16 & 0x80ffu));
  }
}

struct Bench {
  const cpu::KernelTable& kernels;
  cpu::ThreadPool& pool;
  double peak;
  const bf16* buffer;
  std::vector<bf16> x;
  std::vector<float> out;
  std::vector<bf16> out_bf16;

  size_t run(const Shape& shape, int n_rows, const bf16* data) {
    LinearWeight weight;
    weight.n_out = shape.n_out;
    weight.n_in = shape.n_in;
    if (shape.gate_up) {
      weight.n_parts = 2;
      weight.parts[0] = {data, shape.n_out / 2};
      weight.parts[1] = {data + static_cast<size_t>(shape.n_out / 2) * static_cast<size_t>(shape.n_in),
                         shape.n_out / 2};
      kernels.gate_up({x.data(), n_rows, &weight, out_bf16.data()}, pool);
    } else {
      weight.n_parts = 1;
      weight.parts[0] = {data, shape.n_out};
      kernels.linear({x.data(), n_rows, &weight, out.data(), true}, pool);
    }
    return static_cast<size_t>(shape.n_out) * static_cast<size_t>(shape.n_in);
  }

  void line(const char* name, int n_rows, size_t weights, double seconds, double read, double one_row) {
    const double bytes = 2.0 * static_cast<double>(weights);
    const double flops = 2.0 * static_cast<double>(weights) * n_rows / seconds;
    std::printf("%-22s rows %4d  %9.3f ms  %6.1f GB/s  read %5.1f%%  %7.1f GFLOP/s  peak %5.1f%%", name, n_rows,
                seconds * 1e3, bytes / seconds * 1e-9, 100 * read / seconds, flops * 1e-9, 100 * flops / peak);
    if (n_rows > 1) std::printf("  %6.2f x one row", seconds / one_row);
    std::printf("\n");
    std::fflush(stdout);
  }

  // One shape over all layers' weights of the model; per call.
  void shape(const Shape& s, size_t layer_stride, int n_layers) {
    const size_t weights = static_cast<size_t>(s.n_out) * static_cast<size_t>(s.n_in);
    double one_row = 0;
    double read = 0;
    for (const int n_rows : {1, 2, 4, 8, 16, 32, 64, 128, 512}) {
      if (n_rows > 64 && s.n_out > 100'000) continue;  // logits: kMaxLogitRows
      // Large batches are slow and do not depend on memory: fewer layers.
      const int layers = n_rows >= 64 ? std::min(n_layers, 2) : n_layers;
      const int rounds = n_rows >= 64 ? 3 : 5;
      if (n_rows == 1) {
        read = bench::best_seconds(pool, rounds,
                                   [&] {
                                     for (int i = 0; i < layers; i++) {
                                       bench::read_seconds(buffer + static_cast<size_t>(i) * layer_stride, weights * 2,
                                                           pool, 1);
                                     }
                                   }) /
               layers;
      }
      const double seconds = bench::best_seconds(pool, rounds,
                                                 [&] {
                                                   for (int i = 0; i < layers; i++)
                                                     run(s, n_rows, buffer + static_cast<size_t>(i) * layer_stride);
                                                 }) /
                             layers;
      if (n_rows == 1) one_row = seconds;
      char name[64];
      std::snprintf(name, sizeof name, "%s %d x %d", s.name, s.n_out, s.n_in);
      line(name, n_rows, weights, seconds, read, one_row);
    }
  }

  // All products of one step, lm_head included (its rows capped as the model caps them).
  void step(const Model& model) {
    size_t weights = static_cast<size_t>(model.lm_head.n_out) * static_cast<size_t>(model.lm_head.n_in);
    for (const Shape& s : model.shapes) {
      weights += static_cast<size_t>(model.n_layers) * static_cast<size_t>(s.n_out) * static_cast<size_t>(s.n_in);
    }
    double one_row = 0;
    for (const int n_rows : {1, 8, 32}) {
      double best = 1e30, read = 1e30;
      for (int round = 0; round < 5; round++) {
        // Back to back, so that both meet the same neighbours.
        read = std::min(read, bench::read_seconds(buffer, weights * 2, pool, 1));
        best = std::min(best, bench::best_seconds(pool, 1, [&] {
                          const bf16* data = buffer;
                          for (int i = 0; i < model.n_layers; i++) {
                            for (const Shape& s : model.shapes) data += run(s, n_rows, data);
                          }
                          run(model.lm_head, n_rows, data);
                        }));
      }
      if (n_rows == 1) one_row = best;
      line((std::string(model.name) + " whole step").c_str(), n_rows, weights, best, read, one_row);
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  const cpu::KernelTable& kernels = cpu::choose_kernels(argc > 1 ? argv[1] : "auto");
  const std::string which = argc > 2 ? argv[2] : "all";
  const int threads = argc > 3 ? std::atoi(argv[3]) : cpu::usable_cores();
  cpu::ThreadPool pool(threads);
  const double peak = bench::peak_flops(kernels.name, pool);
  std::printf("%s, kernels %s, %d threads, register-only peak %.0f GFLOP/s\n", cpu::processor_name().c_str(),
              kernels.name, threads, peak * 1e-9);
  // 8B: two layers stand for 36.
  const std::vector<Model> models = {
      {"0.6B",
       28,
       {{"qkv", 4096, 1024, false},
        {"o", 1024, 2048, false},
        {"gate_up", 6144, 1024, true},
        {"down", 1024, 3072, false}},
       {"lm_head", 151936, 1024, false}},
      {"8B/18",
       2,
       {{"qkv", 6144, 4096, false},
        {"o", 4096, 4096, false},
        {"gate_up", 24576, 4096, true},
        {"down", 4096, 12288, false}},
       {"lm_head/8", 18992, 4096, false}},
  };
  for (const Model& model : models) {
    if (which != "all" && which != (model.n_layers == 28 ? "0.6b" : "8b")) continue;
    size_t layer = 0, widest_in = 0, widest_out = static_cast<size_t>(model.lm_head.n_out);
    for (const Shape& s : model.shapes) {
      layer += static_cast<size_t>(s.n_out) * static_cast<size_t>(s.n_in);
      widest_in = std::max(widest_in, static_cast<size_t>(s.n_in));
    }
    const size_t total = layer * static_cast<size_t>(model.n_layers) +
                         static_cast<size_t>(model.lm_head.n_out) * static_cast<size_t>(model.lm_head.n_in);
    std::vector<bf16> buffer(total);
    fill(buffer.data(), buffer.size());
    Bench bench{kernels, pool, peak, buffer.data(), std::vector<bf16>(512 * widest_in), {}, {}};
    fill(bench.x.data(), bench.x.size());
    bench.out.resize(std::max(size_t{64} * widest_out, size_t{512} * 24576));
    bench.out_bf16.resize(size_t{512} * 24576);
    bench.step(model);
    for (const Shape& s : model.shapes) bench.shape(s, layer, model.n_layers);
    bench.shape(model.lm_head, 0, 1);
  }
  return 0;
}

// linear and gate_up against the CPU, and every number of rows and kernel set against each other.
//
// Tolerance of a sum, in units of 2^-24 times the sum of the products' magnitudes: a chain of tensor-core products in
// steps of 16 was measured to be off by 0.03 sqrt(K) rms on an H200 (0.28, 0.81, 1.8 and 3.3 at K = 128, 1,024, 4,096
// and 12,288), the CPU's lanes by less than 0.3. Seven deviations of both: 0.2 sqrt(K) + 2. A step of 16 that is left
// out is off by thousands of units at any K of a model.
#include <cmath>

#include "twins/twin.h"

namespace qwen3::twins {
namespace {

struct Shape {
  std::vector<int> parts;  // outputs of each matrix; two equal ones for gate_up
  int n_in;
  int max_rows;
};

double sum_tolerance(int n_in, double magnitude) {
  return (0.2 * std::sqrt(n_in) + 2) * 0x1p-24 * magnitude;
}

std::string text(const Shape& shape) {
  std::string out;
  for (const int part : shape.parts) out += (out.empty() ? "" : "+") + std::to_string(part);
  return "[" + out + ", " + std::to_string(shape.n_in) + "]";
}

// The shape's random data and what the reference makes of it.
struct Problem {
  Shape shape;
  LinearLayout layout;
  int n_out = 0;
  std::vector<bf16> x;
  std::vector<std::vector<bf16>> parts;
  std::vector<float> sums, magnitude;  // [max_rows, n_out]: x * w^T and |x| * |w|^T
  struct Loaded {
    const bf16* x;
    const LinearWeight* weight;
    const LinearWeight* coded;  // the weight with its smaller form (Ops::code); nullptr: it has none
  };
  std::vector<Loaded> loaded;  // on each tested device

  struct Form {
    Device* device;
    const LinearWeight* weight;
    const bf16* x;
    const char* name;
  };
  std::vector<Form> forms(const Bench& bench) const {
    std::vector<Form> all;
    for (size_t i = 0; i < loaded.size(); i++) {
      all.push_back({bench.tested[i].get(), loaded[i].weight, loaded[i].x, ""});
      if (loaded[i].coded != nullptr) all.push_back({bench.tested[i].get(), loaded[i].coded, loaded[i].x, ", coded"});
    }
    return all;
  }

  Problem(Device& device, const Shape& s, LinearLayout l, Source& source) : shape(s), layout(l) {
    const size_t n_in = static_cast<size_t>(s.n_in), rows = static_cast<size_t>(s.max_rows);
    x = source.normals(rows * n_in, 1.0f);
    for (const int part : s.parts) {
      parts.push_back(source.normals(static_cast<size_t>(part) * n_in, 0.03125f));
      // One in two thousand is far from the others, as in trained weights; larger ones would ask for other tolerances.
      const float far[] = {0.0f, 0.4f, -0.0f, 0x1p-60f, -0x1p-130f, -0.3f};
      for (size_t i = 0; (i += static_cast<size_t>(1 + source.below(4000))) < parts.back().size();)
        parts.back()[i] = float_to_bf16(far[i % std::size(far)]);
      n_out += part;
    }
    sums = reference(device, x, parts);
    std::vector<std::vector<bf16>> absolute;
    for (const std::vector<bf16>& part : parts) absolute.push_back(magnitudes(part));
    magnitude = reference(device, magnitudes(x), absolute);
  }

  std::vector<float> reference(Device& device, const std::vector<bf16>& in,
                               const std::vector<std::vector<bf16>>& weight) const {
    const LinearWeight* w = device.linear(weight, shape.n_in, LinearLayout::kConcat);
    const size_t n = static_cast<size_t>(shape.max_rows) * static_cast<size_t>(n_out);
    float* out = device.blank_floats(n);
    device.ops().finish_loading();
    device.ops().linear(
        {.x = device.table(in), .n_rows = shape.max_rows, .weight = w, .out = out, .accumulate = false});
    return device.read(out, n);
  }
};

// Numbers of rows around the borders between kernels, of every kind of padding.
std::vector<int> row_counts(int max_rows) {
  std::vector<int> counts;
  for (const int n : {1, 2, 3, 8, 9, 16, 17, 32, 33, 64, 65, 96, 128, 129, 200, 256, 257})
    if (n < max_rows) counts.push_back(n);
  return counts;
}

// The residual add and the norm after it in one op, against the two ops. base: what is added to, all rows.
void check_residual_norm(Device& device, Report& report, const Problem& p, const LinearWeight* w, const bf16* x,
                         const std::vector<float>& base, const std::string& what) {
  constexpr int kWidest = 8192;  // that a norm takes
  if (p.n_out % 4 != 0 || p.n_out > kWidest) return;
  const size_t width = static_cast<size_t>(p.n_out);
  const bf16* norm = device.table(std::vector<bf16>(p.x.begin(), p.x.begin() + static_cast<std::ptrdiff_t>(width)));
  for (const int rows : {1, 16, 17, 33, 100, 128, 192, 256, p.shape.max_rows}) {
    if (rows > p.shape.max_rows) continue;
    const size_t n = static_cast<size_t>(rows) * width;
    std::vector<float> sums[2];
    std::vector<bf16> normed[2];
    bool clean = true;
    for (const int fused : {0, 1}) {
      float* y = device.floats({base.data(), n});
      bf16* out = device.blank_bf16(n);
      const LinearArgs product = {.x = x, .n_rows = rows, .weight = w, .out = y, .accumulate = true};
      const RmsNormArgs after = {
          .x = y, .weight = norm, .row_index = nullptr, .n_rows = rows, .hidden = p.n_out, .eps = 1e-6f, .out = out};
      if (fused != 0) {
        device.ops().residual_norm({product, after});
      } else {
        device.ops().linear(product);
        device.ops().rms_norm(after);
      }
      sums[fused] = device.read(y, n);
      clean = device.read_guarded(out, n, normed[fused]) && clean;
    }
    report.check(clean && op_test::same_bits(sums[0], sums[1]) && op_test::same_bits(normed[0], normed[1]),
                 what + ": residual_norm of " + std::to_string(rows) + " rows differs from its two ops");
  }
}

void check_linear(const Settings& settings, Bench& bench, Report& report, const Problem& p) {
  const size_t n_out = static_cast<size_t>(p.n_out), n_all = p.sums.size();
  std::vector<float> first;  // of the first kernel set, all rows
  for (const auto& [device, w, x, form] : p.forms(bench)) {
    const std::string what = "linear " + text(p.shape) + " on " + device->name() + form;
    const auto store = [&](int rows, std::vector<float>& out) {
      const size_t n = static_cast<size_t>(rows) * n_out;
      float* y = device->blank_floats(n);
      device->ops().linear({.x = x, .n_rows = rows, .weight = w, .out = y, .accumulate = false});
      return device->read_guarded(y, n, out);
    };
    std::vector<float> all, some;
    report.check(store(p.shape.max_rows, all), what + ": writes behind its output");
    int wrong = 0;
    for (size_t i = 0; i < n_all; i++) {
      const double off = std::fabs(static_cast<double>(all[i]) - p.sums[i]);
      wrong += !(off <= sum_tolerance(p.shape.n_in, p.magnitude[i]));
    }
    report.check(wrong == 0, what + ": " + std::to_string(wrong) + " outputs are off");
    if (first.empty()) first = all;
    if (settings.equal_sets) report.check(op_test::same_bits(all, first), what + ": bits differ between kernel sets");
    for (const int rows : row_counts(p.shape.max_rows)) {
      const bool clean = store(rows, some);
      const bool same = std::memcmp(some.data(), all.data(), some.size() * sizeof(float)) == 0;
      report.check(clean && same, what + ": " + std::to_string(rows) + " rows differ from " +
                                      std::to_string(p.shape.max_rows) + (clean ? "" : ", and write behind"));
    }
    // The residual add is one addition of the same sum.
    std::vector<float> base(n_all), sum;
    for (size_t i = 0; i < n_all; i++) base[i] = first[(i * 7 + 3) % n_all] * 3.0f;
    for (const int rows : {1, 12, 40, p.shape.max_rows}) {
      if (rows > p.shape.max_rows) continue;
      const size_t n = static_cast<size_t>(rows) * n_out;
      float* y = device->floats({base.data(), n});
      device->ops().linear({.x = x, .n_rows = rows, .weight = w, .out = y, .accumulate = true});
      sum = device->read(y, n);
      bool same = true;
      for (size_t i = 0; i < n; i++) same = same && sum[i] == base[i] + all[i];
      report.check(same, what + ": adding to " + std::to_string(rows) + " rows is not one addition");
    }
    check_residual_norm(*device, report, p, w, x, base, what);
  }
}

void check_gate_up(const Settings& settings, Bench& bench, Report& report, const Problem& p) {
  const size_t n = static_cast<size_t>(p.shape.parts[0]), rows = static_cast<size_t>(p.shape.max_rows);
  std::vector<bf16> first;
  for (const auto& [device, w, x, form] : p.forms(bench)) {
    const std::string what = "gate_up " + text(p.shape) + " on " + device->name() + form;
    const auto run = [&](size_t n_rows, std::vector<bf16>& out) {
      bf16* y = device->blank_bf16(n_rows * n);
      device->ops().gate_up({.x = x, .n_rows = static_cast<int>(n_rows), .weight = w, .out = y});
      return device->read_guarded(y, n_rows * n, out);
    };
    std::vector<bf16> all, some;
    report.check(run(rows, all), what + ": writes behind its output");
    int wrong = 0;
    for (size_t i = 0; i < all.size(); i++) {
      const size_t gate_at = i / n * 2 * n + i % n, up_at = gate_at + n;
      const double gate = p.sums[gate_at], up = p.sums[up_at], silu = gate / (1 + std::exp(-gate));
      // |d silu / d gate| < 1.1; exp, the division and two products round a few times.
      const double before = 1.1 * sum_tolerance(p.shape.n_in, p.magnitude[gate_at]) * std::fabs(up) +
                            sum_tolerance(p.shape.n_in, p.magnitude[up_at]) * std::fabs(silu) +
                            16 * 0x1p-24 * std::fabs(silu * up);
      wrong += !(std::fabs(bf16_to_float(all[i]) - silu * up) <= op_test::bf16_tolerance(silu * up, before));
    }
    report.check(wrong == 0, what + ": " + std::to_string(wrong) + " outputs are off");
    if (first.empty()) first = all;
    if (settings.equal_sets) report.check(op_test::same_bits(all, first), what + ": bits differ between kernel sets");
    for (const int count : row_counts(p.shape.max_rows)) {
      const bool clean = run(static_cast<size_t>(count), some);
      const bool same = std::memcmp(some.data(), all.data(), some.size() * sizeof(bf16)) == 0;
      report.check(clean && same, what + ": " + std::to_string(count) + " rows differ from " +
                                      std::to_string(p.shape.max_rows) + (clean ? "" : ", and write behind"));
    }
  }
}

// A block may have 8 weights far from the others; with a ninth there is no coded form. 0 and infinity are far too.
void check_far_weights(Bench& bench, Report& report, Source& source) {
  constexpr int kRows = 64, kColumns = 128, kInputRows = 9;
  const float far[] = {0.0f, -0.0f, 0x1p-100f, -0x1p100f, 0x1p-130f, INFINITY, -0x1p-30f, 0x1p20f, 0x1p-16f};
  const int places[] = {
      0, 1, 7, 63, 3 * kColumns + 5, 8 * kColumns, 11 * kColumns + 40, 15 * kColumns + 62, 15 * kColumns + 63};
  for (const int n_far : {8, 9}) {
    std::vector<bf16> weights = source.normals(size_t{kRows} * kColumns, 1.0f);
    for (bf16& w : weights) w = static_cast<bf16>((w & 0x807f) | 0x3f80);  // 1 to 2, or -1 to -2
    for (int i = 0; i < n_far; i++) weights[static_cast<size_t>(places[i])] = float_to_bf16(far[i]);
    const std::vector<bf16> x = source.normals(size_t{kInputRows} * kColumns, 1.0f);
    for (const auto& device : bench.tested) {
      const std::string what = std::to_string(n_far) + " far weights on " + device->name();
      const LinearWeight* packed = device->linear({weights}, kColumns, LinearLayout::kConcat);
      device->ops().finish_loading();
      const LinearWeight* coded = device->coded(*packed);
      if (coded == nullptr) {
        report.check(n_far > 8 || !device->codes(), what + " have no coded form");
        continue;
      }
      report.check(n_far <= 8, what + " have a coded form");
      const bf16* in = device->table(x);
      std::vector<float> sums[2];
      for (const LinearWeight* w : {packed, coded}) {
        float* y = device->blank_floats(size_t{kInputRows} * kRows);
        device->ops().linear({.x = in, .n_rows = kInputRows, .weight = w, .out = y, .accumulate = false});
        sums[w == coded] = device->read(y, size_t{kInputRows} * kRows);
      }
      report.check(op_test::same_bits(sums[0], sums[1]), what + ": bits differ between the forms");
    }
  }
}

// A row whose weights lie anywhere has no coded form, and must not get a wrong one.
void check_uncodable(Bench& bench, Report& report, Source& source) {
  std::vector<bf16> weights(size_t{64} * 512);
  for (bf16& w : weights) w = static_cast<bf16>(source.below(0x7f80) | source.below(2) << 15);
  for (const auto& device : bench.tested) {
    const LinearWeight* w = device->linear({weights}, 512, LinearLayout::kConcat);
    device->ops().finish_loading();
    report.check(device->coded(*w) == nullptr, "weights of all sizes have a coded form on " + device->name());
  }
}

}  // namespace

void linear_twins(const Settings& settings, Report& report) {
  Source source(settings.seed * 4 + 1);
  Bench bench(settings);
  std::vector<Shape> linears, gate_ups;
  if (settings.few) {
    linears = {{{64, 16, 16}, 128, 40}, {{96}, 192, 70}, {{136}, 4096, 24}};  // the last: linear_slabs, for its cluster
    gate_ups = {{{48, 48}, 128, 40}};
  } else {
    // The official layers of 0.6B and 8B, and a padded vocabulary.
    linears = {{{2048, 1024, 1024}, 1024, 300},
               {{1024}, 2048, 300},
               {{1024}, 3072, 300},
               {{4096, 1024, 1024}, 4096, 260},
               {{4096}, 4096, 260},
               {{4096}, 12288, 257},
               {{151936}, 1024, 33},
               {{16900}, 256, 70},     // linear_coded, with a last CTA that is not full,
               {{3236}, 8448, 100},    // linear_sums, two slabs per CTA (one slab is missing),
               {{5100}, 8448, 128},    // and three;
               {{26000}, 2048, 130}};  // linear_coded_wide, clusters with a second tile
    gate_ups = {{{3072, 3072}, 1024, 300}, {{12288, 12288}, 4096, 140}, {{8500, 8500}, 2048, 130}};
    for (int i = 0; i < 60; i++) {
      Shape shape{
          {1 + source.below(source.below(3) == 0 ? 1500 : 200)}, 8 * (1 + source.below(300)), 1 + source.below(300)};
      if (i % 4 == 0)
        shape.parts = {16 * (1 + source.below(20)), 16 * (1 + source.below(4)), 16 * (1 + source.below(4))};
      if (i % 10 == 9) shape.n_in = 8 * (300 + source.below(1300));
      linears.push_back(shape);
      if (i % 3 == 0) gate_ups.push_back({{shape.parts[0], shape.parts[0]}, shape.n_in, shape.max_rows});
    }
  }
  std::vector<Problem> problems;
  for (const Shape& shape : linears) problems.emplace_back(bench.reference, shape, LinearLayout::kConcat, source);
  for (const Shape& shape : gate_ups) problems.emplace_back(bench.reference, shape, LinearLayout::kGateUp, source);
  for (const auto& device : bench.tested) {
    for (Problem& p : problems)
      p.loaded.push_back({device->table(p.x), device->linear(p.parts, p.shape.n_in, p.layout), nullptr});
    device->ops().finish_loading();
    for (Problem& p : problems) p.loaded.back().coded = device->coded(*p.loaded.back().weight);
  }
  check_far_weights(bench, report, source);
  check_uncodable(bench, report, source);
  for (const Problem& p : problems)
    (p.layout == LinearLayout::kConcat ? check_linear : check_gate_up)(settings, bench, report, p);
}

}  // namespace qwen3::twins

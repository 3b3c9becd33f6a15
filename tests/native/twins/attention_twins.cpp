// A layer's attention, from its normed input over projections, head norms, RoPE and the writing of keys and values to
// its output, against the CPU, over the paged pool, however a sequence is cut into steps.
//
// A scene is a few sequences of random inputs. It is computed twice per kernel set: every sequence in one
// prefill, and in random steps that mix prefill chunks and single tokens and end in pure decode steps, which are issued
// through run_recorded as the model does. Both must have the same bits; unused parts of the pool are NaN.
//
// Tolerance: both sides round q, k and the output to bfloat16, the GPU also the probabilities. A row of 128 outputs
// then differs by about 0.3% of its length (roundings of 2^-9 / sqrt(3) rms: two of the output, one per probability);
// the rare q or k whose rounding falls to the other side moves all scores by 2^-8 |q_d k_d| / sqrt(128), 0.1% each.
// Bars: 1.5% for one row, 0.5% over all rows. One key left out of n is 1 / sqrt(n) of the length or more.
#include <cmath>

#include "twins/twin.h"

namespace qwen3::twins {
namespace {

constexpr int kHeadDim = 128;
constexpr int kInputs = 256;  // of the projections; a power of 4, so that their outputs are about 1

struct Scene {
  int n_heads = 0, n_kv_heads = 0;
  std::vector<int> lengths;
  float sharpness = 1;  // of q: how far the scores spread
  float rope_scale = 1;
  int n_tokens = 0, n_blocks = 0, max_blocks = 0;
  std::vector<int> first_token;  // of each sequence in `inputs`
  std::vector<bf16> q_norm, k_norm;
  std::vector<std::vector<bf16>> inputs;       // one table [n_tokens, kInputs]
  std::vector<std::vector<bf16>> projections;  // q, k, v: [heads * 128, kInputs]
  std::vector<float> inv_freq;
  std::vector<std::vector<int32_t>> blocks;  // of each sequence

  int width() const { return (n_heads + 2 * n_kv_heads) * kHeadDim; }
  std::string text() const {
    std::string out = std::to_string(n_heads) + "/" + std::to_string(n_kv_heads) + " heads, lengths";
    for (const int length : lengths) out += " " + std::to_string(length);
    return out;
  }
};

Scene make_scene(Source& source, int n_heads, int n_kv_heads, std::vector<int> lengths) {
  Scene s;
  s.n_heads = n_heads;
  s.n_kv_heads = n_kv_heads;
  s.lengths = std::move(lengths);
  const float sharp[] = {0.25f, 1.0f, 2.0f};
  s.sharpness = sharp[source.below(3)];
  if (source.below(3) == 0) s.rope_scale = 1.1386294f;  // YaRN of factor 4
  for (const int length : s.lengths) {
    s.first_token.push_back(s.n_tokens);
    s.n_tokens += length;
    const int n = (length + kBlockSize - 1) / kBlockSize;
    s.n_blocks += n;
    s.max_blocks = std::max(s.max_blocks, n);
  }
  s.n_blocks += 3;  // some that nobody owns
  std::vector<int32_t> order(static_cast<size_t>(s.n_blocks));
  for (size_t i = 0; i < order.size(); i++) {
    const size_t j = static_cast<size_t>(source.below(static_cast<int>(i) + 1));
    order[i] = order[j];
    order[j] = static_cast<int32_t>(i);
  }
  for (const int length : s.lengths) {
    const auto n = static_cast<std::ptrdiff_t>((length + kBlockSize - 1) / kBlockSize);
    s.blocks.emplace_back(order.end() - n, order.end());
    order.resize(order.size() - static_cast<size_t>(n));
  }
  s.inputs = {source.normals(static_cast<size_t>(s.n_tokens) * kInputs, 1.0f)};
  for (const int heads : {n_heads, n_kv_heads, n_kv_heads})
    s.projections.push_back(source.normals(static_cast<size_t>(heads) * kHeadDim * kInputs, 1.0f / 16));
  s.q_norm = source.normals(kHeadDim, 0.25f);
  s.k_norm = source.normals(kHeadDim, 0.25f);
  for (bf16& weight : s.q_norm) weight = float_to_bf16((1.0f + bf16_to_float(weight)) * s.sharpness);
  for (bf16& weight : s.k_norm) weight = float_to_bf16(1.0f + bf16_to_float(weight));
  for (int i = 0; i < kHeadDim / 2; i++)
    s.inv_freq.push_back(static_cast<float>(std::pow(source.below(2) == 0 ? 1e6 : 5e6, -i / 64.0)));
  return s;
}

// Tokens [first, first + n) of a sequence.
struct Run {
  int sequence, first, n;
};
using Schedule = std::vector<std::vector<Run>>;

Schedule whole_sequences(const Scene& scene) {
  Schedule steps;
  for (size_t i = 0; i < scene.lengths.size(); i++) steps.push_back({{static_cast<int>(i), 0, scene.lengths[i]}});
  return steps;
}

// Chunks of random sizes in steps of random company; the last `n_decode` tokens of every sequence one by one.
Schedule random_steps(const Scene& scene, Source& source, int n_decode) {
  Schedule steps;
  const size_t n = scene.lengths.size();
  std::vector<int> done(n, 0), target(n);
  for (size_t i = 0; i < n; i++) target[i] = std::max(0, scene.lengths[i] - n_decode);
  for (bool more = true; more;) {
    more = false;
    std::vector<Run> step;
    for (size_t i = 0; i < n; i++) {
      const int left = target[i] - done[i];
      if (left == 0) continue;
      more = true;
      if (source.below(4) == 0) continue;
      const int longest = source.below(3) == 0 ? 700 : 90;
      const int count = source.below(3) == 0 ? 1 : std::min(left, 1 + source.below(longest));
      step.push_back({static_cast<int>(i), done[i], count});
      done[i] += count;
    }
    if (!step.empty()) steps.push_back(step);
  }
  for (int t = 0; t < n_decode; t++) {
    std::vector<Run> step;
    for (size_t i = 0; i < n; i++)
      if (done[i] < scene.lengths[i]) step.push_back({static_cast<int>(i), done[i]++, 1});
    if (!step.empty()) steps.push_back(step);
  }
  return steps;
}

// A scene's weights on a device.
struct Loaded {
  Loaded(Device& device, const Scene& scene)
      : inputs(device.linear(scene.inputs, kInputs, LinearLayout::kConcat)),
        projections(device.linear(scene.projections, kInputs, LinearLayout::kConcat)) {}
  const LinearWeight *inputs, *projections;
};

// A device with the scene's data and an empty pool.
class Stage {
 public:
  Stage(Device& device, const Scene& scene, const Loaded& loaded) : device_(device), scene_(scene), loaded_(loaded) {
    const size_t rows = static_cast<size_t>(scene.n_tokens + kRowPadding);
    const size_t pool = static_cast<size_t>(scene.n_blocks * scene.n_kv_heads * kBlockSize * kHeadDim);
    ones_ = device_.table(std::vector<bf16>(kInputs, float_to_bf16(1.0f)));
    q_norm_ = device_.table(scene.q_norm);
    k_norm_ = device_.table(scene.k_norm);
    inv_freq_ = device_.floats(scene.inv_freq);
    kv_ = {device_.blank_bf16(pool), device_.blank_bf16(pool)};
    x_ = device_.blank_floats(rows * kInputs);
    normed_ = device_.blank_bf16(rows * kInputs);
    angles_ = device_.blank_floats(rows * kHeadDim);
    qkv_ = device_.blank_floats(rows * static_cast<size_t>(scene.width()));
    q_ = device_.blank_bf16(rows * static_cast<size_t>(scene.n_heads * kHeadDim));
    out_ = device_.blank_bf16(rows * static_cast<size_t>(scene.n_heads * kHeadDim));
  }
  const std::string& name() const { return device_.name(); }

  // [scene.n_tokens, n_heads, 128]
  std::vector<bf16> run(const Schedule& schedule) {
    const size_t width = static_cast<size_t>(scene_.n_heads * kHeadDim);
    std::vector<bf16> all(static_cast<size_t>(scene_.n_tokens) * width, 0x7fc0);
    for (const std::vector<Run>& step : schedule) {
      issue(step);
      size_t row = 0;
      int n_rows = 0;
      for (const Run& run : step) n_rows += run.n;
      const std::vector<bf16> out = device_.read(out_, static_cast<size_t>(n_rows) * width);
      for (const Run& run : step) {
        const size_t to = static_cast<size_t>(scene_.first_token[static_cast<size_t>(run.sequence)] + run.first);
        std::copy_n(out.begin() + static_cast<std::ptrdiff_t>(row * width), static_cast<size_t>(run.n) * width,
                    all.begin() + static_cast<std::ptrdiff_t>(to * width));
        row += static_cast<size_t>(run.n);
      }
    }
    return all;
  }

 private:
  void issue(const std::vector<Run>& step) {
    std::vector<int32_t> tokens, positions, seq_of, start = {0}, tables;
    int max_blocks = 1;
    for (const Run& run : step) max_blocks = std::max(max_blocks, (run.first + run.n + kBlockSize - 1) / kBlockSize);
    for (const Run& run : step) {
      for (int t = 0; t < run.n; t++) {
        tokens.push_back(scene_.first_token[static_cast<size_t>(run.sequence)] + run.first + t);
        positions.push_back(run.first + t);
        seq_of.push_back(static_cast<int32_t>(start.size()) - 1);
      }
      start.push_back(static_cast<int32_t>(tokens.size()));
      const std::vector<int32_t>& blocks = scene_.blocks[static_cast<size_t>(run.sequence)];
      for (int b = 0; b < max_blocks; b++)
        tables.push_back(static_cast<size_t>(b) < blocks.size() ? blocks[static_cast<size_t>(b)] : 0);
    }
    Ops& ops = device_.ops();
    const BatchView view = ops.upload_batch({.n_tokens = static_cast<int>(tokens.size()),
                                             .n_seqs = static_cast<int>(step.size()),
                                             .max_blocks = max_blocks,
                                             .n_heads = scene_.n_heads,
                                             .n_kv_heads = scene_.n_kv_heads,
                                             .token_ids = tokens,
                                             .positions = positions,
                                             .seq_of = seq_of,
                                             .query_start = start,
                                             .block_tables = tables});
    // Equal keys promise equal arguments, and each stage has buffers of its own.
    const uint64_t key = view.record_key == 0 ? 0 : view.record_key ^ number_ << 48;
    ops.run_recorded(key, [&] {
      // The embedding brings each token's input to a fixed place, so that a recorded step can read new ones.
      ops.embed({.batch = &view, .table = loaded_.inputs, .out = x_});
      ops.rope_angles({.batch = &view,
                       .inv_freq = inv_freq_,
                       .rope_scale = scene_.rope_scale,
                       .head_dim = kHeadDim,
                       .out = angles_});
      ops.rms_norm({.x = x_,
                    .weight = ones_,
                    .row_index = nullptr,
                    .n_rows = view.n_tokens,
                    .hidden = kInputs,
                    .eps = 1e-6f,
                    .out = normed_});
      ops.self_attention({.batch = &view,
                          .x = normed_,
                          .qkv_proj = loaded_.projections,
                          .q_norm = q_norm_,
                          .k_norm = k_norm_,
                          .angles = angles_,
                          .eps = 1e-6f,
                          .n_heads = scene_.n_heads,
                          .n_kv_heads = scene_.n_kv_heads,
                          .head_dim = kHeadDim,
                          .qkv = qkv_,
                          .q = q_,
                          .kv = kv_,
                          .out = out_});
    });
  }

  static inline uint64_t last_number_ = 0;
  const uint64_t number_ = ++last_number_;
  Device& device_;
  const Scene& scene_;
  Loaded loaded_;
  const bf16 *ones_, *q_norm_, *k_norm_;
  const float* inv_freq_;
  KvLayer kv_;
  float *x_, *angles_, *qkv_;
  bf16 *normed_, *q_, *out_;
};

// Distance of two results by rows of 128: the largest and the mean square root, relative to the reference's length.
struct Distance {
  double worst = 0, all = 0;
};

Distance distance(const std::vector<bf16>& got, const std::vector<bf16>& expected) {
  Distance d;
  double sum = 0, length = 0;
  for (size_t row = 0; row < got.size(); row += kHeadDim) {
    double off = 0, size = 0;
    for (size_t i = row; i < row + kHeadDim; i++) {
      const double e = bf16_to_float(expected[i]), g = bf16_to_float(got[i]);
      off += (g - e) * (g - e);
      size += e * e;
    }
    if (!(off <= 1e300)) return {1e9, 1e9};  // NaN
    d.worst = std::max(d.worst, std::sqrt(off / (size + 1e-30)));
    sum += off;
    length += size;
  }
  d.all = std::sqrt(sum / length);
  return d;
}

size_t n_different(const std::vector<bf16>& a, const std::vector<bf16>& b) {
  size_t n = 0;
  for (size_t i = 0; i < a.size(); i++) n += a[i] != b[i];
  return n;
}

// loaded: on each tested device.
void check_scene(const Settings& settings, Bench& bench, Report& report, Source& source, const Scene& scene,
                 const std::vector<Loaded>& loaded) {
  const std::vector<bf16> expected =
      Stage(bench.reference, scene, Loaded(bench.reference, scene)).run(whole_sequences(scene));
  std::vector<bf16> first;
  size_t n_checked = 0;
  for (const auto& device : bench.tested) {
    const Loaded& weights = loaded[n_checked++];
    Stage whole(*device, scene, weights);
    const std::string what = "attention, " + scene.text() + " on " + whole.name();
    const std::vector<bf16> prefilled = whole.run(whole_sequences(scene));
    const Distance d = distance(prefilled, expected);
    report.check(d.worst <= 0.015 && d.all <= 0.005,
                 what + ": off by " + std::to_string(d.all) + ", worst row " + std::to_string(d.worst));
    if (first.empty()) first = prefilled;
    if (settings.equal_sets)
      report.check(op_test::same_bits(prefilled, first), what + ": bits differ between kernel sets");
    const Schedule steps = random_steps(scene, source, 6);
    const size_t in_steps = n_different(Stage(*device, scene, weights).run(steps), prefilled);
    report.check(in_steps == 0, what + ": " + std::to_string(in_steps) + " outputs differ when computed in " +
                                    std::to_string(steps.size()) + " steps");
    // Again over the used pool: recorded steps replay, old keys are overwritten by equal ones.
    const size_t again = n_different(whole.run(steps), prefilled);
    report.check(again == 0, what + ": " + std::to_string(again) + " outputs differ when computed again");
  }
}

}  // namespace

void attention_twins(const Settings& settings, Report& report) {
  Source source(settings.seed * 4 + 3);
  std::deque<Scene> scenes;  // older than the bench, which may use their weights where they are
  Bench bench(settings);
  const auto add = [&](int n_heads, int n_kv_heads, std::vector<int> lengths) {
    scenes.push_back(make_scene(source, n_heads, n_kv_heads, std::move(lengths)));
  };
  if (settings.few) {
    add(4, 2, {70, 9, 1});
  } else {
    add(16, 8, {1, 2, 31, 32, 33, 63, 64, 65, 255, 256, 257, 600});
    add(32, 8, {513, 1100, 40, 7});
    add(8, 2, {5000});
    add(8, 1, {2500, 300});
    add(40, 8, {300, 90});
    add(16, 1, {300, 20, 1});  // more query heads per KV head than the GPU's kernel for decode steps takes
    // Decode steps of many sequences, of both forms of the projections (their numbers are even and odd).
    for (const int n_sequences : {40, 40, 70, 70}) {
      std::vector<int> lengths;
      for (int n = n_sequences; n > 0; n--) lengths.push_back(1 + source.below(n % 8 == 0 ? 500 : 60));
      add(n_sequences == 40 ? 32 : 16, 8, std::move(lengths));
    }
    const int groups[] = {1, 2, 4, 5, 8};
    for (int i = 0; i < 12; i++) {
      const int n_kv_heads = 1 + source.below(4);
      std::vector<int> lengths;
      for (int n = 1 + source.below(i % 3 == 0 ? 40 : 8); n > 0; n--)
        lengths.push_back(1 + source.below(source.below(3) == 0 ? 700 : 100));
      add(n_kv_heads * source.pick(groups), n_kv_heads, std::move(lengths));
    }
  }
  std::vector<std::vector<Loaded>> loaded(scenes.size());
  for (const auto& device : bench.tested) {
    for (size_t i = 0; i < scenes.size(); i++) loaded[i].emplace_back(*device, scenes[i]);
    device->ops().finish_loading();
    for (size_t i = 0; i < scenes.size(); i += 2) {
      if (const LinearWeight* coded = device->coded(*loaded[i].back().projections))
        loaded[i].back().projections = coded;
    }
  }
  for (size_t i = 0; i < scenes.size(); i++) check_scene(settings, bench, report, source, scenes[i], loaded[i]);
}

}  // namespace qwen3::twins

// embed, rms_norm and the rotated queries of qk_norm_rope against the CPU.
//
// embed copies: equal to the last bit. rms_norm: a sum of `hidden` squares in some tree of float32 additions, halved by
// the square root, then a handful of roundings (rms_norm_test.cpp derives it for a chain; a tree is closer): relative
// (hidden / 32 + 16) * 2^-24 on each side, then bfloat16. qk_norm_rope: the same for 128 elements, then sine and cosine
// of a float32 angle that both sides compute alike, good to a few units of 2^-24, and a sum of two products.
#include <cmath>

#include "twins/twin.h"

namespace qwen3::twins {
namespace {

struct EmbedCase {
  int hidden, n_tokens;
  std::vector<std::vector<bf16>> table;     // one part [kVocab, hidden]
  std::vector<const LinearWeight*> loaded;  // on each tested device
  static constexpr int kVocab = 300;

  EmbedCase(Source& source, int width, int n) : hidden(width), n_tokens(n) {
    table = {source.normals(static_cast<size_t>(kVocab * hidden), 1.0f)};
  }
};

void check_embed(Bench& bench, Report& report, Source& source, const EmbedCase& c) {
  std::vector<int32_t> ids, positions, seq_of(static_cast<size_t>(c.n_tokens), 0);
  for (int i = 0; i < c.n_tokens; i++) {
    ids.push_back(source.below(EmbedCase::kVocab));
    positions.push_back(i);
  }
  const std::vector<int32_t> start = {0, c.n_tokens},
                             blocks(static_cast<size_t>((c.n_tokens + kBlockSize - 1) / kBlockSize), 0);
  const auto run = [&](Device& device, const LinearWeight* table, std::vector<float>& out) {
    const BatchView view = device.ops().upload_batch({.n_tokens = c.n_tokens,
                                                      .n_seqs = 1,
                                                      .max_blocks = static_cast<int>(blocks.size()),
                                                      .token_ids = ids,
                                                      .positions = positions,
                                                      .seq_of = seq_of,
                                                      .query_start = start,
                                                      .block_tables = blocks});
    const size_t n = static_cast<size_t>(view.n_tokens) * static_cast<size_t>(c.hidden);
    float* y = device.blank_floats(n);
    device.ops().embed({.batch = &view, .table = table, .out = y});
    const bool clean = device.read_guarded(y, n, out);
    out.resize(static_cast<size_t>(c.n_tokens) * static_cast<size_t>(c.hidden));
    return clean;
  };
  std::vector<float> expected, out;
  run(bench.reference, bench.reference.linear(c.table, c.hidden, LinearLayout::kConcat), expected);
  size_t n_checked = 0;
  for (const auto& device : bench.tested) {
    const bool clean = run(*device, c.loaded[n_checked++], out);
    report.check(clean && op_test::same_bits(out, expected),
                 "embed of " + std::to_string(c.n_tokens) + " x " + std::to_string(c.hidden) + " on " + device->name());
  }
}

// As the model loads norm weights.
void check_vector(Bench& bench, Report& report, Source& source, int64_t cols) {
  const std::vector<bf16> values = source.normals(static_cast<size_t>(cols), 1.0f);
  for (const auto& device : bench.tested) {
    const bf16* loaded = device->ops().load_vector({values.data(), 1, cols});
    device->ops().finish_loading();
    report.check(op_test::same_bits(device->read(loaded, values.size()), values),
                 "a vector of " + std::to_string(cols) + " on " + device->name());
  }
}

void check_rms_norm(const Settings& settings, Bench& bench, Report& report, Source& source, int hidden, int n_x,
                    bool indexed) {
  const size_t width = static_cast<size_t>(hidden);
  const float scales[] = {0x1p-20f, 1.0f, 0x1p15f};
  const std::vector<float> x = source.floats(static_cast<size_t>(n_x) * width, scales[source.below(3)]);
  const std::vector<bf16> weight = source.normals(width, 1.0f);
  std::vector<int32_t> index;
  for (int i = 0; indexed && i < 1 + n_x / 2; i++) index.push_back(source.below(n_x));
  const int n_rows = indexed ? static_cast<int>(index.size()) : n_x;
  const auto run = [&](Device& device, int rows, std::vector<bf16>& out) {
    const float* on_device = device.floats(x);
    const bf16* w = device.table(weight);
    bf16* y = device.blank_bf16(static_cast<size_t>(rows) * width);
    const BatchView view = device.ops().upload_batch({.logit_rows = index});
    device.ops().rms_norm({.x = on_device,
                           .weight = w,
                           .row_index = indexed ? view.logit_rows : nullptr,
                           .n_rows = rows,
                           .hidden = hidden,
                           .eps = 1e-6f,
                           .out = y});
    return device.read_guarded(y, static_cast<size_t>(rows) * width, out);
  };
  std::vector<bf16> expected, out, one, first;
  run(bench.reference, n_rows, expected);
  for (const auto& device : bench.tested) {
    const std::string what = "rms_norm of " + std::to_string(n_rows) + (indexed ? " chosen rows of " : " x ") +
                             std::to_string(hidden) + " on " + device->name();
    const bool clean = run(*device, n_rows, out);
    int wrong = 0;
    for (size_t i = 0; i < out.size(); i++) {
      const double value = bf16_to_float(expected[i]), got = bf16_to_float(out[i]);
      const double before = std::fabs(value) * 2 * (hidden / 32.0 + 16) * 0x1p-24;
      wrong += !(std::fabs(got - value) <= bf16_pair_tolerance(value, before));
    }
    report.check(clean && wrong == 0, what + ": " + std::to_string(wrong) + " outputs are off" +
                                          (clean ? "" : ", and it writes behind them"));
    run(*device, 1, one);
    report.check(std::memcmp(one.data(), out.data(), width * sizeof(bf16)) == 0, what + ": a row alone differs");
    if (first.empty()) first = out;
    if (settings.equal_sets) report.check(op_test::same_bits(out, first), what + ": bits differ between kernel sets");
  }
}

// One token each of sequences as long as the family's longest contexts: the angles are those of far positions. Only the
// queries can be seen; keys and values lie as the backend likes, and are attention_twins.cpp's.
void check_far_positions(const Settings& settings, Bench& bench, Report& report, Source& source) {
  constexpr int kTokens = 12, kHeads = 4, kKvHeads = 2, kDim = 128, kRow = (kHeads + 2 * kKvHeads) * kDim;
  std::vector<int32_t> positions = {262143, 131071, 40959, 32768}, ids(kTokens, 0), seq_of, start = {0};
  while (positions.size() < kTokens) positions.push_back(source.below(262144));
  const int max_blocks = 262144 / kBlockSize;
  std::vector<int32_t> tables;  // every block of sequence s is block s
  for (int s = 0; s < kTokens; s++) {
    seq_of.push_back(s);
    start.push_back(s + 1);
    tables.insert(tables.end(), static_cast<size_t>(max_blocks), s);
  }
  const std::vector<float> qkv = source.floats(static_cast<size_t>((kTokens + kRowPadding) * kRow), 2.0f);
  const std::vector<bf16> q_norm = source.normals(kDim, 1.0f), k_norm = source.normals(kDim, 1.0f);
  std::vector<float> inv_freq;
  for (int i = 0; i < kDim / 2; i++) inv_freq.push_back(static_cast<float>(std::pow(5e6, -i / 64.0)));
  const auto run = [&](Device& device) {
    const BatchView view = device.ops().upload_batch({.n_tokens = kTokens,
                                                      .n_seqs = kTokens,
                                                      .max_blocks = max_blocks,
                                                      .token_ids = ids,
                                                      .positions = positions,
                                                      .seq_of = seq_of,
                                                      .query_start = start,
                                                      .block_tables = tables});
    const size_t rows = kTokens + kRowPadding, pool = kTokens * kKvHeads * kBlockSize * kDim;
    float* angles = device.blank_floats(rows * kDim);
    bf16* q = device.blank_bf16(rows * kHeads * kDim);
    device.ops().rope_angles(
        {.batch = &view, .inv_freq = device.floats(inv_freq), .rope_scale = 1.0f, .head_dim = kDim, .out = angles});
    device.ops().qk_norm_rope({.batch = &view,
                               .qkv = device.floats(qkv),
                               .q_norm = device.table(q_norm),
                               .k_norm = device.table(k_norm),
                               .angles = angles,
                               .eps = 1e-6f,
                               .n_heads = kHeads,
                               .n_kv_heads = kKvHeads,
                               .head_dim = kDim,
                               .q_out = q,
                               .kv = {device.blank_bf16(pool), device.blank_bf16(pool)}});
    return device.read(q, kTokens * kHeads * kDim);
  };
  const std::vector<bf16> expected = run(bench.reference);
  std::vector<bf16> first;
  for (const auto& device : bench.tested) {
    const std::vector<bf16> q = run(*device);
    int wrong = 0;
    for (size_t i = 0; i < q.size(); i++) {
      const size_t pair = i % kDim < kDim / 2 ? i + kDim / 2 : i - kDim / 2;
      const double value = bf16_to_float(expected[i]);
      // A rotation keeps the length of the pair, so both products are bounded by it.
      const double length = std::hypot(value, static_cast<double>(bf16_to_float(expected[pair])));
      wrong += !(std::fabs(bf16_to_float(q[i]) - value) <= bf16_pair_tolerance(value, 2 * length * 40 * 0x1p-24));
    }
    report.check(wrong == 0, "queries at far positions on " + device->name() + ": " + std::to_string(wrong) + " off");
    if (first.empty()) first = q;
    if (settings.equal_sets)
      report.check(op_test::same_bits(q, first), "queries at far positions on " + device->name() + ": bits differ");
  }
}

}  // namespace

void small_op_twins(const Settings& settings, Report& report) {
  Source source(settings.seed * 4 + 2);
  const int n = settings.few ? 2 : 16;
  std::deque<EmbedCase> embeds;
  for (int i = 0; i < n; i++)
    embeds.emplace_back(source, 8 * (1 + source.below(700)), 1 + source.below(i % 3 == 0 ? 600 : 20));
  Bench bench(settings);  // after the tables, which a backend may use where they are
  for (const auto& device : bench.tested) {
    for (EmbedCase& c : embeds) c.loaded.push_back(device->linear(c.table, c.hidden, LinearLayout::kConcat));
    device->ops().finish_loading();
  }
  for (const EmbedCase& c : embeds) check_embed(bench, report, source, c);
  check_vector(bench, report, source, 5120);
  check_far_positions(settings, bench, report, source);
  for (const int hidden : {256, 1024, 2560, 4096, 5120}) {
    for (const int rows : {1, 3, 40, 700}) {
      if (settings.few && (hidden > 256 || rows > 40)) continue;
      for (const bool indexed : {false, true}) check_rms_norm(settings, bench, report, source, hidden, rows, indexed);
    }
  }
  for (int i = 0; i < n; i++)
    check_rms_norm(settings, bench, report, source, 8 * (1 + source.below(800)), 1 + source.below(100), i % 2 == 0);
}

}  // namespace qwen3::twins

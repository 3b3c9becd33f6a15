// Sampling against the CPU: the same logits, settings and seeds give the same tokens and log-probabilities.
//
// A token may differ only where the definition leaves room (top_p's border, see backend/sample_reference.h): then both
// tokens must be among what the float64 reference draws. Log-probabilities: the error of each side, as derived there.
#include <cmath>

#include "backend/sample_reference.h"
#include "twins/twin.h"

namespace qwen3::twins {
namespace {

using sample_reference::kInf;

// Settings with what their spans point to.
struct Row {
  SampleRow row;
  std::vector<TokenBias> bias;
  std::vector<TokenCount> history;
  std::vector<int32_t> forbidden;
  std::vector<uint32_t> mask;
};

Row make_row(Source& source, int vocab, int n_ids) {
  op_test::Random& random = source.random();
  Row r;
  SampleRow& row = r.row;
  const float temperatures[] = {0.0f, 0.0f, 0.3f, 0.7f, 1.0f, 1.0f, 2.0f};
  row.temperature = temperatures[random.below(7)];
  if (random.below(3) == 0) row.top_k = 1 + random.below(random.below(2) == 0 ? 40 : vocab);
  if (random.below(3) == 0) row.top_p = static_cast<float>(random.uniform());
  if (random.below(4) == 0) row.min_p = static_cast<float>(std::pow(random.uniform(), 3));
  row.seed = random.bits();
  row.position = random.below(5000);
  row.logprob = random.below(2) == 0;
  if (random.below(3) == 0) row.n_top = 1 + random.below(kMaxTopLogprobs);
  if (random.below(10) == 0) row.target = random.below(n_ids);
  if (random.below(3) == 0) {
    for (int i = 0; i < 5; i++)
      r.bias.push_back({random.below(n_ids), i == 0 ? -kInf : static_cast<float>(random.normal() * 10)});
  }
  if (random.below(4) == 0) {
    for (int i = 0; i < 4; i++) r.forbidden.push_back(random.below(n_ids));
  }
  if (random.below(4) == 0) {
    const int words = random.below(4) == 0 ? 1 + (n_ids > 64) : (vocab + 31) / 32;
    for (int i = 0; i < words; i++) r.mask.push_back(static_cast<uint32_t>(random.bits() | random.bits()));
  }
  if (random.below(3) == 0) {
    for (int id = random.below(9); id < n_ids; id += 1 + random.below(30)) r.history.push_back({id, random.below(4)});
    if (random.below(2) == 0) row.repetition_penalty = static_cast<float>(0.5 + 1.5 * random.uniform());
    if (random.below(2) == 0) row.presence_penalty = static_cast<float>(4 * random.uniform() - 2);
    if (random.below(2) == 0) row.frequency_penalty = static_cast<float>(4 * random.uniform() - 2);
  }
  return r;
}

std::vector<SampleResult> run(Device& device, std::vector<float> logits, int vocab, int n_ids,
                              std::span<const SampleRow> rows) {
  std::vector<SampleResult> results(rows.size());
  std::vector<int32_t> logit_rows;
  for (size_t i = 0; i < rows.size(); i++) logit_rows.push_back(static_cast<int32_t>(i));
  Ops& ops = device.ops();
  const BatchView view = ops.upload_batch({.logit_rows = logit_rows, .sample_rows = rows, .results = results});
  logits.resize(static_cast<size_t>(view.n_logit_rows) * static_cast<size_t>(vocab));
  ops.sample({.logits = device.floats(logits),
              .vocab = vocab,
              .n_token_ids = n_ids,
              .rows = rows,
              .results = results,
              .first_row = 0,
              .n_rows = view.n_logit_rows,
              .workspace = ops.allocate(ops.sample_workspace_bytes(vocab), "sampling")});
  ops.wait();
  return results;
}

bool near(double a, double b) {
  return a == b || std::fabs(a - b) <= 2 * (3e-6 + std::fabs(b) * 0x1p-24);
}

std::string difference(const std::vector<float>& logits, int n_ids, const SampleRow& row, const SampleResult& got,
                       const SampleResult& expected) {
  if (got.finite != expected.finite) return "finite is " + std::to_string(got.finite);
  if (!expected.finite) return "";
  if (got.token != expected.token) {
    const bool either = row.target < 0 && sample_reference::agrees(logits, n_ids, row, got.token) &&
                        sample_reference::agrees(logits, n_ids, row, expected.token);
    if (!either) return "token " + std::to_string(got.token) + " instead of " + std::to_string(expected.token);
  } else if (row.logprob && !near(got.logprob, expected.logprob)) {
    return "logprob " + std::to_string(got.logprob) + " instead of " + std::to_string(expected.logprob);
  }
  if (got.n_top != expected.n_top) return std::to_string(got.n_top) + " alternatives";
  for (size_t i = 0; i < static_cast<size_t>(got.n_top); i++) {
    if (got.top[i].token != expected.top[i].token || !near(got.top[i].logprob, expected.top[i].logprob))
      return "alternative " + std::to_string(i) + " is " + std::to_string(got.top[i].token);
  }
  return "";
}

bool same(const SampleResult& a, const SampleResult& b) {
  bool equal = a.token == b.token && a.finite == b.finite && a.n_top == b.n_top && a.logprob == b.logprob;
  for (size_t i = 0; equal && i < static_cast<size_t>(a.n_top); i++)
    equal = a.top[i].token == b.top[i].token && a.top[i].logprob == b.top[i].logprob;
  return equal;
}

void check_case(Bench& bench, Report& report, Source& source, int vocab, int n_rows) {
  const int n_ids = vocab - source.below(std::min(vocab, 300));
  std::vector<float> logits;
  std::vector<Row> rows;
  for (int i = 0; i < n_rows; i++) {
    std::vector<float> row = source.floats(static_cast<size_t>(vocab), 2.0f);
    if (source.below(4) == 0) {
      for (float& x : row) x = std::round(x * 2);  // many equal ones
    }
    if (source.below(12) == 0) row[static_cast<size_t>(source.below(n_ids))] = std::nanf("");
    if (source.below(20) == 0) std::fill(row.begin(), row.end(), -kInf);
    logits.insert(logits.end(), row.begin(), row.end());
    rows.push_back(make_row(source, vocab, n_ids));
  }
  std::vector<SampleRow> plain;
  for (Row& r : rows) {
    r.row.bias = r.bias;
    r.row.history = r.history;
    r.row.forbidden = r.forbidden;
    r.row.mask = r.mask;
    plain.push_back(r.row);
  }
  const std::vector<SampleResult> expected = run(bench.reference, logits, vocab, n_ids, plain);
  for (const auto& device : bench.tested) {
    const std::vector<SampleResult> got = run(*device, logits, vocab, n_ids, plain);
    for (size_t i = 0; i < plain.size(); i++) {
      const auto at = logits.begin() + static_cast<std::ptrdiff_t>(i) * vocab;
      const std::vector<float> row(at, at + vocab);
      const std::string off = difference(row, n_ids, plain[i], got[i], expected[i]);
      report.check(off.empty(), "sample on " + device->name() + ", " + std::to_string(n_ids) + " ids, row " +
                                    std::to_string(i) + ": " + off);
      if (i % 8 != 0) continue;
      const SampleResult alone = run(*device, row, vocab, n_ids, {&plain[i], 1})[0];
      report.check(!got[i].finite || same(alone, got[i]),
                   "sample on " + device->name() + ", row " + std::to_string(i) + ": a row alone differs");
    }
  }
}

}  // namespace

void sample_twins(const Settings& settings, Report& report) {
  Source source(settings.seed * 4);
  Bench bench(settings);
  if (settings.few) return check_case(bench, report, source, 1536, 12);
  for (int i = 0; i < 30; i++) check_case(bench, report, source, 1 + source.below(i % 2 == 0 ? 3000 : 90), 64);
  for (int i = 0; i < 3; i++) check_case(bench, report, source, 151936, 40);
}

}  // namespace qwen3::twins

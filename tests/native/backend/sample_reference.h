// Sampling by its definition: sorted, in float64, one id at a time. For the tests of every backend's sampler.
//
// Tolerances. Log-probability: float32 exponentials within 2 ulp and a sum of 256 in float32 lanes give a relative
// error of the sum below 40 * 2^-24, one more rounding of the result: |error| <= 3e-6 + |logprob| * 2^-24. top_p: a
// weight is off by at most 1e-5 (float32 u up to 28) and 2^-40 each, so the reference is asked with top_p +- 2e-5 and
// either answer is right.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/random.h"
#include "ops/ops.h"

namespace qwen3::sample_reference {

inline constexpr float kInf = std::numeric_limits<float>::infinity();

// The values a draw sees: bias, mask, forbidden, penalties, written down one id at a time.
inline std::vector<float> adjusted(const std::vector<float>& logits, int n_ids, const SampleRow& row) {
  std::vector<float> z(logits.begin(), logits.begin() + n_ids);
  for (int id = 0; id < n_ids; id++) {
    float& x = z[static_cast<size_t>(id)];
    for (const TokenBias& bias : row.bias) {
      if (bias.token == id) x += bias.bias;
    }
    const size_t word = static_cast<size_t>(id / 32);
    if (!row.mask.empty() && (word >= row.mask.size() || (row.mask[word] >> (id % 32) & 1u) == 0)) x = -kInf;
    for (const int32_t token : row.forbidden) {
      if (token == id) x = -kInf;
    }
    for (const TokenCount& count : row.history) {
      if (count.token != id || x == -kInf) continue;
      x = x > 0 ? x / row.repetition_penalty : x * row.repetition_penalty;
      if (count.in_output > 0) x -= row.presence_penalty + row.frequency_penalty * static_cast<float>(count.in_output);
    }
  }
  return z;
}

// The ids that survive min_p, top_k and top_p, best first.
inline std::vector<int32_t> survivors(const std::vector<float>& z, const SampleRow& row, double top_p) {
  std::vector<int32_t> ids;
  for (size_t id = 0; id < z.size(); id++) {
    if (z[id] > -kInf) ids.push_back(static_cast<int32_t>(id));
  }
  const auto value = [&](int32_t id) { return static_cast<double>(z[static_cast<size_t>(id)]); };
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return value(a) > value(b); });
  if (ids.empty()) return ids;
  if (!(row.temperature > 0)) return {ids[0]};
  const double temperature = static_cast<double>(row.temperature);
  const double top = value(ids[0]);
  if (row.min_p > 0) {
    const double least = top + temperature * std::log(static_cast<double>(row.min_p));
    while (value(ids.back()) < least) ids.pop_back();
  }
  if (row.top_k > 0 && ids.size() > static_cast<size_t>(row.top_k)) ids.resize(static_cast<size_t>(row.top_k));
  if (row.top_p < 1) {
    double total = 0.0;
    for (const int32_t id : ids) total += std::exp((value(id) - top) / temperature);
    double sum = 0.0;
    size_t kept = 0;
    while (kept < ids.size() && (kept == 0 || sum < top_p * total)) {
      sum += std::exp((value(ids[kept++]) - top) / temperature);
    }
    ids.resize(kept);
  }
  return ids;
}

// Gumbel-max by its definition: all logarithms taken.
inline int32_t draw(const std::vector<float>& z, const std::vector<int32_t>& ids, const SampleRow& row) {
  if (ids.size() == 1) return ids[0];
  const uint64_t key = noise_key(row.seed, row.position);
  const double top = z[static_cast<size_t>(ids[0])];
  int32_t best = -1;
  double best_score = 0.0;
  for (const int32_t id : ids) {
    const double u = (z[static_cast<size_t>(id)] - top) / static_cast<double>(row.temperature);
    const double score = u - std::log(-std::log1p(-noise_uniform(noise_bits(key, static_cast<uint32_t>(id)))));
    if (best < 0 || score > best_score || (score == best_score && id < best)) {
      best = id;
      best_score = score;
    }
  }
  return best;
}

inline bool agrees(const std::vector<float>& logits, int n_ids, const SampleRow& row, int32_t token) {
  const std::vector<float> z = adjusted(logits, n_ids, row);
  const double top_p = row.top_p;
  if (token == draw(z, survivors(z, row, top_p), row)) return true;
  return row.top_p < 1 && (token == draw(z, survivors(z, row, top_p - 2e-5), row) ||
                           token == draw(z, survivors(z, row, top_p + 2e-5), row));
}

}  // namespace qwen3::sample_reference

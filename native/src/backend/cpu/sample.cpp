// From a row of logits to a token and its log-probabilities.
//
// Order: bias, mask and forbidden ids, penalties, temperature, min_p, top_k, top_p, one draw. After the penalties all
// ids stand in one order - higher value first, lower id first among equals - and every filter keeps a prefix of it. A
// prefix is a Cut: its last element. So filters compose by moving the cut, nothing is ever sorted, and the draw walks
// the ids once with the cut in hand.
//
// Numbers: values (logits after penalties) are float32. A weight is exp((value - highest) / temperature) in float32,
// turned into a 40-bit fixed-point integer for top_p: integer sums have no order, so the same prefix is kept however
// they are added up (a weight below 2^-40 counts as 0). The draw is Gumbel-max (equally: the exponential race): score =
// u - log(E), u = (value - highest) / temperature, E = -log(1 - V), V the id's uniform noise (base/random.h), all in
// float64; the highest score wins, the lower id among equals. Dividing differences, never the values, keeps any
// temperature > 0 free of infinities. Log-probabilities: float32 exponentials of the raw logits, summed per chunk in
// float32 lanes and over chunks in float64.
//
// A row belongs to one thread. Chunks of 256 ids carry their maximum, so that most passes touch few chunks.
// Speed: native/bench/sample_bench.cpp.
#include <cmath>

#include "backend/cpu/kernels.h"
#include "backend/cpu/scratch.h"
#include "backend/cpu/simd.h"
#include "base/random.h"

namespace qwen3::cpu::QWEN3_ISA {
namespace {

constexpr int kChunk = 256;
constexpr int kBins = 2048;
constexpr float kInfinity = __builtin_inff();
constexpr float kHighest = 3.402823466e38f;
constexpr float kWeightScale = 0x1p40f;
constexpr float kWeightRange = 28.0f;  // e^-28 < 2^-40: weights below are 0
constexpr double kMaxGumbel = 36.8;    // -log(E) of the smallest V, 2^-53: 36.74

// The last element of a prefix of the order (value descending, id ascending).
struct Cut {
  float value;
  int32_t id;
};

QWEN3_INLINE bool inside(const Cut& cut, float value, int32_t id) {
  return value > cut.value || (value == cut.value && id <= cut.id);
}

// The values that a draw sees, and what one pass found out about them.
struct Values {
  const float* z;  // [n]
  int n;
  const float* chunk_max;  // [chunks(n)]
  float highest;
  int32_t highest_id;  // the lowest id among equals
  float lowest;        // of those above -infinity
  bool finite;         // no NaN and no +infinity
  bool any;            // some id is above -infinity; else highest_id and lowest mean nothing
};

struct Candidates {
  int32_t* key;      // order_key of the value
  int32_t* id;       // ascending
  uint64_t* weight;  // 1 each when counting
};

QWEN3_INLINE int chunks(int n) {
  return (n + kChunk - 1) / kChunk;
}

// Orders like the floats; -0 equals 0.
QWEN3_INLINE int32_t order_key(float value) {
  const float x = value + 0.0f;
  int32_t raw;
  __builtin_memcpy(&raw, &x, sizeof raw);
  return raw ^ ((raw >> 31) & 0x7fffffff);
}

QWEN3_INLINE float key_value(int32_t key) {
  const int32_t raw = key ^ ((key >> 31) & 0x7fffffff);
  float x;
  __builtin_memcpy(&x, &raw, sizeof x);
  return x;
}

struct Lanes {
  alignas(64) float value[16];
};
constexpr Lanes kLaneIndex = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}};

// Elements i.. of [n] values, -infinity beyond the end.
QWEN3_INLINE F32 load_values(const float* z, int i, int n) {
  if (i + kLanes <= n) return load(z + i);
  const Mask there = less(load(kLaneIndex.value), set1(static_cast<float>(n - i)));
  return select(there, load_n(z + i, n - i > 0 ? n - i : 0), set1(-kInfinity));
}

// One pass over z [n]: chunk maxima, extremes, NaN.
Values scan(const float* z, int n, float* chunk_max) {
  float highest = -kInfinity;
  int highest_chunk = 0;
  uint32_t nan = 0;
  F32 lowest = set1(kInfinity);
  for (int c = 0; c < chunks(n); c++) {
    const int end = (c + 1) * kChunk < n ? (c + 1) * kChunk : n;
    F32 top[2] = {set1(-kInfinity), set1(-kInfinity)};
    F32 low[2] = {lowest, set1(kInfinity)};
    F32 poison = zero();
    for (int i = c * kChunk; i < end; i += 2 * kLanes) {
      for (int a = 0; a < 2; a++) {
        const F32 x = load_values(z, i + a * kLanes, end);
        top[a] = max(top[a], x);
        low[a] = min(low[a], select(equal(x, set1(-kInfinity)), set1(kInfinity), x));
        poison = select(is_nan(x), x, poison);
      }
    }
    nan |= bits(is_nan(poison));
    lowest = min(low[0], low[1]);
    chunk_max[c] = reduce_max(max(top[0], top[1]));
    if (chunk_max[c] > highest) {
      highest = chunk_max[c];
      highest_chunk = c;
    }
  }
  Values values{
      z, n, chunk_max, highest, -1, -reduce_max(zero() - lowest), nan == 0 && highest<kInfinity, highest> - kInfinity};
  if (!values.finite || !values.any) return values;
  int id = highest_chunk * kChunk;
  while (z[id] != highest) id++;
  values.highest_id = id;
  return values;
}

// log of the sum of exp over logits [vocab]; highest: their maximum.
double log_sum_exp(const float* logits, int vocab, float highest) {
  double sum = 0.0;
  const F32 shift = set1(highest);
  for (int begin = 0; begin < vocab; begin += kChunk) {
    const int end = begin + kChunk < vocab ? begin + kChunk : vocab;
    F32 part[2] = {zero(), zero()};
    for (int i = begin; i < end; i += 2 * kLanes) {
      part[0] = part[0] + exp(load_values(logits, i, end) - shift);
      part[1] = part[1] + exp(load_values(logits, i + kLanes, end) - shift);
    }
    sum += static_cast<double>(reduce_add(part[0] + part[1]));
  }
  return static_cast<double>(highest) + ::log(sum);
}

// The element of the list [n] at which the weights, added up in the order, reach target >= 1. Destroys the list.
// Halves the range of keys until one value is left; equals are taken by id.
Cut select_from(const Candidates& list, int64_t n, uint64_t target) {
  for (;;) {
    int32_t low = INT32_MAX;
    int32_t high = INT32_MIN;
    for (int64_t i = 0; i < n; i++) {
      low = list.key[i] < low ? list.key[i] : low;
      high = list.key[i] > high ? list.key[i] : high;
    }
    if (low == high) break;
    const int32_t middle = static_cast<int32_t>(low + (static_cast<int64_t>(high) - low) / 2);
    uint64_t above = 0;
    for (int64_t i = 0; i < n; i++) above += list.key[i] > middle ? list.weight[i] : 0;
    const bool keep_above = target <= above;
    if (!keep_above) target -= above;
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
      const bool keep = (list.key[i] > middle) == keep_above;
      list.key[kept] = list.key[i];
      list.id[kept] = list.id[i];
      list.weight[kept] = list.weight[i];
      kept += keep ? 1 : 0;
    }
    n = kept;
  }
  int64_t i = 0;
  for (; i + 1 < n && list.weight[i] < target; i++) target -= list.weight[i];
  return {key_value(list.key[0]), list.id[i]};
}

Candidates candidate_list(int n) {
  char* memory = static_cast<char*>(thread_scratch(Scratch::kSampleList, static_cast<size_t>(n) * 16));
  return {reinterpret_cast<int32_t*>(memory + static_cast<size_t>(n) * 8),
          reinterpret_cast<int32_t*>(memory + static_cast<size_t>(n) * 12), reinterpret_cast<uint64_t*>(memory)};
}

// Which quantity the running sum of a selection adds up.
enum class Measure { kCount, kWeight };

// Spreads values over bins, best first; monotone in the value.
struct Binning {
  float highest;
  float factor;  // bins per unit of value
  float temperature;
};

// Bin (as a float) and measure of one chunk's ids; 0 outside the cut.
template <Measure kMeasure>
void measure_chunk(const Values& values, const Cut& cut, const Binning& binning, int chunk, float* bin,
                   float* measure) {
  const int begin = chunk * kChunk;
  const int end = begin + kChunk < values.n ? begin + kChunk : values.n;
  for (int i = begin; i < end; i += kLanes) {
    const F32 x = load_values(values.z, i, end);
    const F32 below = set1(binning.highest) - x;
    // Ids are exact in float32: a vocabulary has fewer than 2^24.
    const F32 id = set1(static_cast<float>(i)) + load(kLaneIndex.value);
    F32 amount = set1(1.0f);
    if constexpr (kMeasure == Measure::kWeight) {
      amount = exp((zero() - below) / set1(binning.temperature)) * set1(kWeightScale);
    }
    const F32 equals = select(less_equal(id, set1(static_cast<float>(cut.id))), amount, zero());
    amount = select(less(set1(cut.value), x), amount, select(equal(x, set1(cut.value)), equals, zero()));
    store(bin + (i - begin), min(below * set1(binning.factor), set1(kBins - 1)));
    store(measure + (i - begin), amount);
  }
}

// The shortest prefix inside `cut` that measures `amount` (ids), or `amount` of the whole (weights, amount <= 1).
template <Measure kMeasure>
Cut find_cut(const Values& values, const Cut& cut, float temperature, double amount, uint64_t* histogram) {
  float span = values.highest - values.lowest;
  if (kMeasure == Measure::kWeight && temperature * kWeightRange < span) span = temperature * kWeightRange;
  span = span < kHighest ? span : kHighest;
  span = span > 1e-30f ? span : 1e-30f;
  const Binning binning{values.highest, (kBins - 1) / span, temperature};
  alignas(64) float bin[kChunk];
  alignas(64) float measure[kChunk];

  for (int b = 0; b < kBins; b++) histogram[b] = 0;
  for (int c = 0; c < chunks(values.n); c++) {
    if (values.chunk_max[c] < cut.value) continue;
    measure_chunk<kMeasure>(values, cut, binning, c, bin, measure);
    const int n = values.n - c * kChunk < kChunk ? values.n - c * kChunk : kChunk;
    for (int i = 0; i < n; i++)
      histogram[static_cast<int>(bin[i])] += static_cast<uint64_t>(static_cast<int64_t>(measure[i]));
  }
  uint64_t total = 0;
  for (int b = 0; b < kBins; b++) total += histogram[b];
  uint64_t target =
      static_cast<uint64_t>(kMeasure == Measure::kWeight ? ::ceil(amount * static_cast<double>(total)) : amount);
  if (target > total) return cut;
  if (target == 0) target = 1;

  int crossing = 0;
  while (histogram[crossing] < target) target -= histogram[crossing++];
  const Candidates list = candidate_list(values.n);
  int64_t n_list = 0;
  for (int c = 0; c < chunks(values.n); c++) {
    if (values.chunk_max[c] < cut.value) continue;
    // Monotone: the chunk's best value lies in its lowest bin.
    if ((values.highest - values.chunk_max[c]) * binning.factor >= static_cast<float>(crossing + 1)) continue;
    measure_chunk<kMeasure>(values, cut, binning, c, bin, measure);
    const int n = values.n - c * kChunk < kChunk ? values.n - c * kChunk : kChunk;
    for (int i = 0; i < n; i++) {
      const int64_t weight = static_cast<int64_t>(measure[i]);
      list.key[n_list] = order_key(values.z[c * kChunk + i]);
      list.id[n_list] = c * kChunk + i;
      list.weight[n_list] = static_cast<uint64_t>(weight);
      n_list += static_cast<int>(bin[i]) == crossing && weight > 0 ? 1 : 0;
    }
  }
  return select_from(list, n_list, target);
}

// The k best ids inside `cut`, k >= 1.
Cut best_k(const Values& values, const Cut& cut, int64_t k, uint64_t* histogram) {
  const int n_chunks = chunks(values.n);
  if (k > n_chunks) return find_cut<Measure::kCount>(values, cut, 1.0f, static_cast<double>(k), histogram);
  // k chunks have their best id at or above the k-th highest maximum, so the k best ids lie there too.
  const Candidates list = candidate_list(values.n);
  for (int c = 0; c < n_chunks; c++) {
    list.key[c] = order_key(values.chunk_max[c]);
    list.id[c] = c;
    list.weight[c] = 1;
  }
  const float threshold = select_from(list, n_chunks, static_cast<uint64_t>(k)).value;
  int64_t n_list = 0;
  for (int c = 0; c < n_chunks; c++) {
    if (values.chunk_max[c] < threshold) continue;
    const int end = (c + 1) * kChunk < values.n ? (c + 1) * kChunk : values.n;
    for (int id = c * kChunk; id < end; id++) {
      const float x = values.z[id];
      list.key[n_list] = order_key(x);
      list.id[n_list] = id;
      list.weight[n_list] = 1;
      n_list += x >= threshold && x > -kInfinity && inside(cut, x, id) ? 1 : 0;
    }
  }
  if (n_list <= k) return n_list == k ? select_from(list, n_list, static_cast<uint64_t>(k)) : cut;
  return select_from(list, n_list, static_cast<uint64_t>(k));
}

// Gumbel-max over the ids inside the cut, exact: an id whose logarithms are not taken cannot win, because E >= V.
int32_t draw(const Values& values, const Cut& cut, const SampleRow& row) {
  const uint64_t key = noise_key(row.seed, row.position);
  const double temperature = static_cast<double>(row.temperature);
  int32_t best_id = -1;
  double best_score = 0.0;
  F32 best_ratio = zero();  // an upper bound of the V / weight that can still win
  const auto consider = [&](int32_t id) {
    const double u = (static_cast<double>(values.z[id]) - static_cast<double>(values.highest)) / temperature;
    const double score = u - ::log(-::log1p(-noise_uniform(noise_bits(key, static_cast<uint32_t>(id)))));
    if (best_id >= 0 && !(score > best_score || (score == best_score && id < best_id))) return;
    best_id = id;
    best_score = score;
    // 1e-5 covers the rounding of the float32 weights: (value - highest) / temperature <= 37 with 2 roundings.
    best_ratio = set1(static_cast<float>(::exp(-score) * (1.0 + 1e-5)));
  };
  consider(values.highest_id);
  alignas(64) float uniform[kChunk];
  for (int c = 0; c < chunks(values.n); c++) {
    if (values.chunk_max[c] < cut.value) continue;
    const double u = (static_cast<double>(values.chunk_max[c]) - static_cast<double>(values.highest)) / temperature;
    if (u + kMaxGumbel < best_score) continue;
    const int begin = c * kChunk;
    const int end = begin + kChunk < values.n ? begin + kChunk : values.n;
    // The upper 24 bits of the noise, rounded down: V is at least this.
    for (int i = 0; i < kChunk; i++) {
      const uint64_t noise = noise_bits(key, static_cast<uint32_t>(begin + i));
      uniform[i] = static_cast<float>(static_cast<int32_t>(noise >> 40)) * 0x1p-24f;
    }
    for (int i = begin; i < end; i += kLanes) {
      const F32 x = load_values(values.z, i, end);
      const F32 weight = exp((x - set1(values.highest)) / set1(row.temperature));
      uint32_t hits = bits(less_equal(load(uniform + (i - begin)), weight * best_ratio));
      for (; hits != 0; hits &= hits - 1) {
        const int32_t id = i + __builtin_ctz(hits);
        if (id < end && values.z[id] > -kInfinity && inside(cut, values.z[id], id)) consider(id);
      }
    }
  }
  return best_id;
}

// The smallest float that is not below x.
float round_up(double x) {
  if (x <= -static_cast<double>(kHighest)) return -kHighest;
  const float nearest = static_cast<float>(x);
  return static_cast<double>(nearest) < x ? key_value(order_key(nearest) + 1) : nearest;
}

int32_t choose(const Values& values, const SampleRow& row, uint64_t* histogram) {
  if (!(row.temperature > 0.0f)) return values.highest_id;
  Cut cut{-kHighest, INT32_MAX};
  if (row.min_p > 0.0f) {
    const double log_min_p = row.min_p < 1.0f ? ::log(static_cast<double>(row.min_p)) : 0.0;
    cut.value = round_up(static_cast<double>(values.highest) + static_cast<double>(row.temperature) * log_min_p);
  }
  if (row.top_k > 0 && row.top_k < values.n) cut = best_k(values, cut, row.top_k, histogram);
  if (row.top_p < 1.0f) {
    const double top_p = row.top_p > 0.0f ? static_cast<double>(row.top_p) : 0.0;
    cut = find_cut<Measure::kWeight>(values, cut, row.temperature, top_p, histogram);
  }
  return draw(values, cut, row);
}

bool has_adjustments(const SampleRow& row) {
  const bool penalties =
      row.repetition_penalty != 1.0f || row.presence_penalty != 0.0f || row.frequency_penalty != 0.0f;
  return row.bias.size() != 0 || row.forbidden.size() != 0 || row.mask.size() != 0 ||
         (penalties && row.history.size() != 0);
}

QWEN3_INLINE float clamp_finite(float x) {
  return x > kHighest ? kHighest : x < -kHighest ? -kHighest : x;
}

// logits [n] with bias, mask, forbidden ids and penalties, into z [n]. An id that is allowed stays above -infinity.
void adjust(const SampleRow& row, const float* logits, int n, float* z) {
  __builtin_memcpy(z, logits, static_cast<size_t>(n) * sizeof(float));
  if (row.mask.size() != 0) {
    const uint32_t* words = row.mask.data();
    const int n_masked = static_cast<int64_t>(row.mask.size()) * 32 < n ? static_cast<int>(row.mask.size()) * 32 : n;
    int i = 0;
    for (; i + 32 <= n_masked; i += 32) {
      const uint32_t word = words[i / 32];
      if (word == ~0u) continue;
      for (int b = 0; b < 32; b++) z[i + b] = (word >> b & 1u) != 0 ? z[i + b] : -kInfinity;
    }
    for (; i < n_masked; i++) {
      if ((words[i / 32] >> (i % 32) & 1u) == 0) z[i] = -kInfinity;
    }
    for (i = n_masked; i < n; i++) z[i] = -kInfinity;
  }
  for (size_t i = 0; i < row.bias.size(); i++) {
    const TokenBias bias = row.bias.data()[i];
    if (bias.token < 0 || bias.token >= n) continue;
    float& x = z[bias.token];
    x = bias.bias == -kInfinity || x == -kInfinity ? -kInfinity : clamp_finite(x + bias.bias);
  }
  for (size_t i = 0; i < row.forbidden.size(); i++) {
    const int32_t token = row.forbidden.data()[i];
    if (token >= 0 && token < n) z[token] = -kInfinity;
  }
  for (size_t i = 0; i < row.history.size(); i++) {
    const TokenCount count = row.history.data()[i];
    if (count.token < 0 || count.token >= n) continue;
    float& x = z[count.token];
    if (x == -kInfinity) continue;
    x = x > 0.0f ? x / row.repetition_penalty : x * row.repetition_penalty;
    if (count.in_output > 0) {
      x -= row.presence_penalty + row.frequency_penalty * static_cast<float>(count.in_output);
    }
    x = clamp_finite(x);
  }
}

// The n best ids of the raw logits, best first.
void list_top(const Values& raw, int n, double log_sum, uint64_t* histogram, SampleResult& result) {
  if (n > kMaxTopLogprobs) n = kMaxTopLogprobs;
  const Cut cut = best_k(raw, {-kHighest, INT32_MAX}, n, histogram);
  int found = 0;
  for (int c = 0; c < chunks(raw.n); c++) {
    if (raw.chunk_max[c] < cut.value) continue;
    const int end = (c + 1) * kChunk < raw.n ? (c + 1) * kChunk : raw.n;
    for (int id = c * kChunk; id < end; id++) {
      const float x = raw.z[id];
      if (!(x > -kInfinity) || !inside(cut, x, id) || found == n) continue;
      int at = found++;  // insertion sort; ids come in ascending order, so equals stay in place
      for (; at > 0 && raw.z[result.top[static_cast<size_t>(at - 1)].token] < x; at--) {
        result.top[static_cast<size_t>(at)] = result.top[static_cast<size_t>(at - 1)];
      }
      result.top[static_cast<size_t>(at)] = {id, static_cast<float>(static_cast<double>(x) - log_sum)};
    }
  }
  result.n_top = found;
}

// One row. logits [vocab]; ids below n have a token.
void sample_row(const SampleRow& row, const float* logits, int vocab, int n, SampleResult& result) {
  result.token = -1;
  result.logprob = 0.0f;
  result.n_top = 0;
  result.finite = false;
  const size_t n_chunks = static_cast<size_t>(chunks(vocab));
  const size_t chunk_floats = (n_chunks + 15) / 16 * 16;
  const size_t row_floats = (static_cast<size_t>(vocab) + 15) / 16 * 16;
  char* memory = static_cast<char*>(
      thread_scratch(Scratch::kSampleRow, kBins * sizeof(uint64_t) + (3 * chunk_floats + row_floats) * sizeof(float)));
  uint64_t* histogram = reinterpret_cast<uint64_t*>(memory);
  float* raw_max = reinterpret_cast<float*>(memory + kBins * sizeof(uint64_t));
  float* rest_max = raw_max + chunk_floats;
  float* adjusted_max = rest_max + chunk_floats;
  float* adjusted = adjusted_max + chunk_floats;

  // Padding ids are never chosen, but they belong to the distribution, and a NaN there is as bad as elsewhere.
  const Values raw = scan(logits, n, raw_max);
  float highest = raw.highest;
  if (!raw.finite || !raw.any) return;
  if (n < vocab) {
    const Values rest = scan(logits + n, vocab - n, rest_max);
    if (!rest.finite) return;
    if (rest.highest > highest) highest = rest.highest;
  }

  if (row.target >= 0) {
    result.token = row.target;
  } else if (has_adjustments(row)) {
    adjust(row, logits, n, adjusted);
    const Values values = scan(adjusted, n, adjusted_max);
    if (!values.finite || !values.any) return;
    result.token = choose(values, row, histogram);
  } else {
    result.token = choose(raw, row, histogram);
  }
  result.finite = true;
  if (row.logprob || row.n_top > 0 || row.target >= 0) {
    const double log_sum = log_sum_exp(logits, vocab, highest);
    result.logprob = static_cast<float>(static_cast<double>(logits[result.token]) - log_sum);
    if (row.n_top > 0) list_top(raw, row.n_top, log_sum, histogram, result);
  }
}

}  // namespace

void sample(const SampleArgs& args, ThreadPool& pool) {
  const SampleRow* rows = args.rows.data();
  SampleResult* results = args.results.data();
  const int n = args.n_token_ids < args.vocab ? args.n_token_ids : args.vocab;
  pool.parallel_for(static_cast<int64_t>(args.rows.size()), 1,
                    [&args, rows, results, n](int64_t begin, int64_t end, int) {
                      for (int64_t r = begin; r < end; r++) {
                        sample_row(rows[r], args.logits + r * args.vocab, args.vocab, n, results[r]);
                      }
                    });
}

}  // namespace qwen3::cpu::QWEN3_ISA

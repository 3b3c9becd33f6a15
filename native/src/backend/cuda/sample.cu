// From a row of logits to a token and its log-probabilities, on the GPU; the twin of backend/cpu/sample.cpp.
//
// Order: bias, mask and forbidden ids, penalties, temperature, min_p, top_k, top_p, one draw. See the CPU file for the
// formulas; they are the same.
//
// Three kernels, all of whose sums have one fixed tree, so a row's result does not depend on the batch:
//   adjust   (sample_scan.cu) only when some row needs it: adjusted logits of its ids
//   scan     (sample_scan.cu) maxima per chunk of 256 ids, and per slice of 2,048 the maximum, the sum of exp and
//            whether a logit is broken
//   finish   (sample_finish.cu, sample_select.cuh) combines, filters, draws, writes the result
// This file packs rows for the device and launches the three.
#include <algorithm>
#include <cstring>

#include "backend/cuda/sample_kernels.cuh"

namespace qwen3::cuda {
namespace {

using sampling::SliceState;

struct Sizes {
  int chunks, slices;
  size_t adjusted, raw_max, adjusted_max, states, total;  // offsets of the parts, bytes
};

Sizes sizes(int max_rows, int vocab) {
  Sizes s{};
  s.chunks = (vocab + sampling::kChunk - 1) / sampling::kChunk;
  s.slices = (vocab + sampling::kSlice - 1) / sampling::kSlice;
  const size_t rows = static_cast<size_t>(max_rows);
  const auto add = [&s](size_t bytes) {
    const size_t at = s.total;
    s.total += (bytes + 255) / 256 * 256;
    return at;
  };
  s.adjusted = add(rows * static_cast<size_t>(vocab) * sizeof(float));
  s.raw_max = add(rows * static_cast<size_t>(s.chunks) * sizeof(float));
  s.adjusted_max = add(rows * static_cast<size_t>(s.chunks) * sizeof(float));
  s.states = add(rows * static_cast<size_t>(s.slices) * sizeof(SliceState));
  return s;
}

bool is_adjusted(const SampleRow& row) {
  const bool penalties =
      row.repetition_penalty != 1.0f || row.presence_penalty != 0.0f || row.frequency_penalty != 0.0f;
  return !row.bias.empty() || !row.forbidden.empty() || !row.mask.empty() || (penalties && !row.history.empty());
}

template <class T>
size_t list_bytes(std::span<const T> list) {
  return (list.size_bytes() + 15) / 16 * 16;
}

size_t row_bytes(size_t n_rows) {
  return (n_rows * sizeof(SampleRowDevice) + 15) / 16 * 16;
}

}  // namespace

size_t sample_staging_bytes(std::span<const SampleRow> rows, size_t n_rows) {
  size_t bytes = row_bytes(n_rows);
  for (const SampleRow& row : rows) {
    bytes += list_bytes(row.bias) + list_bytes(row.history) + list_bytes(row.forbidden) + list_bytes(row.mask);
  }
  return bytes;
}

SampleNeeds stage_sample_rows(std::span<const SampleRow> rows, size_t n_rows, SampleResult* results, std::byte* host,
                              const std::byte* device) {
  SampleNeeds needs;
  SampleRowDevice* out = reinterpret_cast<SampleRowDevice*>(host);
  std::fill(out + rows.size(), out + n_rows, SampleRowDevice{});
  size_t at = row_bytes(n_rows);
  const auto put = [&]<class T>(std::span<const T> list, const T*& pointer, int32_t& count) {
    count = static_cast<int32_t>(list.size());
    pointer = nullptr;
    if (list.empty()) return;
    std::memcpy(host + at, list.data(), list.size_bytes());
    pointer = reinterpret_cast<const T*>(device + at);
    at += list_bytes(list);
  };
  for (size_t i = 0; i < rows.size(); i++) {
    const SampleRow& row = rows[i];
    SampleRowDevice& to = out[i];
    to = {};
    to.result = results + i;
    to.seed = row.seed;
    to.position = row.position;
    put(row.bias, to.bias, to.n_bias);
    put(row.history, to.history, to.n_history);
    put(row.forbidden, to.forbidden, to.n_forbidden);
    put(row.mask, to.mask, to.n_mask);
    to.target = row.target;
    to.top_k = row.top_k;
    to.n_top = row.n_top;
    to.logprob = row.logprob ? 1 : 0;
    to.temperature = row.temperature;
    to.min_p = row.min_p;
    to.top_p = row.top_p;
    to.repetition_penalty = row.repetition_penalty;
    to.presence_penalty = row.presence_penalty;
    to.frequency_penalty = row.frequency_penalty;
    to.adjusted = row.target < 0 && is_adjusted(row) ? 1 : 0;
    needs.adjust |= to.adjusted != 0;
    needs.logprob |= row.logprob || row.n_top > 0 || row.target >= 0;
    const bool draws = row.target < 0 && row.temperature > 0.0f;
    needs.search |= draws || row.n_top > 0;
    needs.wide |= draws && row.top_k <= 0;
  }
  return needs;
}

size_t sample_workspace_bytes(int max_rows, int vocab) {
  return sizes(max_rows, vocab).total;
}

void sample(const SampleDeviceArgs& args, const Context& ctx) {
  if (args.n_rows == 0) return;
  const Sizes s = sizes(args.max_rows, args.vocab);
  char* memory = static_cast<char*>(args.workspace);
  sampling::Params p{};
  p.logits = args.logits;
  p.adjusted = reinterpret_cast<float*>(memory + s.adjusted);
  p.raw_max = reinterpret_cast<float*>(memory + s.raw_max);
  p.adjusted_max = reinterpret_cast<float*>(memory + s.adjusted_max);
  p.states = reinterpret_cast<SliceState*>(memory + s.states);
  p.rows = args.rows;
  p.last_token = args.last_token;
  p.vocab = args.vocab;
  p.n = std::min(args.n_token_ids, args.vocab);
  p.chunks = s.chunks;
  p.slices = s.slices;
  p.with_sum = args.needs.logprob;
  if (args.needs.adjust) sampling::adjust(p, args.n_rows, ctx);
  sampling::scan(p, args.n_rows, ctx);
  // Teams as long as they fill SMs that would idle. What has programmatic launches has clusters.
  const int n_ctas = !ctx.pdl || !args.needs.search ? 1 : args.needs.wide ? 4 * ctx.sm_count : ctx.sm_count;
  p.team = sampling::kMaxTeam;
  while (p.team > 1 && args.n_rows * p.team > n_ctas) p.team /= 2;
  if (p.team == 2) p.team = 1;  // costs more than it brings
  sampling::finish(p, args.n_rows, ctx);
}

}  // namespace qwen3::cuda

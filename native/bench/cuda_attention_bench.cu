// Checks attention over paged keys and values, and times its prefill. Stand-alone: links attention*.cu and memory.cu.
//
//   cuda_attention_bench [attention] [long] [prefill] (none: all)
//
// attention: one logical sequence computed as one prefill by the generic kernel is checked against float64; every other
//   way to compute the same queries (Hopper, chunks, decode, splits or whole, mixed batches over poisoned pools) must
//   give the same bits. long: the same near position 32,768.
// prefill: times in a graph.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "backend/cuda/attention.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/kv_layout.h"
#include "base/bf16.h"
#include "base/random.h"
#include "cuda_attention_bench.h"
#include "cuda_bench.h"

using namespace qwen3;
using namespace qwen3::cuda;
using namespace bench;

namespace {

// Copies positions [0, length) of logical k, v [L, n_kv, 128] into pools by a block table.
__global__ void place(const bf16* k, const bf16* v, const int32_t* blocks, int length, int n_kv, bf16* pool_k,
                      bf16* pool_v) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < int64_t{length} * n_kv * 128;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int d = static_cast<int>(i % 128);
    const int head = static_cast<int>(i / 128 % n_kv);
    const int pos = static_cast<int>(i / 128 / n_kv);
    const int64_t at =
        (static_cast<int64_t>(blocks[pos / kBlockSize]) * n_kv + head) * kHeadBlock + kv_offset(pos % kBlockSize, d);
    pool_k[at] = k[i];
    pool_v[at] = v[i];
  }
}

// One CTA of 128 threads per (query, head): float64 softmax attention over logical k, v; out [n, n_heads, 128] double.
__global__ void reference(const bf16* q, const bf16* k, const bf16* v, const int32_t* positions, int n_heads, int n_kv,
                          double* out) {
  __shared__ double part[128];
  const int head = static_cast<int>(blockIdx.y);
  const int kv = head / (n_heads / n_kv);
  const int t = static_cast<int>(threadIdx.x);
  const int pos = positions[blockIdx.x];
  const bf16* qr = q + (static_cast<int64_t>(pos) * n_heads + head) * 128;
  const auto reduce = [&](double x, bool max) {
    part[t] = x;
    __syncthreads();
    for (int s = 64; s > 0; s /= 2) {
      if (t < s) part[t] = max ? fmax(part[t], part[t + s]) : part[t] + part[t + s];
      __syncthreads();
    }
    const double r = part[0];
    __syncthreads();
    return r;
  };
  const auto score = [&](int key) {
    const bf16* kr = k + (static_cast<int64_t>(key) * n_kv + kv) * 128;
    double s = 0;
    for (int d = 0; d < 128; d++) s += static_cast<double>(from_bf16(qr[d])) * from_bf16(kr[d]);
    return s * 0.088388347648318447;
  };
  double top = -1e300;
  for (int key = t; key <= pos; key += 128) top = fmax(top, score(key));
  top = reduce(top, true);
  double sum = 0;
  double o = 0;  // column t
  for (int first = 0; first <= pos; first += 128) {
    const double p = first + t <= pos ? exp(score(first + t) - top) : 0.0;
    sum += p;
    part[t] = p;
    __syncthreads();
    for (int j = 0; j < 128 && first + j <= pos; j++)
      o += part[j] * from_bf16(v[(static_cast<int64_t>(first + j) * n_kv + kv) * 128 + t]);
    __syncthreads();
  }
  sum = reduce(sum, false);
  out[(static_cast<int64_t>(blockIdx.x) * n_heads + head) * 128 + t] = o / sum;
}

struct Piece {
  int start, count;  // new tokens [start, start + count) of the logical sequence
};

// The logical sequence and what is known about it.
struct Logical {
  int length, n_kv, group, n_heads;
  Buffer<bf16> q, k, v;
  std::vector<bf16> host_q;
  std::vector<bf16> base;  // [length, n_heads, 128]; only rows from base_start on
  int base_start = 0;

  Logical(int n, int kv, int g, float q_scale, uint64_t salt)
      : length(n),
        n_kv(kv),
        group(g),
        n_heads(kv * g),
        q(size_t(n) * size_t(kv * g) * 128),
        k(size_t(n) * size_t(kv) * 128),
        v(size_t(n) * size_t(kv) * 128) {
    fill(q.data, q.n, q_scale, salt);
    fill(k.data, k.n, 1.0f, salt + 1);
    fill(v.data, v.n, 1.0f, salt + 2);
    host_q = q.host();
    base.resize(q.n);
  }
};

struct Options {
  bool hopper = false;
  size_t workspace_bytes = kAttentionWorkspaceBytes;
  bool own_blocks = false;  // each piece has its own blocks, NaN behind its last token
  int extra_context = 0;    // the host's bound is looser than the truth
  bool pdl = true;
  int idle = 0;  // sequences without a token at the end, as in a padded batch
};

// Computes the pieces in one batch; rows [sum of counts, n_heads, 128].
std::vector<bf16> compute(const Logical& s, const std::vector<Piece>& pieces, const Options& options) {
  int n_tokens = 0;
  int max_context = 0;
  for (const Piece& p : pieces) {
    n_tokens += p.count;
    max_context = std::max(max_context, p.start + p.count);
  }
  const int n_seqs = static_cast<int>(pieces.size()) + options.idle;
  const int max_blocks = (max_context + kBlockSize - 1) / kBlockSize + 3;
  int n_blocks = 1;
  std::vector<int32_t> tables(size_t(n_seqs) * size_t(max_blocks), 0);
  std::vector<int32_t> positions, seq_of, query_start(1, 0);
  std::vector<bf16> q;
  const size_t row = size_t(s.n_heads) * 128;
  for (size_t i = 0; i < pieces.size(); i++) {
    if (options.own_blocks || i == 0)
      n_blocks += (options.own_blocks ? pieces[i].start + pieces[i].count : max_context) / kBlockSize + 1;
    for (int t = pieces[i].start; t < pieces[i].start + pieces[i].count; t++) {
      positions.push_back(t);
      seq_of.push_back(static_cast<int32_t>(i));
      q.insert(q.end(), s.host_q.begin() + int64_t(size_t(t) * row), s.host_q.begin() + int64_t(size_t(t + 1) * row));
    }
    query_start.push_back(static_cast<int32_t>(positions.size()));
  }
  for (int i = 0; i < options.idle; i++) query_start.push_back(n_tokens);
  // Blocks in a scrambled order; block 0 is nobody's.
  std::vector<int32_t> ids(size_t(n_blocks) - 1);
  std::iota(ids.begin(), ids.end(), 1);
  for (size_t i = ids.size(); i > 1; i--) std::swap(ids[i - 1], ids[mix_bits(i) % i]);
  Buffer<bf16> pool_k(size_t(n_blocks) * size_t(s.n_kv) * kHeadBlock);
  Buffer<bf16> pool_v(size_t(n_blocks) * size_t(s.n_kv) * kHeadBlock);
  pool_k.poison();
  pool_v.poison();
  size_t next = 0;
  for (size_t i = 0; i < pieces.size(); i++) {
    int32_t* own = tables.data() + i * size_t(max_blocks);
    const int length = options.own_blocks ? pieces[i].start + pieces[i].count : max_context;
    if (options.own_blocks || i == 0) {
      for (int b = 0; b < (length + kBlockSize - 1) / kBlockSize; b++) own[b] = ids[next++];
      const Buffer<int32_t> blocks(std::vector<int32_t>(own, own + max_blocks));
      place<<<512, 256, 0, stream>>>(s.k.data, s.v.data, blocks.data, length, s.n_kv, pool_k.data, pool_v.data);
      finish();
    } else {
      std::copy(tables.begin(), tables.begin() + max_blocks, own);
    }
  }
  const Buffer<bf16> q_rows(q);
  const Buffer<int32_t> d_positions(positions), d_seq_of(seq_of), d_start(query_start), d_tables(tables);
  Buffer<bf16> out(q.size() + 4096);
  out.poison();
  const BatchView batch{n_tokens,         n_seqs,        max_blocks,   nullptr,
                        d_positions.data, d_seq_of.data, d_start.data, d_tables.data};
  const AttentionArgs args{&batch, q_rows.data, {pool_k.data, pool_v.data}, s.n_heads, s.n_kv, 128, out.data};
  // What a captured graph knows: every padded sequence may have a token.
  std::vector<int32_t> host_start = query_start;
  for (int i = 0; i < options.idle; i++) host_start[host_start.size() - size_t(i) - 1] += options.idle - i;
  const BatchHost host{n_tokens, n_seqs, host_start.data(), max_context + options.extra_context, nullptr};
  cuda::attention(args, host, workspace(options.workspace_bytes), context(options.hopper, options.pdl));
  finish();
  std::vector<bf16> result = out.host();
  for (size_t i = q.size(); i < result.size(); i++) {
    if (result[i] != 0xffff) {
      fail("wrote behind the output");
      break;
    }
  }
  result.resize(q.size());
  return result;
}

void expect_base(const Logical& s, const std::vector<Piece>& pieces, const Options& options, const std::string& name) {
  now = name;
  const std::vector<bf16> got = compute(s, pieces, options);
  const size_t row = size_t(s.n_heads) * 128;
  size_t at = 0;
  size_t wrong = 0;
  std::string first;
  for (const Piece& p : pieces) {
    for (int t = p.start; t < p.start + p.count; t++, at += row) {
      for (size_t i = 0; i < row; i++) {
        const bf16 want = s.base[size_t(t) * row + i];
        if (got[at + i] == want) continue;
        if (wrong++ == 0) {
          char text[200];
          std::snprintf(text, sizeof text, "piece (%d, %d) position %d head %zu d %zu: %g, expected %g", p.start,
                        p.count, t, i / 128, i % 128, double(bf16_to_float(got[at + i])), double(bf16_to_float(want)));
          first = text;
        }
      }
    }
  }
  if (wrong != 0)
    fail((first + "; " + std::to_string(wrong) + " of " + std::to_string(got.size()) + " differ").c_str());
}

void check_reference(const Logical& s, const std::vector<int32_t>& positions, const char* name) {
  now = name;
  const Buffer<int32_t> d_positions(positions);
  Buffer<double> out(positions.size() * size_t(s.n_heads) * 128);
  out.poison();
  reference<<<dim3(unsigned(positions.size()), unsigned(s.n_heads)), 128, 0, stream>>>(
      s.q.data, s.k.data, s.v.data, d_positions.data, s.n_heads, s.n_kv, out.data);
  const std::vector<double> want = out.host();
  double worst = 0;
  int worst_position = -1;
  for (size_t i = 0; i < positions.size(); i++) {
    for (int h = 0; h < s.n_heads; h++) {
      double error = 0, norm = 0;
      for (int d = 0; d < 128; d++) {
        const double w = want[(i * size_t(s.n_heads) + size_t(h)) * 128 + size_t(d)];
        const double g =
            double(bf16_to_float(s.base[(size_t(positions[i]) * size_t(s.n_heads) + size_t(h)) * 128 + size_t(d)]));
        error += (g - w) * (g - w);
        norm += w * w;
      }
      const double relative = std::sqrt(error / norm);
      if (!(relative <= worst)) {
        worst = std::isfinite(relative) ? relative : 1e30;
        worst_position = positions[i];
      }
    }
  }
  // Rounding of P and of the result to bf16: 2^-9 each at most, relative to the row.
  if (!(worst < 5e-3))
    fail(("error " + std::to_string(worst) + " at position " + std::to_string(worst_position)).c_str());
  line("%-46s worst relative row error %.2e (position %d)", name, worst, worst_position);
}

void attention_checks() {
  const int length = 4097;
  for (const int group : {4, 1, 2, 5, 8, 16}) {
    for (const float q_scale : {1.0f, 6.0f}) {
      if (q_scale != 1.0f && group != 4) continue;
      Logical s(length, 2, group, q_scale, 1000 + uint64_t(group));
      const std::string tag = "group " + std::to_string(group) + (q_scale == 1.0f ? "" : " peaky") + ": ";
      now = tag + "generic prefill";
      s.base = compute(s, {{0, length}}, {});
      std::vector<int32_t> positions;
      for (int p = 0; p < length; p += p < 300 || p > 4000 ? 1 : 37) positions.push_back(p);
      check_reference(s, positions, (tag + "against float64").c_str());
      const auto chunks = [&](int n) {
        std::vector<Piece> pieces;
        for (int at = 0; at < length; at += n) pieces.push_back({at, std::min(n, length - at)});
        return pieces;
      };
      const auto parts = [](const std::vector<Piece>& all, size_t n) {
        std::vector<std::vector<Piece>> out;
        for (size_t i = 0; i < all.size(); i += n)
          out.emplace_back(all.begin() + int64_t(i), all.begin() + int64_t(std::min(all.size(), i + n)));
        return out;
      };
      const int before = failures;
      int runs = 0;
      const auto expect = [&](const std::vector<Piece>& pieces, const Options& options, const std::string& name) {
        runs++;
        expect_base(s, pieces, options, tag + name);
      };
      for (const bool hopper : {false, true}) {
        const std::string path = hopper ? "hopper " : "generic ";
        if (hopper) expect({{0, length}}, {.hopper = true}, path + "whole prefill");
        if (hopper) expect({{0, length}}, {.hopper = true, .pdl = false}, path + "whole prefill, again");
        for (const int n : {17, 64, 100, 129, 1000, 2048}) {
          expect(chunks(n), {.hopper = hopper}, path + "chunks of " + std::to_string(n));
        }
        const std::vector<Piece> mixed = {
            {0, 1},   {0, 31},  {0, 32},    {0, 33},    {0, 63},     {0, 64},   {0, 65},    {5, 20},   {255, 1},
            {255, 2}, {256, 1}, {256, 300}, {1000, 1},  {1023, 1},   {1024, 1}, {4000, 97}, {4096, 1}, {300, 5},
            {63, 1},  {64, 1},  {31, 1},    {2000, 70}, {3000, 130}, {250, 13}, {0, 4097},  {100, 700}};
        expect(mixed, {.hopper = hopper, .own_blocks = true}, path + "mixed over poisoned blocks");
        expect(mixed, {.hopper = hopper, .own_blocks = true, .extra_context = 3000}, path + "mixed, loose bound");
        expect(mixed, {.hopper = hopper, .workspace_bytes = 1024, .own_blocks = true}, path + "mixed, no workspace");
        for (const Piece& p : mixed) expect({p}, {.hopper = hopper, .own_blocks = true}, path + "alone");
        if (group != 4) continue;
        for (const auto& part : parts(chunks(1), 1024)) {
          expect(part, {.hopper = hopper}, path + "decode, splits");
          expect(part, {.hopper = hopper, .workspace_bytes = 0}, path + "decode, whole");
        }
        for (const auto& part : parts(chunks(3), 700)) expect(part, {.hopper = hopper}, path + "three tokens");
        expect({{4096, 1}, {17, 1}}, {.hopper = hopper, .extra_context = 5000, .idle = 6}, path + "padded decode");
      }
      line("%-46s %d batches, %d differ from the generic prefill", (tag + "equal bits").c_str(), runs,
           failures - before);
    }
  }
}

void long_checks() {
  const int length = 32768;
  Logical s(length, 1, 4, 2.0f, 77);
  now = "long: generic chunk";
  const int start = length - 200;
  const std::vector<bf16> rows = compute(s, {{start, 200}}, {});
  std::copy(rows.begin(), rows.end(), s.base.begin() + int64_t(start) * s.n_heads * 128);
  check_reference(s, {start, start + 1, length - 2, length - 1}, "32k context: against float64");
  const int before = failures;
  expect_base(s, {{start, 200}}, {.hopper = true}, "long: hopper chunk");
  expect_base(s, {{start, 100}, {start + 50, 150}}, {.hopper = true}, "long: hopper chunks");
  for (const bool hopper : {false, true}) {
    expect_base(s, {{length - 1, 1}}, {.hopper = hopper}, "long: decode");
    expect_base(s, {{length - 1, 1}, {start, 1}, {start + 7, 1}, {start + 9, 3}}, {.hopper = hopper}, "long: decodes");
    expect_base(s, {{length - 1, 1}, {start, 1}}, {.hopper = hopper, .workspace_bytes = 0}, "long: decode, whole");
  }
  line("%-46s %d of 8 batches differ", "32k context: equal bits", failures - before);
}

void prefill_times() {
  const int64_t n_blocks = 1100;
  const size_t elements = size_t(n_blocks) * 8 * kHeadBlock, rows = 32768;
  Buffer<bf16> k(elements), v(elements), q(rows * 32 * 128), out(rows * 32 * 128);
  fill(k.data, elements, 1.0f, 1);
  fill(v.data, elements, 1.0f, 2);
  fill(q.data, q.n, 1.0f, 3);
  const AttentionWorkspace w = workspace(kAttentionWorkspaceBytes);
  struct Shape {
    int seqs, len, n_new;
  };
  for (const Shape s :
       {Shape{1, 512, 512}, Shape{1, 1024, 1024}, Shape{1, 2048, 2048}, Shape{1, 4096, 4096}, Shape{1, 8192, 8192},
        Shape{4, 2048, 2048}, Shape{16, 2048, 2048}, Shape{4, 512, 512}, Shape{1, 32768, 2048}}) {
    for (const bool hopper : {true, false}) {
      if (!hopper && s.len > 8192) continue;
      now = "prefill " + std::to_string(s.seqs) + " x " + std::to_string(s.n_new) + " at " + std::to_string(s.len);
      Timed t(s.seqs, s.len, s.n_new, 1);
      const double us = time_us(3, [&](int i) { t.issue(i, q.data, {k.data, v.data}, out.data, 32, hopper, w); });
      const double pairs = double(s.seqs) * s.n_new * (double(s.len) - s.n_new / 2.0);
      line("prefill %s %2d x %5d of context %5d: %9.1f us, %5.0f TFLOP/s", hopper ? "hopper " : "generic", s.seqs,
           s.n_new, s.len, us, pairs * 4 * 128 * 32 / us * 1e-6);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  run_sections(argc, argv, {{"attention", attention_checks}, {"long", long_checks}, {"prefill", prefill_times}});
}

// Checks and times attention_step: a decode step from qkv. Stand-alone: links attention*.cu, qk_norm_rope.cu and
// memory.cu.
//
//   cuda_attention_step_bench [step] [decode] (none: all)
//
// step: attention_step against qk_norm_rope and the generic attention: outputs and KV pools to the last bit.
// decode: times in a graph over rotating data, beside those of two kernels.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "backend/cuda/attention.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/kv_layout.h"
#include "base/random.h"
#include "cuda_attention_bench.h"
#include "cuda_bench.h"

using namespace qwen3;
using namespace qwen3::cuda;
using namespace bench;

namespace {

constexpr double kBandwidth = 4.5e12;

__global__ void add_up(const float* sums, float* out, size_t n) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x)
    out[i] = ((sums[i] + sums[n + i]) + sums[2 * n + i]) + sums[3 * n + i];
}

// A batch of one new token each at the given positions (-1: padding, at the end), over blocks with random keys and
// values up to the new token, NaN after it.
struct Step {
  int heads, kv, n, max_blocks;
  std::vector<int32_t> start, real;  // real: positions of the sequences that are there
  std::vector<int32_t> table;
  Buffer<float> sums, qkv, angles;  // qkv: the sums of four segments, added
  Buffer<bf16> q_norm, k_norm, q;
  std::unique_ptr<Buffer<int32_t>> positions, seq_of, query_start, tables;
  std::vector<bf16> pool;  // k and v before the step
  BatchView view{};
  int max_context = 1;

  Step(const std::vector<int>& at, int n_heads, int n_kv, int extra_blocks, uint64_t salt)
      : heads(n_heads),
        kv(n_kv),
        n(int(at.size())),
        max_blocks(1),
        sums(kSegments * at.size() * size_t(n_heads + 2 * n_kv) * 128),
        qkv(sums.n / kSegments),
        angles(at.size() * 128),
        q_norm(128),
        k_norm(128),
        q(at.size() * size_t(n_heads) * 128) {
    fill(sums.data, sums.n, 1.0f, salt);
    add_up<<<256, 256, 0, stream>>>(sums.data, qkv.data, qkv.n);
    fill(angles.data, angles.n, 0.7f, salt + 1);
    fill(q_norm.data, 128, 1.0f, salt + 2);
    fill(k_norm.data, 128, 1.0f, salt + 3);
    int n_blocks = 1;
    for (const int p : at) max_context = std::max(max_context, p + 1), n_blocks += p < 0 ? 0 : p / kBlockSize + 1;
    max_blocks = (max_context + kBlockSize - 1) / kBlockSize + extra_blocks;
    max_context = max_blocks * kBlockSize;
    std::vector<int32_t> ids(size_t(n_blocks) - 1), of, place;
    table.assign(size_t(n) * size_t(max_blocks), 0);
    std::iota(ids.begin(), ids.end(), 1);
    for (size_t i = ids.size(); i > 1; i--) std::swap(ids[i - 1], ids[mix_bits(i + salt) % i]);
    const size_t elements = size_t(n_blocks) * size_t(n_kv) * kHeadBlock;
    Buffer<bf16> random(elements);
    fill(random.data, elements, 1.0f, salt + 4);
    pool = random.host();
    size_t next = 0;
    for (int s = 0; s < n; s++) {
      of.push_back(at[size_t(s)] < 0 ? -1 : s);
      place.push_back(std::max(at[size_t(s)], 0));
      if (at[size_t(s)] >= 0) real.push_back(at[size_t(s)]);
      start.push_back(s);
      for (int b = 0; at[size_t(s)] >= 0 && b <= at[size_t(s)] / kBlockSize; b++) {
        const int32_t id = table[size_t(s) * size_t(max_blocks) + size_t(b)] = ids[next++];
        for (int slot = 0; slot < kBlockSize; slot++) {
          if (b * kBlockSize + slot < at[size_t(s)]) continue;
          for (int h = 0; h < n_kv; h++)
            for (int d = 0; d < 128; d++)
              pool[(size_t(id) * size_t(n_kv) + size_t(h)) * kHeadBlock + size_t(kv_offset(slot, d))] = 0xffff;
        }
      }
    }
    start.push_back(n);
    std::vector<int32_t> device_start;
    for (int s = 0, t = 0; s <= n; s++) {
      device_start.push_back(t);
      if (s < n && at[size_t(s)] >= 0) t++;
    }
    positions = std::make_unique<Buffer<int32_t>>(place);
    seq_of = std::make_unique<Buffer<int32_t>>(of);
    query_start = std::make_unique<Buffer<int32_t>>(device_start);
    tables = std::make_unique<Buffer<int32_t>>(table);
    view = {n, n, max_blocks, nullptr, positions->data, seq_of->data, query_start->data, tables->data, 0};
  }
  SelfAttentionArgs args(bf16* k, bf16* v, bf16* out) const {
    SelfAttentionArgs a{};
    a.batch = &view;
    a.q_norm = q_norm.data;
    a.k_norm = k_norm.data;
    a.angles = angles.data;
    a.eps = 1e-6f;
    a.n_heads = heads;
    a.n_kv_heads = kv;
    a.head_dim = 128;
    a.qkv = qkv.data;
    a.q = q.data;
    a.kv = {k, v};
    a.out = out;
    return a;
  }
};

void step_checks() {
  const std::vector<int> edges = {0,   1,   7,   8,   15,  31,  32,  33,  62,   63,   64,   65,   100,  127,
                                  128, 200, 254, 255, 256, 257, 300, 319, 320,  511,  512,  513,  520,  575,
                                  576, 640, 700, 767, 768, 769, 900, 999, 1023, 1024, 2047, 2048, 4095, 4096};
  struct Case {
    std::string name;
    std::vector<int> at;
    int heads, kv;
    int extra = 0;
  };
  std::vector<Case> cases;
  const auto same = [](int n, int p) { return std::vector<int>(size_t(n), p); };
  for (const int group : {4, 2, 1, 5, 7, 8}) {
    std::vector<int> padded = edges;
    padded.insert(padded.end(), 6, -1);
    cases.push_back({"edges", padded, 2 * group, 2, 5});
    for (const int p : edges)
      if (group == 4 || p % 3 == 0) cases.push_back({"alone", {p}, 2 * group, 2});
    // attention_step_cluster, 132 SMs: one part of 8 splits; then with padding 4, 2, 2 and 1 parts of 1, 1, 2 and 1.
    for (const int p : {1300, 1792, 2047}) cases.push_back({"alone", {p}, 2 * group, 2});
    cases.push_back({"few", {200, 30, 255, -1}, 2 * group, 2});
    cases.push_back({"few", {200, 30, 63, 64, 127, 0, 223, -1}, 8 * group, 8});
    cases.push_back({"few", {400, 300, 90, -1}, 8 * group, 8});
    cases.push_back({"few", {200, 100, 30, 63, 64, 127, 0, 223, -1}, 8 * group, 8});
  }
  for (const int n : {1, 2, 3, 8, 17, 40, 64, 130, 256, 512}) {
    for (const int p : {100, 511, 640, 1100, 3000})
      if (n * p < 36000) cases.push_back({"equal", same(n, p), 32, 8, 1});
    std::vector<int> mixed;
    for (int i = 0; i < n; i++) mixed.push_back(int(mix_bits(uint64_t(i * 131 + n)) % (n > 100 ? 600 : 1500)));
    const int kv = n < 64 ? 8 : 2;
    cases.push_back({"mixed", mixed, 4 * kv, kv, 9});
    if (n > 3) mixed[size_t(n) - 1] = -1, mixed[0] = 3000;
    cases.push_back({"padded", mixed, 2 * kv, kv, 9});
  }
  cases.push_back({"long", {32767}, 32, 8});
  cases.push_back({"long", {20000, 3, 32001, 700}, 8, 2, 100});
  int checked = 0;
  const int before = failures;
  for (const Case& c : cases) {
    now = "step, " + c.name + ", " + std::to_string(c.at.size()) + " sequences, first at " + std::to_string(c.at[0]) +
          ", " + std::to_string(c.heads) + " / " + std::to_string(c.kv) + " heads";
    Step step(c.at, c.heads, c.kv, c.extra, uint64_t(checked) + 1);
    const size_t width = size_t(c.heads) * 128;
    std::vector<bf16> expected[3];  // out, k, v
    // Generic; fused; fused without room for states; fused, from the sums of qkv_proj's segments.
    for (int way = 0; way < 4; way++) {
      if (way == 3 && planned_ctas(step.n, c.kv, step.max_context, sm_count) == 0) continue;
      Buffer<bf16> k(step.pool), v(step.pool), out(size_t(step.n) * width + 1024);
      out.poison();
      AttentionWorkspace w = workspace(kAttentionWorkspaceBytes);
      if (way == 2) w.bytes = 0;
      const Buffer<StepPiece> plan(
          step_plan(step.real, step.table, step.max_blocks, c.heads, c.kv, step.n, step.max_context, w));
      const BatchHost host{step.n, step.n, step.start.data(), step.max_context, plan.data};
      const SelfAttentionArgs a = step.args(k.data, v.data, out.data);
      if (way == 0) {
        cuda::qk_norm_rope({a.batch, a.qkv, a.q_norm, a.k_norm, a.angles, a.eps, c.heads, c.kv, 128, a.q, a.kv},
                           context(false));
        cuda::attention({a.batch, a.q, a.kv, c.heads, c.kv, 128, a.out}, host, w, context(false));
      } else {
        Context ctx = context(true);
        ctx.sums = step.sums.data;
        cuda::attention_step(a, host, w, ctx, way == 3);
      }
      finish();
      const std::vector<bf16> got[3] = {out.host(), k.host(), v.host()};
      for (int i = 0; i < 3; i++) {
        if (way == 0) {
          expected[i] = got[i];
        } else if (got[i] != expected[i]) {
          size_t wrong = 0, at = 0;
          for (size_t j = 0; j < got[i].size(); j++)
            if (got[i][j] != expected[i][j] && wrong++ == 0) at = j;
          char text[200];
          std::snprintf(text, sizeof text, "way %d: %s differs at %zu (sequence %zu): %04x, expected %04x; %zu of %zu",
                        way,
                        i == 0   ? "out"
                        : i == 1 ? "k"
                                 : "v",
                        at, at / width, got[i][at], expected[i][at], wrong, got[i].size());
          fail(text);
        }
      }
    }
    checked++;
  }
  line("%-46s %d batches, %d differences", "step: equal bits", checked, failures - before);
}

// From qkv: qk_norm_rope and attention by kernels of their own against attention_step.
void decode_times() {
  const int64_t n_blocks = 34000;  // 1,088,000 tokens of 8 heads: 2.2 GB each of k and v
  const size_t elements = size_t(n_blocks) * 8 * kHeadBlock;
  Buffer<bf16> k(elements), v(elements), q(size_t(256) * 32 * 128), out(size_t(256) * 32 * 128), norm(128);
  Buffer<float> qkv(size_t(256) * 48 * 128), angles(size_t(256) * 128);
  fill(k.data, elements, 1.0f, 1);
  fill(v.data, elements, 1.0f, 2);
  fill(q.data, q.n, 1.0f, 3);
  fill(qkv.data, qkv.n, 1.0f, 4);
  fill(angles.data, angles.n, 0.7f, 5);
  fill(norm.data, norm.n, 1.0f, 6);
  const AttentionWorkspace w = workspace(kAttentionWorkspaceBytes);
  for (const int heads : {32, 16}) {
    for (const int seqs : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
      for (const int len : {128, 512, 600, 1024, 4096, 32768}) {
        if (heads == 16 && len != 512) continue;
        const int64_t blocks = int64_t(seqs) * ((len + kBlockSize - 1) / kBlockSize);
        if (blocks > n_blocks) continue;
        now = "decode, batch " + std::to_string(seqs) + ", context " + std::to_string(len);
        const int sets = int(std::min<int64_t>(16, n_blocks / blocks));
        Timed t(seqs, len, 1, sets);
        t.make_plans(heads, w);
        SelfAttentionArgs a{};
        a.q_norm = a.k_norm = norm.data;
        a.angles = angles.data;
        a.eps = 1e-6f;
        a.n_heads = heads;
        a.n_kv_heads = 8;
        a.head_dim = 128;
        a.qkv = qkv.data;
        a.q = q.data;
        a.kv = {k.data, v.data};
        a.out = out.data;
        const int n = std::max(sets, 8);
        const double apart = time_us(n, [&](int i) {
          cuda::qk_norm_rope({&t.view, a.qkv, a.q_norm, a.k_norm, a.angles, a.eps, heads, 8, 128, q.data, a.kv},
                             context(true));
          t.issue(i, q.data, {k.data, v.data}, out.data, heads, true, w);
        });
        const double step = time_us(n, [&](int i) {
          BatchView batch = t.batch(i);
          a.batch = &batch;
          cuda::attention_step(a, t.host(i), w, context(true));
        });
        const double bytes = double(seqs) * len * 4096;
        line(
            "decode %2d heads, batch %3d, context %5d: two kernels %7.1f us, step %7.1f, %5.1f%% of "
            "4.5 TB/s",
            heads, seqs, len, apart, step, 100 * bytes / kBandwidth / step * 1e6);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  run_sections(argc, argv, {{"step", step_checks}, {"decode", decode_times}});
}

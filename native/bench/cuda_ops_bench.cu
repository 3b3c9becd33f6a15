// Checks and times the small ops: embedding, norms, RoPE. Stand-alone: links embed.cu, rms_norm.cu, rope_angles.cu,
// qk_norm_rope.cu, pack.cu and memory.cu.
//
//   cuda_ops_bench [ops] [small] (none: all)
//
// ops: against plain host code in float64. small: times in a graph.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "backend/cuda/kernels.h"
#include "backend/cuda/kv_layout.h"
#include "base/bf16.h"
#include "cuda_bench.h"

using namespace qwen3;
using namespace qwen3::cuda;
using namespace bench;

namespace {

// A packed table of embeddings.
struct Table {
  Buffer<bf16> packed;
  LinearWeight weight;
  Table(const Buffer<bf16>& rows, int n_rows, int hidden)
      : packed(packed_bytes(n_rows, hidden, LinearLayout::kConcat) / sizeof(bf16)) {
    pack({rows.data, n_rows, 0, hidden, LinearLayout::kConcat, 0, packed.data}, context(true));
    weight.n_out = n_rows;
    weight.n_in = hidden;
    weight.n_parts = 1;
    weight.parts[0] = {packed.data, n_rows};
  }
};

double bf16_error(bf16 got, double want) {  // in units of half a bf16 step of `want`
  const double g = double(bf16_to_float(got));
  const double step = std::ldexp(1.0, std::max(-126, std::ilogb(want == 0 ? 1e-30 : want)) - 8);
  const double error = std::fabs(g - want) / step;
  return std::isfinite(error) ? error : 1e30;
}

void op_checks() {
  const auto random = [](size_t n, float scale, uint64_t salt) {
    Buffer<float> b(n);
    fill(b.data, n, scale, salt);
    return b.host();
  };
  const auto random_bf16 = [](size_t n, float scale, uint64_t salt) {
    Buffer<bf16> b(n);
    fill(b.data, n, scale, salt);
    return b.host();
  };
  for (const int hidden : {64, 1024, 2560, 4096, 5120}) {
    now = "embed, rms_norm hidden " + std::to_string(hidden);
    const int n = 37, vocab = 100;
    const std::vector<bf16> table_host = random_bf16(size_t(vocab * hidden), 1.0f, 5);
    const std::vector<float> x_host = random(size_t(n * hidden), 3.0f, 6);
    const std::vector<bf16> weight_host = random_bf16(size_t(hidden), 1.0f, 7);
    std::vector<int32_t> ids, index;
    for (int i = 0; i < n; i++) ids.push_back(i * 31 % vocab);
    for (int i = 0; i < n; i++) index.push_back(n - 1 - i);
    const Buffer<bf16> d_table(table_host), d_weight(weight_host);
    const Buffer<float> d_x(x_host);
    const Buffer<int32_t> d_ids(ids), d_index(index);
    Buffer<float> e(size_t(n * hidden));
    Buffer<bf16> y(size_t(n * hidden)), z(size_t(n * hidden));
    e.poison(), y.poison(), z.poison();
    BatchView batch{};
    batch.n_tokens = n;
    batch.token_ids = d_ids.data;
    const Table packed(d_table, vocab, hidden);
    cuda::embed({&batch, &packed.weight, e.data}, nullptr, context(true));
    cuda::rms_norm({d_x.data, d_weight.data, nullptr, n, hidden, 1e-6f, y.data}, context(true));
    cuda::rms_norm({d_x.data, d_weight.data, d_index.data, n, hidden, 1e-6f, z.data}, context(true));
    const std::vector<float> e_host = e.host();
    const std::vector<bf16> y_host = y.host(), z_host = z.host();
    double worst = 0;
    for (int i = 0; i < n; i++) {
      double sum = 0;
      for (int j = 0; j < hidden; j++)
        sum += double(x_host[size_t(i * hidden + j)]) * double(x_host[size_t(i * hidden + j)]);
      const double scale = 1.0 / std::sqrt(sum / hidden + 1e-6);
      for (int j = 0; j < hidden; j++) {
        const size_t at = size_t(i * hidden + j);
        if (e_host[at] != bf16_to_float(table_host[size_t(ids[size_t(i)] * hidden + j)])) return fail("embed differs");
        worst = std::max(
            worst, bf16_error(y_host[at], double(x_host[at]) * scale * double(bf16_to_float(weight_host[size_t(j)]))));
        if (z_host[size_t((n - 1 - i) * hidden + j)] != y_host[at]) return fail("rms_norm with row_index differs");
      }
    }
    if (!(worst < 1.02)) fail(("rms_norm: error of " + std::to_string(worst) + " half steps").c_str());
  }
  for (const int n : {1, 5, 63, 64, 200}) {
    for (const int heads : {4, 32}) {
      now = "qk_norm_rope " + std::to_string(n) + " tokens, " + std::to_string(heads) + " heads";
      const int kv = heads == 4 ? 1 : 8, row = (heads + 2 * kv) * 128, max_blocks = 4200, n_blocks = 64;
      const std::vector<float> qkv = random(size_t(n * row), 2.0f, 11);
      const std::vector<bf16> qw = random_bf16(128, 1.0f, 12), kw = random_bf16(128, 1.0f, 13);
      std::vector<float> freq;
      for (int i = 0; i < 64; i++) freq.push_back(static_cast<float>(std::pow(1e6, -i / 64.0)));
      std::vector<int32_t> positions, seq_of, tables(size_t(2 * max_blocks));
      for (int i = 0; i < n; i++)
        positions.push_back(i < n / 2 ? i : 131000 - n + i), seq_of.push_back(i < n / 2 ? 0 : 1);
      if (n > 5) seq_of[5] = -1;  // padding: no keys or values
      for (int b = 0; b < max_blocks; b++) tables[size_t(b)] = b % 20, tables[size_t(max_blocks + b)] = 20 + b % 20;
      const Buffer<float> d_qkv(qkv), d_freq(freq);
      const Buffer<bf16> d_qw(qw), d_kw(kw);
      const Buffer<int32_t> d_positions(positions), d_seq_of(seq_of), d_tables(tables);
      Buffer<bf16> q(size_t(n * heads * 128)), k(size_t(n_blocks * kv) * kHeadBlock),
          v(size_t(n_blocks * kv) * kHeadBlock);
      q.poison(), k.poison(), v.poison();
      BatchView batch{n, 2, max_blocks, nullptr, d_positions.data, d_seq_of.data, nullptr, d_tables.data};
      Buffer<float> angles(size_t(n) * 128);
      cuda::rope_angles({&batch, d_freq.data, 1.25f, 128, angles.data}, context(true));
      cuda::qk_norm_rope(
          {&batch, d_qkv.data, d_qw.data, d_kw.data, angles.data, 1e-6f, heads, kv, 128, q.data, {k.data, v.data}},
          context(true));
      const std::vector<bf16> q_host = q.host(), k_host = k.host(), v_host = v.host();
      double worst = 0;
      size_t written = 0;
      for (int t = 0; t < n; t++) {
        for (int h = 0; h < heads + 2 * kv; h++) {
          const float* x = qkv.data() + size_t(t * row + h * 128);
          double sum = 0;
          for (int d = 0; d < 128; d++) sum += double(x[d]) * double(x[d]);
          const double scale = 1.0 / std::sqrt(sum / 128 + 1e-6);
          const bool is_v = h >= heads + kv, is_q = h < heads;
          if (!is_q && seq_of[size_t(t)] < 0) continue;
          const int pos = positions[size_t(t)];
          for (int d = 0; d < 128; d++) {
            const int i = d % 64;
            const std::vector<bf16>& w = is_q ? qw : kw;
            const double a = double(x[i]) * scale * double(bf16_to_float(w[size_t(i)]));
            const double b = double(x[i + 64]) * scale * double(bf16_to_float(w[size_t(i + 64)]));
            const double angle = double(static_cast<float>(pos) * freq[size_t(i)]);
            const double c = std::cos(angle) * 1.25, sn = std::sin(angle) * 1.25;
            const double want = is_v ? double(x[d]) : d < 64 ? a * c - b * sn : b * c + a * sn;
            bf16 got;
            if (is_q) {
              got = q_host[size_t((t * heads + h) * 128 + d)];
            } else {
              const int head = h - heads - (is_v ? kv : 0);
              const int block = tables[size_t(seq_of[size_t(t)] * max_blocks + pos / kBlockSize)];
              got = (is_v ? v_host
                          : k_host)[size_t(block * kv + head) * kHeadBlock + size_t(kv_offset(pos % kBlockSize, d))];
              written++;
            }
            // Cancellation of a c - b s: measure against the size of its terms.
            const double size =
                is_v ? std::fabs(want) : std::max(std::fabs(want), 0.01 * (std::fabs(a) + std::fabs(b)));
            const double step = std::ldexp(1.0, std::ilogb(std::max(size, 1e-30)) - 8);
            const double error = std::fabs(double(bf16_to_float(got)) - want) / step;
            worst = std::max(worst, std::isfinite(error) ? error : 1e30);
          }
        }
      }
      size_t found = 0;
      for (const bf16 x : k_host) found += x != 0xffff ? 1 : 0;
      for (const bf16 x : v_host) found += x != 0xffff ? 1 : 0;
      if (!(worst < 1.05)) fail(("error of " + std::to_string(worst) + " half steps").c_str());
      if (found != written)
        fail(("wrote " + std::to_string(found) + " cache elements, expected " + std::to_string(written)).c_str());
    }
  }
  line("%-46s embed, rms_norm, rope_angles, qk_norm_rope checked", "small ops");
}

void small_times() {
  const int hidden = 4096, heads = 32, kv = 8, row = (heads + 2 * kv) * 128;
  const size_t most = 8192;
  Buffer<float> x(most * size_t(hidden)), qkv(most * size_t(row)), freq(std::vector<float>(64, 0.01f));
  Buffer<float> angles(most * 128);
  Buffer<bf16> y(most * hidden), weight(size_t{hidden}), emb_rows(size_t{1000} * hidden);
  Buffer<bf16> q(most * 4096), k(size_t(300 * kv) * kHeadBlock), v(size_t{300} * kv * kHeadBlock);
  fill(x.data, x.n, 1.0f, 1);
  fill(qkv.data, qkv.n, 1.0f, 2);
  fill(weight.data, weight.n, 1.0f, 3);
  fill(emb_rows.data, emb_rows.n, 1.0f, 4);
  const Table emb(emb_rows, 1000, hidden);
  std::vector<int32_t> zeros(most), positions(most), blocks(300);
  std::iota(positions.begin(), positions.end(), 0);
  std::iota(blocks.begin(), blocks.end(), 0);
  const Buffer<int32_t> d_zero(zeros), d_positions(positions), d_blocks(blocks);
  for (const int n : {1, 8, 64, 256, 8192}) {
    BatchView batch{n, 1, 300, d_zero.data, d_positions.data, d_zero.data, nullptr, d_blocks.data};
    now = "small ops, " + std::to_string(n);
    const double a = time_us(40, [&](int) { cuda::embed({&batch, &emb.weight, x.data}, nullptr, context(true)); });
    const double b = time_us(
        40, [&](int) { cuda::rms_norm({x.data, weight.data, nullptr, n, hidden, 1e-6f, y.data}, context(true)); });
    const double c = time_us(40, [&](int) {
      cuda::qk_norm_rope(
          {&batch, qkv.data, weight.data, weight.data, angles.data, 1e-6f, heads, kv, 128, q.data, {k.data, v.data}},
          context(true));
    });
    const double d =
        time_us(40, [&](int) { cuda::rope_angles({&batch, freq.data, 1.0f, 128, angles.data}, context(true)); });
    line("%5d tokens: embed %6.1f us, rope_angles %6.1f us, rms_norm %6.1f us, qk_norm_rope %6.1f us", n, a, d, b, c);
  }
}

}  // namespace

int main(int argc, char** argv) {
  run_sections(argc, argv, {{"ops", op_checks}, {"small", small_times}});
}

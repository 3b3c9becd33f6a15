// rope_angles and qk_norm_rope together against float64, through the real KV layout.
//
// Tolerance: the norm as in rms_norm_test.cpp (128 elements: 8 + 12 roundings at most), one rounding each of cos and
// sin, two products and a sum, then bfloat16. The angle itself is float32 by definition (as in transformers), so the
// reference rounds it too.
#include "backend/cpu/kv_layout.h"
#include "op_test.h"

namespace qwen3 {
namespace {

using op_test::Random;

struct Case {
  int n_heads, n_kv_heads, n_blocks;
  std::vector<int32_t> positions, seq_of, tables;
  std::vector<float> qkv, inv_freq;
  std::vector<bf16> q_norm, k_norm;
  int max_blocks;
  float rope_scale;
};

struct Output {
  std::vector<bf16> q, k, v;
};

Case make_case(Random& random, int n_heads, int n_kv_heads, const std::vector<std::pair<int, int>>& runs,
               double theta) {
  Case c{};
  c.n_heads = n_heads;
  c.n_kv_heads = n_kv_heads;
  c.rope_scale = 1.0f;
  int last = 0;
  for (const auto& [first, n] : runs) last = std::max(last, first + n);
  c.max_blocks = (last + kBlockSize - 1) / kBlockSize;
  c.tables.assign(runs.size() * static_cast<size_t>(c.max_blocks), 0);
  std::vector<int32_t> used;
  for (size_t s = 0; s < runs.size(); s++) {
    for (int t = 0; t < runs[s].second; t++) {
      const int position = runs[s].first + t;
      c.positions.push_back(position);
      c.seq_of.push_back(static_cast<int32_t>(s));
      int32_t& entry = c.tables[s * static_cast<size_t>(c.max_blocks) + static_cast<size_t>(position / kBlockSize)];
      if (t == 0 || position % kBlockSize == 0) entry = c.n_blocks++;
    }
  }
  const size_t n_tokens = c.positions.size();
  c.qkv = random.normals(n_tokens * static_cast<size_t>(n_heads + 2 * n_kv_heads) * 128, 2.0);
  c.q_norm = random.normals_bf16(128, 0.5, 1.5);
  c.k_norm = random.normals_bf16(128, 0.5, 1.5);
  for (int i = 0; i < 64; i++) c.inv_freq.push_back(static_cast<float>(1.0 / std::pow(theta, i / 64.0)));
  return c;
}

Output run(const cpu::KernelTable& kernels, const Case& c, cpu::ThreadPool& pool) {
  const int n_tokens = static_cast<int>(c.positions.size());
  const size_t pool_size = static_cast<size_t>(c.n_blocks * c.n_kv_heads) * cpu::kHeadBlock;
  Output out{std::vector<bf16>(static_cast<size_t>(n_tokens * c.n_heads) * 128), std::vector<bf16>(pool_size),
             std::vector<bf16>(pool_size)};
  BatchView batch{};
  batch.n_tokens = n_tokens;
  batch.n_seqs = static_cast<int>(c.tables.size()) / c.max_blocks;
  batch.max_blocks = c.max_blocks;
  batch.positions = c.positions.data();
  batch.seq_of = c.seq_of.data();
  batch.block_tables = c.tables.data();
  std::vector<float> angles(c.positions.size() * 128);
  kernels.rope_angles({&batch, c.inv_freq.data(), c.rope_scale, 128, angles.data()}, pool);
  kernels.qk_norm_rope({&batch,
                        c.qkv.data(),
                        c.q_norm.data(),
                        c.k_norm.data(),
                        angles.data(),
                        1e-6f,
                        c.n_heads,
                        c.n_kv_heads,
                        128,
                        out.q.data(),
                        {out.k.data(), out.v.data()}},
                       pool);
  return out;
}

// Elements that are further from float64 than allowed.
int count_wrong(const Case& c, const Output& out) {
  int wrong = 0;
  const int row_heads = c.n_heads + 2 * c.n_kv_heads;
  for (size_t token = 0; token < c.positions.size(); token++) {
    const int position = c.positions[token];
    const int32_t block = c.tables[static_cast<size_t>(c.seq_of[token] * c.max_blocks + position / kBlockSize)];
    const int slot = position % kBlockSize;
    for (int head = 0; head < row_heads; head++) {
      const float* x = c.qkv.data() + (token * static_cast<size_t>(row_heads) + static_cast<size_t>(head)) * 128;
      if (head >= c.n_heads + c.n_kv_heads) {
        const size_t at = static_cast<size_t>(block * c.n_kv_heads + head - c.n_heads - c.n_kv_heads) * cpu::kHeadBlock;
        for (int d = 0; d < 128; d++) {
          if (out.v[at + static_cast<size_t>(cpu::value_offset(slot, d))] != float_to_bf16(x[d])) wrong++;
        }
        continue;
      }
      const bool is_query = head < c.n_heads;
      const std::vector<bf16>& weight = is_query ? c.q_norm : c.k_norm;
      double sum = 0.0;
      for (int d = 0; d < 128; d++) sum += static_cast<double>(x[d]) * x[d];
      const double factor = 1.0 / std::sqrt(sum / 128 + static_cast<double>(1e-6f));
      double y[128];
      for (size_t d = 0; d < 128; d++) y[d] = x[d] * factor * static_cast<double>(bf16_to_float(weight[d]));
      for (int d = 0; d < 128; d++) {
        const double angle = static_cast<float>(position) * c.inv_freq[static_cast<size_t>(d % 64)];
        const double cosine = std::cos(angle) * static_cast<double>(c.rope_scale);
        const double sine = std::sin(angle) * static_cast<double>(c.rope_scale);
        const double exact = d < 64 ? y[d] * cosine - y[d + 64] * sine : y[d] * cosine + y[d - 64] * sine;
        const double size = std::fabs(y[d % 64]) + std::fabs(y[d % 64 + 64]);
        const double before = size * static_cast<double>(c.rope_scale) * (0.5 * 20 + 5 + 4) * 0x1p-24;
        const size_t at = is_query ? (token * static_cast<size_t>(c.n_heads) + static_cast<size_t>(head)) * 128 +
                                         static_cast<size_t>(d)
                                   : static_cast<size_t>(block * c.n_kv_heads + head - c.n_heads) * cpu::kHeadBlock +
                                         static_cast<size_t>(cpu::key_offset(slot, d));
        const double got = bf16_to_float(is_query ? out.q[at] : out.k[at]);
        if (!(std::fabs(got - exact) <= op_test::bf16_tolerance(exact, before))) wrong++;
      }
    }
  }
  return wrong;
}

TEST("qk_norm_rope agrees with float64 for positions up to 262143, several sequences and head counts") {
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    Random random(4);
    cpu::ThreadPool pool(2);
    for (const auto& [n_heads, n_kv_heads] : {std::pair{2, 1}, std::pair{16, 8}, std::pair{10, 2}}) {
      for (const double theta : {1e6, 5e6, 1e4}) {
        Case c = make_case(random, n_heads, n_kv_heads,
                           {{0, 1}, {31, 40}, {40959, 1}, {262080, 64}, {131071, 2}, {1000, 17}}, theta);
        op_test::check_case(count_wrong(c, run(*kernels, c, pool)) == 0, std::string(kernels->name) + ": off");
        c.rope_scale = 1.1386294f;  // YaRN of factor 4
        op_test::check_case(count_wrong(c, run(*kernels, c, pool)) == 0, std::string(kernels->name) + ": YaRN off");
      }
    }
  }
}

TEST("qk_norm_rope has equal bits token by token, in one batch and on any number of threads") {
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    Random random(6);
    const Case c = make_case(random, 8, 4, {{20, 50}, {0, 3}}, 1e6);
    cpu::ThreadPool one(1);
    const Output whole = run(*kernels, c, one);
    for (int threads = 2; threads <= 3; threads++) {
      cpu::ThreadPool pool(threads);
      const Output again = run(*kernels, c, pool);
      op_test::check_case(op_test::same_bits(again.q, whole.q) && op_test::same_bits(again.k, whole.k) &&
                              op_test::same_bits(again.v, whole.v),
                          std::string(kernels->name) + ": threads change bits");
    }
    const size_t row = static_cast<size_t>(c.n_heads + 2 * c.n_kv_heads) * 128;
    for (size_t token = 0; token < c.positions.size(); token++) {
      Case single = c;
      single.positions = {c.positions[token]};
      single.seq_of = {c.seq_of[token]};
      single.qkv.assign(c.qkv.begin() + static_cast<std::ptrdiff_t>(token * row),
                        c.qkv.begin() + static_cast<std::ptrdiff_t>((token + 1) * row));
      const Output alone = run(*kernels, single, one);
      const size_t width = static_cast<size_t>(c.n_heads) * 128;
      op_test::check_case(std::memcmp(alone.q.data(), whole.q.data() + token * width, width * sizeof(bf16)) == 0,
                          std::string(kernels->name) + ": a lone token differs");
    }
  }
}

}  // namespace
}  // namespace qwen3

// attention against float64, and its promise: equal bits for the same query however the step is cut.
//
// Tolerance of one output element, with S = max over keys of sum |q_d k_d| / sqrt(128), n keys and A = sum p |v|:
// a score has at most 130 roundings of S (128 products into one accumulator, the scale, the shift), so a probability is
// off by at most a factor 1 + 2 * 130 * 2^-24 * S (once in p, once in the sum), plus 2^-23 for exp, plus n * 2^-24 from
// adding up n values; then bfloat16 rounds.
#include "backend/cpu/kv_layout.h"
#include "op_test.h"

namespace qwen3 {
namespace {

using op_test::Random;

constexpr size_t kDim = 128;

// Sequences with random q, k, v at every position, k and v in randomly placed blocks; whatever belongs to no position
// is NaN.
struct Problem {
  int n_heads, n_kv_heads, max_blocks;
  std::vector<int> lengths;
  std::vector<std::vector<bf16>> q, k, v;  // per sequence: [length, heads, 128]
  std::vector<bf16> k_pool, v_pool;
  std::vector<int32_t> tables;  // [n sequences, max_blocks]
};

Problem make_problem(Random& random, int n_heads, int n_kv_heads, const std::vector<int>& lengths, double sharpness) {
  Problem p{n_heads, n_kv_heads, 0, lengths, {}, {}, {}, {}, {}, {}};
  int n_blocks = 0;
  for (const int length : lengths) {
    const int blocks = (length + kBlockSize - 1) / kBlockSize;
    n_blocks += blocks;
    p.max_blocks = std::max(p.max_blocks, blocks);
  }
  std::vector<int32_t> order(static_cast<size_t>(n_blocks));
  for (size_t i = 0; i < order.size(); i++) {
    const size_t j = static_cast<size_t>(random.below(static_cast<int>(i) + 1));
    order[i] = order[j];
    order[j] = static_cast<int32_t>(i);
  }
  const size_t pool = static_cast<size_t>(n_blocks * n_kv_heads) * cpu::kHeadBlock;
  p.k_pool.assign(pool, 0x7fc0);
  p.v_pool.assign(pool, 0x7fc0);
  p.tables.assign(lengths.size() * static_cast<size_t>(p.max_blocks), -1);
  size_t next = 0;
  for (size_t s = 0; s < lengths.size(); s++) {
    const size_t n = static_cast<size_t>(lengths[s]);
    p.q.push_back(random.normals_bf16(n * static_cast<size_t>(n_heads) * kDim, sharpness));
    p.k.push_back(random.normals_bf16(n * static_cast<size_t>(n_kv_heads) * kDim, 1.0));
    p.v.push_back(random.normals_bf16(n * static_cast<size_t>(n_kv_heads) * kDim, 1.0));
    for (int position = 0; position < lengths[s]; position++) {
      int32_t& block = p.tables[s * static_cast<size_t>(p.max_blocks) + static_cast<size_t>(position / kBlockSize)];
      if (position % kBlockSize == 0) block = order[next++];
      for (int head = 0; head < n_kv_heads; head++) {
        const size_t from = (static_cast<size_t>(position * n_kv_heads) + static_cast<size_t>(head)) * kDim;
        const size_t base = static_cast<size_t>(block * n_kv_heads + head) * cpu::kHeadBlock;
        const int slot = position % kBlockSize;
        for (int d = 0; d < 128; d++) {
          p.k_pool[base + static_cast<size_t>(cpu::key_offset(slot, d))] = p.k[s][from + static_cast<size_t>(d)];
          p.v_pool[base + static_cast<size_t>(cpu::value_offset(slot, d))] = p.v[s][from + static_cast<size_t>(d)];
        }
      }
    }
  }
  return p;
}

struct Run {
  int sequence, first, n;
};

// One step over the given runs of tokens: [tokens of all runs, n_heads, 128].
std::vector<bf16> attend(const cpu::KernelTable& kernels, Problem& p, const std::vector<Run>& runs,
                         cpu::ThreadPool& pool) {
  std::vector<int32_t> positions, query_start, tables;
  std::vector<bf16> q;
  const size_t width = static_cast<size_t>(p.n_heads) * kDim;
  for (const Run& run : runs) {
    query_start.push_back(static_cast<int32_t>(positions.size()));
    for (int t = 0; t < run.n; t++) positions.push_back(run.first + t);
    const auto& from = p.q[static_cast<size_t>(run.sequence)];
    q.insert(q.end(), from.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(run.first) * width),
             from.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(run.first + run.n) * width));
    const auto table = p.tables.begin() + run.sequence * p.max_blocks;
    tables.insert(tables.end(), table, table + p.max_blocks);
  }
  query_start.push_back(static_cast<int32_t>(positions.size()));
  BatchView batch{};
  batch.n_tokens = static_cast<int>(positions.size());
  batch.n_seqs = static_cast<int>(runs.size());
  batch.max_blocks = p.max_blocks;
  batch.positions = positions.data();
  batch.query_start = query_start.data();
  batch.block_tables = tables.data();
  std::vector<bf16> out(q.size(), 0x7fc0);
  kernels.attention({&batch, q.data(), {p.k_pool.data(), p.v_pool.data()}, p.n_heads, p.n_kv_heads, 128, out.data()},
                    pool);
  return out;
}

// Elements of one token's output [n_heads, 128] that are off.
int count_wrong(const Problem& p, int sequence, int position, const bf16* out) {
  const size_t s = static_cast<size_t>(sequence);
  const size_t n = static_cast<size_t>(position) + 1;
  const size_t heads = static_cast<size_t>(p.n_heads), kv_heads = static_cast<size_t>(p.n_kv_heads);
  int wrong = 0;
  for (size_t head = 0; head < heads; head++) {
    const bf16* q = p.q[s].data() + (static_cast<size_t>(position) * heads + head) * kDim;
    const size_t kv_head = head / (heads / kv_heads);
    std::vector<double> score(n);
    double largest = -1e300, size = 0.0;
    for (size_t key = 0; key < n; key++) {
      const bf16* k = p.k[s].data() + (key * kv_heads + kv_head) * kDim;
      double sum = 0.0, absolute = 0.0;
      for (size_t d = 0; d < kDim; d++) {
        const double product = static_cast<double>(bf16_to_float(q[d])) * static_cast<double>(bf16_to_float(k[d]));
        sum += product;
        absolute += std::fabs(product);
      }
      score[key] = sum / std::sqrt(128.0);
      largest = std::max(largest, score[key]);
      size = std::max(size, absolute / std::sqrt(128.0));
    }
    std::vector<double> exact(kDim, 0.0), absolute(kDim, 0.0);
    double total = 0.0;
    for (size_t key = 0; key < n; key++) {
      const double weight = std::exp(score[key] - largest);
      total += weight;
      const bf16* v = p.v[s].data() + (key * kv_heads + kv_head) * kDim;
      for (size_t d = 0; d < kDim; d++) {
        const double value = static_cast<double>(bf16_to_float(v[d]));
        exact[d] += weight * value;
        absolute[d] += weight * std::fabs(value);
      }
    }
    const double relative = (2 * 130 * size + 2 + static_cast<double>(n)) * 0x1p-24;
    for (size_t d = 0; d < kDim; d++) {
      const double tolerance = op_test::bf16_tolerance(exact[d] / total, absolute[d] / total * relative);
      const double got = bf16_to_float(out[head * kDim + d]);
      if (!(std::fabs(got - exact[d] / total) <= tolerance)) wrong++;
    }
  }
  return wrong;
}

TEST("attention agrees with float64 around block, step and split borders, for every kind of group") {
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    Random random(7);
    for (const auto& [n_heads, n_kv_heads] :
         {std::pair{2, 1}, std::pair{4, 4}, std::pair{5, 1}, std::pair{8, 2}, std::pair{7, 1}, std::pair{64, 1}}) {
      const std::vector<int> lengths = {1, 2, 31, 32, 33, 63, 64, 65, 511, 512, 513, 1025};
      Problem p = make_problem(random, n_heads, n_kv_heads, lengths, 1.5);
      cpu::ThreadPool pool(1 + random.below(3));
      std::vector<Run> runs;
      for (size_t s = 0; s < lengths.size(); s++) {  // decode of each, prefills of the tails
        const int n = random.below(2) == 0 ? 1 : std::min(lengths[s], 1 + random.below(70));
        runs.push_back({static_cast<int>(s), lengths[s] - n, n});
      }
      const std::vector<bf16> out = attend(*kernels, p, runs, pool);
      const size_t width = static_cast<size_t>(n_heads) * kDim;
      size_t token = 0;
      int wrong = 0;
      for (const Run& run : runs) {
        for (int t = 0; t < run.n; t++, token++) {
          if (t % 7 != 0 && t != run.n - 1) continue;  // the reference is slow
          wrong += count_wrong(p, run.sequence, run.first + t, out.data() + token * width);
        }
      }
      op_test::check_case(wrong == 0, std::string(kernels->name) + " heads " + std::to_string(n_heads) + ": " +
                                          std::to_string(wrong) + " elements are off");
    }
  }
}

TEST("attention is exact when one key has all the weight, and with scores of +-1000") {
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    Random random(8);
    Problem p = make_problem(random, 2, 1, {700}, 100.0);
    cpu::ThreadPool pool(2);
    const std::vector<bf16> out = attend(*kernels, p, {{0, 600, 100}}, pool);
    int wrong = 0;
    for (int t = 0; t < 100; t += 9)
      wrong += count_wrong(p, 0, 600 + t, out.data() + static_cast<size_t>(t) * 2 * kDim);
    op_test::check_case(wrong == 0, std::string(kernels->name) + ": " + std::to_string(wrong) + " elements are off");
  }
}

TEST("attention gives a query equal bits in decode, any chunking, any company and any number of threads") {
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    Random random(9);
    for (const auto& [n_heads, n_kv_heads] : {std::pair{2, 1}, std::pair{8, 2}, std::pair{5, 1}}) {
      const std::vector<int> lengths = {1100, 77, 540};
      Problem p = make_problem(random, n_heads, n_kv_heads, lengths, 1.0);
      const size_t width = static_cast<size_t>(n_heads) * kDim;
      cpu::ThreadPool one(1);
      std::vector<std::vector<bf16>> whole;  // each sequence alone in one step
      for (int s = 0; s < 3; s++) whole.push_back(attend(*kernels, p, {{s, 0, lengths[static_cast<size_t>(s)]}}, one));
      const auto same = [&](const std::vector<Run>& runs, cpu::ThreadPool& pool) {
        const std::vector<bf16> out = attend(*kernels, p, runs, pool);
        size_t token = 0;
        for (const Run& run : runs) {
          const size_t n = static_cast<size_t>(run.n);
          const bf16* expected =
              whole[static_cast<size_t>(run.sequence)].data() + static_cast<size_t>(run.first) * width;
          if (std::memcmp(out.data() + token * width, expected, n * width * sizeof(bf16)) != 0) return false;
          token += n;
        }
        return true;
      };
      for (int threads = 1; threads <= 3; threads++) {
        cpu::ThreadPool pool(threads);
        const std::string name =
            std::string(kernels->name) + " heads " + std::to_string(n_heads) + " threads " + std::to_string(threads);
        for (const int position : {0, 1, 31, 32, 33, 64, 511, 512, 513, 575, 1023, 1024, 1099}) {
          op_test::check_case(same({{0, position, 1}}, pool), name + ": decode at " + std::to_string(position));
        }
        for (const int chunk : {1100, 512, 333, 100}) {
          for (int first = 0; first < 1100; first += chunk) {
            const int n = std::min(chunk, 1100 - first);
            op_test::check_case(same({{0, first, n}}, pool), name + ": chunk of " + std::to_string(chunk));
          }
        }
        for (int trial = 0; trial < 12; trial++) {
          std::vector<Run> runs;
          for (int s = 0; s < 3; s++) {
            if (random.below(4) == 0) continue;
            const int length = lengths[static_cast<size_t>(s)];
            const int first = random.below(length);
            runs.push_back({s, first, random.below(2) == 0 ? 1 : 1 + random.below(std::min(length - first, 90))});
          }
          if (!runs.empty()) op_test::check_case(same(runs, pool), name + ": mixed step");
        }
      }
    }
  }
}

}  // namespace
}  // namespace qwen3

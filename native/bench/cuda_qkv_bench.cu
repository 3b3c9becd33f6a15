// Checks and times qkv_proj fused with head norm, RoPE and the KV write (Hopper). Stand-alone: links qkv_hopper.cu,
// qk_norm_rope.cu, rope_angles.cu, linear*.cu, tensor_map.cu and memory.cu.
//
//   cuda_qkv_bench        checks, then times
//
// Check: q and the whole KV pools, poisoned before, against linear_generic and qk_norm_rope, bit for bit: sequences
// that start anywhere in a block, shuffled blocks, rows of padding, odd numbers of heads. Times: the fused kernel
// against linear_hopper and qk_norm_rope, short bursts over rotating weights.
#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "backend/cuda/kernels.h"
#include "backend/cuda/kv_layout.h"
#include "backend/cuda/linear_kernels.h"
#include "base/bf16.h"
#include "cuda_bench.h"

using namespace qwen3;
using namespace qwen3::cuda;
using namespace bench;

namespace {

std::mt19937 rng(1);

template <class T>
T* upload(const std::vector<T>& values) {
  T* p = allocate<T>(values.size());
  ok(cudaMemcpy(p, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}
std::vector<bf16> random_bf16(size_t n, float deviation) {
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<bf16> some(std::min<size_t>(n, 1 << 20)), values(n);
  for (bf16& x : some) x = float_to_bf16(normal(rng));
  for (size_t i = 0; i < n; i++) values[i] = some[(i * 2654435761u >> 3) % some.size()];
  return values;
}

struct Case {
  int n_heads, n_kv_heads, hidden;
  std::vector<int> lengths;  // new tokens of each sequence
  int n_padding;
};

// Device memory of one case, never freed: the process is short.
struct Batch {
  BatchView view{};
  SelfAttentionArgs args{};
  LinearWeight weight;
  size_t pool;  // elements of k, of v

  explicit Batch(const Case& c, int n_weights = 1) {
    const int n_tokens = std::accumulate(c.lengths.begin(), c.lengths.end(), 0) + c.n_padding;
    const int n_seqs = static_cast<int>(c.lengths.size());
    std::vector<int32_t> positions, seq_of;
    std::vector<int> starts;
    int max_blocks = 1;
    for (int s = 0; s < n_seqs; s++) {
      starts.push_back(static_cast<int>(rng() % 77));
      const int end = starts.back() + c.lengths[static_cast<size_t>(s)];
      for (int p = starts.back(); p < end; p++) {
        positions.push_back(p);
        seq_of.push_back(s);
      }
      max_blocks = std::max(max_blocks, (end + kBlockSize - 1) / kBlockSize);
    }
    positions.resize(static_cast<size_t>(n_tokens), 0);
    seq_of.resize(static_cast<size_t>(n_tokens), -1);
    std::vector<int32_t> tables(static_cast<size_t>(n_seqs * max_blocks));
    std::iota(tables.begin(), tables.end(), 0);
    std::shuffle(tables.begin(), tables.end(), rng);
    view.n_tokens = n_tokens;
    view.n_seqs = n_seqs;
    view.max_blocks = max_blocks;
    view.positions = upload(positions);
    view.seq_of = upload(seq_of);
    view.block_tables = upload(tables);

    const int n_out = (c.n_heads + 2 * c.n_kv_heads) * kHeadDim;
    pool = tables.size() * static_cast<size_t>(c.n_kv_heads) * kHeadBlock;
    weight.n_out = n_out;
    weight.n_in = c.hidden;
    weight.n_parts = 1;
    const size_t elements = packed_bytes(n_out, c.hidden, LinearLayout::kConcat) / sizeof(bf16);
    weight.parts[0] = {upload(random_bf16(elements * static_cast<size_t>(n_weights), 0.02f)), n_out};
    std::vector<float> inv_freq(kHeadDim / 2);
    for (size_t i = 0; i < inv_freq.size(); i++) inv_freq[i] = std::pow(1e6f, -static_cast<float>(i) / 64.0f);
    const size_t rows = static_cast<size_t>(n_tokens);
    args.batch = &view;
    args.x = upload(random_bf16(rows * static_cast<size_t>(c.hidden), 1.0f));
    args.qkv_proj = &weight;
    args.q_norm = upload(random_bf16(kHeadDim, 1.0f));
    args.k_norm = upload(random_bf16(kHeadDim, 1.0f));
    float* angles = upload(std::vector<float>(rows * kHeadDim));
    args.angles = angles;
    args.eps = 1e-6f;
    args.n_heads = c.n_heads;
    args.n_kv_heads = c.n_kv_heads;
    args.head_dim = kHeadDim;
    args.qkv = upload(std::vector<float>(rows * static_cast<size_t>(n_out)));
    args.q = upload(std::vector<bf16>(rows * static_cast<size_t>(c.n_heads) * kHeadDim));
    args.kv = {upload(std::vector<bf16>(pool)), upload(std::vector<bf16>(pool))};
    angles_args = {&view, upload(inv_freq), 1.0f, kHeadDim, angles};
  }
  RopeAnglesArgs angles_args{};
};

void separate(const SelfAttentionArgs& a, const Context& ctx, bool generic) {
  LinearCall call = make_linear_call(LinearMode::kStore, a.x, a.batch->n_tokens, *a.qkv_proj);
  call.out = a.qkv;
  if (generic) {
    linear_generic(call, ctx);
  } else {
    linear_hopper(call, ctx);
  }
  qk_norm_rope(rope_part(a), ctx);
}

int check(const Case& c, const Context& ctx) {
  now = "check of " + std::to_string(c.hidden);
  Batch b(c);
  rope_angles(b.angles_args, ctx);
  const size_t n_q = static_cast<size_t>(b.view.n_tokens) * static_cast<size_t>(c.n_heads) * kHeadDim;
  std::vector<bf16> results[2][3];
  for (const bool fused : {false, true}) {
    for (const auto& [p, n] :
         {std::pair{b.args.q, n_q}, std::pair{b.args.kv.k, b.pool}, std::pair{b.args.kv.v, b.pool}})
      ok(cudaMemsetAsync(p, 0xCD, n * sizeof(bf16), stream));
    if (fused) {
      qkv_hopper(b.args, ctx);
    } else {
      separate(b.args, ctx, true);
    }
    finish();
    int i = 0;
    for (const auto& [p, n] :
         {std::pair{b.args.q, n_q}, std::pair{b.args.kv.k, b.pool}, std::pair{b.args.kv.v, b.pool}}) {
      results[fused][i].resize(n);
      ok(cudaMemcpy(results[fused][i++].data(), p, n * sizeof(bf16), cudaMemcpyDeviceToHost));
    }
  }
  int bad = 0;
  const char* names[] = {"q", "k", "v"};
  for (int i = 0; i < 3; i++) {
    size_t n = 0, first = 0, poison = 0;
    for (size_t at = results[0][i].size(); at-- > 0;) {
      poison += results[0][i][at] == 0xCDCD;
      if (results[0][i][at] == results[1][i][at]) continue;
      n++;
      first = at;
    }
    if (n == 0 && poison < results[0][i].size()) continue;
    std::printf("BITS DIFFER: heads %d/%d hidden %d tokens %d: %s: %zu of %zu, first %zu\n", c.n_heads, c.n_kv_heads,
                c.hidden, b.view.n_tokens, names[i], n, results[0][i].size(), first);
    bad = 1;
  }
  return bad;
}

double best_us(int n, const std::function<void(int)>& run) {
  double best = 1e30;
  for (int round = 0; round < 4; round++) {
    usleep(20000);
    const double us = elapsed_us([&] {
      for (int i = 0; i < n; i++) run(i);
    });
    best = std::min(best, us / n);
  }
  return best;
}

void time(int n_tokens, const Context& ctx) {
  constexpr int kWeights = 6;
  now = std::to_string(n_tokens) + " tokens";
  Batch b({32, 8, 4096, {n_tokens / 2, n_tokens - n_tokens / 2}, 0}, kWeights);
  rope_angles(b.angles_args, ctx);
  const bf16* weights = b.weight.parts[0].data;
  const size_t elements = packed_bytes(b.weight.n_out, b.weight.n_in, LinearLayout::kConcat) / sizeof(bf16);
  const auto turn = [&](int i) { b.weight.parts[0].data = weights + static_cast<size_t>(i % kWeights) * elements; };
  const int n = std::max(4, 32768 / n_tokens);
  const double two = best_us(n, [&](int i) {
    turn(i);
    separate(b.args, ctx, false);
  });
  const double one = best_us(n, [&](int i) {
    turn(i);
    qkv_hopper(b.args, ctx);
  });
  std::printf("%5d tokens of 8B: qkv_proj and qk_norm_rope %7.1f us, fused %7.1f us, %.2f; chosen: %s\n", n_tokens, two,
              one, two / one, qkv_hopper_serves(b.args, ctx) ? "fused" : "two kernels");
}

}  // namespace

int main() {
  const cudaDeviceProp properties = open_device();
  if (properties.major != 9) {
    std::printf("for Hopper only\n");
    return 0;
  }
  const Context ctx = context(true);
  const Case cases[] = {{32, 8, 4096, {700}, 0},      {32, 8, 4096, {1, 130, 33, 512, 7}, 9},
                        {16, 8, 1024, {2048, 51}, 1}, {40, 8, 5120, {600}, 3},
                        {3, 1, 640, {129, 200}, 0},   {2, 2, 256, {5}, 0},
                        {8, 4, 320, {64, 64}, 77}};
  int bad = 0;
  for (const Case& c : cases) bad += check(c, ctx);
  std::printf("check: %zu cases, %d bad\n", std::size(cases), bad);
  for (const int n : {512, 1024, 2048, 4096, 8192}) time(n, ctx);
  return bad != 0;
}

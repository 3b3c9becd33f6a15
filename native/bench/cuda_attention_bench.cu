// Checks and times the CUDA attention, the small ops and the sampler. Stand-alone: links attention*.cu,
// rope_angles.cu, qk_norm_rope.cu, rms_norm.cu, embed.cu, pack.cu, sample*.cu and memory.cu.
//
//   cuda_attention_bench [probe] [budget] [attention] [long] [step] [ops] [sample] [decode] [prefill] [small] (none:
//   all)
//
// probe: what wgmma makes of the strides of a transposed operand without swizzle.
// budget: cycles of what a step of attention_hopper consists of, by one, two and three warpgroups.
// attention: one logical sequence computed as one prefill by the generic kernel is checked against float64; every other
//   way to compute the same queries (Hopper, chunks, decode, splits or whole, mixed batches over poisoned pools) must
//   give the same bits. long: the same near position 32,768. step: attention_step, from qkv, against qk_norm_rope and
//   the generic attention: outputs and KV pools to the last bit.
// ops, sample: against plain host code in float64. decode, prefill, small: times in a graph over rotating data.
#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "backend/cuda/attention.h"
#include "backend/cuda/attention_wgmma.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/kv_layout.h"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/sample.h"
#include "base/bf16.h"
#include "base/random.h"
#include "cuda_bench.h"

// Rows and batches name only the fields that differ from the defaults.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

using namespace qwen3;
using namespace qwen3::cuda;
using namespace bench;

namespace {

constexpr double kBandwidth = 4.5e12;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
int sm_count;
int failures = 0;

template <class... A>
void line(const char* format, A... args) {
  char text[400];
  std::snprintf(text, sizeof text, format, args...);
  table += std::string(text) + "\n";
}
void fail(const char* what) {
  failures++;
  if (failures <= 60) std::printf("FAIL %s: %s\n", now.c_str(), what);
}

template <class T>
struct Buffer {
  T* data = nullptr;
  size_t n = 0;
  explicit Buffer(size_t count) : n(count) {
    ok(cudaMalloc(&data, std::max<size_t>(count, 64) * sizeof(T)));
    ok(cudaMemsetAsync(data, 0, std::max<size_t>(count, 64) * sizeof(T), stream));
  }
  explicit Buffer(const std::vector<T>& host) : Buffer(host.size()) {
    ok(cudaMemcpyAsync(data, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice, stream));
    finish();
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() {
    finish();
    ok(cudaFree(data));
  }
  void poison() { ok(cudaMemsetAsync(data, 0xff, n * sizeof(T), stream)); }
  void zero() { ok(cudaMemsetAsync(data, 0, n * sizeof(T), stream)); }
  std::vector<T> host() const {
    std::vector<T> out(n);
    ok(cudaMemcpyAsync(out.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost, stream));
    finish();
    return out;
  }
};

Context context(bool hopper, bool pdl = true) {
  return {stream, sm_count, hopper, pdl};
}

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

__device__ float normal(uint64_t i, uint64_t salt) {
  const uint64_t a = mix_bits((i + 1) * 0x9e3779b97f4a7c15u + salt);
  const float u = (static_cast<float>(a >> 40) + 0.5f) * 0x1p-24f;
  const float v = static_cast<float>(a & 0xffffff) * 0x1p-24f;
  return sqrtf(-2.0f * logf(u)) * cosf(6.2831853f * v);
}
__device__ bf16 to_bf16(float x) {
  const uint32_t bits = __float_as_uint(x);
  return static_cast<bf16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
__device__ double from_bf16(bf16 x) {
  return static_cast<double>(__uint_as_float(static_cast<uint32_t>(x) << 16));
}
__global__ void fill_bf16(bf16* p, size_t n, float scale, uint64_t salt) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n;
       i += size_t{gridDim.x} * blockDim.x)
    p[i] = to_bf16(normal(i, salt) * scale);
}
__global__ void fill_float(float* p, size_t n, float scale, uint64_t salt) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n;
       i += size_t{gridDim.x} * blockDim.x)
    p[i] = normal(i, salt) * scale;
}
void fill(bf16* p, size_t n, float scale, uint64_t salt) {
  fill_bf16<<<1024, 256, 0, stream>>>(p, n, scale, salt);
}
void fill(float* p, size_t n, float scale, uint64_t salt) {
  fill_float<<<1024, 256, 0, stream>>>(p, n, scale, salt);
}

// ---------------------------------------------------------------- probe
#if QWEN3_SM90A
#define P4(x, j) "+f"(x[j]), "+f"(x[j + 1]), "+f"(x[j + 2]), "+f"(x[j + 3])
#define P16(x, j) P4(x, j), P4(x, j + 4), P4(x, j + 8), P4(x, j + 12)
#endif
constexpr int kProbeBytes = 40 * 1024;
// v [16 keys][128] as core matrices [key group 2][d chunk 16][8][8]; p = row r, key k: ((r * 7 + k * 3) % 5) - 2.
__global__ void probe_kernel(float* out, int leading, int stride) {
#if QWEN3_SM90A
  extern __shared__ __align__(1024) bf16 v[];  // wrong strides read far beyond the operand
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kProbeBytes / 2; i += 128) v[i] = 0;
  __syncthreads();
  for (int i = thread; i < 16 * 128; i += 128)
    v[kv_offset(i / 128, i % 128)] = to_bf16(static_cast<float>(i % 61 - 30));
  const int row = thread / 32 * 16 + thread % 32 / 4;
  const int c = thread % 4 * 2;
  const auto value = [](int r, int k) {
    return static_cast<uint32_t>(to_bf16(static_cast<float>((r * 7 + k * 3) % 5 - 2)));
  };
  const auto pair = [&](int r, int k) { return value(r, k) | value(r, k + 1) << 16; };
  const uint32_t p[4] = {pair(row, c), pair(row + 8, c), pair(row, c + 8), pair(row + 8, c + 8)};
  float o[64] = {};
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const uint64_t descriptor = static_cast<uint64_t>((shared_address(v) & 0x3FFFF) >> 4) |
                              static_cast<uint64_t>(leading >> 4) << 16 | static_cast<uint64_t>(stride >> 4) << 32;
  wgmma_fence();
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" QWEN3_L64
               "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
               : P16(o, 0), P16(o, 16), P16(o, 32), P16(o, 48)
               : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(descriptor)
               : "memory");
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_results(o);
  for (int i = 0; i < 64; i++) out[(row + 8 * (i / 2 % 2)) * 128 + 8 * (i / 4) + c + i % 2] = o[i];
#endif
}
void probe() {
  now = "probe";
  for (int swap = 0; swap < 2; swap++) {
    Buffer<float> out(64 * 128);
    out.poison();
    probe_kernel<<<1, 128, kProbeBytes, stream>>>(out.data, swap == 0 ? 2048 : 128, swap == 0 ? 128 : 2048);
    const std::vector<float> got = out.host();
    int wrong = 0;
    for (int r = 0; r < 64; r++) {
      for (int d = 0; d < 128; d++) {
        float want = 0;
        for (int k = 0; k < 16; k++) want += static_cast<float>(((r * 7 + k * 3) % 5 - 2) * ((k * 128 + d) % 61 - 30));
        wrong += got[static_cast<size_t>(r * 128 + d)] == want ? 0 : 1;
      }
    }
    line("probe: values operand, leading %d stride %d: %s (%d of 8192 wrong)%s", swap == 0 ? 2048 : 128,
         swap == 0 ? 128 : 2048, wrong == 0 ? "right" : "WRONG", wrong, swap == 0 ? " <- used" : "");
  }
}

// ---------------------------------------------------------------- budget
// A step of 64 rows x 64 keys, again and again, of as many warpgroups as the block has, each with its own queries and
// all with the same keys and values (zeros). cycles: of block 0.
enum Part { kScores, kValues, kProducts, kSoftmax };
constexpr int kBudgetBytes = (3 + 2) * 64 * 128 * 2;
constexpr int kBudgetSteps = 4096;
template <Part kPart>
__global__ void __launch_bounds__(384, 1) budget_kernel(int64_t* cycles) {
#if QWEN3_SM90A
  extern __shared__ __align__(1024) uint8_t shared[];
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kBudgetBytes / 16; i += static_cast<int>(blockDim.x))
    reinterpret_cast<uint4*>(shared)[i] = make_uint4(0, 0, 0, 0);
  fence_to_copy_engine();
  __syncthreads();
  const int group = __shfl_sync(0xffffffffu, thread / 128, 0);
  const uint32_t base = shared_address(shared);
  const uint64_t q = descriptor(base + group * 16384, 128, 2048);
  const uint64_t k = descriptor(base + 3 * 16384, 128, 2048);
  const uint64_t v = descriptor(base + 4 * 16384, 2048, 128);
  float s[8][4] = {}, o[16][4] = {}, m[2] = {}, l[2][4] = {}, alpha[2];
  uint32_t a[4][4] = {};
  const int64_t start = clock64();
#pragma unroll 1
  for (int step = 0; step < kBudgetSteps; step++) {
    if constexpr (kPart == kSoftmax) {
      results(s);
      softmax_step<false>(s, 0.1f, 0, 0, 0, m, l, alpha);
      rescale(o, alpha);
#pragma unroll
      for (int t = 0; t < 4; t++) {
        uint32_t p[4];
        pack_fragment(s[2 * t], s[2 * t + 1], p);
#pragma unroll
        for (int i = 0; i < 4; i++) a[t][i] ^= p[i];
      }
    } else {
      wgmma_fence();
#pragma unroll
      for (int i = 0; kPart != kValues && i < 8; i++) wgmma_scores(s, q + i * 16, k + i * 16, i == 0 ? 0 : 1);
#pragma unroll
      for (int t = 0; kPart != kScores && t < 4; t++) wgmma_values(o, a[t], v + t * 256, 1);
      wgmma_commit();
      wgmma_wait<0>();
      results(s);
      results(o);
    }
  }
  const int64_t end = clock64();
  float used = l[0][0] + l[1][3] + __uint_as_float(a[0][0] ^ a[1][1] ^ a[2][2] ^ a[3][3]);  // or all of it is dropped
#pragma unroll
  for (int i = 0; i < 64; i++) used += o[i / 4][i % 4] + s[i / 4 % 8][i % 4];
  if (used == -1.0f) *cycles = 0;
  if (blockIdx.x == 0 && thread == 0) *cycles = end - start;
#endif
}
template <Part kPart>
void budget(const char* name) {
  now = std::string("budget, ") + name;
  ok(cudaFuncSetAttribute(budget_kernel<kPart>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBudgetBytes));
  double each[3];
  for (int groups = 1; groups <= 3; groups++) {
    Buffer<int64_t> cycles(1);
    budget_kernel<kPart><<<unsigned(sm_count), unsigned(groups * 128), kBudgetBytes, stream>>>(cycles.data);
    each[groups - 1] = double(cycles.host()[0]) / kBudgetSteps / groups;
  }
  line("budget %-22s cycles per step and warpgroup: %5.0f alone, %5.0f of two, %5.0f of three", name, each[0], each[1],
       each[2]);
}
void budgets() {
  budget<kScores>("Q K");
  budget<kValues>("P V");
  budget<kProducts>("Q K and P V");
  budget<kSoftmax>("softmax");
}

// ---------------------------------------------------------------- attention: checks
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
    for (int d = 0; d < 128; d++) s += from_bf16(qr[d]) * from_bf16(kr[d]);
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

AttentionWorkspace workspace(size_t bytes) {
  static Buffer<float> partials(kAttentionWorkspaceBytes / 4);
  static Buffer<int32_t> counters(1 << 15);
  partials.poison();
  return {partials.data, bytes, counters.data, 1 << 15};
}

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
  const BatchHost host{n_tokens, n_seqs, host_start.data(), max_context + options.extra_context};
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

// ---------------------------------------------------------------- a decode step from qkv
// A batch of one new token each at the given positions (-1: padding), over blocks with random keys and values up to the
// new token, NaN after it.
struct Step {
  int heads, kv, n, max_blocks;
  std::vector<int32_t> start;
  Buffer<float> qkv, angles;
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
        qkv(at.size() * size_t(n_heads + 2 * n_kv) * 128),
        angles(at.size() * 128),
        q_norm(128),
        k_norm(128),
        q(at.size() * size_t(n_heads) * 128) {
    fill(qkv.data, qkv.n, 2.0f, salt);
    fill(angles.data, angles.n, 0.7f, salt + 1);
    fill(q_norm.data, 128, 1.0f, salt + 2);
    fill(k_norm.data, 128, 1.0f, salt + 3);
    int n_blocks = 1;
    for (const int p : at) max_context = std::max(max_context, p + 1), n_blocks += p < 0 ? 0 : p / kBlockSize + 1;
    max_blocks = (max_context + kBlockSize - 1) / kBlockSize + extra_blocks;
    max_context = max_blocks * kBlockSize;
    std::vector<int32_t> ids(size_t(n_blocks) - 1), table(size_t(n) * size_t(max_blocks), 0), of, place;
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
  for (const int group : {4, 2, 1, 5, 8, 16}) {
    std::vector<int> padded = edges;
    padded.insert(padded.end(), 6, -1);
    cases.push_back({"edges", padded, 2 * group, 2, 5});
    for (const int p : edges)
      if (group == 4 || p % 3 == 0) cases.push_back({"alone", {p}, 2 * group, 2});
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
    const BatchHost host{step.n, step.n, step.start.data(), step.max_context};
    const size_t width = size_t(c.heads) * 128;
    std::vector<bf16> expected[3];
    for (int way = 0; way < 3; way++) {  // generic; fused; fused without room for states
      Buffer<bf16> k(step.pool), v(step.pool), out(size_t(step.n) * width + 1024);
      out.poison();
      AttentionWorkspace w = workspace(kAttentionWorkspaceBytes);
      if (way == 2) w.bytes = 0;
      const SelfAttentionArgs a = step.args(k.data, v.data, out.data);
      if (way == 0) {
        cuda::qk_norm_rope({a.batch, a.qkv, a.q_norm, a.k_norm, a.angles, a.eps, c.heads, c.kv, 128, a.q, a.kv},
                           context(false));
        cuda::attention({a.batch, a.q, a.kv, c.heads, c.kv, 128, a.out}, host, w, context(false));
      } else {
        cuda::attention_step(a, host, w, context(true));
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

// ---------------------------------------------------------------- the small ops
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

// ---------------------------------------------------------------- sampling
struct Expected {
  int token = -1;
  bool finite = true;
  double logprob = 0;
  std::vector<int> top;
};

Expected expect_sample(const SampleRow& row, const float* logits, int vocab, int n) {
  Expected e;
  double highest = -kInf;
  bool any = false;
  for (int i = 0; i < vocab; i++) {
    if (std::isnan(logits[i]) || logits[i] == kInf) e.finite = false;
    highest = std::max(highest, double(logits[i]));
    any |= i < n && logits[i] > -kInf;
  }
  if (!any) e.finite = false;
  if (!e.finite) return e;
  std::vector<float> z(logits, logits + n);
  const float big = std::numeric_limits<float>::max();
  const auto clamp = [big](float x) { return std::min(std::max(x, -big), big); };
  const bool penalties =
      row.repetition_penalty != 1.0f || row.presence_penalty != 0.0f || row.frequency_penalty != 0.0f;
  if (row.target < 0) {
    if (!row.mask.empty())
      for (int i = 0; i < n; i++)
        if (size_t(i / 32) >= row.mask.size() || (row.mask[size_t(i / 32)] >> (i % 32) & 1u) == 0) z[size_t(i)] = -kInf;
    for (const TokenBias& b : row.bias)
      if (b.token >= 0 && b.token < n) {
        float& x = z[size_t(b.token)];
        x = b.bias == -kInf || x == -kInf ? -kInf : clamp(x + b.bias);
      }
    for (const int32_t t : row.forbidden)
      if (t >= 0 && t < n) z[size_t(t)] = -kInf;
    if (penalties)
      for (const TokenCount& c : row.history)
        if (c.token >= 0 && c.token < n && z[size_t(c.token)] != -kInf) {
          float& x = z[size_t(c.token)];
          x = x > 0 ? x / row.repetition_penalty : x * row.repetition_penalty;
          if (c.in_output > 0) x -= row.presence_penalty + row.frequency_penalty * static_cast<float>(c.in_output);
          x = clamp(x);
        }
  }
  const auto ordered = [n](const float* values) {
    std::vector<int> ids;
    for (int i = 0; i < n; i++)
      if (values[i] > -kInf) ids.push_back(i);
    std::sort(ids.begin(), ids.end(),
              [&](int a, int b) { return values[a] > values[b] || (values[a] == values[b] && a < b); });
    return ids;
  };
  if (row.target >= 0) {
    e.token = row.target;
  } else {
    std::vector<int> ids = ordered(z.data());
    if (ids.empty()) {
      e.finite = false;
      return e;
    }
    const double t = double(row.temperature);
    if (!(t > 0)) {
      e.token = ids[0];
    } else {
      const float best = z[size_t(ids[0])];
      if (row.min_p > 0) {
        const double limit = double(best) + t * std::log(std::min(1.0, double(row.min_p)));
        while (ids.size() > 1 && double(z[size_t(ids.back())]) < limit) ids.pop_back();
      }
      if (row.top_k > 0 && size_t(row.top_k) < ids.size()) ids.resize(size_t(row.top_k));
      if (row.top_p < 1) {
        std::vector<uint64_t> weights;
        uint64_t total = 0;
        for (const int id : ids) {
          weights.push_back(uint64_t(std::exp(-(best - z[size_t(id)]) / row.temperature) * 0x1p40f));
          total += weights.back();
        }
        uint64_t target = std::max<uint64_t>(1, uint64_t(std::ceil(std::max(0.0, double(row.top_p)) * double(total))));
        size_t keep = 0;
        for (uint64_t sum = 0; keep < ids.size() && sum < target;) sum += weights[keep++];
        ids.resize(keep);
      }
      double best_score = -kInf;
      std::sort(ids.begin(), ids.end());
      for (const int id : ids) {
        const double v = noise_uniform(noise_bits(noise_key(row.seed, row.position), uint32_t(id)));
        const double score = (double(z[size_t(id)]) - double(best)) / t - std::log(-std::log1p(-v));
        if (score > best_score) best_score = score, e.token = id;
      }
    }
  }
  double sum = 0;
  for (int i = 0; i < vocab; i++) sum += std::exp(double(logits[i]) - highest);
  const double log_sum = highest + std::log(sum);
  e.logprob = double(logits[e.token]) - log_sum;
  if (row.n_top > 0) {
    e.top = ordered(logits);
    e.top.resize(std::min<size_t>(e.top.size(), size_t(std::min(row.n_top, 20))));
  }
  return e;
}

struct Sampler {
  int n_rows, vocab, n;
  Buffer<char> memory;
  Buffer<std::byte> staging;
  Buffer<int32_t> last;
  SampleResult* results = nullptr;
  SampleNeeds needs;

  Sampler(std::span<const SampleRow> rows, int vocab_size, int n_ids)
      : n_rows(int(rows.size())),
        vocab(vocab_size),
        n(n_ids),
        memory(sample_workspace_bytes(int(rows.size()), vocab_size)),
        staging(sample_staging_bytes(rows, rows.size())),
        last(rows.size()) {
    memory.poison();
    std::vector<std::byte> host(staging.n + 16);
    ok(cudaMallocHost(&results, rows.size() * sizeof(SampleResult)));
    std::memset(static_cast<void*>(results), 0xff, rows.size() * sizeof(SampleResult));
    needs = stage_sample_rows(rows, rows.size(), results, host.data(), staging.data);
    ok(cudaMemcpyAsync(staging.data, host.data(), staging.n, cudaMemcpyHostToDevice, stream));
    finish();
  }
  ~Sampler() { ok(cudaFreeHost(results)); }
  void run(const float* logits) {
    cuda::sample({logits, vocab, n, n_rows, reinterpret_cast<const SampleRowDevice*>(staging.data), needs, last.data,
                  memory.data, n_rows},
                 context(true));
  }
};

void sample_checks() {
  int checked = 0;
  for (const int vocab : {151936, 1000, 37}) {
    const int n = vocab == 151936 ? 151669 : vocab - 3;
    std::vector<SampleRow> rows;
    std::vector<float> logits;
    Buffer<float> random(size_t(vocab) * 8);
    fill(random.data, random.n, 2.5f, 99);
    const std::vector<float> pool = random.host();
    std::vector<TokenBias> bias = {{3, 4.0f}, {7, -kInf}, {3, 1.5f}, {n + 1, 3.0f}, {20, 100.0f}, {20, -99.0f}};
    std::vector<TokenCount> history;
    for (int i = 0; i < std::min(n, 3000); i += 3) history.push_back({i, i % 4});
    std::vector<int32_t> forbidden = {1, 2, 11, n + 2};
    std::vector<uint32_t> mask(size_t((n + 31) / 32));
    for (size_t i = 0; i < mask.size(); i++) mask[i] = uint32_t(mix_bits(i + 5));
    std::vector<uint32_t> short_mask = {0x80000005u};
    const auto add = [&](const SampleRow& row, int kind) {
      rows.push_back(row);
      const size_t from = logits.size();
      const size_t source = rows.size() % 8 * size_t(vocab);
      logits.insert(logits.end(), pool.begin() + int64_t(source), pool.begin() + int64_t(source + size_t(vocab)));
      float* z = logits.data() + from;
      if (kind == 1) std::fill(z, z + vocab, 1.25f);  // all equal
      if (kind == 2) z[vocab / 2] = kNan;
      if (kind == 3) std::fill(z, z + vocab, -kInf);
      if (kind == 4) std::fill(z, z + n, -kInf);  // only ids without a token
      if (kind == 5) std::fill(z, z + vocab, -kInf), z[17] = 2.0f, z[18] = 1.0f, z[25] = 1.0f;
      if (kind == 6)
        for (int i = 0; i < vocab; i++) z[i] = std::round(z[i] * 2.0f) / 2.0f;  // many equals
      if (kind == 7) z[vocab - 1] = 30.0f;                                      // the highest has no token
      if (kind == 8)
        for (int i = 0; i < vocab; i++) z[i] *= 1e30f;
      if (kind == 9) z[5] = kInf;
      if (kind == 10)
        for (int i = 0; i < vocab; i++) z[i] *= 0.01f;  // flat
    };
    for (int kind = 0; kind <= 10; kind++) add({.logprob = true, .n_top = 20}, kind);
    uint64_t seed = 1;
    for (const int kind : {0, 1, 5, 6, 7, 8, 10}) {
      for (const float temperature : {1.0f, 0.6f, 1e-10f, 100.0f}) {
        for (const int top_k : {0, 1, 20, 1500, 200000}) {
          for (const float top_p : {1.0f, 0.95f, 0.3f, 0.0f}) {
            if (vocab == 151936 && (seed % 7 != 0)) {  // a seventh of the grid: the host is slow
              seed++;
              continue;
            }
            SampleRow row;
            row.temperature = temperature, row.top_k = top_k, row.top_p = top_p, row.seed = seed++,
            row.position = int64_t(seed) * 5;
            row.min_p = seed % 5 == 0 ? 0.05f : seed % 7 == 0 ? 1.0f : 0.0f;
            if (seed % 4 == 0) row.bias = bias, row.forbidden = forbidden;
            if (seed % 6 == 0)
              row.mask = seed % 12 == 0 ? std::span<const uint32_t>(short_mask) : std::span<const uint32_t>(mask);
            if (seed % 5 == 1)
              row.history = history, row.repetition_penalty = 1.3f, row.presence_penalty = 0.5f,
              row.frequency_penalty = 0.1f;
            row.logprob = seed % 2 == 0, row.n_top = seed % 3 == 0 ? 5 : 0;
            add(row, kind);
          }
        }
      }
    }
    for (int i = 0; i < 3; i++) add({.target = i * 5 + 1, .temperature = 1.0f, .n_top = i}, 0);
    for (size_t begin = 0; begin < rows.size(); begin += 64) {
      const size_t count = std::min<size_t>(64, rows.size() - begin);
      now = "sample, vocab " + std::to_string(vocab) + ", rows from " + std::to_string(begin);
      const std::span<const SampleRow> part(rows.data() + begin, count);
      const Buffer<float> d_logits(std::vector<float>(logits.begin() + int64_t(begin * size_t(vocab)),
                                                      logits.begin() + int64_t((begin + count) * size_t(vocab))));
      Sampler sampler(part, vocab, n);
      sampler.run(d_logits.data);
      const std::vector<int32_t> last = sampler.last.host();
      for (size_t i = 0; i < count; i++, checked++) {
        const SampleRow& row = part[i];
        const SampleResult& got = sampler.results[i];
        const Expected want = expect_sample(row, logits.data() + (begin + i) * size_t(vocab), vocab, n);
        char text[300];
        const auto report = [&](const char* what, double a, double b) {
          std::snprintf(
              text, sizeof text,
              "row %zu (t %g k %d p %g min_p %g, bias %zu, history %zu, mask %zu, n_top %d): %s %.9g, expected %.9g",
              begin + i, double(row.temperature), row.top_k, double(row.top_p), double(row.min_p), row.bias.size(),
              row.history.size(), row.mask.size(), row.n_top, what, a, b);
          fail(text);
        };
        if (got.finite != want.finite) {
          report("finite", got.finite, want.finite);
          continue;
        }
        if (got.token != want.token) report("token", got.token, want.token);
        if (last[i] != (want.finite ? want.token : 0)) report("last_token", last[i], want.token);
        if (!want.finite || got.token != want.token) continue;
        const double allowed = 2e-5 + 1e-6 * std::fabs(want.logprob);
        if ((row.logprob || row.n_top > 0 || row.target >= 0) &&
            !(std::fabs(double(got.logprob) - want.logprob) <= allowed))
          report("logprob", double(got.logprob), want.logprob);
        if (size_t(got.n_top) != want.top.size()) {
          report("n_top", got.n_top, double(want.top.size()));
          continue;
        }
        for (size_t j = 0; j < want.top.size(); j++)
          if (got.top[j].token != want.top[j]) {
            report("top token", got.top[j].token, want.top[j]);
            break;
          }
      }
    }
  }
  line("%-46s %d rows checked", "sample", checked);
}

// ---------------------------------------------------------------- times
// Median microseconds of one `issue(i)` when `n` of them stand in a graph.
double time_us(int n, const std::function<void(int)>& issue) {
  for (int i = 0; i < std::min(n, 2); i++) issue(i);
  finish();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < n; i++) issue(i);
  ok(cudaStreamEndCapture(stream, &graph));
  ok(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin, end;
  ok(cudaEventCreate(&begin));
  ok(cudaEventCreate(&end));
  std::vector<double> times;
  for (int i = 0; i < 7; i++) {
    ok(cudaEventRecord(begin, stream));
    ok(cudaGraphLaunch(exec, stream));
    ok(cudaEventRecord(end, stream));
    finish();
    float ms = 0;
    ok(cudaEventElapsedTime(&ms, begin, end));
    if (i > 1) times.push_back(double(ms) * 1000 / n);
  }
  std::sort(times.begin(), times.end());
  ok(cudaEventDestroy(begin));
  ok(cudaEventDestroy(end));
  ok(cudaGraphExecDestroy(exec));
  ok(cudaGraphDestroy(graph));
  return times[times.size() / 2];
}

// A batch whose sequences own distinct blocks of a big pool, in `sets` disjoint places.
struct Timed {
  BatchView view;
  std::vector<int32_t> start;
  Buffer<int32_t> positions, seq_of, query_start;
  std::vector<std::unique_ptr<Buffer<int32_t>>> tables;
  int n_seqs, length;

  Timed(int seqs, int len, int n_new, int sets, int first_set)
      : positions(std::vector<int32_t>(size_t(seqs) * size_t(n_new))),
        seq_of(size_t(seqs) * size_t(n_new)),
        query_start(size_t(seqs) + 1),
        n_seqs(seqs),
        length(len) {
    std::vector<int32_t> p, o;
    for (int s = 0; s < seqs; s++) {
      start.push_back(s * n_new);
      for (int t = 0; t < n_new; t++) p.push_back(len - n_new + t), o.push_back(s);
    }
    start.push_back(seqs * n_new);
    ok(cudaMemcpy(positions.data, p.data(), p.size() * 4, cudaMemcpyHostToDevice));
    ok(cudaMemcpy(seq_of.data, o.data(), o.size() * 4, cudaMemcpyHostToDevice));
    ok(cudaMemcpy(query_start.data, start.data(), start.size() * 4, cudaMemcpyHostToDevice));
    const int blocks = (len + kBlockSize - 1) / kBlockSize;
    int32_t next = first_set;
    for (int set = 0; set < sets; set++) {
      // Sequences grow together: their blocks alternate, as in a server.
      std::vector<int32_t> t(size_t(seqs) * size_t(blocks));
      for (int b = 0; b < blocks; b++)
        for (int s = 0; s < seqs; s++) t[size_t(s) * size_t(blocks) + size_t(b)] = next++;
      tables.push_back(std::make_unique<Buffer<int32_t>>(t));
    }
    view = {seqs * n_new, seqs, blocks, nullptr, positions.data, seq_of.data, query_start.data, tables[0]->data};
  }
  BatchView batch(int set) const {
    BatchView batch = view;
    batch.block_tables = tables[size_t(set) % tables.size()]->data;
    return batch;
  }
  // What a server's graph knows: a bound of the context, the next power of two.
  BatchHost host() const { return {view.n_tokens, n_seqs, start.data(), int(std::bit_ceil(unsigned(length)))}; }
  void issue(int set, const bf16* q, KvLayer kv, bf16* out, int heads, bool hopper, const AttentionWorkspace& w) {
    const BatchView batch = this->batch(set);
    cuda::attention({&batch, q, kv, heads, 8, 128, out}, host(), w, context(hopper));
  }
};

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
        Timed t(seqs, len, 1, sets, 0);
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
          cuda::attention_step(a, t.host(), w, context(true));
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
      Timed t(s.seqs, s.len, s.n_new, 1, 0);
      const double us = time_us(3, [&](int i) { t.issue(i, q.data, {k.data, v.data}, out.data, 32, hopper, w); });
      const double pairs = double(s.seqs) * s.n_new * (double(s.len) - s.n_new / 2.0);
      line("prefill %s %2d x %5d of context %5d: %9.1f us, %5.0f TFLOP/s", hopper ? "hopper " : "generic", s.seqs,
           s.n_new, s.len, us, pairs * 4 * 128 * 32 / us * 1e-6);
    }
  }
}

void small_times() {
  const int hidden = 4096, heads = 32, kv = 8, row = (heads + 2 * kv) * 128, vocab = 151936;
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
  Buffer<float> logits(size_t(256) * size_t(vocab));
  fill(logits.data, logits.n, 2.5f, 9);
  for (const int n : {1, 64, 256}) {
    struct Kind {
      const char* name;
      SampleRow row;
    };
    std::vector<TokenCount> history;
    for (int i = 0; i < 500; i++) history.push_back({i * 7, 1});
    for (const Kind& kind :
         {Kind{"greedy", {}}, Kind{"greedy + 20 logprobs", {.logprob = true, .n_top = 20}},
          Kind{"temperature 1", {.temperature = 1.0f}},
          Kind{"t 0.6, top_k 20, top_p 0.95", {.temperature = 0.6f, .top_p = 0.95f, .top_k = 20}},
          Kind{"t 1, top_p 0.95", {.temperature = 1.0f, .top_p = 0.95f}},
          Kind{"penalties, t 0.6, top_k 20, top_p 0.95",
               {.temperature = 0.6f, .top_p = 0.95f, .top_k = 20, .presence_penalty = 1.0f, .history = history}}}) {
      std::vector<SampleRow> rows(size_t(n), kind.row);
      for (size_t i = 0; i < rows.size(); i++) rows[i].seed = i;
      now = std::string("sample ") + kind.name;
      Sampler sampler(rows, vocab, 151669);
      const double us = time_us(8, [&](int) { sampler.run(logits.data); });
      line("sample %3d rows, %-40s %8.1f us", n, kind.name, us);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::set<std::string> wanted(argv + 1, argv + argc);
  cudaDeviceProp properties{};
  ok(cudaGetDeviceProperties(&properties, 0));
  sm_count = properties.multiProcessorCount;
  ok(cudaStreamCreate(&stream));
  const auto section = [&](const char* name, void (*run)()) {
    if (!wanted.empty() && wanted.count(name) == 0) return;
    const auto start = std::chrono::steady_clock::now();
    try {
      run();
    } catch (const std::exception& error) {
      fail(error.what());
    }
    finish();
    std::printf("%s: %.1f s\n", name, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    std::fflush(stdout);
  };
  section("probe", probe);
  section("budget", budgets);
  section("attention", attention_checks);
  section("long", long_checks);
  section("step", step_checks);
  section("ops", op_checks);
  section("sample", sample_checks);
  section("decode", decode_times);
  section("prefill", prefill_times);
  section("small", small_times);
  std::printf("\n%s, %d SMs\n%s%d failures\n", properties.name, sm_count, table.c_str(), failures);
  std::fflush(stdout);
  _exit(failures == 0 ? 0 : 1);
}

// From a row of logits to a token and its log-probabilities, on the GPU; the twin of backend/cpu/sample.cpp.
//
// Order: bias, mask and forbidden ids, penalties, temperature, min_p, top_k, top_p, one draw. All ids stand in one
// order, higher value first and lower id first among equals, written as one 64-bit number (Rank, smaller is better);
// every filter keeps the ranks up to a cut. Selection counts ids or adds 40-bit fixed-point weights: integers, so no
// order of addition shows. The draw is Gumbel-max in float64 over the ids inside the cut, pruned by a float32 bound
// that is exact (an id whose logarithms are not taken cannot win). See the CPU file for the formulas; they are the
// same.
//
// Three kernels, all of whose sums have one fixed tree, so a row's result does not depend on the batch:
//   adjust   grid (slices of 2,048 ids, rows), 256 threads; only when some row needs it: adjusted logits of its ids
//   scan     same grid: maxima per chunk of 256 ids, and per slice the maximum, the sum of exp and whether a logit is
//            broken
//   finish   a team of CTAs per row, 512 threads each: combines, filters, draws, writes the result. Passes over the row
//            visit only chunks whose maximum is inside the cut, and share them out among the team. A team is a cluster
//            (sm_90 and newer) whose first CTA, the leader, keeps the lists; else it is one CTA. Its size shows in no
//            result.
#include <algorithm>
#include <cstring>

#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/sample.h"
#include "base/random.h"

namespace qwen3::cuda {
namespace {

constexpr int kChunk = 256;  // ids whose maximum is kept: one warp, 8 ids per lane
constexpr int kSliceChunks = 8;
constexpr int kSlice = kChunk * kSliceChunks;
constexpr int kScanThreads = 32 * kSliceChunks;
constexpr int kThreads = 512;  // of finish
constexpr int kWarps = kThreads / 32;
constexpr int kMaxTeam = 8;
constexpr int kPerLane = kChunk / 32;
constexpr int kBins = 2048;
constexpr int kList = 1024;        // candidates that are sorted in shared memory
constexpr int kRankChunks = 1024;  // chunk maxima that are ranked for top_k
constexpr float kHighest = 3.402823466e38f;
constexpr float kInfinity = __builtin_inff();
constexpr float kWeightScale = 0x1p40f;
constexpr double kMaxGumbel = 36.8;  // -log(E) of the smallest V, 2^-53: 36.74
constexpr unsigned kAll = 0xffffffffu;

using Word = unsigned long long;
using Rank = Word;

struct SliceState {
  float top;  // over all ids of the vocab
  float sum;  // of exp(logit - top)
  int32_t broken;
};

struct Sizes {
  int chunks, slices;
  size_t adjusted, raw_max, adjusted_max, states, total;  // offsets of the parts, bytes
};

Sizes sizes(int max_rows, int vocab) {
  Sizes s{};
  s.chunks = (vocab + kChunk - 1) / kChunk;
  s.slices = (vocab + kSlice - 1) / kSlice;
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

struct Params {
  const float* logits;  // [n_rows, vocab]
  float* adjusted;      // [n_rows, vocab]; rows that are not adjusted and ids from n on stay unwritten
  float* raw_max;       // [n_rows, chunks] over ids below n
  float* adjusted_max;  // [n_rows, chunks]
  SliceState* states;   // [n_rows, slices]
  const SampleRowDevice* rows;
  SampleResult* results;
  int32_t* last_token;
  int vocab;
  int n;  // ids below n have a token
  int chunks, slices;
  int team;  // CTAs of finish per row
  bool with_sum;
};

__device__ __forceinline__ float clamp_finite(float x) {
  return x > kHighest ? kHighest : x < -kHighest ? -kHighest : x;
}

// ---------------------------------------------------------------- adjust
__global__ void __launch_bounds__(kScanThreads) adjust_kernel(const Params p) {
  __shared__ float z[kSlice];
  griddep_launch();
  griddep_wait();
  const SampleRowDevice& row = p.rows[blockIdx.y];
  if (row.adjusted == 0) return;
  const int first = static_cast<int>(blockIdx.x) * kSlice;
  const int thread = static_cast<int>(threadIdx.x);
  const float* logits = p.logits + static_cast<int64_t>(blockIdx.y) * p.vocab;
  for (int i = thread; i < kSlice; i += kScanThreads) {
    const int id = first + i;
    float x = id < p.n ? logits[id] : -kInfinity;
    if (row.n_mask > 0) {
      const bool allowed = id / 32 < row.n_mask && (row.mask[id / 32] >> (id % 32) & 1u) != 0;
      if (!allowed) x = -kInfinity;
    }
    z[i] = x;
  }
  __syncthreads();
  const auto mine = [&](int token) { return token >= first && token < first + kSlice && token < p.n; };
  // A token may stand in the list twice: the thread of its first entry applies all of them in order.
  for (int i = thread; i < row.n_bias; i += kScanThreads) {
    const int token = row.bias[i].token;
    if (!mine(token)) continue;
    bool repeated = false;
    for (int j = 0; j < i && !repeated; j++) repeated = row.bias[j].token == token;
    if (repeated) continue;
    float x = z[token - first];
    for (int j = i; j < row.n_bias; j++) {
      if (row.bias[j].token != token) continue;
      const float bias = row.bias[j].bias;
      x = bias == -kInfinity || x == -kInfinity ? -kInfinity : clamp_finite(__fadd_rn(x, bias));
    }
    z[token - first] = x;
  }
  __syncthreads();
  for (int i = thread; i < row.n_forbidden; i += kScanThreads) {
    if (mine(row.forbidden[i])) z[row.forbidden[i] - first] = -kInfinity;
  }
  __syncthreads();
  for (int i = thread; i < row.n_history; i += kScanThreads) {
    const TokenCount count = row.history[i];
    if (!mine(count.token)) continue;
    float x = z[count.token - first];
    if (x == -kInfinity) continue;
    x = x > 0.0f ? __fdiv_rn(x, row.repetition_penalty) : __fmul_rn(x, row.repetition_penalty);
    if (count.in_output > 0) {
      const float frequency = __fmul_rn(row.frequency_penalty, static_cast<float>(count.in_output));
      x = __fsub_rn(x, __fadd_rn(row.presence_penalty, frequency));
    }
    z[count.token - first] = clamp_finite(x);
  }
  __syncthreads();
  float* out = p.adjusted + static_cast<int64_t>(blockIdx.y) * p.vocab;
  for (int i = thread; i < kSlice; i += kScanThreads) {
    if (first + i < p.n) out[first + i] = z[i];
  }
}

// ---------------------------------------------------------------- scan
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(kAll, x, d));
  return x;
}

__global__ void __launch_bounds__(kScanThreads) scan_kernel(const Params p) {
  __shared__ float tops[kSliceChunks];
  __shared__ float sums[kSliceChunks];
  griddep_launch();
  griddep_wait();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int chunk = static_cast<int>(blockIdx.x) * kSliceChunks + warp;
  const int64_t row = blockIdx.y;
  const float* logits = p.logits + row * p.vocab;
  float x[kPerLane];
  float top = -kInfinity;
  float top_token = -kInfinity;  // of ids with a token
  bool broken = false;
#pragma unroll
  for (int i = 0; i < kPerLane; i++) {
    const int id = chunk * kChunk + i * 32 + lane;
    x[i] = id < p.vocab ? logits[id] : -kInfinity;
    broken |= isnan(x[i]) || x[i] == kInfinity;
    top = fmaxf(top, x[i]);
    if (id < p.n) top_token = fmaxf(top_token, x[i]);
  }
  top = warp_max(top);
  top_token = warp_max(top_token);
  if (lane == 0) {
    tops[warp] = top;
    if (chunk < p.chunks) p.raw_max[row * p.chunks + chunk] = top_token;
  }
  const int any_broken = __syncthreads_or(broken ? 1 : 0);
  float slice_top = tops[0];
#pragma unroll
  for (int w = 1; w < kSliceChunks; w++) slice_top = fmaxf(slice_top, tops[w]);
  if (p.with_sum) {
    float sum = 0.0f;
    if (slice_top > -kInfinity) {
#pragma unroll
      for (int i = 0; i < kPerLane; i++) sum = __fadd_rn(sum, expf(__fsub_rn(x[i], slice_top)));
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(kAll, sum, d));
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    float sum = 0.0f;
    if (p.with_sum) {
#pragma unroll
      for (int w = 0; w < kSliceChunks; w++) sum = __fadd_rn(sum, sums[w]);
    }
    p.states[row * p.slices + blockIdx.x] = {slice_top, sum, any_broken};
  }
  if (p.rows[row].adjusted == 0) return;
  const float* adjusted = p.adjusted + row * p.vocab;
  float best = -kInfinity;
#pragma unroll
  for (int i = 0; i < kPerLane; i++) {
    const int id = chunk * kChunk + i * 32 + lane;
    if (id < p.n) best = fmaxf(best, adjusted[id]);
  }
  best = warp_max(best);
  if (lane == 0 && chunk < p.chunks) p.adjusted_max[row * p.chunks + chunk] = best;
}

// ---------------------------------------------------------------- finish
__device__ __forceinline__ uint32_t order_key(float value) {  // ascending like the floats; -0 equals 0
  const uint32_t raw = __float_as_uint(__fadd_rn(value, 0.0f));
  return (raw & 0x80000000u) != 0 ? ~raw : raw | 0x80000000u;
}
__device__ __forceinline__ Rank rank_of(float value, uint32_t id) {
  return static_cast<Rank>(~order_key(value)) << 32 | id;
}
__device__ __forceinline__ float rank_value(Rank rank) {
  const uint32_t key = ~static_cast<uint32_t>(rank >> 32);
  return __uint_as_float((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key);
}
__device__ __forceinline__ int rank_id(Rank rank) {
  return static_cast<int>(rank & 0xffffffffu);
}

struct Shared {
  uint32_t bin_low[kBins];  // 64-bit sums of weights as two words, and counts
  uint32_t bin_high[kBins];
  uint32_t bin_count[kBins];
  Rank list[kList];
  float chunk_top[kRankChunks];
  Word group_sums[kBins / 32];
  Word reduce[kWarps];
  double reduce_score[kWarps];
  int reduce_id[kWarps];
  Word result[3];
  int n_list;
  uint32_t ratio;  // the tightest bound of the draw so far, a float's bits
};

struct Team {
  int rank, size;
};
// The object at the same place in CTA `rank` of the team.
template <class T>
__device__ __forceinline__ T* at_rank(T* object, int rank, const Team& team) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (team.size == 1) return object;
  uint64_t remote;
  asm("mapa.u64 %0, %1, %2;" : "=l"(remote) : "l"(object), "r"(rank));
  return reinterpret_cast<T*>(remote);
#else
  return object;
#endif
}
// All threads of the team.
__device__ __forceinline__ void team_sync(const Team& team) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (team.size > 1) {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
    return;
  }
#endif
  __syncthreads();
}

// The values that a draw or a list sees.
struct Values {
  const float* z;          // [n]
  const float* chunk_max;  // [chunks]
  int n;
  int chunks;
  float highest;
};

enum class Measure { kCount, kWeight };

template <Measure kMeasure>
__device__ __forceinline__ Word measure(float value, float highest, float temperature) {
  if constexpr (kMeasure == Measure::kCount) {
    return 1;
  } else {
    const float below = __fsub_rn(highest, value);
    return static_cast<Word>(__fmul_rn(expf(-__fdiv_rn(below, temperature)), kWeightScale));
  }
}

__device__ Word team_sum(Word x, Shared& shared, const Team& team) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(kAll, x, d);
  __syncthreads();
  if (thread % 32 == 0) shared.reduce[thread / 32] = x;
  __syncthreads();
  Word sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; w++) sum += shared.reduce[w];
  if (team.size == 1) return sum;
  if (thread == 0) shared.result[0] = sum;
  team_sync(team);
  sum = 0;
  for (int i = 0; i < team.size; i++) sum += *at_rank(&shared.result[0], i, team);
  team_sync(team);
  return sum;
}

__device__ Word block_min(Word x, Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    const Word other = __shfl_xor_sync(kAll, x, d);
    x = other < x ? other : x;
  }
  __syncthreads();
  if (thread % 32 == 0) shared.reduce[thread / 32] = x;
  __syncthreads();
  Word least = shared.reduce[0];
#pragma unroll
  for (int w = 1; w < kWarps; w++) least = shared.reduce[w] < least ? shared.reduce[w] : least;
  return least;
}

// Calls visit(value, id, rank, valid) for all ids of chunks that may hold ranks up to `high`; whole warps together.
template <class Visit>
__device__ __forceinline__ void for_ids(const Values& values, Rank high, const Team& team, Visit visit) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int c = static_cast<int>(threadIdx.x) / 32 * team.size + team.rank; c < values.chunks; c += kWarps * team.size) {
    if (rank_of(values.chunk_max[c], static_cast<uint32_t>(c * kChunk)) > high) continue;
    float x[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; i++) {
      const int id = c * kChunk + i * 32 + lane;
      x[i] = id < values.n ? values.z[id] : -kInfinity;
    }
#pragma unroll
    for (int i = 0; i < kPerLane; i++) {
      const int id = c * kChunk + i * 32 + lane;
      const Rank rank = rank_of(x[i], static_cast<uint32_t>(id));
      visit(x[i], id, rank, id < values.n && rank <= high);
    }
  }
}

// All ranks in [low, high] into the leader's list (the first kList that come), unsorted; also(value) for each. Returns
// how many there are.
template <class Also>
__device__ __forceinline__ int collect(const Values& values, Rank low, Rank high, Shared& shared, const Team& team,
                                       Also also) {
  team_sync(team);
  if (team.rank == 0 && threadIdx.x == 0) shared.n_list = 0;
  team_sync(team);
  int* const n_list = at_rank(&shared.n_list, 0, team);
  Rank* const list = at_rank(&shared.list[0], 0, team);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for_ids(values, high, team, [&](float x, int, Rank rank, bool valid) {
    const bool take = valid && rank >= low;
    if (take) also(x);
    const unsigned takers = __ballot_sync(kAll, take);
    if (takers == 0) return;
    int at = 0;
    if (lane == 0) at = atomicAdd(n_list, __popc(takers));
    at = __shfl_sync(kAll, at, 0) + __popc(takers & ((1u << lane) - 1));
    if (take && at < kList) list[at] = rank;
  });
  team_sync(team);
  return *n_list;
}

// Sorts shared.list [n], best first.
__device__ void sort_list(int n, Shared& shared) {
  int size = 2;
  while (size < n) size *= 2;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = n + thread; i < size; i += kThreads) shared.list[i] = ~Rank{0};
  __syncthreads();
  for (int width = 2; width <= size; width *= 2) {
    for (int stride = width / 2; stride > 0; stride /= 2) {
      for (int i = thread; i < size / 2; i += kThreads) {
        const int a = 2 * i - (i & (stride - 1));
        const int b = a + stride;
        const bool up = (a & width) == 0;
        const Rank x = shared.list[a];
        const Rank y = shared.list[b];
        if ((x > y) == up) {
          shared.list[a] = y;
          shared.list[b] = x;
        }
      }
      __syncthreads();
    }
  }
}

// First index i of [0, n) at which get(0) + .. + get(i) >= target, by one warp; before: the sum of those in front of
// it. The caller guarantees that there is one.
template <class Get>
__device__ __forceinline__ int warp_crossing(int n, Word target, Get get, Word& before) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Word sum = 0;
  for (int first = 0; first < n; first += 32) {
    const Word own = first + lane < n ? get(first + lane) : 0;
    Word scan = own;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const Word other = __shfl_up_sync(kAll, scan, d);
      if (lane >= d) scan += other;
    }
    const unsigned reached = __ballot_sync(kAll, sum + scan >= target && first + lane < n);
    if (reached != 0) {
      const int at = __ffs(static_cast<int>(reached)) - 1;
      before = sum + __shfl_sync(kAll, scan - own, at);
      return first + at;
    }
    sum += __shfl_sync(kAll, scan, 31);
  }
  before = sum;
  return n - 1;
}

// The rank at which the measures of ranks up to `high` reach `amount` ids, or `amount` of the whole (weights, amount <=
// 1); the cut itself when they do not. high <= cut: no better-placed answer lies beyond it.
template <Measure kMeasure>
__device__ Rank find_cut(const Values& values, Rank cut, Rank high, float temperature, double amount, Shared& shared,
                         const Team& team) {
  Rank low = rank_of(values.highest, 0);
  Word total = 0;
  int count = collect(values, 0, high, shared, team, [&](float x) {
    if (kMeasure == Measure::kWeight) total += measure<kMeasure>(x, values.highest, temperature);
  });
  Word target = 1;
  if constexpr (kMeasure == Measure::kCount) {
    target = static_cast<Word>(amount);
    if (static_cast<Word>(count) < target) return cut;
    if (static_cast<Word>(count) == target) return high;
  } else {
    total = team_sum(total, shared, team);
    target = static_cast<Word>(ceil(amount * static_cast<double>(total)));
    if (target > total) return cut;
    if (target == 0) target = 1;
  }

  const int thread = static_cast<int>(threadIdx.x);
  const int team_bins = kBins / team.size;  // bins that a CTA sums up for the team
  const auto bin_sum = [](const Shared& s, int b) { return static_cast<Word>(s.bin_high[b]) << 32 | s.bin_low[b]; };
  while (count > kList) {  // at most 6 rounds: each takes 11 bits off the range of 64
    int shift = 0;
    while (((high - low) >> shift) >= kBins) shift++;
    team_sync(team);
    for (int b = thread; b < kBins; b += kThreads) {
      shared.bin_low[b] = shared.bin_high[b] = shared.bin_count[b] = 0;
    }
    __syncthreads();
    for_ids(values, high, team, [&](float x, int, Rank rank, bool valid) {
      if (!valid || rank < low) return;
      const int bin = static_cast<int>((rank - low) >> shift);
      const Word amount_of = measure<kMeasure>(x, values.highest, temperature);
      const uint32_t part = static_cast<uint32_t>(amount_of);
      const uint32_t old = atomicAdd(&shared.bin_low[bin], part);
      const uint32_t carry = static_cast<uint32_t>(amount_of >> 32) + (old + part < old ? 1u : 0u);
      if (carry != 0) atomicAdd(&shared.bin_high[bin], carry);
      if (kMeasure == Measure::kWeight) atomicAdd(&shared.bin_count[bin], 1u);
    });
    team_sync(team);
    if (team.size > 1) {  // this CTA's bins get the team's sums
      for (int b = team.rank * team_bins + thread; b < (team.rank + 1) * team_bins; b += kThreads) {
        Word sum = 0;
        uint32_t ids = 0;
        for (int i = 0; i < team.size; i++) {
          const Shared* other = at_rank(&shared, i, team);
          sum += bin_sum(*other, b);
          ids += other->bin_count[b];
        }
        shared.bin_low[b] = static_cast<uint32_t>(sum);
        shared.bin_high[b] = static_cast<uint32_t>(sum >> 32);
        shared.bin_count[b] = ids;
      }
      __syncthreads();
    }
    Word* const group_sums = at_rank(&shared.group_sums[0], 0, team);
    const int team_groups = team_bins / 32;
    for (int g = team.rank * team_groups + thread / 32; g < (team.rank + 1) * team_groups; g += kWarps) {
      Word sum = bin_sum(shared, g * 32 + thread % 32);
#pragma unroll
      for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(kAll, sum, d);
      if (thread % 32 == 0) group_sums[g] = sum;
    }
    team_sync(team);
    if (team.rank == 0 && thread < 32) {
      Word before = 0;
      Word before_bin = 0;
      const int g = warp_crossing(kBins / 32, target, [&](int i) { return shared.group_sums[i]; }, before);
      const Shared& owner = *at_rank(&shared, g / team_groups, team);
      const int b =
          g * 32 + warp_crossing(32, target - before, [&](int i) { return bin_sum(owner, g * 32 + i); }, before_bin);
      if (thread == 0) {
        shared.result[0] = static_cast<Word>(b);
        shared.result[1] = before + before_bin;
        shared.result[2] = kMeasure == Measure::kWeight ? owner.bin_count[b] : bin_sum(owner, b);
      }
    }
    team_sync(team);
    const Word* const result = at_rank(&shared.result[0], 0, team);
    const Rank bin_first = low + (result[0] << shift);
    const Rank bin_last = bin_first + ((Rank{1} << shift) - 1);
    target -= result[1];
    count = static_cast<int>(result[2]);
    low = bin_first;
    high = bin_last < high ? bin_last : high;
    if (count <= kList) count = collect(values, low, high, shared, team, [](float) {});
  }

  if (team.rank == 0) {
    sort_list(count, shared);
    if (thread < 32) {
      Word before = 0;
      const int at = warp_crossing(
          count, target,
          [&](int i) { return measure<kMeasure>(rank_value(shared.list[i]), values.highest, temperature); }, before);
      if (thread == 0) shared.result[0] = shared.list[at];
    }
  }
  team_sync(team);
  const Rank answer = *at_rank(&shared.result[0], 0, team);
  team_sync(team);  // before anyone writes there again
  return answer;
}

// A rank that the k best ids inside `cut` do not exceed.
__device__ Rank bound_k(const Values& values, Rank cut, int k, Shared& shared, const Team& team) {
  Rank high = cut;
  if (k <= values.chunks && values.chunks <= kRankChunks) {
    // k chunks have their best id at or above the k-th highest maximum, so the k best ids lie there too.
    const int thread = static_cast<int>(threadIdx.x);
    const int lane = thread % 32;
    team_sync(team);
    for (int c = thread; c < values.chunks; c += kThreads) shared.chunk_top[c] = values.chunk_max[c];
    __syncthreads();
    for (int c = thread / 32 * team.size + team.rank; c < values.chunks; c += kWarps * team.size) {
      const float own = shared.chunk_top[c];
      int better = 0;
      for (int i = lane; i < values.chunks; i += 32) {
        const float other = shared.chunk_top[i];
        better += other > own || (other == own && i < c) ? 1 : 0;
      }
      better = __reduce_add_sync(kAll, better);
      if (lane == 0 && better == k - 1) *at_rank(&shared.result[0], 0, team) = rank_of(own, 0xffffffffu);
    }
    team_sync(team);
    const Rank kth = *at_rank(&shared.result[0], 0, team);
    high = kth < cut ? kth : cut;
    team_sync(team);
  }
  return high;
}

// The k best ids inside `cut`, k >= 1.
__device__ Rank best_k(const Values& values, Rank cut, int k, Shared& shared, const Team& team) {
  const Rank high = bound_k(values, cut, k, shared, team);
  // Fewer than k inside: the cut stays.
  return find_cut<Measure::kCount>(values, cut, high, 1.0f, static_cast<double>(k), shared, team);
}

__device__ __forceinline__ double draw_score(float value, float highest, double temperature, uint64_t key, int id) {
  const double u = (static_cast<double>(value) - static_cast<double>(highest)) / temperature;
  return u - log(-log1p(-noise_uniform(noise_bits(key, static_cast<uint32_t>(id)))));
}

// The id with the highest score among all threads of the team, the lowest such id.
__device__ int best_score_id(double score, int id, Shared& shared, const Team& team) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto take = [&](double other, int other_id) {
    if (other > score || (other == score && other_id < id)) {
      score = other;
      id = other_id;
    }
  };
  const auto merge_lanes = [&] {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
      const double other = __shfl_xor_sync(kAll, score, d);
      const int other_id = __shfl_xor_sync(kAll, id, d);
      take(other, other_id);
    }
  };
  merge_lanes();
  if (lane == 0) {
    shared.reduce_score[threadIdx.x / 32] = score;
    shared.reduce_id[threadIdx.x / 32] = id;
  }
  team_sync(team);
  for (int i = 0; i < team.size; i++) {
    if (lane < kWarps)
      take(at_rank(&shared.reduce_score[0], i, team)[lane], at_rank(&shared.reduce_id[0], i, team)[lane]);
  }
  merge_lanes();
  team_sync(team);
  return id;
}

// Gumbel-max over the ids inside the cut. highest_id: the best id of all, always inside.
__device__ int draw(const Values& values, Rank cut, int highest_id, const SampleRowDevice& row, Shared& shared,
                    const Team& team) {
  const uint64_t key = noise_key(row.seed, row.position);
  const double temperature = static_cast<double>(row.temperature);
  const auto score_of = [&](float value, int id) { return draw_score(value, values.highest, temperature, key, id); };
  // An upper bound of the V / weight that can still win. 1e-5 covers the rounding of the float32 weights.
  const auto ratio_of = [](double score) { return static_cast<float>(exp(-score) * (1.0 + 1e-5)); };
  int best_id = highest_id;
  double best_score = score_of(values.highest, highest_id);
  __syncthreads();
  if (threadIdx.x == 0) shared.ratio = __float_as_uint(ratio_of(best_score));
  __syncthreads();
  const volatile uint32_t* ratio = &shared.ratio;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int c = static_cast<int>(threadIdx.x) / 32 * team.size + team.rank; c < values.chunks; c += kWarps * team.size) {
    const float chunk_top = values.chunk_max[c];
    if (rank_of(chunk_top, static_cast<uint32_t>(c * kChunk)) > cut) continue;
    const double u = (static_cast<double>(chunk_top) - static_cast<double>(values.highest)) / temperature;
    if (u + kMaxGumbel < best_score) continue;
    const float bound = __uint_as_float(*ratio);
#pragma unroll
    for (int i = 0; i < kPerLane; i++) {
      const int id = c * kChunk + i * 32 + lane;
      if (id >= values.n) continue;
      const float x = values.z[id];
      if (rank_of(x, static_cast<uint32_t>(id)) > cut) continue;
      // The upper 24 bits of the noise, rounded down: V is at least this.
      const uint32_t top_bits = static_cast<uint32_t>(noise_bits(key, static_cast<uint32_t>(id)) >> 40);
      const float uniform = static_cast<float>(top_bits) * 0x1p-24f;
      const float weight = expf(__fdiv_rn(__fsub_rn(x, values.highest), row.temperature));
      if (!(uniform <= weight * bound)) continue;
      const double score = score_of(x, id);
      if (score > best_score || (score == best_score && id < best_id)) {
        best_score = score;
        best_id = id;
        atomicMin(&shared.ratio, __float_as_uint(ratio_of(score)));  // positive floats order like their bits
      }
    }
  }
  return best_score_id(best_score, best_id, shared, team);
}

// The best rank of all: the lowest id among the highest values. Nothing there: ~0.
__device__ Rank best_rank(const float* z, const float* chunk_max, int chunks, int n, Shared& shared) {
  Rank best = ~Rank{0};
  for (int c = static_cast<int>(threadIdx.x); c < chunks; c += kThreads) {
    const Rank rank = rank_of(chunk_max[c], static_cast<uint32_t>(c));
    best = rank < best ? rank : best;
  }
  best = block_min(best, shared);
  const float highest = rank_value(best);
  if (!(highest > -kInfinity)) return ~Rank{0};
  const int first = rank_id(best) * kChunk;
  Rank found = ~Rank{0};
  const int id = first + static_cast<int>(threadIdx.x);
  if (threadIdx.x < kChunk && id < n && z[id] == highest) found = rank_of(highest, static_cast<uint32_t>(id));
  return block_min(found, shared);
}

// The smallest float that is not below x.
__device__ float round_up(double x) {
  return x <= -static_cast<double>(kHighest) ? -kHighest : __double2float_ru(x);
}

// The leader draws from its list [count] of all ids up to top_k's bound, filtered as in choose().
__device__ int choose_listed(const Values& values, int count, const SampleRowDevice& row, Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  sort_list(count, shared);
  int keep = count < row.top_k ? count : row.top_k;
  if (row.top_p < 1.0f) {
    if (thread < 32) {
      const auto weight = [&](int i) {
        return measure<Measure::kWeight>(rank_value(shared.list[i]), values.highest, row.temperature);
      };
      Word total = 0;
      for (int i = thread; i < keep; i += 32) total += weight(i);
#pragma unroll
      for (int d = 16; d > 0; d /= 2) total += __shfl_xor_sync(kAll, total, d);
      const double top_p = row.top_p > 0.0f ? static_cast<double>(row.top_p) : 0.0;
      Word target = static_cast<Word>(ceil(top_p * static_cast<double>(total)));
      if (target == 0) target = 1;
      Word before = 0;
      if (target <= total) keep = warp_crossing(keep, target, weight, before) + 1;
      if (thread == 0) shared.result[0] = static_cast<Word>(keep);
    }
    __syncthreads();
    keep = static_cast<int>(shared.result[0]);
  }
  const uint64_t key = noise_key(row.seed, row.position);
  double best_score = -static_cast<double>(kInfinity);
  int best_id = 0x7fffffff;
  for (int i = thread; i < keep; i += kThreads) {
    const int id = rank_id(shared.list[i]);
    const double score =
        draw_score(rank_value(shared.list[i]), values.highest, static_cast<double>(row.temperature), key, id);
    if (score > best_score || (score == best_score && id < best_id)) {
      best_score = score;
      best_id = id;
    }
  }
  return best_score_id(best_score, best_id, shared, {0, 1});
}

// The drawn token, in the leader; anything in the others.
__device__ int choose(const Values& values, int highest_id, const SampleRowDevice& row, Shared& shared,
                      const Team& team) {
  if (!(row.temperature > 0.0f)) return highest_id;
  Rank cut = rank_of(-kHighest, 0xffffffffu);
  if (row.min_p > 0.0f) {
    const double log_min_p = row.min_p < 1.0f ? log(static_cast<double>(row.min_p)) : 0.0;
    const float value =
        round_up(static_cast<double>(values.highest) + static_cast<double>(row.temperature) * log_min_p);
    cut = rank_of(value, 0xffffffffu);
  }
  if (row.top_k > 0 && row.top_k <= values.chunks) {
    const Rank high = bound_k(values, cut, row.top_k, shared, team);
    const int count = collect(values, 0, high, shared, team, [](float) {});
    if (count <= kList) return team.rank == 0 ? choose_listed(values, count, row, shared) : highest_id;
    cut = find_cut<Measure::kCount>(values, cut, high, 1.0f, static_cast<double>(row.top_k), shared, team);
  } else if (row.top_k > 0 && row.top_k < values.n) {
    cut = best_k(values, cut, row.top_k, shared, team);
  }
  if (row.top_p < 1.0f) {
    const double top_p = row.top_p > 0.0f ? static_cast<double>(row.top_p) : 0.0;
    // Weights more than 28 temperatures below the highest are 0 (e^-28 < 2^-40): the answer lies above.
    const float lowest = round_up(static_cast<double>(values.highest) - 28.0 * static_cast<double>(row.temperature));
    const Rank positive = rank_of(lowest, 0xffffffffu);
    cut =
        find_cut<Measure::kWeight>(values, cut, positive < cut ? positive : cut, row.temperature, top_p, shared, team);
  }
  return draw(values, cut, highest_id, row, shared, team);
}

__device__ __forceinline__ void finish_row(const Params& p, int64_t r, Shared& shared, const Team& team) {
  const int thread = static_cast<int>(threadIdx.x);
  const SampleRowDevice& row = p.rows[r];
  SampleResult& result = p.results[r];
  const float* logits = p.logits + r * p.vocab;
  const float* raw_max = p.raw_max + r * p.chunks;
  const SliceState* states = p.states + r * p.slices;

  // Padding ids are never chosen, but they belong to the distribution, and a NaN there is as bad as elsewhere.
  float top = -kInfinity;
  bool broken = false;
  for (int s = thread; s < p.slices; s += kThreads) {
    top = fmaxf(top, states[s].top);
    broken |= states[s].broken != 0;
  }
  broken = __syncthreads_or(broken ? 1 : 0) != 0;
  const Rank raw_best = broken ? ~Rank{0} : best_rank(logits, raw_max, p.chunks, p.n, shared);
  Rank best = raw_best;
  Values values{logits, raw_max, p.n, p.chunks, rank_value(raw_best)};
  if (raw_best != ~Rank{0} && row.target < 0 && row.adjusted != 0) {
    values.z = p.adjusted + r * p.vocab;
    values.chunk_max = p.adjusted_max + r * p.chunks;
    best = best_rank(values.z, values.chunk_max, p.chunks, p.n, shared);
    values.highest = rank_value(best);
  }
  if (best == ~Rank{0}) {
    if (team.rank == 0 && thread == 0) {
      result.token = -1;
      result.logprob = 0.0f;
      result.n_top = 0;
      result.finite = false;
      if (p.last_token != nullptr) p.last_token[r] = 0;
    }
    return;
  }
  const int token = row.target >= 0 ? row.target : choose(values, rank_id(best), row, shared, team);
  if (team.rank == 0 && thread == 0) {
    result.token = token;
    result.logprob = 0.0f;
    result.n_top = 0;
    result.finite = true;
    if (p.last_token != nullptr) p.last_token[r] = token;
  }
  if (row.logprob == 0 && row.n_top == 0 && row.target < 0) return;

  // log of the sum of exp: slices' sums, shifted to the row's highest, in float64; one fixed tree.
  const float highest = rank_value(block_min(rank_of(top, 0), shared));
  double sum = 0.0;
  for (int s = thread; s < p.slices; s += kThreads) {
    if (states[s].top > -kInfinity) {
      sum +=
          static_cast<double>(states[s].sum) * exp(static_cast<double>(states[s].top) - static_cast<double>(highest));
    }
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(kAll, sum, d);
  __syncthreads();
  if (thread % 32 == 0) shared.reduce_score[thread / 32] = sum;
  __syncthreads();
  sum = 0.0;
  for (int w = 0; w < kWarps; w++) sum += shared.reduce_score[w];
  const double log_sum = static_cast<double>(highest) + log(sum);
  if (team.rank == 0 && thread == 0) result.logprob = static_cast<float>(static_cast<double>(logits[token]) - log_sum);
  if (row.n_top <= 0) return;

  const Values raw{logits, raw_max, p.n, p.chunks, rank_value(raw_best)};
  const int wanted = row.n_top < kMaxTopLogprobs ? row.n_top : kMaxTopLogprobs;
  const Rank cut = best_k(raw, rank_of(-kHighest, 0xffffffffu), wanted, shared, team);
  int found = collect(raw, 0, cut, shared, team, [](float) {});
  if (team.rank != 0) return;
  sort_list(found, shared);
  found = found < wanted ? found : wanted;
  if (thread < found) {
    const Rank rank = shared.list[thread];
    TopLogprob* list = reinterpret_cast<TopLogprob*>(&result.top);  // std::array's [] is host code
    list[thread] = {rank_id(rank), static_cast<float>(static_cast<double>(rank_value(rank)) - log_sum)};
  }
  if (thread == 0) result.n_top = found;
}

__global__ void __launch_bounds__(kThreads, 2) finish_kernel(const Params p) {
  __shared__ Shared shared;
  griddep_launch();
  griddep_wait();
  const Team team{static_cast<int>(blockIdx.x) % p.team, p.team};
  finish_row(p, static_cast<int>(blockIdx.x) / p.team, shared, team);
  if (team.size > 1) team_sync(team);  // nobody leaves while others may read its shared memory
}

// ---------------------------------------------------------------- host
bool is_adjusted(const SampleRow& row) {
  const bool penalties =
      row.repetition_penalty != 1.0f || row.presence_penalty != 0.0f || row.frequency_penalty != 0.0f;
  return !row.bias.empty() || !row.forbidden.empty() || !row.mask.empty() || (penalties && !row.history.empty());
}

template <class T>
size_t list_bytes(std::span<const T> list) {
  return (list.size_bytes() + 15) / 16 * 16;
}

}  // namespace

size_t sample_staging_bytes(std::span<const SampleRow> rows) {
  size_t bytes = (rows.size() * sizeof(SampleRowDevice) + 15) / 16 * 16;
  for (const SampleRow& row : rows) {
    bytes += list_bytes(row.bias) + list_bytes(row.history) + list_bytes(row.forbidden) + list_bytes(row.mask);
  }
  return bytes;
}

SampleNeeds stage_sample_rows(std::span<const SampleRow> rows, std::byte* host, const std::byte* device) {
  SampleNeeds needs;
  SampleRowDevice* out = reinterpret_cast<SampleRowDevice*>(host);
  size_t at = (rows.size() * sizeof(SampleRowDevice) + 15) / 16 * 16;
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
  Params p{};
  p.logits = args.logits;
  p.adjusted = reinterpret_cast<float*>(memory + s.adjusted);
  p.raw_max = reinterpret_cast<float*>(memory + s.raw_max);
  p.adjusted_max = reinterpret_cast<float*>(memory + s.adjusted_max);
  p.states = reinterpret_cast<SliceState*>(memory + s.states);
  p.rows = args.rows;
  p.results = args.results;
  p.last_token = args.last_token;
  p.vocab = args.vocab;
  p.n = std::min(args.n_token_ids, args.vocab);
  p.chunks = s.chunks;
  p.slices = s.slices;
  p.with_sum = args.needs.logprob;
  const dim3 slices(static_cast<unsigned>(s.slices), static_cast<unsigned>(args.n_rows));
  if (args.needs.adjust) launch("launching sample adjust", adjust_kernel, {slices, dim3(kScanThreads)}, ctx, p);
  launch("launching sample scan", scan_kernel, {slices, dim3(kScanThreads)}, ctx, p);
  // Teams as long as they fill SMs that would idle. What has programmatic launches has clusters.
  const int n_ctas = !ctx.pdl || !args.needs.search ? 1 : args.needs.wide ? 4 * ctx.sm_count : ctx.sm_count;
  p.team = kMaxTeam;
  while (p.team > 1 && args.n_rows * p.team > n_ctas) p.team /= 2;
  if (p.team == 2) p.team = 1;  // costs more than it brings
  const dim3 teams(static_cast<unsigned>(args.n_rows * p.team));
  launch("launching sample finish", finish_kernel, {teams, dim3(kThreads), 0, p.team}, ctx, p);
}

}  // namespace qwen3::cuda

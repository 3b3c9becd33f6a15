// How finish finds cuts: ranks, teams of CTAs, sums and sorts over the ids of a row. Device code of sample_finish.cu.
//
// All ids stand in one order, higher value first and lower id first among equals, written as one 64-bit number (Rank,
// smaller is better); every filter keeps the ranks up to a cut. Passes over the row visit only chunks whose maximum is
// inside the cut, and share them out among the team. Selection counts ids or adds 40-bit fixed-point weights:
// integers, so no order of addition shows, and neither does the size of the team.
#pragma once

#include "backend/cuda/ptx.cuh"
#include "backend/cuda/sample_kernels.cuh"

namespace qwen3::cuda::sampling {

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

static __device__ Word team_sum(Word x, Shared& shared, const Team& team) {
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

static __device__ Word block_min(Word x, Shared& shared) {
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
static __device__ void sort_list(int n, Shared& shared) {
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
static __device__ Rank bound_k(const Values& values, Rank cut, int k, Shared& shared, const Team& team) {
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
static __device__ Rank best_k(const Values& values, Rank cut, int k, Shared& shared, const Team& team) {
  const Rank high = bound_k(values, cut, k, shared, team);
  // Fewer than k inside: the cut stays.
  return find_cut<Measure::kCount>(values, cut, high, 1.0f, static_cast<double>(k), shared, team);
}

}  // namespace qwen3::cuda::sampling

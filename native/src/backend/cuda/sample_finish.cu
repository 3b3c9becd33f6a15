// The last stage of sampling: filters, draw, log-probabilities, results. See sample.cu for the order.
//
// A team of CTAs per row, 512 threads each. A team is a cluster (sm_90 and newer) whose first CTA, the leader, keeps
// the lists; else it is one CTA. Its size shows in no result. The draw is Gumbel-max in float64 over the ids inside the
// cut, pruned by a float32 bound that is exact (an id whose logarithms are not taken cannot win).
#include "backend/cuda/launch.h"
#include "backend/cuda/sample_select.cuh"
#include "base/random.h"

namespace qwen3::cuda::sampling {
namespace {

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
  if (is_padding(row)) return;
  SampleResult& result = *row.result;
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

}  // namespace

void finish(const Params& p, int n_rows, const Context& ctx) {
  const dim3 teams(static_cast<unsigned>(n_rows * p.team));
  launch("launching sample finish", finish_kernel, {teams, dim3(kThreads), 0, p.team}, ctx, p);
}

}  // namespace qwen3::cuda::sampling

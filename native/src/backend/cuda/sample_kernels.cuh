// What the stages of sampling share: sizes, the workspace's parts, the stages as host functions. Read sample.cu first.
#pragma once

#include "backend/cuda/kernels.h"
#include "backend/cuda/sample.h"

namespace qwen3::cuda::sampling {

inline constexpr int kChunk = 256;  // ids whose maximum is kept: one warp, 8 ids per lane
inline constexpr int kSliceChunks = 8;
inline constexpr int kSlice = kChunk * kSliceChunks;
inline constexpr int kScanThreads = 32 * kSliceChunks;
inline constexpr int kThreads = 512;  // of finish
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kMaxTeam = 8;
inline constexpr int kPerLane = kChunk / 32;
inline constexpr int kBins = 2048;
inline constexpr int kList = 1024;        // candidates that are sorted in shared memory
inline constexpr int kRankChunks = 1024;  // chunk maxima that are ranked for top_k
inline constexpr float kHighest = 3.402823466e38f;
inline constexpr float kInfinity = __builtin_inff();
inline constexpr float kWeightScale = 0x1p40f;
inline constexpr double kMaxGumbel = 36.8;  // -log(E) of the smallest V, 2^-53: 36.74
inline constexpr unsigned kAll = 0xffffffffu;

using Word = unsigned long long;
using Rank = Word;

struct SliceState {
  float top;  // over all ids of the vocab
  float sum;  // of exp(logit - top)
  int32_t broken;
};

// What the kernels of one call see.
struct Params {
  const float* logits;  // [n_rows, vocab]
  float* adjusted;      // [n_rows, vocab]; rows that are not adjusted and ids from n on stay unwritten
  float* raw_max;       // [n_rows, chunks] over ids below n
  float* adjusted_max;  // [n_rows, chunks]
  SliceState* states;   // [n_rows, slices]
  const SampleRowDevice* rows;
  int32_t* last_token;
  int vocab;
  int n;  // ids below n have a token
  int chunks, slices;
  int team;  // CTAs of finish per row
  bool with_sum;
};

// A row that nobody asked for: it pads the batch, and no stage computes it.
__device__ __forceinline__ bool is_padding(const SampleRowDevice& row) {
  return row.result == nullptr;
}

// sample_scan.cu: the adjusted logits of rows that need them; maxima of chunks and states of slices.
void adjust(const Params& p, int n_rows, const Context& ctx);
void scan(const Params& p, int n_rows, const Context& ctx);
// sample_finish.cu: filters, the draw, log-probabilities, results.
void finish(const Params& p, int n_rows, const Context& ctx);

}  // namespace qwen3::cuda::sampling

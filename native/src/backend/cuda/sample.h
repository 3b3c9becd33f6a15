// What the GPU sampler needs: rows as flat device structs, and a workspace.
//
// Host code only. SampleRow (ops.h) holds spans of host memory; stage_sample_rows() packs them into one buffer that the
// caller copies to the device in one go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/cuda/kernels.h"
#include "ops/ops.h"

namespace qwen3::cuda {

// One row; the lists are device pointers. Same meaning as SampleRow.
struct SampleRowDevice {
  uint64_t seed;
  int64_t position;
  const TokenBias* bias;      // [n_bias]
  const TokenCount* history;  // [n_history]
  const int32_t* forbidden;   // [n_forbidden]
  const uint32_t* mask;       // [n_mask] words
  SampleResult* result;       // device memory or mapped pinned host memory; nullptr: a row of padding
  int32_t n_bias, n_history, n_forbidden, n_mask;
  int32_t target, top_k, n_top, logprob;
  float temperature, min_p, top_p;
  float repetition_penalty, presence_penalty, frequency_penalty;
  int32_t adjusted;  // the draw sees adjusted logits
  int32_t reserved;
};

// Which kernels a batch of rows needs; grids and kernels follow from it, so it is part of a captured graph's identity.
struct SampleNeeds {
  bool adjust = false;   // some row has bias, mask, forbidden ids or penalties
  bool logprob = false;  // some row wants log-probabilities, alternatives or a target's score
  bool search = false;   // some row draws or wants alternatives: more than a maximum
  bool wide = false;     // some row draws without top_k: every id is a candidate
};

// Bytes of the staging buffer for these rows, padded to n_rows of them.
size_t sample_staging_bytes(std::span<const SampleRow> rows, size_t n_rows);
// Packs rows and their lists into `host` (at least that many bytes, 16-byte aligned) for a copy to `device`, where the
// SampleRowDevice array [n_rows] is at the front. results: [rows.size()], where the device writes.
SampleNeeds stage_sample_rows(std::span<const SampleRow> rows, size_t n_rows, SampleResult* results, std::byte* host,
                              const std::byte* device);

// Bytes of the workspace for batches of up to max_rows rows. Device memory, 256-byte aligned, used by one stream.
size_t sample_workspace_bytes(int max_rows, int vocab);

struct SampleDeviceArgs {
  const float* logits;  // [n_rows, vocab]
  int vocab;
  int n_token_ids;  // ids from here on are never sampled and never listed
  int n_rows;
  const SampleRowDevice* rows;  // [n_rows] device memory
  SampleNeeds needs;
  int32_t* last_token;  // [n_rows] device memory or nullptr: the token, 0 for a broken row
  void* workspace;
  int max_rows;  // that the workspace was made for
};
void sample(const SampleDeviceArgs& args, const Context& ctx);

}  // namespace qwen3::cuda

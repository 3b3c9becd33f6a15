// Parameters of attention_step.cu.
#pragma once

#include "backend/cuda/attention.cuh"
#include "backend/cuda/attention.h"
#include "backend/cuda/attention_decode.cuh"
#include "backend/cuda/head_norm.cuh"

namespace qwen3::cuda {

struct StepParams {
  AttentionParams a;      // q, query_start, whole, decode_rows, turn_counter are not used
  const float* qkv;       // [n_tokens, n_heads + 2 n_kv_heads, 128]
  const bf16* q_norm;     // [128]
  const bf16* k_norm;     // [128]
  const float4* angles;   // [n_tokens, 32]: (cos, sin) of two neighbouring angles
  const int32_t* seq_of;  // [n_tokens]
  bf16* k;                // as a.k and a.v
  bf16* v;
  float eps;
  int64_t max_states;  // that the workspace holds
  int sm_count;
};

void attention_step_stream(const StepParams& params, const Context& ctx);

}  // namespace qwen3::cuda

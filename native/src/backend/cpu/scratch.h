// Working memory of kernels: per thread and purpose one buffer that only grows, so that a steady state allocates
// nothing.
//
// Compiled once, with no instruction set's flags (kernel files must not bring their own copies of std:: templates).
// Buffers belong to the calling thread and live until it ends; helpers of a loop may use the caller's through a
// pointer.
#pragma once

#include <cstddef>

namespace qwen3::cpu {

enum class Scratch {
  kLinear,             // packed inputs and sums of a matrix product
  kAttentionTile,      // one query tile's working set
  kAttentionPlan,      // the step's tiles
  kAttentionPartials,  // results of single splits
  kSampleRow,          // one row's adjusted logits
  kSampleList,         // candidates of a selection
  kCount,
};

// At least `bytes` bytes, 64-byte aligned. Zeroed when first allocated or grown (the old content is then lost),
// otherwise as the thread left it. Throws Error(kOutOfMemory).
void* thread_scratch(Scratch purpose, size_t bytes);

}  // namespace qwen3::cpu

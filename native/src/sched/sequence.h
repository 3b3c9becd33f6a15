// What the scheduler knows of one sample of a request: its token ids and where their KV is. Integers only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kv/block_pool.h"
#include "kv/prefix_cache.h"

namespace qwen3 {

enum class SequenceState {
  kNew,      // not given to the scheduler yet
  kWaiting,  // wants a slot: fresh, or preempted
  kRunning,  // has a slot and its blocks
  kEnded,    // left the scheduler
};

struct Sequence;

// The samples of one request. The first to run computes the prompt; the others wait for it and share its full blocks.
using SequenceGroup = std::vector<Sequence*>;

struct Sequence {
  // Set by the engine before add().
  std::vector<int32_t> tokens;  // prompt, then output; the engine appends each sampled token
  int64_t n_prompt = 0;
  int32_t priority = 0;  // lower runs first
  uint64_t arrival = 0;  // unique; earlier runs first among equal priorities
  bool reads_prefix_cache = true;
  std::string cache_salt;
  std::shared_ptr<SequenceGroup> group;  // this sequence and its siblings that have not ended
  int64_t max_length = INT64_MAX;        // prompt and output at most; no step is planned beyond it

  // Kept by the scheduler.
  SequenceState state = SequenceState::kNew;
  int64_t n_computed = 0;       // tokens whose KV is in the blocks, or will be when the planned steps are done
  int n_unknown = 0;            // tokens after `tokens` that planned steps sample: known once those are done
  std::vector<BlockId> blocks;  // block j holds positions j * block_size ..
  int64_t n_published = 0;      // leading blocks whose content is in the prefix cache (or equal to one there)
  EntryId last_entry = kRoot;   // entry of block n_published - 1
  int64_t n_looked_up = 0;      // tokens that the last admission looked for in the prefix cache
  int64_t n_cached = 0;         // of those: found

  // Tokens, unknown ones included.
  int64_t length() const { return static_cast<int64_t>(tokens.size()) + n_unknown; }
  int64_t n_pending() const { return length() - n_computed; }
  int64_t n_output() const { return static_cast<int64_t>(tokens.size()) - n_prompt; }
};

// True if a is to run before b. Total order, since arrivals are unique.
inline bool runs_before(const Sequence* a, const Sequence* b) {
  return a->priority != b->priority ? a->priority < b->priority : a->arrival < b->arrival;
}

}  // namespace qwen3

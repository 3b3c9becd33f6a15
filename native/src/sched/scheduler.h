// Decides who computes what in each step: continuous batching with chunked prefill over a paged KV pool.
//
// It owns the queue of waiting sequences, the set of running ones, and their blocks; it knows no model, no device and
// no clock. Rules:
// - A step computes at most token_budget tokens. Running decodes come first (one token each), then running prefills,
//   then waiting sequences are admitted; each in order of priority, then arrival. What is left of a prompt waits for
//   the next step, so a long prompt delays running decodes by one chunk at most.
// - With prefill_spread n, a step that decodes takes about an n-th of the prompt tokens that could run: few prompts
//   slow the streams little, and many are not left to wait. Beside few decodes even the smallest share doubles a step,
//   so after five such steps in a row one goes without prompts.
// - At most min(max_slots, token_budget) sequences run, so every running decode is in every step.
// - A sequence is admitted when its prompt's blocks are there (full blocks found in the prefix cache are shared); its
//   output takes blocks one by one. If none is left, the running sequence that would run last loses its blocks and
//   waits again (preemption by recompute), at its old place in the order.
// - Nothing overtakes the head of the queue, except that a sample steps aside while a sibling computes the blocks that
//   they will share.
// The engine's mutex guards it.
#pragma once

#include <set>
#include <vector>

#include "kv/block_pool.h"
#include "kv/prefix_cache.h"
#include "sched/sequence.h"

namespace qwen3 {

struct SchedulerLimits {
  int max_slots;
  int token_budget;
  int block_size;
  int prefill_spread = 0;  // 0: prompts fill the token budget
};

// Tokens [begin, begin + n_tokens) of one sequence, to be computed in this step.
struct Chunk {
  Sequence* sequence;
  int64_t begin;
  int n_tokens;
  bool samples;  // the chunk reaches the last known token: the step yields the next one
};

struct StepPlan {
  std::vector<Chunk> chunks;
  int n_tokens = 0;
  std::vector<Sequence*> admitted;
  std::vector<Sequence*> preempted;
};

class Scheduler {
 public:
  // prefix_cache: nullptr when switched off. Pool and cache must outlive the scheduler.
  Scheduler(const SchedulerLimits& limits, BlockPool& pool, PrefixCache* prefix_cache);

  // Queues a new sequence. It must stay alive until it has been removed.
  void add(Sequence* sequence);
  // Takes a sequence out, whatever its state, and frees its blocks. Once removed it may be destroyed.
  void remove(Sequence* sequence);

  bool has_work() const { return !waiting_.empty() || !running_.empty(); }
  int n_waiting() const { return static_cast<int>(waiting_.size()); }
  int n_running() const { return static_cast<int>(running_.size()); }
  int max_running() const { return max_running_; }

  // The next step; no chunk if nothing can run now. The plan counts its chunks as computed: the next one may be planned
  // before this one's results are known, and then continues sequences by their unknown token. Valid until the next
  // call.
  const StepPlan& plan();
  // One of the two is to be called for each chunk of the plan, in the order of plans, once its results are there,
  // unless its sequence was removed meanwhile. The chunk's KV is in the blocks; the engine then appends the token if
  // the chunk samples one.
  void commit(const Chunk& chunk);
  // The chunk's token could not be sampled: its last position is computed again in the next step, and so its block is
  // not shared before that. No later chunk of the sequence may be planned already.
  void postpone(const Chunk& chunk);

  // Throws Error(kInternal) if blocks and sequences disagree. n_held: blocks that others took from the pool.
  void check(int n_held) const;

 private:
  struct RunsBefore {
    bool operator()(const Sequence* a, const Sequence* b) const { return runs_before(a, b); }
  };

  void plan_decodes();
  int budget_beside_decodes() const;
  void plan_prefills();
  void admit_waiting();
  bool admit(Sequence* sequence);
  void take_shared_blocks(Sequence* sequence);
  const Sequence* sibling_with_prompt(const Sequence* sequence) const;
  bool sibling_computes_prompt(const Sequence* sequence) const;
  bool grow(Sequence* sequence);
  void preempt(Sequence* sequence);
  void release_blocks(Sequence* sequence);
  void add_chunk(Sequence* sequence);
  void publish(Sequence* sequence, int64_t n_done);
  int64_t n_shared_blocks(const Sequence* sequence) const;
  int64_t blocks_for(int64_t n_tokens) const { return (n_tokens + limits_.block_size - 1) / limits_.block_size; }

  const SchedulerLimits limits_;
  const int max_running_;
  BlockPool& pool_;
  PrefixCache* const prefix_cache_;
  std::set<Sequence*, RunsBefore> waiting_;
  std::set<Sequence*, RunsBefore> running_;
  StepPlan plan_;
  int budget_ = 0;   // of the step that is being planned
  int n_mixed_ = 0;  // steps in a row, up to the last one, of decodes and prompts
};

}  // namespace qwen3

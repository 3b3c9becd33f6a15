#include "sched/scheduler.h"

#include <algorithm>
#include <span>
#include <unordered_map>

#include "base/error.h"

namespace qwen3 {

namespace {

// Matrix products compute rows in tiles of this many: a row more than a multiple costs as much as a whole tile more. A
// step that decodes while prompts wait takes two tiles at least, since a smaller one is bound by reading the weights,
// and half a tile of prompt tokens at least, so that no prompt is stuck behind decodes that fill a tile.
constexpr int64_t kRowTile = 128;
// Steps of few decodes and of prompts that may follow one another.
constexpr int kMostMixed = 5;

}  // namespace

Scheduler::Scheduler(const SchedulerLimits& limits, BlockPool& pool, PrefixCache* prefix_cache)
    : limits_(limits),
      max_running_(std::min(limits.max_slots, limits.token_budget)),
      pool_(pool),
      prefix_cache_(prefix_cache) {}

void Scheduler::add(Sequence* sequence) {
  sequence->state = SequenceState::kWaiting;
  waiting_.insert(sequence);
}

void Scheduler::remove(Sequence* sequence) {
  if (sequence->state == SequenceState::kWaiting) waiting_.erase(sequence);
  if (sequence->state == SequenceState::kRunning) running_.erase(sequence);
  release_blocks(sequence);
  sequence->state = SequenceState::kEnded;
  if (sequence->group) std::erase(*sequence->group, sequence);
}

const StepPlan& Scheduler::plan() {
  plan_.chunks.clear();
  plan_.n_tokens = 0;
  plan_.admitted.clear();
  plan_.preempted.clear();
  budget_ = limits_.token_budget;
  plan_decodes();
  const int n_decodes = plan_.n_tokens;
  if (limits_.prefill_spread > 0 && n_decodes > 0) budget_ = budget_beside_decodes();
  plan_prefills();
  admit_waiting();
  n_mixed_ = n_decodes > 0 && plan_.n_tokens > n_decodes ? n_mixed_ + 1 : 0;
  for (const Chunk& chunk : plan_.chunks) {  // only now: who is admitted shares no block of this very step
    chunk.sequence->n_computed += chunk.n_tokens;
    if (chunk.samples) chunk.sequence->n_unknown++;
  }
  return plan_;
}

void Scheduler::plan_decodes() {
  // grow() may preempt sequences behind the current one, or the current one itself; none of them is in the plan yet,
  // because decodes are walked in running order and prefills come later.
  for (auto it = running_.begin(); it != running_.end();) {
    Sequence* sequence = *it;
    const bool ends = sequence->n_unknown > 0 && sequence->length() >= sequence->max_length;
    if (sequence->n_pending() == 1 && !ends && grow(sequence)) add_chunk(sequence);
    it = running_.upper_bound(sequence);
  }
}

// Whole tiles for the decodes that are planned and this step's part of the prompts that could run.
int Scheduler::budget_beside_decodes() const {
  if (plan_.n_tokens < kRowTile / 2 && n_mixed_ == kMostMixed) return plan_.n_tokens;
  int64_t n_prompt = 0;
  for (const Sequence* sequence : running_)
    if (sequence->n_pending() > 1) n_prompt += sequence->n_pending();
  int n_free = max_running_ - n_running();
  for (auto it = waiting_.begin(); it != waiting_.end() && n_free > 0; ++it, --n_free) n_prompt += (*it)->n_pending();
  const int64_t wanted = plan_.n_tokens + std::max(kRowTile / 2, n_prompt / limits_.prefill_spread);
  const int64_t tiles = std::max<int64_t>(2, (wanted + kRowTile - 1) / kRowTile);
  return static_cast<int>(std::min<int64_t>(limits_.token_budget, tiles * kRowTile));
}

void Scheduler::plan_prefills() {
  for (Sequence* sequence : running_) {
    if (plan_.n_tokens == budget_) return;
    if (sequence->n_pending() > 1) add_chunk(sequence);  // its blocks were taken at admission
  }
}

void Scheduler::admit_waiting() {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (n_running() == max_running_ || plan_.n_tokens == budget_) return;
    Sequence* sequence = *it;
    if (sibling_computes_prompt(sequence)) {
      ++it;
      continue;
    }
    if (!admit(sequence)) return;
    it = waiting_.erase(it);
    running_.insert(sequence);
    plan_.admitted.push_back(sequence);
    add_chunk(sequence);
  }
}

// Gives the sequence blocks for all its known tokens, shared ones where their content exists; or none at all.
bool Scheduler::admit(Sequence* sequence) {
  // A preempted victim must not come back in the very step that took its blocks, nor before its last token is known.
  if (!plan_.preempted.empty() || sequence->n_unknown > 0) return false;
  sequence->n_looked_up = sequence->n_cached = 0;
  take_shared_blocks(sequence);
  const int64_t needed =
      blocks_for(static_cast<int64_t>(sequence->tokens.size())) - static_cast<int64_t>(sequence->blocks.size());
  // Running sequences will soon want a block each; admitting into the last blocks would only cause preemptions.
  if (pool_.n_available() < needed + n_running()) {
    release_blocks(sequence);
    return false;
  }
  for (int64_t i = 0; i < needed; i++) sequence->blocks.push_back(pool_.allocate());
  sequence->state = SequenceState::kRunning;
  return true;
}

// At least the last known token is left to compute: its logits are wanted.
void Scheduler::take_shared_blocks(Sequence* sequence) {
  const int64_t limit = (static_cast<int64_t>(sequence->tokens.size()) - 1) / limits_.block_size;
  if (const Sequence* sibling = sibling_with_prompt(sequence); sibling != nullptr) {
    for (int64_t i = 0; i < n_shared_blocks(sequence); i++)
      sequence->blocks.push_back(sibling->blocks[static_cast<size_t>(i)]);
    for (const BlockId block : sequence->blocks) pool_.acquire(block);
  } else if (prefix_cache_ != nullptr && sequence->reads_prefix_cache) {
    sequence->n_looked_up = static_cast<int64_t>(sequence->tokens.size());
    EntryId parent = kRoot;
    for (int64_t i = 0; i < limit; i++) {
      const std::span<const int32_t> tokens(sequence->tokens.data() + i * limits_.block_size,
                                            static_cast<size_t>(limits_.block_size));
      const PrefixCache::Hit hit = prefix_cache_->find(parent, sequence->cache_salt, tokens);
      if (hit.block == kNoBlock) break;
      pool_.acquire(hit.block);
      sequence->blocks.push_back(hit.block);
      parent = hit.entry;
    }
    sequence->n_published = static_cast<int64_t>(sequence->blocks.size());
    sequence->last_entry = parent;
    sequence->n_cached = sequence->n_published * limits_.block_size;
  }
  sequence->n_computed = static_cast<int64_t>(sequence->blocks.size()) * limits_.block_size;
}

// Full blocks of the prompt that every sample of a group reads and none writes: each computes the last prompt token.
int64_t Scheduler::n_shared_blocks(const Sequence* sequence) const {
  return (sequence->n_prompt - 1) / limits_.block_size;
}

const Sequence* Scheduler::sibling_with_prompt(const Sequence* sequence) const {
  if (!sequence->group) return nullptr;
  const int64_t n_shared_tokens = n_shared_blocks(sequence) * limits_.block_size;
  for (const Sequence* sibling : *sequence->group) {
    if (sibling != sequence && sibling->state == SequenceState::kRunning && sibling->n_computed >= n_shared_tokens)
      return sibling;
  }
  return nullptr;
}

bool Scheduler::sibling_computes_prompt(const Sequence* sequence) const {
  if (!sequence->group || sibling_with_prompt(sequence) != nullptr) return false;
  return std::any_of(sequence->group->begin(), sequence->group->end(),
                     [](const Sequence* sibling) { return sibling->state == SequenceState::kRunning; });
}

// Makes room for the sequence's next token; false if the sequence itself had to give way.
bool Scheduler::grow(Sequence* sequence) {
  if (blocks_for(sequence->length()) == static_cast<int64_t>(sequence->blocks.size())) return true;
  for (;;) {
    if (const BlockId block = pool_.allocate(); block != kNoBlock) {
      sequence->blocks.push_back(block);
      return true;
    }
    Sequence* last = *running_.rbegin();
    preempt(last);
    if (last == sequence) return false;
  }
}

void Scheduler::preempt(Sequence* sequence) {
  running_.erase(sequence);
  release_blocks(sequence);
  sequence->state = SequenceState::kWaiting;
  waiting_.insert(sequence);
  plan_.preempted.push_back(sequence);
}

// Last block first: the end of a text is evicted from the cache before its beginning, on which it depends.
void Scheduler::release_blocks(Sequence* sequence) {
  for (auto it = sequence->blocks.rbegin(); it != sequence->blocks.rend(); ++it) pool_.release(*it);
  sequence->blocks.clear();
  sequence->n_computed = 0;
  sequence->n_published = 0;
  sequence->last_entry = kRoot;
}

void Scheduler::add_chunk(Sequence* sequence) {
  const int64_t room = budget_ - plan_.n_tokens;
  const int64_t n_tokens = std::min(room, sequence->n_pending());
  const bool samples = n_tokens == sequence->n_pending();
  plan_.chunks.push_back({sequence, sequence->n_computed, static_cast<int>(n_tokens), samples});
  plan_.n_tokens += static_cast<int>(n_tokens);
}

void Scheduler::commit(const Chunk& chunk) {
  Sequence* sequence = chunk.sequence;
  if (chunk.samples) sequence->n_unknown--;
  if (sequence->state == SequenceState::kRunning) publish(sequence, chunk.begin + chunk.n_tokens);
}

void Scheduler::postpone(const Chunk& chunk) {
  Sequence* sequence = chunk.sequence;
  sequence->n_unknown--;
  if (sequence->state != SequenceState::kRunning) return;
  sequence->n_computed = chunk.begin + chunk.n_tokens - 1;
  publish(sequence, sequence->n_computed);
}

// Makes the full blocks among the first n_done tokens findable.
void Scheduler::publish(Sequence* sequence, int64_t n_done) {
  if (prefix_cache_ == nullptr) return;
  const int64_t n_full = n_done / limits_.block_size;
  for (; sequence->n_published < n_full; sequence->n_published++) {
    const size_t block = static_cast<size_t>(sequence->n_published);
    const std::span<const int32_t> tokens(sequence->tokens.data() + sequence->n_published * limits_.block_size,
                                          static_cast<size_t>(limits_.block_size));
    sequence->last_entry =
        prefix_cache_->publish(sequence->blocks[block], sequence->last_entry, sequence->cache_salt, tokens);
  }
}

void Scheduler::check(int n_held) const {
  pool_.check();
  if (prefix_cache_ != nullptr) prefix_cache_->check();
  const auto fail = [](const std::string& what) {
    throw Error(Status::kInternal, "scheduler is inconsistent: " + what);
  };
  std::unordered_map<BlockId, int> references;
  for (const Sequence* sequence : running_) {
    if (sequence->state != SequenceState::kRunning) fail("a running sequence is in another state");
    if (sequence->n_computed > sequence->length()) fail("more computed than known tokens");
    if (static_cast<int64_t>(sequence->blocks.size()) < blocks_for(sequence->n_computed))
      fail("computed tokens lack blocks");
    for (const BlockId block : sequence->blocks) references[block]++;
  }
  for (const Sequence* sequence : waiting_) {
    if (sequence->state != SequenceState::kWaiting) fail("a waiting sequence is in another state");
    if (!sequence->blocks.empty() || sequence->n_computed != 0) fail("a waiting sequence holds blocks");
  }
  for (const auto& [block, count] : references) {
    if (pool_.references(block) != count)
      fail("block " + std::to_string(block) + " has " + std::to_string(pool_.references(block)) +
           " references, sequences hold " + std::to_string(count));
  }
  if (pool_.n_used() != static_cast<int>(references.size()) + n_held)
    fail(std::to_string(pool_.n_used()) + " blocks are used, " + std::to_string(references.size()) +
         " by sequences and " + std::to_string(n_held) + " by others");
}

}  // namespace qwen3

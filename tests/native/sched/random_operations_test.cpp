// A hundred thousand random operations on scheduler, pool and prefix cache, with every invariant checked after each.
//
// Beside the books it keeps a model of the KV memory itself: each slot holds a hash of the salt and of all tokens up to
// its position, written when a chunk is computed. Whoever reads a slot (every later chunk of a sequence reads all
// before it) must find its own prefix there. So a block that is shared wrongly, evicted too early, or not recomputed
// after a preemption shows as a wrong value, whatever the books say.
#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "check.h"
#include "sched/scheduler.h"

using namespace qwen3;

namespace {

constexpr int kTestBlock = 4;  // tokens; small, so that many blocks and borders are met
constexpr uint64_t kUnwritten = 0;

uint64_t chain(uint64_t before, uint64_t value) {
  uint64_t x = (before ^ value) * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u;
  x ^= x >> 29;
  return (x * 0xbf58476d1ce4e5b9u) | 1;  // never kUnwritten
}

uint64_t colliding_hash(EntryId, std::string_view, std::span<const int32_t> tokens) {
  return static_cast<uint64_t>(tokens[0] & 1);
}

struct Setup {
  int n_blocks = 24;
  int max_slots = 5;
  int token_budget = 12;
  int prefill_spread = 0;
  PrefixCache::Hash hash = PrefixCache::default_hash;
  bool prefix_cache = true;
};

class World {
 public:
  World(const Setup& setup, uint64_t seed)
      : setup_(setup),
        random_(seed),
        pool_(setup.n_blocks),
        cache_(setup.prefix_cache ? std::make_unique<PrefixCache>(pool_, kTestBlock, setup.hash) : nullptr),
        scheduler_({.max_slots = setup.max_slots,
                    .token_budget = setup.token_budget,
                    .block_size = kTestBlock,
                    .prefill_spread = setup.prefill_spread},
                   pool_, cache_.get()),
        slots_(static_cast<size_t>(setup.n_blocks) * kTestBlock, kUnwritten) {}

  void operate() {
    const int choice = below(100);
    if (choice < 12 && live_.size() < 40)
      add_request();
    else if (choice < 16)
      remove_any();
    else if (choice < 18)
      hold_or_return_block();
    else
      step();
    check();
  }

  // No new work: everything ends, within as many steps as there are tokens to compute (with all preemptions).
  void drain() {
    while (!held_.empty()) hold_or_return_block(false);
    for (int steps = 0; !live_.empty(); steps++) {
      REQUIRE(steps < 20'000);
      step();
      check();
    }
    CHECK_EQ(pool_.n_used(), 0);
    CHECK_EQ(pool_.n_free() + pool_.n_cached(), setup_.n_blocks);
    CHECK(!scheduler_.has_work());
  }

  int n_finished = 0, n_preempted = 0, n_postponed = 0, n_cancelled_in_step = 0, n_shared_reads = 0;
  int64_t n_cached_tokens = 0;

 private:
  struct Actor : Sequence {
    int64_t target = 0;              // output tokens to make
    std::vector<uint64_t> prefixes;  // of tokens 0..i, what slot i must hold
  };

  int below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }

  void append(Actor& actor, int32_t token) {
    const uint64_t before =
        actor.prefixes.empty() ? chain(77, std::hash<std::string>()(actor.cache_salt)) : actor.prefixes.back();
    actor.tokens.push_back(token);
    actor.prefixes.push_back(chain(before, static_cast<uint64_t>(token)));
  }

  // Prompts begin with one of three common texts and go on with a few ids, so that many beginnings are equal. A request
  // never wants more than the whole pool: the engine refuses such ones.
  void add_request() {
    const int capacity = setup_.n_blocks * kTestBlock;
    const int n_samples = below(4) == 0 ? 2 + below(3) : 1;
    const int n_prompt = 1 + below(below(6) == 0 ? capacity - 1 : 30);
    const int common = below(3);
    const int n_common = below(n_prompt + 1);
    const int n_target = 1 + below(std::min(capacity - n_prompt, 24));
    const int32_t priority = below(3) - 1;
    const std::string salt = below(4) == 0 ? "salt" : "";
    const bool reads = below(8) != 0;
    std::vector<int32_t> prompt;
    for (int i = 0; i < n_prompt; i++) prompt.push_back(i < n_common ? common * 100 + i / 3 : below(2));
    const auto group = std::make_shared<SequenceGroup>();
    for (int i = 0; i < n_samples; i++) {
      auto actor = std::make_unique<Actor>();
      actor->cache_salt = salt;
      actor->priority = priority;
      actor->arrival = next_arrival_++;
      actor->reads_prefix_cache = reads;
      actor->n_prompt = n_prompt;
      actor->target = n_target;
      actor->group = group;
      for (const int32_t token : prompt) append(*actor, token);
      group->push_back(actor.get());
      scheduler_.add(actor.get());
      live_.push_back(std::move(actor));
    }
  }

  void remove(Sequence* sequence) {
    scheduler_.remove(sequence);
    CHECK(sequence->state == SequenceState::kEnded);
    CHECK(sequence->blocks.empty());
    std::erase_if(live_, [&](const auto& actor) { return actor.get() == sequence; });
  }

  void remove_any() {
    if (!live_.empty()) remove(live_[static_cast<size_t>(below(static_cast<int>(live_.size())))].get());
  }

  // As a sequence that the host advances by hand does.
  void hold_or_return_block(bool may_take = true) {
    if (may_take && held_.size() < 3 && below(2) == 0) {
      const BlockId block = pool_.allocate();
      if (block == kNoBlock) return;
      for (int i = 0; i < kTestBlock; i++) slot(block, i) = kUnwritten;
      held_.push_back(block);
    } else if (!held_.empty()) {
      pool_.release(held_.back());
      held_.pop_back();
    }
  }

  uint64_t& slot(BlockId block, int64_t offset) {
    return slots_[static_cast<size_t>(block) * kTestBlock + static_cast<size_t>(offset)];
  }

  void step() {
    std::map<const Sequence*, int64_t> pending_before;  // of running sequences
    for (const auto& actor : live_)
      if (actor->state == SequenceState::kRunning) pending_before[actor.get()] = actor->n_pending();

    const StepPlan& plan = scheduler_.plan();
    n_preempted += static_cast<int>(plan.preempted.size());
    check_plan(plan, pending_before);
    compute(plan);

    // Cancelled while the model computes: the blocks go at once, the chunk's result is dropped.
    std::set<const Sequence*> cancelled;
    if (below(8) == 0 && !plan.chunks.empty()) {
      Sequence* victim = plan.chunks[static_cast<size_t>(below(static_cast<int>(plan.chunks.size())))].sequence;
      cancelled.insert(victim);
      n_cancelled_in_step++;
      remove(victim);
    }
    const std::vector<Chunk> chunks = plan.chunks;
    for (const Chunk& chunk : chunks) {
      if (cancelled.count(chunk.sequence) != 0) continue;
      Actor& actor = static_cast<Actor&>(*chunk.sequence);
      if (chunk.samples && below(10) == 0) {
        scheduler_.postpone(chunk);
        CHECK_EQ(actor.n_pending(), 1);
        n_postponed++;
        continue;
      }
      scheduler_.commit(chunk);
      CHECK_EQ(actor.n_computed, chunk.begin + chunk.n_tokens);
      CHECK_EQ(actor.n_unknown, 0);
      if (!chunk.samples) continue;
      append(actor, below(2));
      if (actor.n_output() == actor.target) {
        n_finished++;
        remove(&actor);
      }
    }
  }

  void check_plan(const StepPlan& plan, const std::map<const Sequence*, int64_t>& pending_before) {
    int n_tokens = 0;
    std::set<const Sequence*> planned;
    int phase = 0;  // 0: decodes, 1: running prefills, 2: admitted
    const Sequence* previous = nullptr;
    for (const Chunk& chunk : plan.chunks) {
      const Sequence& s = *chunk.sequence;
      n_tokens += chunk.n_tokens;
      CHECK(planned.insert(&s).second);
      CHECK(s.state == SequenceState::kRunning);
      CHECK(chunk.n_tokens >= 1);
      const int64_t end = chunk.begin + chunk.n_tokens;
      CHECK_EQ(s.n_computed, end);
      CHECK_EQ(s.n_unknown, chunk.samples ? 1 : 0);
      CHECK(end <= static_cast<int64_t>(s.tokens.size()));
      CHECK_EQ(chunk.samples, end == static_cast<int64_t>(s.tokens.size()));
      CHECK(static_cast<int64_t>(s.blocks.size()) * kTestBlock >= end);
      const bool admitted = std::count(plan.admitted.begin(), plan.admitted.end(), &s) != 0;
      const auto before = pending_before.find(&s);
      const int now = admitted ? 2 : before != pending_before.end() && before->second == 1 ? 0 : 1;
      CHECK(now >= phase);  // decodes first, admissions last
      if (now == phase && previous != nullptr) CHECK(runs_before(previous, &s));
      phase = now;
      previous = &s;
      if (admitted) n_cached_tokens += s.n_cached;
    }
    CHECK_EQ(n_tokens, plan.n_tokens);
    CHECK(n_tokens <= setup_.token_budget);
    CHECK(scheduler_.n_running() <= std::min(setup_.max_slots, setup_.token_budget));

    // Every decode that still runs is in the step: none ever waits for a prompt.
    for (const auto& [sequence, pending] : pending_before)
      if (pending == 1 && sequence->state == SequenceState::kRunning) CHECK(planned.count(sequence) == 1);
    // Nothing overtakes: who is still waiting comes after all that were admitted, but for samples that wait for a
    // sibling's prompt. Preempted ones come after all that run.
    const auto waits_for_sibling = [&](const Actor& actor) {
      return std::any_of(actor.group->begin(), actor.group->end(),
                         [](const Sequence* s) { return s->state == SequenceState::kRunning; });
    };
    for (const auto& actor : live_) {
      if (actor->state != SequenceState::kWaiting || waits_for_sibling(*actor)) continue;
      for (const Sequence* admitted : plan.admitted) CHECK(runs_before(admitted, actor.get()));
    }
    for (const Sequence* victim : plan.preempted)
      for (const Chunk& chunk : plan.chunks) CHECK(runs_before(chunk.sequence, victim));
    if (!plan.preempted.empty()) CHECK(plan.admitted.empty());
    // Never stuck: with no block held by others, work means progress.
    if (held_.empty() && scheduler_.has_work()) CHECK(!plan.chunks.empty());
  }

  // What the device does: all of the step's tokens are written, then each sequence reads everything before its tokens.
  void compute(const StepPlan& plan) {
    std::set<BlockId> written;
    for (const Chunk& chunk : plan.chunks) {
      const Actor& actor = static_cast<const Actor&>(*chunk.sequence);
      std::set<BlockId> own;
      for (int64_t p = chunk.begin; p < chunk.begin + chunk.n_tokens; p++) {
        const BlockId block = actor.blocks[static_cast<size_t>(p / kTestBlock)];
        CHECK_EQ(pool_.references(block), 1);  // nobody else's
        own.insert(block);
        slot(block, p % kTestBlock) = actor.prefixes[static_cast<size_t>(p)];
      }
      for (const BlockId block : own) CHECK(written.insert(block).second);
    }
    for (const Chunk& chunk : plan.chunks) {
      const Actor& actor = static_cast<const Actor&>(*chunk.sequence);
      for (int64_t p = 0; p < chunk.begin + chunk.n_tokens; p++) {
        const BlockId block = actor.blocks[static_cast<size_t>(p / kTestBlock)];
        if (slot(block, p % kTestBlock) != actor.prefixes[static_cast<size_t>(p)]) {
          CHECK(!"a sequence reads KV that is not its own prefix");
          return;
        }
        n_shared_reads += pool_.references(block) > 1;
      }
    }
  }

  void check() {
    scheduler_.check(static_cast<int>(held_.size()));
    CHECK_EQ(pool_.n_free() + pool_.n_cached() + pool_.n_used(), setup_.n_blocks);
    CHECK_EQ(scheduler_.n_running() + scheduler_.n_waiting(), static_cast<int>(live_.size()));
  }

  const Setup setup_;
  std::mt19937_64 random_;
  BlockPool pool_;
  std::unique_ptr<PrefixCache> cache_;
  Scheduler scheduler_;
  std::vector<uint64_t> slots_;
  std::vector<std::unique_ptr<Actor>> live_;
  std::vector<BlockId> held_;
  uint64_t next_arrival_ = 1;
};

// Runs on until the first failure, so that its message is the first line.
void run(const Setup& setup, uint64_t seed, int n_operations, bool expect_hits) {
  World world(setup, seed);
  const int before = check::failures();
  for (int i = 0; i < n_operations; i++) {
    world.operate();
    if (check::failures() != before) {
      check::fail(__FILE__, __LINE__, "operation " + std::to_string(i) + " of seed " + std::to_string(seed));
      return;
    }
  }
  world.drain();
  // The test is worth its name only if all of this has happened.
  CHECK(world.n_finished > n_operations / 200);
  CHECK(world.n_preempted > n_operations / 1000);
  CHECK(world.n_postponed > n_operations / 200);
  CHECK(world.n_cancelled_in_step > n_operations / 200);
  CHECK(world.n_shared_reads > n_operations / 100);
  CHECK_EQ(world.n_cached_tokens > n_operations / 100, expect_hits);
}

}  // namespace

TEST("scheduler: 100,000 random operations keep every invariant and every sequence's own KV") {
  for (uint64_t seed = 1; seed <= 4; seed++) {
    run({}, seed, 20'000, true);
  }
  run({.n_blocks = 12, .max_slots = 8, .token_budget = 6}, 5, 10'000, true);
  run({.n_blocks = 60, .max_slots = 16, .token_budget = 33}, 6, 10'000, true);
  run({.n_blocks = 60, .max_slots = 64, .token_budget = 500, .prefill_spread = 3}, 7, 10'000, true);
}

TEST("scheduler: random operations with colliding hashes never mix two texts") {
  run({.hash = colliding_hash}, 7, 20'000, true);
}

TEST("scheduler: random operations without the prefix cache") {
  run({.prefix_cache = false}, 8, 20'000, false);
}

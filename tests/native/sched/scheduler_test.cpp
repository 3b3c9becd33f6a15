// The scheduler's rules, one by one: order, budget, chunks, sharing, preemption.
#include "sched/scheduler.h"

#include <memory>
#include <vector>

#include "base/error.h"
#include "check.h"

using namespace qwen3;

namespace {

class Bench {
 public:
  explicit Bench(const SchedulerLimits& limits, int n_blocks, bool prefix_cache = true)
      : pool(n_blocks),
        cache(prefix_cache ? std::make_unique<PrefixCache>(pool, limits.block_size) : nullptr),
        scheduler(limits, pool, cache.get()) {}

  // `n` samples of a prompt of `n_prompt` equal tokens.
  std::vector<Sequence*> add(int n_prompt, int32_t token, int32_t priority = 0, int n = 1) {
    const auto group = std::make_shared<SequenceGroup>();
    std::vector<Sequence*> added;
    for (int i = 0; i < n; i++) {
      auto sequence = std::make_unique<Sequence>();
      sequence->tokens.assign(static_cast<size_t>(n_prompt), token);
      sequence->n_prompt = n_prompt;
      sequence->priority = priority;
      sequence->arrival = ++arrivals;
      sequence->group = group;
      group->push_back(sequence.get());
      scheduler.add(sequence.get());
      added.push_back(sequence.get());
      sequences.push_back(std::move(sequence));
    }
    return added;
  }
  Sequence* add_one(int n_prompt, int32_t token, int32_t priority = 0) { return add(n_prompt, token, priority)[0]; }

  // One whole step; every chunk that samples gets token 1,000.
  std::vector<Chunk> step() {
    const StepPlan& plan = scheduler.plan();
    preempted = plan.preempted;
    const std::vector<Chunk> chunks = plan.chunks;
    for (const Chunk& chunk : chunks) {
      scheduler.commit(chunk);
      if (chunk.samples) chunk.sequence->tokens.push_back(1'000);
    }
    scheduler.check(0);
    return chunks;
  }

  BlockPool pool;
  std::unique_ptr<PrefixCache> cache;
  Scheduler scheduler;
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<Sequence*> preempted;
  uint64_t arrivals = 0;
};

constexpr SchedulerLimits kLimits{.max_slots = 4, .token_budget = 16, .block_size = 4};

}  // namespace

TEST("scheduler: nothing to do is an empty plan") {
  Bench b(kLimits, 8);
  CHECK(b.step().empty());
  CHECK(!b.scheduler.has_work());
}

TEST("scheduler: a long prompt is computed in chunks of the budget, the last one samples") {
  Bench b(kLimits, 16);
  const Sequence* s = b.add_one(40, 1);
  for (const auto& [begin, n] : {std::pair{0, 16}, {16, 16}, {32, 8}}) {
    const std::vector<Chunk> chunks = b.step();
    REQUIRE(chunks.size() == 1);
    CHECK_EQ(chunks[0].begin, begin);
    CHECK_EQ(chunks[0].n_tokens, n);
    CHECK_EQ(chunks[0].samples, begin == 32);
  }
  CHECK_EQ(s->n_output(), 1);
  CHECK_EQ(b.step()[0].n_tokens, 1);
}

TEST("scheduler: running decodes come first and lose nothing to a long prompt") {
  Bench b(kLimits, 32);
  Sequence* const first = b.add_one(3, 1);
  b.step();
  Sequence* const prompt = b.add_one(60, 2, -1);  // even one that matters more
  for (int i = 0; i < 4; i++) {
    const std::vector<Chunk> chunks = b.step();
    REQUIRE(chunks.size() == 2);
    CHECK(chunks[0].sequence == first);
    CHECK_EQ(chunks[0].n_tokens, 1);
    CHECK(chunks[1].sequence == prompt);
    CHECK_EQ(chunks[1].n_tokens, 15);
  }
}

TEST("scheduler: with prefill_spread a step that decodes takes whole tiles, and more of them the more prompts wait") {
  // 2 decodes and prompts of so many tokens: prefill tokens of the next step, in tiles of 128 rows
  const auto prefill_tokens = [](int n_waiting, int n_decodes, int spread) {
    Bench b({.max_slots = 1'000, .token_budget = 2'048, .block_size = 4, .prefill_spread = spread}, 20'000, false);
    for (int i = 0; i < n_decodes; i++) b.add_one(1, i);
    b.step();
    if (n_waiting > 0) b.add_one(n_waiting, 1'000);
    int n = 0;
    for (const Chunk& chunk : b.step()) n += chunk.sequence->n_prompt == n_waiting ? chunk.n_tokens : 0;
    return n;
  };
  CHECK_EQ(prefill_tokens(10, 2, 8), 10);
  CHECK_EQ(prefill_tokens(1'000, 2, 8), 254);          // 2 + 1,000 / 8 rows: two tiles
  CHECK_EQ(prefill_tokens(4'000, 2, 8), 512 - 2);      // 2 + 500 rows: four
  CHECK_EQ(prefill_tokens(40'000, 2, 8), 2'048 - 2);   // never more than the budget
  CHECK_EQ(prefill_tokens(4'000, 2, 0), 2'048 - 2);    // off
  CHECK_EQ(prefill_tokens(4'000, 0, 8), 2'048);        // nothing decodes: the whole budget
  CHECK_EQ(prefill_tokens(1'000, 256, 8), 384 - 256);  // 256 + 125 rows
  CHECK_EQ(prefill_tokens(300, 256, 8), 384 - 256);    // 256 + at least 64
  CHECK_EQ(prefill_tokens(300, 200, 8), 384 - 200);
}

TEST("scheduler: with prefill_spread prompts under way and those that have a slot count, others do not") {
  Bench b({.max_slots = 3, .token_budget = 4'096, .block_size = 4, .prefill_spread = 4}, 20'000, false);
  b.add_one(1, 1);
  b.step();
  for (int i = 0; i < 4; i++) b.add_one(1'500, 2 + i);  // two of them have a slot: 1 + 3,000 / 4 rows are six tiles
  std::vector<Chunk> chunks = b.step();
  REQUIRE(chunks.size() == 2);
  CHECK_EQ(chunks[1].n_tokens, 767);
  chunks = b.step();  // 733 and 1,500 tokens are left: 1 + 558 rows are five tiles
  REQUIRE(chunks.size() == 2);
  CHECK_EQ(chunks[1].n_tokens, 639);
  chunks = b.step();  // 94 and 1,500: 1 + 398 rows, four tiles
  REQUIRE(chunks.size() == 3);
  CHECK_EQ(chunks[1].n_tokens, 94);
  CHECK_EQ(chunks[2].n_tokens, 512 - 1 - 94);
}

TEST("scheduler: with prefill_spread, beside fewer than 64 decodes every sixth step goes without prompts") {
  // Prefill tokens of successive steps beside so many decodes, while a prompt of 20,000 tokens is computed.
  const auto prefill_tokens = [](int n_decodes, int spread) {
    Bench b({.max_slots = 1'000, .token_budget = 2'048, .block_size = 4, .prefill_spread = spread}, 20'000, false);
    for (int i = 0; i < n_decodes; i++) b.add_one(1, i);
    b.step();
    const Sequence* const prompt = b.add_one(20'000, 1'000);
    std::vector<int> steps;
    for (int i = 0; i < 13; i++) {
      const std::vector<Chunk> chunks = b.step();
      const bool has_prompt = chunks.back().sequence == prompt;
      CHECK_EQ(chunks.size(), static_cast<size_t>(n_decodes + (has_prompt ? 1 : 0)));  // every decode is in every step
      steps.push_back(has_prompt ? chunks.back().n_tokens : 0);
    }
    return steps;
  };
  CHECK(prefill_tokens(2, 1'000) == std::vector<int>({254, 254, 254, 254, 254, 0, 254, 254, 254, 254, 254, 0, 254}));
  CHECK(prefill_tokens(63, 1'000) == std::vector<int>({193, 193, 193, 193, 193, 0, 193, 193, 193, 193, 193, 0, 193}));
  CHECK(prefill_tokens(64, 1'000) == std::vector<int>(13, 192));
  CHECK(prefill_tokens(2, 0)[5] == 2'046);  // off
}

TEST("scheduler: with prefill_spread the steps with prompts are counted anew after one without") {
  Bench b({.max_slots = 1'000, .token_budget = 2'048, .block_size = 4, .prefill_spread = 1'000}, 20'000, false);
  b.add_one(1, 1);
  b.step();
  const auto n_chunks = [&b](int n_prompt) {
    if (n_prompt > 0) b.add_one(n_prompt, 1'000);
    return static_cast<int>(b.step().size());
  };
  for (int i = 0; i < 4; i++) CHECK_EQ(n_chunks(200), 2 + i);  // each prompt ends and decodes on
  CHECK_EQ(n_chunks(0), 5);                                    // no prompt waits
  for (int i = 0; i < 5; i++) CHECK_EQ(n_chunks(200), 6 + i);
  CHECK_EQ(n_chunks(200), 10);  // the sixth in a row waits
  CHECK_EQ(n_chunks(0), 11);
}

TEST("scheduler: admission goes by priority, then arrival, up to the slots") {
  Bench b({.max_slots = 3, .token_budget = 100, .block_size = 4}, 32);
  Sequence* const low = b.add_one(2, 1, 5);
  Sequence* const early = b.add_one(2, 2);
  Sequence* const late = b.add_one(2, 3);
  Sequence* const high = b.add_one(2, 4, -5);
  const std::vector<Chunk> chunks = b.step();
  REQUIRE(chunks.size() == 3);
  CHECK(chunks[0].sequence == high);
  CHECK(chunks[1].sequence == early);
  CHECK(chunks[2].sequence == late);
  CHECK(low->state == SequenceState::kWaiting);
  CHECK_EQ(b.scheduler.n_waiting(), 1);
  b.scheduler.remove(early);
  CHECK(b.step().back().sequence == low);
}

TEST("scheduler: no more run at once than the budget has tokens") {
  Bench b({.max_slots = 50, .token_budget = 16, .block_size = 4}, 200);
  CHECK_EQ(b.scheduler.max_running(), 16);
  for (int i = 0; i < 20; i++) b.add_one(1, i);
  CHECK_EQ(b.step().size(), 16u);
  CHECK_EQ(b.step().size(), 16u);
  CHECK_EQ(b.scheduler.n_waiting(), 4);
}

TEST("scheduler: a later request shares the full blocks of an equal beginning, and computes its last token itself") {
  Bench b({.max_slots = 4, .token_budget = 64, .block_size = 4}, 32);
  const Sequence* first = b.add_one(12, 1);
  b.step();
  for (const int n_prompt : {12, 13}) {
    const Sequence* second = b.add_one(n_prompt, 1);
    b.step();
    CHECK_EQ(second->n_cached, (n_prompt - 1) / 4 * 4);
    CHECK(second->blocks[0] == first->blocks[0] && second->blocks[1] == first->blocks[1]);
    CHECK_EQ(second->blocks[2] == first->blocks[2], n_prompt == 13);
  }
  Sequence* const apart = b.add_one(12, 1);
  apart->reads_prefix_cache = false;
  b.step();
  CHECK_EQ(apart->n_cached, 0);
  CHECK(apart->blocks[0] != first->blocks[0]);
}

TEST("scheduler: samples wait for the first one's shared blocks, also without a prefix cache") {
  Bench b({.max_slots = 8, .token_budget = 16, .block_size = 4}, 64, false);
  const std::vector<Sequence*> samples = b.add(22, 1, 0, 3);
  Sequence* const other = b.add_one(2, 9);  // may overtake siblings that wait for their own
  CHECK_EQ(b.step().size(), 1u);
  const std::vector<Chunk> second = b.step();
  REQUIRE(second.size() == 2);
  CHECK(second[0].sequence == samples[0]);
  CHECK(second[1].sequence == other);
  b.step();
  for (const Sequence* sample : samples) {
    CHECK(sample->state == SequenceState::kRunning);
    for (size_t i = 0; i < 5; i++) CHECK_EQ(sample->blocks[i], samples[0]->blocks[i]);
    CHECK_EQ(b.pool.references(sample->blocks[0]), 3);
    CHECK_EQ(b.pool.references(sample->blocks[5]), 1);
  }
  CHECK_EQ(b.pool.n_used(), 5 + 3 + 1);
  for (Sequence* sample : samples) b.scheduler.remove(sample);
  CHECK_EQ(b.pool.n_used(), 1);
}

TEST("scheduler: samples of a prompt shorter than a block have nothing to wait for") {
  Bench b(kLimits, 64);
  b.add(4, 1, 0, 3);
  CHECK_EQ(b.step().size(), 3u);
}

TEST("scheduler: a sample that is postponed on its first token does not hold its siblings up") {
  Bench b({.max_slots = 8, .token_budget = 64, .block_size = 4}, 64);
  for (const int n_prompt : {3, 4, 8, 10}) {
    const std::vector<Sequence*> samples = b.add(n_prompt, n_prompt, 0, 2);
    for (int i = 0; i < 3; i++) {
      const std::vector<Chunk> chunks = b.scheduler.plan().chunks;
      for (const Chunk& chunk : chunks) {
        if (chunk.sequence == samples[0]) {
          b.scheduler.postpone(chunk);
          CHECK_EQ(chunk.sequence->n_pending(), 1);
          continue;
        }
        b.scheduler.commit(chunk);
        chunk.sequence->tokens.push_back(1'000);
      }
      b.scheduler.check(0);
    }
    CHECK_EQ(samples[0]->n_output(), 0);
    CHECK(samples[1]->n_output() >= 2);
    for (Sequence* sample : samples) b.scheduler.remove(sample);
  }
}

TEST("scheduler: a block is not published before its last token is settled") {
  Bench b({.max_slots = 8, .token_budget = 64, .block_size = 4}, 64);
  Sequence* const s = b.add_one(8, 1);
  const Chunk chunk = b.scheduler.plan().chunks.at(0);
  b.scheduler.postpone(chunk);
  CHECK_EQ(b.cache->n_entries(), 1u);
  const Chunk again = b.scheduler.plan().chunks.at(0);
  CHECK_EQ(again.begin, 7);
  CHECK_EQ(again.n_tokens, 1);
  CHECK(again.samples);
  b.scheduler.commit(again);
  CHECK_EQ(b.cache->n_entries(), 2u);
  b.scheduler.remove(s);
  CHECK_EQ(b.pool.n_cached(), 2);
}

TEST("scheduler: without a free block the lowest priority, then the youngest, is preempted and comes back first") {
  Bench b({.max_slots = 4, .token_budget = 64, .block_size = 4}, 9);
  Sequence* const high = b.add_one(4, 1, -1);
  Sequence* const early = b.add_one(4, 2);
  Sequence* const late = b.add_one(4, 3);
  b.step();  // each has 1 block; the outputs take a second each, then a third: 9 blocks
  while (b.preempted.empty()) b.step();
  REQUIRE(b.preempted.size() == 1);
  CHECK(b.preempted[0] == late);
  CHECK(late->state == SequenceState::kWaiting);
  CHECK(late->blocks.empty());
  CHECK_EQ(late->n_computed, 0);
  Sequence* const newcomer = b.add_one(1, 4);
  const int64_t n_output = late->n_output();
  b.scheduler.remove(high);
  b.scheduler.remove(early);
  const std::vector<Chunk> chunks = b.step();
  REQUIRE(chunks.size() == 2);
  CHECK(chunks[0].sequence == late);  // at its old place
  CHECK(chunks[1].sequence == newcomer);
  CHECK_EQ(late->n_output(), n_output + 1);
}

TEST("scheduler: a head that does not fit yet is not overtaken") {
  Bench b({.max_slots = 4, .token_budget = 64, .block_size = 4}, 6);
  Sequence* const running = b.add_one(12, 1);
  b.step();
  Sequence* const large = b.add_one(16, 2);
  Sequence* const small = b.add_one(1, 3);
  CHECK_EQ(b.step().size(), 1u);
  CHECK(small->state == SequenceState::kWaiting);
  b.scheduler.remove(running);
  const std::vector<Chunk> chunks = b.step();
  CHECK(chunks.at(0).sequence == large);
  CHECK(chunks.at(1).sequence == small);
}

TEST("scheduler: removing frees everything in every state") {
  Bench b(kLimits, 8);
  Sequence* const waiting = b.add_one(30, 1);
  b.scheduler.remove(waiting);
  CHECK(waiting->state == SequenceState::kEnded);
  Sequence* const half = b.add_one(30, 2);
  b.step();
  b.scheduler.remove(half);
  CHECK(!b.scheduler.has_work());
  CHECK_EQ(b.pool.n_used(), 0);
  CHECK_EQ(b.pool.n_cached(), 4);
  b.scheduler.check(0);
}

TEST("scheduler: the check finds sequences, pool and others at odds") {
  Bench b(kLimits, 8);
  Sequence* const s = b.add_one(5, 1);
  b.step();
  CHECK_THROWS_WITH(b.scheduler.check(1), Error, "2 blocks are used, 2 by sequences and 1 by others");
  b.pool.acquire(s->blocks[0]);
  CHECK_THROWS_WITH(b.scheduler.check(0), Error, "has 2 references, sequences hold 1");
  b.pool.release(s->blocks[0]);
  s->n_computed = 100;
  CHECK_THROWS_WITH(b.scheduler.check(0), Error, "more computed than known tokens");
  s->n_computed = 5;
  s->state = SequenceState::kWaiting;
  CHECK_THROWS_WITH(b.scheduler.check(0), Error, "a running sequence is in another state");
  s->state = SequenceState::kRunning;
  const BlockId lost = s->blocks.back();
  s->blocks.pop_back();
  CHECK_THROWS_WITH(b.scheduler.check(0), Error, "computed tokens lack blocks");
  s->blocks.push_back(lost);
  Sequence* const waiting = b.add_one(100, 2);
  waiting->n_computed = 1;
  CHECK_THROWS_WITH(b.scheduler.check(0), Error, "a waiting sequence holds blocks");
  waiting->n_computed = 0;
  waiting->state = SequenceState::kEnded;
  CHECK_THROWS_WITH(b.scheduler.check(0), Error, "a waiting sequence is in another state");
  waiting->state = SequenceState::kWaiting;
  b.scheduler.check(0);
}

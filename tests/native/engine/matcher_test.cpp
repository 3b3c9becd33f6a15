// Matchers: who is asked when, what an answer means, who frees them, and that a slow one holds up its own sample alone.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "engine/host.h"

using host::Ask;
using host::Host;
using host::text;
using qwen3::Error;
using qwen3::Status;

namespace {

// A grammar in which output token k is base + 2k or base + 2k + 1, and which is over after `length` tokens.
struct Pairs {
  int base = 10;
  int length = 1000;
  int fails_at = -1;  // this token's mask cannot be computed
  int empty_at = -1;  // this token's mask allows nothing
  bool accepts = true;
  std::function<void(int)> on_mask;  // called first, with the token's index
  std::atomic<int>* n_freed = nullptr;

  int n_said = 0;
  bool failed = false;
  std::atomic<int> n_inside = 0;
};

Pairs& of(const void* matcher) {
  return *static_cast<Pairs*>(const_cast<void*>(matcher));
}

void allow(uint32_t* mask, int id) {
  mask[id / 32] |= 1u << (id % 32);
}

qwen3_matcher calls_of(Pairs* pairs) {
  qwen3_matcher calls{};
  calls.struct_size = sizeof calls;
  calls.matcher = pairs;
  calls.consume_token = [](void* matcher, uint32_t token) -> int32_t {
    Pairs& p = of(matcher);
    const uint32_t first = static_cast<uint32_t>(p.base + 2 * p.n_said);
    p.failed = p.failed || token < first || token > first + 1;
    p.n_said++;
    return p.failed ? -1 : 0;
  };
  calls.compute_mask = [](void* matcher, uint32_t* mask, size_t n_bytes) -> int32_t {
    Pairs& p = of(matcher);
    CHECK_EQ(++p.n_inside, 1);  // one thread at a time
    CHECK_EQ(n_bytes, 16u);
    std::memset(mask, 0, n_bytes);
    if (p.on_mask) p.on_mask(p.n_said);
    if (p.n_said == p.fails_at) p.failed = true;
    if (p.n_said == p.length) {
      allow(mask, toy::kEos);
    } else if (p.n_said != p.empty_at) {
      allow(mask, p.base + 2 * p.n_said);
      allow(mask, p.base + 2 * p.n_said + 1);
    }
    p.n_inside--;
    return p.failed ? -1 : 0;
  };
  calls.is_stopped = [](const void* matcher) { return of(matcher).failed || of(matcher).n_said == of(matcher).length; };
  calls.is_accepting = [](void* matcher) { return of(matcher).accepts; };
  calls.get_error = [](void* matcher) -> const char* { return of(matcher).failed ? "too hard\nfor me" : nullptr; };
  calls.free = [](void* matcher) {
    if (of(matcher).n_freed != nullptr) ++*of(matcher).n_freed;
    delete &of(matcher);
  };
  return calls;
}

struct Constrained : Ask {
  explicit Constrained(std::vector<int32_t> ids, int64_t n_tokens) : Ask(std::move(ids), n_tokens) { constrained = 1; }
};

void give(Host& h, uint64_t id, std::unique_ptr<Pairs> pairs, int32_t sample = 0) {
  h.engine->set_matcher(id, sample, 0, calls_of(pairs.get()));
  static_cast<void>(pairs.release());
}

// What a sample says under Pairs, by definition.
std::vector<int32_t> expected(std::vector<int32_t> so_far, int n, int base = 10) {
  std::vector<int32_t> said;
  for (int k = 0; k < n; k++) {
    const uint64_t hash = toy::hash_text(so_far);
    const int32_t first = base + 2 * k;
    const int32_t best = toy::logit(hash, first) >= toy::logit(hash, first + 1) ? first : first + 1;
    said.push_back(best);
    so_far.push_back(best);
  }
  return said;
}

template <typename Done>
void wait_for(const Done& done) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!done()) {
    REQUIRE(std::chrono::steady_clock::now() < deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

class Latch {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    n_waiting_++;
    open_changed_.wait(lock, [this] { return open_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    open_changed_.notify_all();
  }
  int n_waiting() {
    const std::lock_guard lock(mutex_);
    return n_waiting_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable open_changed_;
  bool open_ = false;
  int n_waiting_ = 0;
};

}  // namespace

TEST("matchers: each sample says what its own allows, beside a free one, and each is freed once") {
  std::atomic<int> n_freed = 0;
  {
    Host h;
    std::vector<uint64_t> ids;
    for (int i = 0; i < 4; i++) {
      Constrained ask(text(20 + 11 * i), 20);
      ask.n = 2;
      ids.push_back(h.submit(ask));
      for (int s = 0; s < 2; s++) {
        auto pairs = std::make_unique<Pairs>();
        pairs->base = 10 + s;
        pairs->n_freed = &n_freed;
        give(h, ids.back(), std::move(pairs), s);
      }
    }
    const uint64_t free_one = h.submit(Ask(text(20, 1), 100));
    h.finish();
    for (int i = 0; i < 4; i++)
      for (int s = 0; s < 2; s++)
        CHECK(h.of(ids[static_cast<size_t>(i)], s).tokens == expected(text(20 + 11 * i), 20, 10 + s));
    CHECK(h.of(free_one).tokens == toy::continuation(text(20, 1), 100));
    CHECK_EQ(h.of(ids[0]).end.finish_reason, QWEN3_FINISH_LENGTH);
    h.check_idle();
    wait_for([&] { return n_freed == 8; });
  }
  CHECK_EQ(n_freed.load(), 8);
}

TEST("matchers: where the grammar is over the sample ends by EOS, or by itself where EOS cannot end it") {
  for (const char* kind : {"eos", "ignored", "early", "late"}) {
    const std::string name = kind;
    Host h;
    Constrained ask(text(20), 50);
    ask.ignore_eos = name == "ignored";
    ask.min_tokens = name == "early" ? 4 : name == "late" ? 3 : 0;
    const uint64_t id = h.submit(ask);
    auto pairs = std::make_unique<Pairs>();
    pairs->length = 3;
    give(h, id, std::move(pairs));
    h.finish();
    std::vector<int32_t> said = expected(text(20), 3);
    const bool by_eos = name == "eos" || name == "late";
    if (by_eos) said.push_back(toy::kEos);
    CHECK(h.of(id).tokens == said);
    CHECK_EQ(h.of(id).end.finish_reason, QWEN3_FINISH_STOP);
    CHECK_EQ(h.of(id).end.token, by_eos ? toy::kEos : -1);
    h.check_idle();
  }
}

TEST("matchers: one that fails ends its own sample with a reason") {
  for (const char* kind : {"mask", "empty", "dead end"}) {
    const std::string name = kind;
    Host h;
    const uint64_t id = h.submit(Constrained(text(20), 50));
    const uint64_t other = h.submit(Constrained(text(20), 6));
    auto pairs = std::make_unique<Pairs>();
    if (name == "mask") pairs->fails_at = 3;
    if (name == "empty") pairs->empty_at = 3;
    if (name == "dead end") pairs->length = 3, pairs->accepts = false;
    give(h, id, std::move(pairs));
    give(h, other, std::make_unique<Pairs>());
    h.finish();
    CHECK(h.of(id).tokens == expected(text(20), 3));
    CHECK_EQ(h.of(id).end.finish_reason, QWEN3_FINISH_MATCHER);
    CHECK(h.of(other).tokens == expected(text(20), 6));
    h.check_idle();
    wait_for(
        [&] { return h.log.contains("request " + std::to_string(id) + " ends with an error: its matcher failed"); });
    CHECK(h.log.contains(name == "mask" ? "failed: too hard\n" : "failed: no text meets it\n"));
  }
}

TEST("matchers: those that take long hold up no other sample, and may be cancelled and freed meanwhile") {
  std::atomic<int> n_freed = 0;
  Latch latch;
  Host h;
  std::vector<uint64_t> slow;
  for (int i = 0; i < 3; i++) {
    slow.push_back(h.submit(Constrained(text(20), 8)));
    auto pairs = std::make_unique<Pairs>();
    pairs->n_freed = &n_freed;
    pairs->on_mask = [&](int k) {
      if (k == 2) latch.wait();
    };
    give(h, slow.back(), std::move(pairs));
  }
  wait_for([&] {
    h.poll(1);
    return latch.n_waiting() == 3;
  });
  std::vector<uint64_t> quick;
  for (int i = 0; i < 3; i++) {
    quick.push_back(h.submit(Constrained(text(30 + i), 20)));
    give(h, quick.back(), std::make_unique<Pairs>());
  }
  const uint64_t free_one = h.submit(Ask(text(20, 1), 30));
  h.poll_until([&] {
    return h.of(free_one).n_ends == 1 && h.of(quick[0]).n_ends + h.of(quick[1]).n_ends + h.of(quick[2]).n_ends == 3;
  });
  for (int i = 0; i < 3; i++) CHECK(h.of(quick[static_cast<size_t>(i)]).tokens == expected(text(30 + i), 20));
  h.engine->cancel(slow[0], -1);
  h.poll_until([&] { return h.of(slow[0]).n_ends == 1; });
  CHECK_EQ(n_freed.load(), 0);  // it is still being asked
  latch.open();
  h.finish();
  CHECK(h.of(slow[0]).tokens == expected(text(20), 2));
  CHECK(h.of(slow[1]).tokens == expected(text(20), 8));
  wait_for([&] { return n_freed == 3; });
  h.check_idle();
}

TEST("matchers: more slow ones than threads wait for each other, and all come to their end") {
  Host h;
  std::vector<uint64_t> ids;
  for (int i = 0; i < 12; i++) {
    ids.push_back(h.submit(Constrained(text(20 + i), 4)));
    auto pairs = std::make_unique<Pairs>();
    pairs->on_mask = [](int) { std::this_thread::sleep_for(std::chrono::milliseconds(3)); };
    qwen3_matcher calls = calls_of(pairs.get());
    calls.slow = i % 2;
    h.engine->set_matcher(ids.back(), 0, 0, calls);
    static_cast<void>(pairs.release());
  }
  h.finish();
  for (int i = 0; i < 12; i++) CHECK(h.of(ids[static_cast<size_t>(i)]).tokens == expected(text(20 + i), 4));
}

TEST("matchers: wrong calls are refused, and the matcher stays the caller's") {
  host::Gate gate;
  Host h(host::options(), host::gated(gate));
  const uint64_t id = h.submit(Constrained(text(20), 4));
  const uint64_t plain = h.submit(Ask(text(20), 4));
  Pairs mine;
  const qwen3_matcher calls = calls_of(&mine);
  CHECK_THROWS_WITH(h.engine->set_matcher(id, 0, 1, calls), Error, "output token 1 was given, the next one is 0");
  CHECK_THROWS_WITH(h.engine->set_matcher(id, 3, 0, calls), Error, "has no sample 3");
  CHECK_THROWS_WITH(h.engine->set_matcher(99, 0, 0, calls), Error, "no request 99");
  CHECK_THROWS_WITH(h.engine->set_matcher(plain, 0, 0, calls), Error, "was not submitted as constrained");
  give(h, id, std::make_unique<Pairs>());
  CHECK_THROWS_WITH(h.engine->set_matcher(id, 0, 0, calls), Error, "has a matcher");
  const std::vector<uint32_t> mask(4, 1);
  CHECK_THROWS_WITH(h.engine->set_mask(id, 0, 0, mask), Error, "has a matcher");
  gate.open();
  h.finish();
  CHECK(h.of(id).tokens == expected(text(20), 4));
}

TEST("matchers: masks of the host, then a matcher") {
  Host h;
  const uint64_t id = h.submit(Constrained(text(20), 6));
  for (int k = 0; k < 2; k++) {
    std::vector<uint32_t> mask(4, 0);
    allow(mask.data(), 60 + k);
    h.engine->set_mask(id, 0, k, mask);
    h.poll_until([&] { return static_cast<int>(h.of(id).tokens.size()) > k; });
  }
  auto pairs = std::make_unique<Pairs>();
  h.engine->set_matcher(id, 0, 2, calls_of(pairs.get()));
  static_cast<void>(pairs.release());
  h.finish();
  std::vector<int32_t> before = text(20);
  before.insert(before.end(), {60, 61});
  std::vector<int32_t> said = {60, 61};
  for (const int32_t token : expected(before, 4)) said.push_back(token);
  CHECK(h.of(id).tokens == said);
}

TEST("matchers: an engine that closes in the middle frees them all") {
  for (int round = 0; round < 10; round++) {
    std::atomic<int> n_freed = 0;
    {
      Host h;
      for (int i = 0; i < 6; i++) {
        const uint64_t id = h.submit(Constrained(text(20 + i), 40));
        auto pairs = std::make_unique<Pairs>();
        pairs->n_freed = &n_freed;
        if (i % 2 == 0) pairs->on_mask = [](int) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
        give(h, id, std::move(pairs));
      }
      for (int i = 0; i < round; i++) h.poll(1);
    }
    CHECK_EQ(n_freed.load(), 6);
  }
}

TEST("matchers: preemption, cancels and mixed speeds change no token") {
  qwen3_options o = host::options(14);
  o.max_slots = 6;
  std::atomic<int> n_freed = 0;
  {
    Host h(o);
    std::vector<uint64_t> ids;
    for (int i = 0; i < 40; i++) {
      Constrained ask(text(10 + i, i % 3), 30);
      ids.push_back(h.submit(ask));
      auto pairs = std::make_unique<Pairs>();
      pairs->n_freed = &n_freed;
      if (i % 7 == 0) pairs->on_mask = [](int) { std::this_thread::sleep_for(std::chrono::microseconds(300)); };
      give(h, ids.back(), std::move(pairs));
      if (i % 5 == 4) {
        h.poll(1);
        h.engine->cancel(ids[static_cast<size_t>(i)], -1);
      }
    }
    h.finish();
    for (int i = 0; i < 40; i++) {
      const std::vector<int32_t>& tokens = h.of(ids[static_cast<size_t>(i)]).tokens;
      CHECK(i % 5 == 4 || tokens.size() == 30);
      CHECK(tokens == expected(text(10 + i, i % 3), static_cast<int>(tokens.size())));
    }
    h.check_idle();
  }
  CHECK_EQ(n_freed.load(), 40);
}

// Some answers of a step's samples fail, some take long until the others have come to their end, some samples are
// cancelled meanwhile: at random, so that what takes long is anywhere among those asked together.
TEST("matchers: slow, failing and cancelled ones at random change no token of others, and hold up none") {
  std::mt19937 random(1);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 12; round++) {
    constexpr int kSamples = 16, kTokens = 12;
    enum class Fate { kWell, kFails, kTakesLong, kCancelled };
    std::vector<Fate> fates(kSamples, Fate::kWell);
    std::fill_n(fates.begin(), 3, Fate::kTakesLong);  // fewer than there are threads
    std::fill_n(fates.begin() + 3, 3, Fate::kFails);
    std::fill_n(fates.begin() + 6, 3, Fate::kCancelled);
    std::shuffle(fates.begin(), fates.end(), random);
    std::atomic<int> n_freed = 0;
    Latch latch;
    {
      Host h;
      std::vector<uint64_t> ids;
      std::vector<int> at;  // the token at which its fate comes
      for (int i = 0; i < kSamples; i++) {
        const Fate fate = fates[static_cast<size_t>(i)];
        at.push_back(1 + below(kTokens - 2));
        auto pairs = std::make_unique<Pairs>();
        pairs->n_freed = &n_freed;
        if (fate == Fate::kFails) pairs->fails_at = at.back();
        if (fate == Fate::kTakesLong)
          pairs->on_mask = [&latch, k = at.back()](int n) {
            if (n == k) latch.wait();
          };
        ids.push_back(h.submit(Constrained(text(20 + i), kTokens)));
        give(h, ids.back(), std::move(pairs));
      }
      const auto outcome = [&](int i) -> host::Outcome& { return h.of(ids[static_cast<size_t>(i)]); };
      for (int i = 0; i < kSamples; i++) {
        if (fates[static_cast<size_t>(i)] != Fate::kCancelled) continue;
        h.poll(1);
        try {
          h.engine->cancel(ids[static_cast<size_t>(i)], -1);
        } catch (const Error& error) {
          CHECK(error.status() == Status::kNotFound);  // it has ended
        }
      }
      h.poll_until([&] {
        for (int i = 0; i < kSamples; i++)
          if (fates[static_cast<size_t>(i)] != Fate::kTakesLong && outcome(i).n_ends == 0) return false;
        return latch.n_waiting() == 3;
      });
      latch.open();
      h.finish();
      for (int i = 0; i < kSamples; i++) {
        const Fate fate = fates[static_cast<size_t>(i)];
        const int n = static_cast<int>(outcome(i).tokens.size());
        CHECK(outcome(i).tokens == expected(text(20 + i), n));
        if (fate == Fate::kFails) CHECK_EQ(outcome(i).end.finish_reason, QWEN3_FINISH_MATCHER);
        if (fate == Fate::kFails) CHECK_EQ(n, at[static_cast<size_t>(i)]);
        if (fate == Fate::kWell || fate == Fate::kTakesLong) CHECK_EQ(n, kTokens);
      }
      h.check_idle();
    }
    CHECK_EQ(n_freed.load(), kSamples);
  }
}

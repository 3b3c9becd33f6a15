// What goes wrong: a failing device, broken logits, cancels at every moment, late and wrong masks, closing in the
// middle, and many threads at once.
#include <atomic>
#include <cmath>
#include <future>
#include <stdexcept>
#include <thread>

#include "check.h"
#include "engine/host.h"

using host::Ask;
using host::Gate;
using host::Host;
using host::options;
using host::text;
using qwen3::Error;
using qwen3::ManualSequence;
using qwen3::Status;
using toy::continuation;

namespace {

// The status of what `call` throws; kOk if it does not.
template <typename Call>
Status status_of(const Call& call) {
  try {
    call();
    return Status::kOk;
  } catch (const Error& error) {
    return error.status();
  }
}

#define CHECK_STATUS(call, status) CHECK(status_of([&] { call; }) == status)

void check_failed_engine(Host& h, const std::vector<uint64_t>& ids, const std::string& cause) {
  h.finish();
  for (const uint64_t id : ids) {
    CHECK_EQ(h.of(id).n_ends, 1);
    CHECK_EQ(h.of(id).end.finish_reason, QWEN3_FINISH_ERROR);
    CHECK_STATUS(h.engine->cancel(id, -1), Status::kNotFound);
    const uint32_t mask[4] = {1, 0, 0, 0};
    CHECK_STATUS(h.engine->set_mask(id, 0, 0, mask), Status::kNotFound);
  }
  CHECK_THROWS_WITH(h.submit(Ask(text(3), 1)), Error, "the engine has failed and takes no more work: " + cause);
  CHECK_STATUS(h.submit(Ask(text(3), 1)), Status::kDeviceError);
  std::vector<float> out(3);
  CHECK_STATUS(h.engine->score_logprobs(text(3), out), Status::kDeviceError);
  const qwen3_stats stats = h.engine->stats();
  CHECK_EQ(stats.failed, 1);
  CHECK_EQ(stats.samples_failed, ids.size());
  CHECK_EQ(stats.n_running + stats.n_waiting, 0);
  CHECK_EQ(stats.blocks_used, 0);
  CHECK(h.log.contains(cause));
}

}  // namespace

TEST("engine: a device that fails in a step ends every sample with an error and takes no more work") {
  for (const int step : {0, 1, 5}) {
    auto faults = std::make_shared<toy::Faults>();
    Gate gate;
    faults->on_step = [&gate, step](int now) {
      gate.enter(now, 0);
      if (now == step) throw Error(Status::kDeviceError, "the toy broke");
    };
    qwen3_options o = options();
    o.max_slots = 3;
    Host h(o, faults);
    std::vector<uint64_t> ids;
    for (int i = 0; i < 5; i++) ids.push_back(h.submit(Ask(text(20 + i), 50)));
    gate.open();
    h.finish();
    for (size_t i = 0; i < ids.size(); i++) {  // the tokens so far are sound
      const std::vector<int32_t> tokens = h.of(ids[i]).tokens;
      CHECK(tokens == continuation(text(20 + static_cast<int>(i)), static_cast<int>(tokens.size())));
    }
    check_failed_engine(h, ids, "the toy broke");
    CHECK(h.log.contains("the device failed"));
  }
}

TEST("engine: a fault while sampling, or of another kind, fails it just the same") {
  for (const bool device : {true, false}) {
    auto faults = std::make_shared<toy::Faults>();
    faults->on_sample = [=] {
      if (device) throw Error(Status::kDeviceError, "sampling broke");
      throw std::runtime_error("sampling broke");
    };
    Host h(options(), faults);
    const uint64_t id = h.submit(Ask(text(20), 50));
    check_failed_engine(h, {id}, "sampling broke");
    CHECK(h.log.contains(device ? "the device failed" : "the engine failed"));
  }
}

TEST("engine: a device that fails while scoring fails the engine") {
  Gate gate;
  auto faults = std::make_shared<toy::Faults>();
  std::atomic<bool> broken = false;
  faults->on_step = [&](int step) {
    gate.enter(step, 0);
    if (broken && step > 0) throw Error(Status::kDeviceError, "the toy broke");
  };
  Host h(options(), faults);
  const uint64_t id = h.submit(Ask(text(20), 50));
  gate.wait_inside();
  std::vector<float> out(10);
  auto scoring = std::async(std::launch::async, [&] { h.engine->score_logprobs(text(10), out); });
  h.engine->cancel(id, -1);
  broken = true;
  gate.open();
  CHECK_STATUS(scoring.get(), Status::kDeviceError);
  h.finish();
  CHECK_STATUS(h.submit(Ask(text(3), 1)), Status::kDeviceError);
  CHECK_EQ(h.engine->stats().failed, 1);
}

TEST("engine: broken logits end their sample alone, and the log names the layer where it began") {
  struct Case {
    int layer;
    bool logits_only;
    const char* where;
  };
  for (const Case& c : {Case{0, false, "the output of layer 0 is not finite"},
                        Case{1, false, "the output of layer 1 is not finite"}, Case{1, true, "no id may be sampled"}}) {
    auto faults = std::make_shared<toy::Faults>();
    faults->poison = 90;
    faults->poison_layer = c.layer;
    faults->poison_logits_only = c.logits_only;
    Host h(options(), faults);
    std::vector<int32_t> bad = text(40);
    bad[10] = 90;
    Ask poisoned(bad, 30);
    poisoned.n = 2;
    // 90 must not come up by itself in the sound ones.
    const qwen3_logit_bias never[] = {{90, -INFINITY}};
    Ask sound(text(40, 1), 30);
    sound.logit_bias = never;
    sound.n_logit_bias = 1;
    const uint64_t good = h.submit(sound), broken = h.submit(poisoned);
    h.finish();
    CHECK_EQ(h.of(good).end.finish_reason, QWEN3_FINISH_LENGTH);
    for (const int sample : {0, 1}) {
      CHECK_EQ(h.of(broken, sample).end.finish_reason, QWEN3_FINISH_ERROR);
      CHECK(h.of(broken, sample).tokens.empty());
    }
    CHECK(h.log.contains(c.where));
    CHECK_EQ(h.engine->stats().samples_failed, 2u);
    h.check_idle();
    h.submit(sound);  // the engine lives on
    h.finish();
  }
}

TEST("engine: broken logits in a scored prompt end the request with an error") {
  auto faults = std::make_shared<toy::Faults>();
  faults->poison = 90;
  qwen3_options o = options();
  o.token_budget = 16;
  Host h(o, faults);
  std::vector<int32_t> bad = text(60);
  bad[30] = 90;
  for (const int n_tokens : {0, 5}) {
    Ask ask(bad, n_tokens);
    ask.prompt_logprobs = 1;
    const uint64_t id = h.submit(ask);
    h.finish();
    CHECK_EQ(h.of(id).end.finish_reason, QWEN3_FINISH_ERROR);
    CHECK_EQ(h.of(id).prompt_tokens.size(),
             31u);  // those before it, and the poisonous one itself: it follows sound text
    for (size_t i = 1; i < h.of(id).prompt_logprobs.size(); i++) CHECK(std::isfinite(h.of(id).prompt_logprobs[i]));
  }
  h.check_idle();
}

TEST("engine: no id left to sample is that sample's error") {
  Host h;
  std::vector<qwen3_logit_bias> all;
  for (int32_t id = 0; id < toy::kVocab; id++) all.push_back({id, -INFINITY});
  Ask ask(text(5), 5);
  ask.logit_bias = all.data();
  ask.n_logit_bias = all.size();
  const uint64_t id = h.submit(ask);
  h.finish();
  CHECK_EQ(h.of(id).end.finish_reason, QWEN3_FINISH_ERROR);
  CHECK(h.log.contains("no id may be sampled"));
}

TEST("engine: cancelling before, during and after a step, twice, and what does not exist") {
  Gate gate;
  qwen3_options o = options();
  o.max_slots = 2;
  auto faults = std::make_shared<toy::Faults>();
  faults->on_step = [&](int step) {
    gate.enter(step, 3);
    if (step > 3) std::this_thread::sleep_for(std::chrono::milliseconds(10));  // so that the test ends before it
  };
  Host h(o, faults);
  Ask two(text(40), 500);
  two.n = 2;
  const uint64_t running = h.submit(two);
  gate.wait_inside();
  const uint64_t waiting = h.submit(Ask(text(40), 5));
  CHECK_EQ(h.engine->stats().n_waiting, 1);
  h.engine->cancel(waiting, 0);  // it never ran
  CHECK_EQ(h.engine->stats().n_waiting, 0);
  h.poll();
  CHECK_EQ(h.of(waiting).end.finish_reason, QWEN3_FINISH_CANCELLED);
  CHECK_EQ(h.of(waiting).end.started_ns, 0);
  CHECK_EQ(h.of(waiting).end.first_token_ns, 0);
  CHECK_STATUS(h.engine->cancel(waiting, 0), Status::kNotFound);

  const int64_t used = h.engine->stats().blocks_used;
  h.engine->cancel(running, 1);  // in the middle of a step: its slot and blocks are free at once
  const qwen3_stats stats = h.engine->stats();
  CHECK_EQ(stats.n_running, 1);
  CHECK(stats.blocks_used < used);
  CHECK_STATUS(h.engine->cancel(running, 1), Status::kNotFound);
  CHECK_STATUS(h.engine->cancel(running, 2), Status::kNotFound);
  CHECK_STATUS(h.engine->cancel(12345, -1), Status::kNotFound);
  const size_t n_before = h.of(running, 1).tokens.size();
  gate.open();
  h.poll_until([&] { return h.of(running, 0).tokens.size() > 20; });
  CHECK_EQ(h.of(running, 1).end.finish_reason, QWEN3_FINISH_CANCELLED);
  CHECK(h.of(running, 1).tokens.size() <= n_before + 3);
  h.engine->cancel(running, -1);
  CHECK_STATUS(h.engine->cancel(running, -1), Status::kNotFound);
  h.finish();
  const std::vector<int32_t>& tokens = h.of(running, 0).tokens;
  CHECK(tokens == continuation(text(40), static_cast<int>(tokens.size())));
  CHECK_EQ(h.engine->stats().samples_cancelled, 3u);

  const uint64_t ended = h.submit(Ask(text(5), 2));
  h.finish();
  CHECK_STATUS(h.engine->cancel(ended, -1), Status::kNotFound);
  h.check_idle();
}

TEST("engine: cancelling whole requests during the step that computes them leaves others untouched") {
  Gate gate;
  Host h(options(), host::gated(gate, 2));
  std::vector<uint64_t> ids;
  for (int i = 0; i < 6; i++) ids.push_back(h.submit(Ask(text(33, i), 40)));
  gate.wait_inside();
  for (const int i : {0, 2, 4}) h.engine->cancel(ids[static_cast<size_t>(i)], -1);
  // The freed blocks are handed out again right after this step.
  const uint64_t fresh = h.submit(Ask(text(64, 9), 10));
  gate.open();
  h.finish();
  for (const int i : {1, 3, 5}) CHECK(h.of(ids[static_cast<size_t>(i)]).tokens == continuation(text(33, i), 40));
  CHECK(h.of(fresh).tokens == continuation(text(64, 9), 10));
  h.check_idle();
}

namespace {

std::vector<uint32_t> mask_of(std::initializer_list<int32_t> ids) {
  std::vector<uint32_t> mask((toy::kTokenIds + 31) / 32, 0);
  for (const int32_t id : ids) mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  return mask;
}

}  // namespace

TEST("engine: a constrained sample takes only allowed ids, early masks cost nothing, late ones delay it alone") {
  Host h;
  Ask ask(text(20), 4);
  ask.constrained = 1;
  const uint64_t id = h.submit(ask);
  const uint64_t free_one = h.submit(Ask(text(20, 1), 200));
  h.poll_until([&] { return h.of(free_one).tokens.size() >= 50; });
  CHECK(h.of(id).tokens.empty());  // its mask is late, the other one runs
  for (int k = 0; k < 4; k++) {
    h.engine->set_mask(id, 0, k, mask_of({10 + k, 20 + k}));
    h.poll_until([&] { return static_cast<int>(h.of(id).tokens.size()) > k; });
    CHECK(h.of(id).tokens.back() == 10 + k || h.of(id).tokens.back() == 20 + k);
  }
  h.finish();
  std::vector<int32_t> so_far = text(20);
  for (int k = 0; k < 4; k++) {
    const uint64_t hash = toy::hash_text(so_far);
    const int32_t best = toy::logit(hash, 10 + k) > toy::logit(hash, 20 + k) ? 10 + k : 20 + k;
    CHECK_EQ(h.of(id).tokens[static_cast<size_t>(k)], best);
    so_far.push_back(best);
  }
  CHECK(h.of(free_one).tokens == continuation(text(20, 1), 200));
  h.check_idle();
}

TEST("engine: a mask that comes while the layers are computed is in time") {
  auto faults = std::make_shared<toy::Faults>();
  Host* host = nullptr;
  faults->on_step = [&](int step) { host->engine->set_mask(1, 0, step, mask_of({10 + step})); };
  Host h(options(), faults);
  host = &h;
  Ask ask(text(20), 4);
  ask.constrained = 1;
  const uint64_t id = h.submit(ask);
  h.finish();
  CHECK(h.of(id).tokens == std::vector<int32_t>({10, 11, 12, 13}));
  CHECK_EQ(h.engine->stats().computed_tokens, 20u + 3u);  // no position twice
}

TEST("engine: masks of samples of one request are independent; a sample without one holds no other up") {
  for (const int n_prompt : {5, 32, 40, 64}) {
    Host h;
    Ask ask(text(n_prompt), 2);
    ask.constrained = 1;
    ask.n = 3;
    const uint64_t id = h.submit(ask);
    for (int k = 0; k < 2; k++) {
      h.engine->set_mask(id, 2, k, mask_of({k + 1}));
      h.poll_until([&] { return static_cast<int>(h.of(id, 2).tokens.size()) > k; });
    }
    CHECK(h.of(id, 2).tokens == std::vector<int32_t>({1, 2}));
    CHECK(h.of(id, 0).tokens.empty());
    h.engine->cancel(id, 1);
    for (int k = 0; k < 2; k++) {
      h.engine->set_mask(id, 0, k, mask_of({k + 3}));
      h.poll_until([&] { return static_cast<int>(h.of(id, 0).tokens.size()) > k; });
    }
    h.finish();
    CHECK(h.of(id, 0).tokens == std::vector<int32_t>({3, 4}));
    h.check_idle();
  }
}

TEST("engine: wrong masks are refused with a sentence") {
  Gate gate;
  Host h(options(), host::gated(gate));
  Ask ask(text(20), 4);
  ask.constrained = 1;
  const uint64_t id = h.submit(ask);
  const uint64_t other = h.submit(Ask(text(20), 100));
  const std::vector<uint32_t> good = mask_of({5});
  CHECK_THROWS_WITH(h.engine->set_mask(id, 0, 1, good), Error,
                    "a mask for output token 1 was given, the next one is 0");
  CHECK_THROWS_WITH(h.engine->set_mask(id, 0, -1, good), Error, "output token -1");
  CHECK_THROWS_WITH(h.engine->set_mask(id, 0, 0, std::span(good).first(3)), Error, "has 3 words, 4 are needed");
  CHECK_THROWS_WITH(h.engine->set_mask(id, 0, 0, mask_of({})), Error, "allows no id");
  std::vector<uint32_t> beyond = mask_of({});
  beyond[3] = ~1u;  // ids 97..127: none of them has a token
  CHECK_THROWS_WITH(h.engine->set_mask(id, 0, 0, beyond), Error, "allows no id");
  CHECK_STATUS(h.engine->set_mask(id, 1, 0, good), Status::kNotFound);
  CHECK_STATUS(h.engine->set_mask(999, 0, 0, good), Status::kNotFound);
  CHECK_THROWS_WITH(h.engine->set_mask(other, 0, 0, good), Error, "was not submitted as constrained");
  gate.open();
  std::vector<uint32_t> longer = good;
  longer.push_back(0);
  for (int k = 0; k < 4; k++) {
    h.engine->set_mask(id, 0, k, longer);
    h.poll_until([&] { return static_cast<int>(h.of(id).tokens.size()) > k; });
  }
  h.finish();
  CHECK(h.of(id).tokens == std::vector<int32_t>(4, 5));
  CHECK_STATUS(h.engine->set_mask(id, 0, 4, good), Status::kNotFound);
}

TEST("engine: a constrained sample on a block border, next to readers of that block, stays right") {
  Host h;
  const std::vector<int32_t> prompt = text(64);
  Ask ask(prompt, 3);
  ask.constrained = 1;
  const uint64_t constrained = h.submit(ask);  // waits on position 63, the last of block 1
  std::vector<uint64_t> readers;
  for (int i = 0; i < 4; i++) {
    std::vector<int32_t> longer = prompt;
    longer.push_back(i);
    readers.push_back(h.submit(Ask(longer, 40)));
    h.poll(5);
  }
  for (int k = 0; k < 3; k++) {
    h.engine->set_mask(constrained, 0, k, mask_of({9}));
    h.poll_until([&] { return static_cast<int>(h.of(constrained).tokens.size()) > k; });
  }
  h.finish();
  for (int i = 0; i < 4; i++) {
    std::vector<int32_t> longer = prompt;
    longer.push_back(i);
    CHECK(h.of(readers[static_cast<size_t>(i)]).tokens == continuation(longer, 40));
  }
  h.check_idle();
}

TEST("engine: poll gives events out once and in order, however small its array") {
  Host h;
  Ask ask(text(20), 30);
  ask.top_logprobs = 20;
  const uint64_t a = h.submit(ask), b = h.submit(ask);
  int n = 0;
  while (h.of(a).n_ends + h.of(b).n_ends < 2) n += static_cast<int>(h.poll(5000, 1).size());
  CHECK_EQ(n, 2 * 31);
  CHECK(h.of(a).tokens == continuation(text(20), 30));
  CHECK(h.of(b).tokens == h.of(a).tokens);
  CHECK(h.poll(0).empty());
}

TEST("engine: steps pause while the host does not poll, and go on when it does") {
  constexpr int kFull = 1 << 18, kPrompt = 2000, kRequests = 140;
  qwen3_options o = options(2 * kPrompt / 32 + 2);
  o.token_budget = 4096;
  o.prefix_cache = 0;
  Host h(o);
  std::vector<uint64_t> ids;
  for (int i = 0; i < kRequests; i++) {
    Ask ask(text(kPrompt), 0);
    ask.prompt_logprobs = 1;
    ids.push_back(h.submit(ask));
  }
  const auto deadline = std::chrono::steady_clock::now() + host::kPatience;
  while (!h.log.contains("steps pause until the host polls") && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  REQUIRE(h.log.contains("steps pause until the host polls"));
  uint64_t n_steps;  // what is in flight lands
  do {
    n_steps = h.engine->stats().steps;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  } while (h.engine->stats().steps != n_steps);
  CHECK(h.engine->stats().computed_tokens <= kFull + 3 * 4096);
  CHECK(h.engine->stats().n_running + h.engine->stats().n_waiting > 0);
  // A host that polls too slowly brings it about again and again, and is told once.
  const auto slow = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  while (std::chrono::steady_clock::now() < slow) h.poll(0, 512);
  h.finish();
  CHECK_EQ(h.log.count("steps pause until the host polls"), 1);
  for (const uint64_t id : ids) {
    CHECK_EQ(h.of(id).end.finish_reason, QWEN3_FINISH_LENGTH);
    CHECK_EQ(h.of(id).prompt_tokens.size(), static_cast<size_t>(kPrompt));
  }
  h.check_idle();
}

TEST("event queue: a longer event's tail is zero, a short logprobs array stops or refuses") {
  qwen3::EventQueue queue;
  qwen3_event event{};
  event.kind = QWEN3_EVENT_TOKEN;
  const std::vector<qwen3_logprob> top = {{1, -0.5f}, {2, -1.5f}, {3, -2.5f}};
  for (int i = 0; i < 3; i++) {
    event.token = i;
    queue.push(event, top);
  }
  queue.flush();

  struct Longer {
    qwen3_event event;
    uint64_t newer;
  };
  Longer out[3];
  std::memset(static_cast<void*>(out), 0xff, sizeof out);
  std::vector<qwen3_logprob> logprobs(7);
  size_t n = 0;
  CHECK_THROWS_WITH(queue.take(&out[0].event, sizeof out[0], 3, std::span(logprobs).first(2), 0, &n), Error,
                    "logprobs_capacity is 2");
  CHECK_EQ(queue.take(&out[0].event, sizeof out[0], 3, logprobs, 0, &n), QWEN3_OK);
  CHECK_EQ(n, 2u);  // the third one's alternatives do not fit any more
  for (uint32_t i = 0; i < 2; i++) {
    CHECK_EQ(out[i].event.token, static_cast<int32_t>(i));
    CHECK_EQ(out[i].event.n_logprobs, 3u);
    CHECK_EQ(out[i].event.first_logprob, 3 * i);
    CHECK_EQ(out[i].newer, 0u);
    CHECK_EQ(logprobs[3 * i + 2].token, 3);
  }
  CHECK(out[2].newer != 0);  // not written
  CHECK_EQ(queue.take(&out[0].event, sizeof out[0], 3, logprobs, 0, &n), QWEN3_OK);
  CHECK_EQ(n, 1u);
  CHECK_EQ(out[0].event.token, 2);
  CHECK_EQ(queue.take(&out[0].event, sizeof out[0], 3, logprobs, 1, &n), QWEN3_TIMEOUT);
  CHECK_EQ(n, 0u);
  queue.close();
  CHECK_EQ(queue.take(&out[0].event, sizeof out[0], 3, logprobs, -1, &n), QWEN3_CLOSED);
}

TEST("engine: closing with live requests, blocked pollers and a waiting evaluation wakes all of them") {
  Gate gate;
  auto h = std::make_unique<Host>(options(), host::gated(gate, 2));
  for (int i = 0; i < 3; i++) h->submit(Ask(text(20), 500));
  gate.wait_inside();
  while (!h->poll(0).empty()) {
  }
  std::vector<std::future<qwen3_status>> pollers;
  for (int i = 0; i < 3; i++)
    pollers.push_back(std::async(std::launch::async, [&] {
      qwen3_event event;
      size_t n = 0;
      return h->engine->events().take(&event, sizeof event, 1, {}, -1, &n);
    }));
  auto scoring = std::async(std::launch::async, [&] {
    std::vector<float> out(10);
    return status_of([&] { h->engine->score_logprobs(text(10), out); });
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the evaluation is queued behind the step
  h->engine->begin_close();
  CHECK_STATUS(h->engine->submit(Ask(text(3), 1)), Status::kClosed);
  CHECK_STATUS(h->engine->cancel(1, -1), Status::kClosed);
  CHECK_STATUS(h->engine->set_mask(1, 0, 0, mask_of({1})), Status::kClosed);
  gate.open();
  for (auto& poller : pollers) CHECK_EQ(poller.get(), QWEN3_CLOSED);
  REQUIRE(scoring.wait_for(host::kPatience) == std::future_status::ready);
  CHECK(scoring.get() == Status::kClosed);
  h.reset();
}

TEST("engine: eight threads submitting, cancelling and reading at once") {
  qwen3_options o = options(24);
  o.max_slots = 8;
  o.max_queue = 4000;
  Host h(o);
  constexpr int kThreads = 8, kRequests = 40;
  std::atomic<int> n_submitted = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; t++)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRequests; i++) {
        Ask ask(text(10 + (t * 7 + i) % 60, i % 3), 1 + i % 20);
        ask.n = 1 + i % 3;
        ask.priority = i % 2;
        ask.tag = static_cast<uint64_t>(ask.tokens.size());
        ask.constrained = i % 5 == 4;
        const uint64_t id = h.engine->submit(ask);
        n_submitted += ask.n;
        if (ask.constrained != 0) {
          status_of([&] { h.engine->set_mask(id, 0, 0, mask_of({1, 2, 3})); });
          h.engine->cancel(id, -1);  // its later masks never come, so it is alive
        } else if (i % 4 == 1) {
          if (i % 8 == 1) std::this_thread::yield();
          status_of([&] { h.engine->cancel(id, i % 3 - 1); });
        } else if (i % 7 == 2) {
          std::vector<float> out(12);
          status_of([&] { h.engine->score_logprobs(text(12, t), out); });  // may find no block
        }
        h.engine->stats();
      }
    });
  std::atomic<int> n_ended = 0, n_wrong = 0;
  std::map<host::Key, std::vector<int32_t>> tokens;
  std::mutex mutex;
  std::atomic<bool> done = false;
  std::vector<std::thread> pollers;
  for (int t = 0; t < 2; t++)
    pollers.emplace_back([&] {
      while (!done) {
        qwen3_event events[7];
        size_t n = 0;
        if (h.engine->events().take(events, sizeof events[0], 7, {}, 5, &n) != QWEN3_OK) continue;
        const std::lock_guard lock(mutex);
        for (size_t i = 0; i < n; i++) n_ended += events[i].kind == QWEN3_EVENT_FINISHED;
        for (size_t i = 0; i < n; i++) n_wrong += events[i].finish_reason == QWEN3_FINISH_ERROR;
      }
    });
  for (std::thread& thread : threads) thread.join();
  const auto deadline = std::chrono::steady_clock::now() + host::kPatience;
  while (n_ended < n_submitted && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK_EQ(n_ended.load(), n_submitted.load());
  CHECK_EQ(n_wrong.load(), 0);
  h.check_idle();
  done = true;
  for (std::thread& poller : pollers) poller.join();
}

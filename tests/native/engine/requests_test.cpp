// Requests through the engine on the toy device: right tokens whatever the batch, chunks, cache and pool, and the
// parameters of a request.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "check.h"
#include "engine/host.h"

using host::Ask;
using host::Host;
using host::options;
using host::text;
using qwen3::Error;
using toy::continuation;

TEST("engine: greedy tokens are the model's own, for every prompt length around block borders") {
  Host h;
  std::vector<std::pair<uint64_t, int>> asked;
  for (const int n : {1, 2, 31, 32, 33, 63, 64, 65, 257}) asked.emplace_back(h.submit(Ask(text(n), 70)), n);
  h.finish();
  for (const auto& [id, n] : asked) {
    CHECK(h.of(id).tokens == continuation(text(n), 70));
    const qwen3_event& end = h.of(id).end;
    CHECK_EQ(end.finish_reason, QWEN3_FINISH_LENGTH);
    CHECK_EQ(end.n_prompt, n);
    CHECK_EQ(end.n_generated, 70);
    CHECK_EQ(end.token, -1);
    CHECK(end.queued_ns <= end.started_ns && end.started_ns <= end.first_token_ns && end.first_token_ns <= end.time_ns);
    CHECK(std::isnan(h.of(id).logprobs[0]));  // not asked for
  }
  h.check_idle();
}

TEST("engine: equal tokens alone and among others, with any token budget, prefix cache on and off") {
  for (const int budget : {16, 64, 512, 4096}) {
    for (const int cache : {0, 1}) {
      qwen3_options o = options(256);
      o.token_budget = budget;
      o.prefix_cache = cache;
      Host h(o);
      std::vector<std::pair<uint64_t, std::vector<int32_t>>> asked;
      for (int i = 0; i < 40; i++) {
        const std::vector<int32_t> prompt = text(1 + i * 7 % 130, i % 3);
        asked.emplace_back(h.submit(Ask(prompt, 1 + i % 40)), prompt);
      }
      h.finish();
      for (size_t i = 0; i < asked.size(); i++)
        CHECK(h.of(asked[i].first).tokens == continuation(asked[i].second, 1 + static_cast<int>(i) % 40));
      const qwen3_stats stats = h.engine->stats();
      CHECK_EQ(stats.requests_submitted, 40u);
      CHECK_EQ(stats.samples_length, 40u);
      CHECK_EQ(stats.cached_tokens > 0, cache == 1);
      CHECK_EQ(h.engine->info().max_slots, budget < 32 ? budget : 32);
      h.check_idle();
    }
  }
}

TEST("engine: a pool for three requests serves 256") {
  Host h(options(3 * 4));
  std::vector<std::pair<uint64_t, std::vector<int32_t>>> asked;
  for (int i = 0; i < 256; i++) {
    const std::vector<int32_t> prompt = text(40 + i % 30, i % 4);
    asked.emplace_back(h.submit(Ask(prompt, 40)), prompt);
  }
  h.finish();
  for (const auto& [id, prompt] : asked) CHECK(h.of(id).tokens == continuation(prompt, 40));
  CHECK(h.engine->stats().preemptions > 0);
  h.check_idle();
}

TEST("engine: preemption changes neither samples, penalties nor logprobs") {
  const auto run = [](int64_t n_blocks) {
    Host h(options(n_blocks));
    for (int i = 0; i < 12; i++) {
      Ask ask(text(30 + i, i % 2), 60);
      ask.temperature = 0.8f;
      ask.top_p = 0.95f;
      ask.top_k = 40;
      ask.min_p = 0.01f;
      ask.repetition_penalty = 1.2f;
      ask.presence_penalty = 0.3f;
      ask.frequency_penalty = 0.2f;
      ask.seed = static_cast<uint64_t>(i);
      ask.logprobs = 1;
      ask.top_logprobs = 3;
      ask.n = 1 + i % 3;
      h.submit(ask);
    }
    h.finish();
    h.check_idle();
    std::vector<std::vector<int32_t>> tokens;
    std::vector<std::vector<float>> logprobs;
    for (const auto& [key, outcome] : h.outcomes) {
      tokens.push_back(outcome.tokens);
      logprobs.push_back(outcome.logprobs);
      for (const auto& top : outcome.top) CHECK_EQ(top.size(), 3u);
    }
    return std::tuple(tokens, logprobs, h.engine->stats().preemptions);
  };
  const auto [tokens, logprobs, none] = run(256);
  const auto [tokens_small, logprobs_small, some] = run(9);
  CHECK_EQ(none, 0u);
  CHECK(some > 0);
  CHECK(tokens == tokens_small);
  CHECK(logprobs == logprobs_small);
  CHECK(tokens[1] != tokens[2]);
}

TEST("engine: a repeated prompt reads all but its last token's block from the cache") {
  Host h(options(128));
  for (const int n : {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96}) {
    for (int round = 0; round < 3; round++) {
      const std::vector<int32_t> prompt = text(n, n);  // each length a text of its own
      const uint64_t id = h.submit(Ask(prompt, 5));
      h.finish();
      CHECK(h.of(id).tokens == continuation(prompt, 5));
      CHECK_EQ(h.of(id).end.n_cached, round == 0 ? 0 : (n - 1) / 32 * 32);
    }
  }
  h.check_idle();
}

TEST("engine: a prompt counts once when its first sample is admitted, cancelled ones that never ran do not") {
  host::Gate gate;
  qwen3_options o = options();
  o.max_slots = 1;  // samples run one after the other: the later ones read what the first one left in the cache
  Host h(o, host::gated(gate));
  Ask ask(text(70), 2);
  ask.n = 3;
  const uint64_t id = h.submit(ask);
  gate.wait_inside();
  h.engine->cancel(h.submit(Ask(text(70), 2)), -1);
  gate.open();
  h.finish();
  const qwen3_stats stats = h.engine->stats();
  CHECK_EQ(stats.prompt_tokens, 70u);
  CHECK_EQ(stats.cached_tokens, 0u);
  CHECK_EQ(stats.prefix_queries, 210u);
  CHECK_EQ(stats.prefix_hits, 128u);
  CHECK_EQ(stats.generated_tokens, 6u);
  CHECK_EQ(h.of(id, 0).end.n_cached, 0);
  CHECK_EQ(h.of(id, 1).end.n_cached, 64);
  h.check_idle();
}

TEST("engine: samples that share the blocks of a running one look for nothing in the prefix cache") {
  Host h;
  for (const uint64_t n_requests : {1u, 2u}) {
    Ask ask(text(70), 2);
    ask.n = 3;
    h.submit(ask);
    h.finish();
    const qwen3_stats stats = h.engine->stats();
    CHECK_EQ(stats.prefix_queries, 70 * n_requests);
    CHECK_EQ(stats.prefix_hits, 64 * (n_requests - 1));
    CHECK_EQ(stats.cached_tokens, 64 * (n_requests - 1));
  }
  h.check_idle();
}

TEST("engine: steps are counted by their size") {
  Host h;
  h.submit(Ask(text(20), 4));  // a step of 20 rows, then three of one
  h.finish();
  const qwen3_stats stats = h.engine->stats();
  CHECK_EQ(stats.step_sizes[0], 3u);
  CHECK_EQ(stats.step_sizes[5], 1u);
  CHECK_EQ(std::accumulate(std::begin(stats.step_sizes), std::end(stats.step_sizes), uint64_t{0}), stats.steps);
}

TEST("engine: a cache salt keeps tenants apart") {
  Host h;
  const std::vector<int32_t> prompt = text(70);
  const auto cached = [&](const char* salt) {
    Ask ask(prompt, 2);
    ask.cache_salt = salt;
    const uint64_t id = h.submit(ask);
    h.finish();
    CHECK(h.of(id).tokens == continuation(prompt, 2));
    return h.of(id).end.n_cached;
  };
  CHECK_EQ(cached("a"), 0);
  CHECK_EQ(cached("b"), 0);
  CHECK_EQ(cached(nullptr), 0);
  CHECK_EQ(cached("a"), 64);
  CHECK_EQ(cached(""), 64);
}

TEST("engine: n samples share their prompt's blocks and equal single requests with seed + i") {
  host::Gate gate;
  qwen3_options o = options(64);
  o.token_budget = 64;
  Host h(o, host::gated(gate, 9));  // the prompt takes 4 steps, the samples' last blocks 4 more
  const std::vector<int32_t> prompt = text(256);
  Ask ask(prompt, 20);
  ask.n = 8;
  ask.temperature = 0.9f;
  ask.seed = 100;
  const uint64_t id = h.submit(ask);
  gate.wait_inside();
  const qwen3_stats stats = h.engine->stats();
  CHECK_EQ(stats.n_running, 8);
  CHECK(stats.blocks_used <=
        7 + 8 * 2);  // 7 shared blocks; each sample its own last prompt block and first output block
  gate.open();
  h.finish();
  CHECK_EQ(h.engine->stats().prompt_tokens, 256u);
  for (int32_t i = 0; i < 8; i++) {
    Ask single(prompt, 20);
    single.temperature = 0.9f;
    single.seed = 100 + static_cast<uint64_t>(i);
    const uint64_t alone = h.submit(single);
    h.finish();
    CHECK(h.of(alone).tokens == h.of(id, i).tokens);
    CHECK_EQ(h.of(id, i).n_ends, 1);
  }
  CHECK(h.of(id, 0).tokens != h.of(id, 1).tokens);
  h.check_idle();
}

TEST("engine: lower priorities run first, equal ones in order of arrival") {
  host::Gate gate;
  qwen3_options o = options();
  o.max_slots = 1;
  Host h(o, host::gated(gate));
  const auto submit = [&](int32_t priority) {
    Ask ask(text(10, priority + 2), 3);
    ask.priority = priority;
    return h.submit(ask);
  };
  const uint64_t running = submit(0);
  gate.wait_inside();
  const uint64_t low = submit(1), second = submit(0), third = submit(0), high = submit(-1);
  CHECK_EQ(h.engine->stats().n_waiting, 4);
  gate.open();
  h.finish();
  std::vector<uint64_t> order;
  for (const host::Key& key : h.order) order.push_back(key.first);
  CHECK(order == std::vector<uint64_t>({running, high, second, third, low}));
}

TEST("engine: EOS and stop ids end a sample, ignore_eos and min_tokens hold them back") {
  Host h;
  // A prompt whose continuation meets EOS soon but not at once.
  int n = 1;
  std::vector<int32_t> reference;
  for (;; n++) {
    reference = continuation(text(n), 30, true);
    if (reference.back() == toy::kEos && reference.size() > 3) break;
    REQUIRE(n < 1000);
  }
  const int64_t n_to_eos = static_cast<int64_t>(reference.size());

  Ask plain(text(n), 60);
  plain.ignore_eos = 0;
  const uint64_t stopped = h.submit(plain);
  Ask ignoring(text(n), 60);
  const uint64_t ignored = h.submit(ignoring);
  Ask stopping(text(n), 60);
  const int32_t stops[] = {reference[2], 96, 100'000, -5};  // ids that the model does not have are harmless
  stopping.stop_ids = stops;
  stopping.n_stop_ids = 4;
  const uint64_t at_stop = h.submit(stopping);
  Ask holding(text(n), 60);
  holding.ignore_eos = 0;
  holding.min_tokens = n_to_eos + 5;
  holding.stop_ids = stops;
  holding.n_stop_ids = 4;
  const uint64_t held = h.submit(holding);
  h.finish();

  CHECK(h.of(stopped).tokens == reference);
  CHECK_EQ(h.of(stopped).end.finish_reason, QWEN3_FINISH_STOP);
  CHECK_EQ(h.of(stopped).end.token, toy::kEos);
  CHECK(h.of(ignored).tokens == continuation(text(n), 60));
  CHECK_EQ(h.of(ignored).end.finish_reason, QWEN3_FINISH_LENGTH);
  CHECK_EQ(h.of(at_stop).end.token, reference[2]);
  CHECK(h.of(at_stop).tokens.size() <= 3);
  const std::vector<int32_t>& tokens = h.of(held).tokens;
  REQUIRE(static_cast<int64_t>(tokens.size()) >= n_to_eos + 5);
  for (int64_t i = 0; i < n_to_eos + 5; i++) {
    CHECK(tokens[static_cast<size_t>(i)] != toy::kEos);
    CHECK(tokens[static_cast<size_t>(i)] != reference[2]);
  }
  CHECK_EQ(h.engine->stats().samples_stopped >= 2, true);
}

TEST("engine: logprobs are the raw logits', alternatives come best first, padding ids never") {
  Host h;
  const std::vector<int32_t> prompt = text(40);
  Ask ask(prompt, 6);
  ask.top_logprobs = 5;
  const qwen3_logit_bias bias[] = {{3, 100.0f}};  // moves the choice, not the log-probability
  ask.logit_bias = bias;
  ask.n_logit_bias = 1;
  const uint64_t id = h.submit(ask);
  h.finish();
  std::vector<int32_t> so_far = prompt;
  const host::Outcome& o = h.of(id);
  for (size_t i = 0; i < o.tokens.size(); i++) {
    CHECK_EQ(o.tokens[i], 3);
    CHECK_NEAR(o.logprobs[i], toy::logprob(so_far, 3), 1e-5);
    REQUIRE(o.top[i].size() == 5);
    const int32_t best = continuation(so_far, 1)[0];
    CHECK_EQ(o.top[i][0].token, best);
    for (size_t k = 0; k < 5; k++) {
      CHECK(o.top[i][k].token < toy::kTokenIds);
      CHECK_NEAR(o.top[i][k].logprob, toy::logprob(so_far, o.top[i][k].token), 1e-5);
      if (k > 0) CHECK(o.top[i][k].logprob <= o.top[i][k - 1].logprob);
    }
    so_far.push_back(o.tokens[i]);
  }
}

TEST("engine: prompt_logprobs scores the prompt, alone or before an answer, in any chunks and from a warm cache") {
  for (const int budget : {16, 512}) {
    qwen3_options o = options();
    o.token_budget = budget;
    Host h(o);
    const std::vector<int32_t> prompt = text(75);
    for (const int n_tokens : {0, 4}) {
      Ask ask(prompt, n_tokens);
      ask.prompt_logprobs = 1;
      ask.top_logprobs = 2;
      ask.n = n_tokens > 0 ? 2 : 1;
      const uint64_t id = h.submit(ask);
      h.finish();
      const host::Outcome& got = h.of(id);
      CHECK(got.prompt_tokens == prompt);
      CHECK(std::isnan(got.prompt_logprobs[0]));
      CHECK(got.prompt_top[0].empty());
      for (size_t i = 1; i < prompt.size(); i++) {
        CHECK_NEAR(got.prompt_logprobs[i], toy::logprob(std::span(prompt).first(i), prompt[i]), 1e-5);
        CHECK_EQ(got.prompt_top[i].size(), 2u);
      }
      CHECK(got.tokens == continuation(prompt, n_tokens));
      CHECK_EQ(got.end.finish_reason, QWEN3_FINISH_LENGTH);
      CHECK_EQ(got.end.n_cached, 0);
      if (n_tokens > 0) CHECK(h.of(id, 1).prompt_tokens.empty());
    }
    Ask one({5}, 0);
    one.prompt_logprobs = 1;
    const uint64_t id = h.submit(one);
    h.finish();
    CHECK_EQ(h.of(id).prompt_tokens.size(), 1u);
    h.check_idle();
  }
}

TEST("engine: prompt_logprobs of a preempted sample come once each") {
  host::Gate gate;
  qwen3_options o = options(8);
  o.token_budget = 16;
  Host h(o, host::gated(gate));
  std::vector<uint64_t> ids;
  for (int i = 0; i < 6; i++) {
    Ask ask(text(60, i), 60);
    ask.prompt_logprobs = 1;
    ask.priority = -i;
    ids.push_back(h.submit(ask));
  }
  gate.open();
  h.finish();
  for (int i = 0; i < 6; i++) {
    CHECK(h.of(ids[static_cast<size_t>(i)]).prompt_tokens == text(60, i));
    CHECK(h.of(ids[static_cast<size_t>(i)]).tokens == continuation(text(60, i), 60));
  }
  CHECK(h.engine->stats().preemptions > 0);
}

TEST("engine: what can never fit is refused, the exact fit runs") {
  Host h(options(4));  // 128 tokens
  CHECK_EQ(h.engine->info().max_context, 128);
  CHECK_THROWS_WITH(h.submit(Ask(text(100), 29)), Error, "the prompt has 100 tokens and 29 more are wanted");
  CHECK_THROWS_WITH(h.submit(Ask(text(129), 1)), Error, "the context holds 128");
  CHECK_THROWS_WITH(h.submit(Ask(text(128), -1)), Error, "at least 1 more");
  const uint64_t exact = h.submit(Ask(text(100), 28));
  const uint64_t open_end = h.submit(Ask(text(100, 1), -1));
  h.finish();
  CHECK(h.of(exact).tokens == continuation(text(100), 28));
  CHECK(h.of(open_end).tokens == continuation(text(100, 1), 28));
  CHECK_EQ(h.engine->stats().requests_refused, 3u);
  h.check_idle();
}

TEST("engine: a full queue refuses, and takes again when there is room") {
  host::Gate gate;
  qwen3_options o = options();
  o.max_slots = 2;
  o.max_queue = 3;
  Host h(o, host::gated(gate));
  h.submit(Ask(text(5), 4));
  gate.wait_inside();
  for (int i = 0; i < 4; i++) h.submit(Ask(text(5), 4));  // one more slot is free, three may wait
  Ask many(text(5), 4);
  many.n = 2;
  CHECK_THROWS_WITH(h.submit(Ask(text(5), 4)), Error, "the queue has no room for this request (max_queue is 3)");
  CHECK_THROWS_WITH(h.submit(many), Error, "the queue has no room for this request (max_queue is 3)");
  gate.open();
  h.finish();
  h.submit(many);
  h.finish();

  o.max_queue = 0;
  Host strict(o);
  strict.submit(many);
  strict.finish();
  many.n = 3;
  CHECK_THROWS_WITH(strict.submit(many), Error, "n is 3, but only 2 samples can run and wait here");
}

TEST("engine: every out-of-range field of a request is refused by name") {
  Host h;
  const auto refuse = [&](const char* field, const std::function<void(Ask&)>& change) {
    Ask ask(text(5), 4);
    change(ask);
    try {
      h.submit(ask);
      check::fail(__FILE__, __LINE__, std::string(field) + " was accepted");
    } catch (const Error& error) {
      CHECK_EQ(static_cast<int>(error.status()), static_cast<int>(qwen3::Status::kInvalidArgument));
      if (std::string(error.what()).find(field) == std::string::npos)
        check::fail(__FILE__, __LINE__, std::string("\"") + error.what() + "\" does not name " + field);
    }
  };
  const int32_t bad_tokens[] = {3, 100};
  const qwen3_logit_bias bad_id[] = {{100, 1.0f}}, negative_id[] = {{-1, 1.0f}}, nan[] = {{1, NAN}},
                         inf[] = {{1, INFINITY}};
  refuse("prompt", [](Ask& a) { a.n_prompt = 0; });
  refuse("prompt", [](Ask& a) { a.prompt = nullptr; });
  refuse("token 1 is 100", [&](Ask& a) { a.prompt = bad_tokens, a.n_prompt = 2; });
  refuse("max_tokens", [](Ask& a) { a.max_tokens = -2; });
  refuse("prompt_logprobs", [](Ask& a) { a.max_tokens = 0; });
  refuse("min_tokens", [](Ask& a) { a.min_tokens = -1; });
  refuse("min_tokens", [](Ask& a) { a.min_tokens = 5; });
  refuse("n is 0", [](Ask& a) { a.n = 0; });
  refuse("n is 129", [](Ask& a) { a.n = 129; });
  refuse("logit_bias", [](Ask& a) { a.n_logit_bias = 1; });
  refuse("logit_bias", [&](Ask& a) { a.logit_bias = bad_id, a.n_logit_bias = 1; });
  refuse("logit_bias", [&](Ask& a) { a.logit_bias = negative_id, a.n_logit_bias = 1; });
  refuse("logit_bias", [&](Ask& a) { a.logit_bias = nan, a.n_logit_bias = 1; });
  refuse("logit_bias", [&](Ask& a) { a.logit_bias = inf, a.n_logit_bias = 1; });
  for (const float bad : {0.0f, -1.0f, NAN, INFINITY})
    refuse("repetition_penalty", [=](Ask& a) { a.repetition_penalty = bad; });
  for (const float bad : {-2.5f, 2.5f, NAN}) {
    refuse("presence_penalty", [=](Ask& a) { a.presence_penalty = bad; });
    refuse("frequency_penalty", [=](Ask& a) { a.frequency_penalty = bad; });
  }
  for (const float bad : {-0.1f, NAN, INFINITY}) refuse("temperature", [=](Ask& a) { a.temperature = bad; });
  for (const float bad : {-0.1f, 1.1f, NAN}) {
    refuse("min_p", [=](Ask& a) { a.min_p = bad; });
    refuse("top_p", [=](Ask& a) { a.top_p = bad; });
  }
  refuse("top_k", [](Ask& a) { a.top_k = -2; });
  refuse("stop_ids", [](Ask& a) { a.n_stop_ids = 1; });
  refuse("top_logprobs", [](Ask& a) { a.top_logprobs = -1; });
  refuse("top_logprobs", [](Ask& a) { a.top_logprobs = 21; });
}

TEST("engine: extreme sampling settings give sound tokens") {
  Host h(options(512));
  const std::vector<int32_t> greedy = continuation(text(20), 6);
  for (const float temperature : {0.0f, 1e-10f, 1e-4f, 2.0f, 100.0f})
    for (const float top_p : {0.0f, 1e-9f, 1.0f})
      for (const int32_t top_k : {-1, 0, 1, 151'936, 1'000'000'000})
        for (const float min_p : {0.0f, 0.1f, 1.0f}) {
          Ask ask(text(20), 6);
          ask.temperature = temperature;
          ask.top_p = top_p;
          ask.top_k = top_k;
          ask.min_p = min_p;
          ask.seed = 5;
          const uint64_t id = h.submit(ask);
          h.finish();
          CHECK_EQ(h.of(id).end.finish_reason, QWEN3_FINISH_LENGTH);
          for (const int32_t token : h.of(id).tokens) CHECK(token >= 0 && token < toy::kTokenIds);
          if (temperature <= 1e-4f || top_p < 1 || top_k == 1 || min_p == 1.0f) CHECK(h.of(id).tokens == greedy);
        }
}

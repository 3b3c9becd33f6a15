// Scoring and sequences advanced by hand: right values, books kept after failures, side by side with requests.
#include <cmath>
#include <thread>

#include "check.h"
#include "engine/host.h"

using host::Ask;
using host::Host;
using host::options;
using host::text;
using qwen3::Error;
using qwen3::ManualSequence;
using qwen3::Status;

namespace {

void check_logits(std::span<const float> logits, std::span<const int32_t> prefix) {
  const uint64_t hash = toy::hash_text(prefix);
  for (int32_t id = 0; id < toy::kVocab; id++) CHECK_EQ(logits[static_cast<size_t>(id)], toy::logit(hash, id));
}

}  // namespace

TEST("evaluation: logits and logprobs of every position, in chunks of the token budget") {
  for (const int budget : {16, 512}) {
    qwen3_options o = options();
    o.token_budget = budget;
    Host h(o);
    const std::vector<int32_t> tokens = text(150);
    for (const size_t first : {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{149}}) {
      std::vector<float> out((tokens.size() - first) * toy::kVocab);
      h.engine->score_logits(tokens, first, out);
      for (size_t i = first; i < tokens.size(); i++)
        check_logits(std::span(out).subspan((i - first) * toy::kVocab, toy::kVocab), std::span(tokens).first(i + 1));
    }
    std::vector<float> logprobs(tokens.size());
    h.engine->score_logprobs(tokens, logprobs);
    CHECK(std::isnan(logprobs[0]));
    for (size_t i = 1; i < tokens.size(); i++)
      CHECK_NEAR(logprobs[i], toy::logprob(std::span(tokens).first(i), tokens[i]), 1e-5);
    h.engine->score_logprobs(std::span(tokens).first(1), std::span(logprobs).first(1));
    h.check_idle();
  }
}

TEST("evaluation: a sequence grows token by token and chunk by chunk to the same logits, and starts anew") {
  Host h;
  const std::vector<int32_t> tokens = text(100);
  ManualSequence sequence;
  std::vector<float> logits(toy::kVocab);
  for (int round = 0; round < 2; round++) {
    size_t length = 0;
    for (const size_t n : {size_t{1}, size_t{31}, size_t{1}, size_t{40}, size_t{1}, size_t{26}}) {
      h.engine->append(sequence, std::span(tokens).subspan(length, n), n - 1, logits);
      length += n;
      check_logits(logits, std::span(tokens).first(length));
      CHECK_EQ(sequence.length, static_cast<int64_t>(length));
    }
    CHECK_EQ(h.engine->stats().blocks_used, 4);
    h.engine->release(sequence);
    CHECK_EQ(sequence.length, 0);
  }
  h.check_idle();
}

TEST("evaluation: a failed call leaves the sequence as it was") {
  qwen3_options o = options(4);
  o.token_budget = 16;
  Host h(o);
  const std::vector<int32_t> tokens = text(128);
  ManualSequence a, b;
  std::vector<float> logits(toy::kVocab);
  h.engine->append(a, std::span(tokens).first(60), 59, logits);
  h.engine->append(b, std::span(tokens).first(20), 19, logits);
  CHECK_THROWS_WITH(h.engine->append(b, std::span(tokens).subspan(20, 70), 69, logits), Error,
                    "all 4 KV blocks are in use");
  CHECK_EQ(b.length, 20);
  CHECK_EQ(h.engine->stats().blocks_used, 3);
  CHECK_THROWS_WITH(h.engine->append(a, std::span(tokens).first(69), 68, logits), Error,
                    "would have 129 tokens, but the context holds 128");
  const int32_t wrong[] = {1, -1};
  CHECK_THROWS_WITH(h.engine->append(a, wrong, 1, logits), Error, "token 1 is -1");
  CHECK_THROWS_WITH(h.engine->append(a, {}, 0, logits), Error, "give at least one");
  h.engine->append(a, std::span(tokens).subspan(60, 4), 3, logits);
  check_logits(logits, std::span(tokens).first(64));
  h.engine->append(b, std::span(tokens).subspan(20, 1), 0, logits);
  check_logits(logits, std::span(tokens).first(21));
  std::vector<float> out(100);
  CHECK_THROWS_WITH(h.engine->score_logprobs(std::span(tokens).first(100), out), Error, "KV blocks are in use");

  // A request that fits only when the sequences are gone waits for them.
  const uint64_t id = h.submit(Ask(text(100), 20));
  CHECK(h.poll(50).empty());
  h.engine->release(a);
  h.engine->release(b);
  h.finish();
  CHECK(h.of(id).tokens == toy::continuation(text(100), 20));
  h.check_idle();
}

TEST("evaluation: runs between the steps of requests, neither disturbs the other") {
  Host h;
  const uint64_t id = h.submit(Ask(text(30), 400));
  std::vector<float> out(static_cast<size_t>(40) * toy::kVocab);
  for (int i = 0; i < 20; i++) {
    h.engine->score_logits(text(40, i), 0, out);
    check_logits(std::span(out).last(toy::kVocab), text(40, i));
  }
  h.finish();
  CHECK(h.of(id).tokens == toy::continuation(text(30), 400));
  h.check_idle();
}

// Profiles of a step through the engine: every op once, in order and without gaps, named by its weight and layer; the
// spec's limits; no trace left behind.
#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "engine/host.h"

using host::Ask;
using host::Host;
using host::options;
using host::text;
using qwen3::Error;
using qwen3::OpTime;
using qwen3::StepProfile;

namespace {

qwen3_profile_spec spec(int n_sequences, int n_tokens, int64_t n_past, int repeat = 3) {
  qwen3_profile_spec s;
  qwen3_profile_spec_init(&s, sizeof s);
  s.n_sequences = n_sequences;
  s.n_tokens = n_tokens;
  s.n_past = n_past;
  s.repeat = repeat;
  return s;
}

// The ops of a step without those that move the step's arrays, as "layer:name".
std::string names(const StepProfile& profile) {
  std::string all;
  for (const OpTime& op : profile.ops)
    if (std::string(op.name) != "upload") all += std::to_string(op.layer) + ":" + op.name + " ";
  return all;
}

std::string layer_names(int layer) {
  std::string all;
  for (const char* name : {"input_layernorm", "qkv_proj", "qk_norm_rope", "attention", "o_proj",
                           "post_attention_layernorm", "gate_up_proj", "down_proj"})
    all += std::to_string(layer) + ":" + name + " ";
  return all;
}

}  // namespace

TEST("profile: the ops of a step, in order, without gaps, by weight and layer") {
  Host h;
  const std::string expected =
      "-1:embed_tokens -1:rope_angles " + layer_names(0) + layer_names(1) + "-1:norm -1:lm_head -1:sample ";
  for (const qwen3_profile_spec& s :
       {spec(1, 1, 0), spec(1, 200, 0), spec(3, 1, 70), spec(2, 30, 33), spec(1, 1, 5, 1)}) {
    const StepProfile profile = h.engine->profile_step(s);
    CHECK_EQ(names(profile), expected);
    CHECK(profile.step_ns > 0);
    int64_t end = 0;
    for (const OpTime& op : profile.ops) {
      CHECK_EQ(op.begin_ns, end);
      CHECK(op.end_ns >= op.begin_ns);
      end = op.end_ns;
    }
    CHECK(end > 0);
    h.check_idle();
  }
  CHECK(h.poll(0).empty());
}

TEST("profile: what a device fuses is one op, in its layer") {
  for (const auto& [fuses, seen] :
       {std::pair{1, "qkv_proj attention"}, std::pair{2, "qkv_proj attention"}, std::pair{3, "self_attention"}}) {
    auto faults = std::make_shared<toy::Faults>();
    faults->fuses_attention = fuses;
    Host h(options(), faults);
    const std::string ops = names(h.engine->profile_step(spec(2, 1, 40)));
    for (const std::string layer : {"0:", "1:"}) {
      std::string expected = layer + seen + " " + layer + "o_proj ";
      if (const size_t blank = expected.find(' '); fuses < 3) expected.insert(blank + 1, layer);
      CHECK(ops.find(layer + "input_layernorm " + expected) != std::string::npos);
    }
    const uint64_t id = h.submit(Ask(text(30), 20));
    h.finish();
    CHECK(h.of(id).tokens == toy::continuation(text(30), 20));
  }
}

TEST("profile: the norm behind a product is an op of its own, or part of the product") {
  for (const int fuses : {1, 2}) {
    auto faults = std::make_shared<toy::Faults>();
    faults->fuses_residual = fuses;
    Host h(options(), faults);
    const std::string ops = names(h.engine->profile_step(spec(2, 1, 40)));
    const std::string post = fuses == 1 ? "0:post_attention_layernorm " : "",
                      next = fuses == 1 ? "1:input_layernorm " : "";
    CHECK(ops.find("0:o_proj " + post + "0:gate_up_proj 0:down_proj " + next + "1:qkv_proj ") != std::string::npos);
    CHECK(ops.find("1:down_proj -1:norm ") != std::string::npos);
    const uint64_t id = h.submit(Ask(text(30), 20));
    h.finish();
    CHECK(h.of(id).tokens == toy::continuation(text(30), 20));
  }
}

TEST("profile: requests before, during and after it are not disturbed") {
  Host h;
  const uint64_t running = h.submit(Ask(text(30), 300));
  for (int i = 0; i < 5; i++) h.engine->profile_step(spec(2, 1, 40));
  h.finish();
  CHECK(h.of(running).tokens == toy::continuation(text(30), 300));
  const uint64_t later = h.submit(Ask(text(20, 1), 10));
  h.finish();
  CHECK(h.of(later).tokens == toy::continuation(text(20, 1), 10));
  h.check_idle();
}

TEST("profile: what cannot be is refused, and holds no blocks") {
  qwen3_options o = options(4);
  o.token_budget = 64;
  o.max_slots = 8;
  Host h(o);
  CHECK_THROWS_WITH(h.engine->profile_step(spec(0, 1, 0)), Error, "spec.n_sequences is 0; it must be between 1 and 8");
  CHECK_THROWS_WITH(h.engine->profile_step(spec(9, 1, 0)), Error, "spec.n_sequences is 9");
  CHECK_THROWS_WITH(h.engine->profile_step(spec(2, 33, 0)), Error, "spec.n_tokens is 33; it must be between 1 and 32");
  CHECK_THROWS_WITH(h.engine->profile_step(spec(1, 0, 0)), Error, "spec.n_tokens is 0");
  CHECK_THROWS_WITH(h.engine->profile_step(spec(1, 1, -1)), Error, "spec.n_past is -1");
  CHECK_THROWS_WITH(h.engine->profile_step(spec(1, 1, 0, 0)), Error, "spec.repeat is 0; it must be between 1 and 1000");
  CHECK_THROWS_WITH(h.engine->profile_step(spec(1, 1, 128)), Error,
                    "the sequences would have 129 tokens, but the context holds 128");
  CHECK_THROWS_WITH(h.engine->profile_step(spec(3, 1, 40)), Error, "all 4 KV blocks are in use");
  CHECK_THROWS_WITH(h.engine->profile_step(spec(8, 1, 0)), Error, "all 4 KV blocks are in use");
  CHECK_EQ(h.engine->stats().blocks_used, 0);
  CHECK_EQ(names(h.engine->profile_step(spec(2, 1, 63))).substr(0, 16), "-1:embed_tokens ");
  h.check_idle();
}

TEST("profile: closing ends it after the step that runs") {
  std::atomic<int> n_steps = 0;
  auto faults = std::make_shared<toy::Faults>();
  faults->on_step = [&n_steps](int) {
    n_steps++;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  };
  Host h(options(), faults);
  auto profile = std::async(std::launch::async, [&] { h.engine->profile_step(spec(1, 1, 0, 1000)); });
  while (n_steps < 10) std::this_thread::yield();
  h.engine->begin_close();
  CHECK_THROWS_WITH(profile.get(), Error, "the engine is being closed");
  CHECK(n_steps < 1000);  // of 2,004
}

TEST("profile: a device that fails inside it fails the engine") {
  auto faults = std::make_shared<toy::Faults>();
  faults->on_step = [](int step) {
    if (step == 5) throw Error(qwen3::Status::kDeviceError, "the toy broke");
  };
  Host h(options(), faults);
  CHECK_THROWS_WITH(h.engine->profile_step(spec(1, 1, 0)), Error, "the toy broke");
  CHECK_EQ(h.engine->stats().failed, 1);
  CHECK_THROWS_WITH(h.engine->profile_step(spec(1, 1, 0)), Error, "takes no more work");
}

TEST("profile: an op that throws while it is timed leaves the model as it was") {
  auto faults = std::make_shared<toy::Faults>();
  faults->on_step = [](int step) {
    if (step == 3 + 4) throw Error(qwen3::Status::kInternal, "a passing fault");  // the first timed one of 3
  };
  Host h(options(), faults);
  CHECK_THROWS_WITH(h.engine->profile_step(spec(1, 1, 0)), Error, "a passing fault");
  const uint64_t id = h.submit(Ask(text(30), 20));
  h.finish();
  CHECK(h.of(id).tokens == toy::continuation(text(30), 20));
  h.check_idle();
}

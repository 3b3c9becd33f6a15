// What engine tests share: an engine over the toy device, default options and requests, and a host that collects
// events.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "engine/engine.h"
#include "engine/toy_ops.h"
#include "qwen3.h"

namespace host {

// For what shall happen: far beyond what a busy machine needs.
inline constexpr std::chrono::seconds kPatience{300};
inline constexpr uint64_t kBlockBytes = 2 * 2 * 32 * 128 * 2;  // k and v, 2 layers, 32 tokens, 1 head of 128, bf16

struct Log {
  std::mutex mutex;
  std::string text;
  static void write(void* user, qwen3_log_level, const char* line) {
    Log& log = *static_cast<Log*>(user);
    const std::lock_guard lock(log.mutex);
    log.text += std::string(line) + "\n";
  }
  bool contains(const std::string& what) { return count(what) > 0; }
  int count(const std::string& what) {
    const std::lock_guard lock(mutex);
    int n = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) n++;
    return n;
  }
};

inline qwen3_options options(int64_t n_blocks = 64) {
  qwen3_options o;
  qwen3_options_init(&o, sizeof o);
  o.kv_bytes = static_cast<uint64_t>(n_blocks) * kBlockBytes;
  o.n_token_ids = toy::kTokenIds;
  o.threads = 1;
  return o;
}

// A request that owns its prompt. Greedy by default, and it goes on over EOS.
struct Ask : qwen3_request {
  explicit Ask(std::vector<int32_t> prompt_tokens, int64_t n_tokens = 8) : tokens(std::move(prompt_tokens)) {
    qwen3_request_init(this, sizeof(qwen3_request));
    prompt = tokens.data();
    n_prompt = tokens.size();
    max_tokens = n_tokens;
    temperature = 0;
    ignore_eos = 1;
  }
  Ask(const Ask&) = delete;
  Ask& operator=(const Ask&) = delete;
  std::vector<int32_t> tokens;
};

// `n` ids that begin with `family` and are otherwise a fixed pattern: two texts of one family share their beginning.
inline std::vector<int32_t> text(int n, int family = 0) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; i++) tokens.push_back((family * 31 + i * 7 + i / 5) % 60);
  return tokens;
}

struct Outcome {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<std::vector<qwen3_logprob>> top;
  std::vector<int32_t> prompt_tokens;
  std::vector<float> prompt_logprobs;
  std::vector<std::vector<qwen3_logprob>> prompt_top;
  qwen3_event end{};
  int n_ends = 0;
};

using Key = std::pair<uint64_t, int32_t>;  // request, sample

class Host {
 public:
  explicit Host(const qwen3_options& o = options(), std::shared_ptr<toy::Faults> f = std::make_shared<toy::Faults>())
      : faults(std::move(f)) {
    toy::write_model(dir_);
    qwen3_options with_log = o;
    with_log.log = Log::write;
    with_log.log_user = &log;
    with_log.log_level = QWEN3_LOG_DEBUG;
    engine = std::make_unique<qwen3::Engine>(
        dir_.path(), with_log, [this](const qwen3::BackendOptions&) { return std::make_unique<toy::ToyOps>(faults); });
  }

  uint64_t submit(const Ask& ask) {
    const uint64_t id = engine->submit(ask);
    for (int32_t i = 0; i < ask.n; i++) open_.insert({id, i});
    return id;
  }

  // Takes what is there within `timeout_ms`, at most `capacity` events.
  std::vector<qwen3_event> poll(int timeout_ms = 5000, size_t capacity = 64) {
    std::vector<qwen3_event> events(capacity);
    std::vector<qwen3_logprob> top(capacity * QWEN3_MAX_TOP_LOGPROBS);
    size_t n = 0;
    const qwen3_status status = engine->events().take(events.data(), sizeof events[0], capacity, top, timeout_ms, &n);
    CHECK(status == QWEN3_OK || status == QWEN3_TIMEOUT);
    CHECK_EQ(n > 0, status == QWEN3_OK);
    events.resize(n);
    for (const qwen3_event& event : events) note(event, top);
    return events;
  }

  // Until every sample submitted so far has ended. A minute without an event is a failure.
  void finish() {
    while (!open_.empty()) {
      if (poll(60'000).empty()) {
        CHECK(!"the engine makes no progress");
        return;
      }
    }
  }

  // Until `done` or a timeout; events are noted all along.
  template <typename Done>
  void poll_until(const Done& done) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!done()) {
      REQUIRE(std::chrono::steady_clock::now() < deadline);
      poll(20);
    }
  }

  Outcome& of(uint64_t id, int32_t sample = 0) { return outcomes[{id, sample}]; }

  // The worker has nothing left to do and has checked its books. Blocks: none is used.
  void check_idle() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    for (;;) {
      const qwen3_stats stats = engine->stats();
      if (stats.n_running == 0 && stats.n_waiting == 0 && stats.blocks_used == 0 && stats.idle_checks > 0) {
        CHECK_EQ(stats.blocks_free + stats.blocks_cached, stats.blocks_total);
        CHECK_EQ(stats.failed, 0);
        return;
      }
      REQUIRE(std::chrono::steady_clock::now() < deadline);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  Log log;
  std::shared_ptr<toy::Faults> faults;
  std::unique_ptr<qwen3::Engine> engine;
  std::map<Key, Outcome> outcomes;
  std::vector<Key> order;  // of first tokens

 private:
  void note(const qwen3_event& event, const std::vector<qwen3_logprob>& all) {
    Outcome& o = outcomes[{event.request, event.sample}];
    CHECK_EQ(o.n_ends, 0);  // nothing comes after the end
    const auto first = all.begin() + event.first_logprob;
    const std::vector<qwen3_logprob> top(first, first + event.n_logprobs);
    if (event.kind == QWEN3_EVENT_TOKEN) {
      CHECK_EQ(event.index, static_cast<int64_t>(o.tokens.size()));
      if (o.tokens.empty()) order.push_back({event.request, event.sample});
      o.tokens.push_back(event.token);
      o.logprobs.push_back(event.logprob);
      o.top.push_back(top);
    } else if (event.kind == QWEN3_EVENT_PROMPT_TOKEN) {
      CHECK_EQ(event.index, static_cast<int64_t>(o.prompt_tokens.size()));
      CHECK_EQ(event.sample, 0);
      o.prompt_tokens.push_back(event.token);
      o.prompt_logprobs.push_back(event.logprob);
      o.prompt_top.push_back(top);
    } else {
      CHECK_EQ(event.kind, QWEN3_EVENT_FINISHED);
      CHECK_EQ(event.n_generated, static_cast<int64_t>(o.tokens.size()));
      o.n_ends++;
      o.end = event;
      open_.erase({event.request, event.sample});
    }
  }

  model_dir::TempDir dir_;
  std::set<Key> open_;
};

// Holds the worker at the begin of a step until it is let go.
class Gate {
 public:
  // For Faults::on_step: stops the worker at step `at` (and at every later one until open()).
  void enter(int step, int at) {
    std::unique_lock lock(mutex_);
    if (step < at || open_) return;
    inside_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    inside_ = false;
  }
  void wait_inside() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kPatience, [this] { return inside_; })) {
      CHECK(!"the worker did not reach the gate");
    }
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool inside_ = false;
  bool open_ = false;
};

inline std::shared_ptr<toy::Faults> gated(Gate& gate, int at = 0) {
  auto faults = std::make_shared<toy::Faults>();
  faults->on_step = [&gate, at](int step) { gate.enter(step, at); };
  return faults;
}

}  // namespace host

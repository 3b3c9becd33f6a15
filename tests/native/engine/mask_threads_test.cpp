// The threads of masks by themselves: each job is told once, in whatever turn, and what was answered before a job that
// takes long is told while it takes.
#include "engine/mask_threads.h"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "check.h"

using qwen3::MaskJob;
using qwen3::MaskThreads;
using qwen3::Matcher;

namespace {

// Says its number, once it may.
struct Number {
  uint32_t value = 0;
  std::atomic<bool>* may_go_on = nullptr;
  std::atomic<int>* n_freed = nullptr;
};

std::shared_ptr<Matcher> matcher_of(const Number& number, bool slow = false) {
  qwen3_matcher calls{};
  calls.struct_size = sizeof calls;
  calls.matcher = new Number(number);
  calls.consume_token = [](void*, uint32_t) -> int32_t { return 0; };
  calls.compute_mask = [](void* matcher, uint32_t* mask, size_t n_bytes) -> int32_t {
    const Number& n = *static_cast<Number*>(matcher);
    CHECK_EQ(n_bytes, sizeof n.value);
    while (n.may_go_on != nullptr && !*n.may_go_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::memcpy(mask, &n.value, sizeof n.value);
    return 0;
  };
  calls.is_stopped = [](const void*) { return false; };
  calls.is_accepting = [](void*) { return true; };
  calls.get_error = [](void*) -> const char* { return nullptr; };
  calls.free = [](void* matcher) {
    const auto* n = static_cast<Number*>(matcher);
    if (n->n_freed != nullptr) ++*n->n_freed;
    delete n;
  };
  calls.slow = slow ? 1 : 0;
  return std::make_shared<Matcher>(calls);
}

// How often each number was told.
struct Told {
  std::mutex mutex;
  std::map<uint32_t, int> counts;

  void take(MaskThreads::Turn& turn) {
    const std::lock_guard lock(mutex);
    for (const MaskJob& job : turn.answered()) {
      CHECK(job.answer == Matcher::Answer::kMask);
      counts[job.mask.at(0)]++;
    }
    turn.told();
  }
  size_t n() {
    const std::lock_guard lock(mutex);
    return counts.size();
  }
  void wait_for(size_t n_wanted) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(300);
    while (n() < n_wanted) {
      REQUIRE(std::chrono::steady_clock::now() < deadline);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  bool each_once() {
    const std::lock_guard lock(mutex);
    for (const auto& [number, count] : counts)
      if (count != 1) return false;
    return true;
  }
};

// Takes all threads that the system gives, and ends one of them with each call.
class AllThreads {
 public:
  AllThreads() {
    while (threads_.size() < kFew) begin_one();
    unsigned long pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    REQUIRE(pages > 0 && getrlimit(RLIMIT_AS, &limit_) == 0);
    rlimit none = limit_;  // left: less than a thread's stack
    none.rlim_cur = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (1 << 20);
    setrlimit(RLIMIT_AS, &none);
    try {  // stacks of threads that have ended are used again
      while (threads_.size() < kMost) begin_one();
    } catch (const std::system_error&) {
      return;
    }
  }
  ~AllThreads() {
    setrlimit(RLIMIT_AS, &limit_);
    while (end_one()) continue;
  }
  AllThreads(const AllThreads&) = delete;
  AllThreads& operator=(const AllThreads&) = delete;

  bool end_one() {
    if (n_ended_ == threads_.size()) return false;
    ends_[n_ended_].set_value();
    threads_[n_ended_++].join();
    return true;
  }

 private:
  static constexpr size_t kFew = 4;  // fewer than mask threads
  static constexpr size_t kMost = 100;

  void begin_one() {
    threads_.emplace_back([end = ends_[threads_.size()].get_future()] { end.wait(); });
  }

  rlimit limit_{};
  std::vector<std::promise<void>> ends_{kMost};
  std::vector<std::thread> threads_;
  size_t n_ended_ = 0;
};

}  // namespace

TEST("mask threads: jobs around one that takes long are told while it takes") {
  for (uint32_t late = 0; late < 12; late++) {
    std::atomic<bool> go = false;
    std::atomic<int> n_freed = 0;
    Told told;
    {
      MaskThreads threads([&](MaskThreads::Turn& turn) { told.take(turn); });
      threads.start(1);
      const auto request = std::make_shared<qwen3::Request>();
      for (uint32_t i = 0; i < 12; i++)
        threads.add({.matcher = matcher_of({i, i == late ? &go : nullptr, &n_freed}), .request = request});
      threads.flush();
      told.wait_for(11);
      CHECK_EQ(told.counts.count(late), 0u);
      go = true;
      told.wait_for(12);
    }
    CHECK(told.each_once());
    CHECK_EQ(n_freed.load(), 12);
  }
}

TEST("mask threads: more that take long than threads, quick ones, and matchers to let go of, each once") {
  std::atomic<bool> go = false;
  std::atomic<int> n_freed = 0;
  Told told;
  {
    MaskThreads threads([&](MaskThreads::Turn& turn) { told.take(turn); });
    threads.start(1);
    const auto request = std::make_shared<qwen3::Request>();
    for (uint32_t i = 0; i < 300; i++) {
      const bool late = i % 10 == 7;
      threads.add({.matcher = matcher_of({i, late ? &go : nullptr, &n_freed}, late), .request = request});
      if (i % 3 == 0) threads.add({.matcher = matcher_of({i, nullptr, &n_freed}), .request = nullptr});
      if (i % 16 == 0) threads.flush();
    }
    threads.flush();
    told.wait_for(270);
    CHECK(told.each_once());
    go = true;
    told.wait_for(300);
    CHECK(told.each_once());
  }
  CHECK_EQ(n_freed.load(), 400);
}

TEST("mask threads: a close in the middle of turns frees what waits") {
  for (int round = 0; round < 20; round++) {
    std::atomic<int> n_freed = 0;
    Told told;
    {
      MaskThreads threads([&](MaskThreads::Turn& turn) { told.take(turn); });
      threads.start(1);
      const auto request = std::make_shared<qwen3::Request>();
      for (uint32_t i = 0; i < 400; i++)
        threads.add({.matcher = matcher_of({i, nullptr, &n_freed}), .request = request});
      threads.flush();
      if (round % 2 == 1) told.wait_for(1);
    }
    CHECK(told.each_once());
    CHECK_EQ(n_freed.load(), 400);
  }
}

TEST("mask threads: where the system gives too few, the next call begins the others") {
  std::atomic<bool> go = false;
  Told told;
  {
    MaskThreads threads([&](MaskThreads::Turn& turn) { told.take(turn); });
    int n_refused = 0;
    {
      AllThreads all;
      do {
        try {
          threads.start(1);
        } catch (const std::system_error&) {
          n_refused++;
        }
      } while (all.end_one());
    }
    CHECK(n_refused > 0);
    threads.start(1);
    const auto request = std::make_shared<qwen3::Request>();
    for (uint32_t i = 0; i < 12; i++)
      threads.add({.matcher = matcher_of({i, i == 0 ? &go : nullptr}), .request = request});
    threads.flush();
    told.wait_for(11);
    go = true;
    told.wait_for(12);
  }
  CHECK(told.each_once());
}

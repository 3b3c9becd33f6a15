#include "backend/cpu/thread_pool.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace qwen3::cpu {
namespace {

// How long a helper looks for the next loop before it sleeps. Ops of a step follow each other within 10 us and steps
// within about 50 us; waking a sleeper costs 5 to 50 us.
constexpr auto kSpin = std::chrono::microseconds(100);

// `state`: helpers inside the loop (kInside bits), whether the loop may be entered (kOpen), and above that a count of
// loops, which lets a helper tell a new loop from the one it has finished with. 32 bits, so that waiting is a plain
// futex.
constexpr uint32_t kInside = 0x3ff;
constexpr uint32_t kOpen = 0x400;
constexpr uint32_t kLoop = 0x800;
constexpr int kMaxThreads = static_cast<int>(kInside);

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until ready(state) or until kSpin has passed, then sleeps until somebody notifies.
template <typename Ready>
uint32_t wait_for(std::atomic<uint32_t>& state, const Ready& ready) {
  uint32_t seen = state.load(std::memory_order_acquire);
  if (ready(seen)) return seen;
  const auto until = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; i++) {
      pause();
      seen = state.load(std::memory_order_acquire);
      if (ready(seen)) return seen;
    }
  } while (std::chrono::steady_clock::now() < until);
  for (;;) {
    state.wait(seen, std::memory_order_acquire);
    seen = state.load(std::memory_order_acquire);
    if (ready(seen)) return seen;
  }
}

}  // namespace

struct ThreadPool::Shared {
  // The loop; written by the caller while no helper is inside.
  Piece piece = nullptr;
  const void* context = nullptr;
  int64_t n = 0;
  int64_t grain = 1;
  std::exception_ptr error;
  std::atomic_flag has_error;

  alignas(64) std::atomic<int64_t> next{0};
  alignas(64) std::atomic<uint32_t> state{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> helpers;

  void work(int thread) noexcept {
    try {
      for (;;) {
        const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= n) return;
        piece(context, begin, std::min(begin + grain, n), thread);
      }
    } catch (...) {
      if (!has_error.test_and_set()) error = std::current_exception();
      next.store(n, std::memory_order_relaxed);
    }
  }

  void help(int thread) {
    char name[16];
    std::snprintf(name, sizeof name, "qwen3-cpu-%d", thread);
    ::pthread_setname_np(::pthread_self(), name);
    uint32_t finished = 0;  // the loop count of the last loop that this helper was in
    for (;;) {
      uint32_t seen = wait_for(state, [&](uint32_t s) {
        return ((s & kOpen) != 0 && s / kLoop != finished) || stop.load(std::memory_order_relaxed);
      });
      if (stop.load(std::memory_order_relaxed)) return;
      if (!state.compare_exchange_strong(seen, seen + 1, std::memory_order_acq_rel)) continue;
      finished = seen / kLoop;
      work(thread);
      const uint32_t before = state.fetch_sub(1, std::memory_order_acq_rel);
      if ((before & kInside) == 1 && (before & kOpen) == 0)
        state.notify_all();  // the caller waits for the last one out
    }
  }

  void join() {
    stop.store(true, std::memory_order_relaxed);
    state.fetch_add(kLoop, std::memory_order_release);  // a changed value: a sleeper that saw the old one wakes up
    state.notify_all();
    for (std::thread& helper : helpers) helper.join();
  }
};

ThreadPool::ThreadPool(int n_threads) : n_threads_(n_threads) {
  if (n_threads < 1 || n_threads > kMaxThreads) {
    throw Error(Status::kInvalidArgument, "the number of CPU threads is " + std::to_string(n_threads) +
                                              ", it must be between 1 and " + std::to_string(kMaxThreads));
  }
  shared_ = std::make_unique<Shared>();
  // Helpers take no signals: those belong to the host program's own threads.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    for (int thread = 1; thread < n_threads; thread++) {
      shared_->helpers.emplace_back([shared = shared_.get(), thread] { shared->help(thread); });
    }
  } catch (const std::exception& error) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    const size_t started = shared_->helpers.size();
    shared_->join();
    throw Error(Status::kOutOfMemory, "only " + std::to_string(started + 1) + " of " + std::to_string(n_threads) +
                                          " CPU threads could be started (" + error.what() +
                                          "); ask for fewer threads");
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ThreadPool::~ThreadPool() {
  shared_->join();
}

void ThreadPool::run(int64_t n, int64_t grain, Piece piece, const void* context) {
  if (n <= 0) return;
  Shared& shared = *shared_;
  grain = std::max<int64_t>(grain, 1);
  if (n_threads_ == 1 || n <= grain) {  // nothing to share; helpers go on as they are
    for (int64_t begin = 0; begin < n; begin += grain) piece(context, begin, std::min(begin + grain, n), 0);
    return;
  }
  shared.piece = piece;
  shared.context = context;
  shared.n = n;
  shared.grain = grain;
  shared.next.store(0, std::memory_order_relaxed);
  // Nobody is inside and the loop is closed: the state is this thread's alone to set.
  const uint32_t loop = shared.state.load(std::memory_order_relaxed) / kLoop + 1;
  shared.state.store(loop * kLoop | kOpen, std::memory_order_release);
  shared.state.notify_all();
  shared.work(0);
  shared.state.fetch_and(~kOpen, std::memory_order_acq_rel);
  wait_for(shared.state, [](uint32_t s) { return (s & kInside) == 0; });
  if (shared.has_error.test()) {
    const std::exception_ptr error = std::exchange(shared.error, nullptr);
    shared.has_error.clear();
    std::rethrow_exception(error);
  }
}

}  // namespace qwen3::cpu

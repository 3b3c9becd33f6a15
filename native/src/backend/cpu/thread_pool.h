// The CPU backend's threads: the calling (worker) thread and threads-1 helpers that run one loop at a time together.
//
// parallel_for splits [0, n) into pieces of `grain` that threads take from a shared counter; it returns when all are
// done. What a piece computes must not depend on which thread runs it. Helpers spin for a short while after a loop,
// since the next op follows within microseconds, then sleep, so an idle engine costs nothing. The caller never waits
// for a helper that has not begun: where other programs hold the cores, it does the work itself. One caller at a time;
// a body must not start another loop. A body that throws ends the loop, and parallel_for throws the first such
// exception.
#pragma once

#include <cstdint>
#include <memory>

namespace qwen3::cpu {

class ThreadPool {
 public:
  explicit ThreadPool(int n_threads);  // >= 1, the caller included; throws Error when threads cannot be started
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_threads() const { return n_threads_; }

  // Calls body(begin, end, thread) for disjoint pieces that cover [0, n); thread is 0..n_threads-1.
  template <typename Body>
  void parallel_for(int64_t n, int64_t grain, const Body& body) {
    run(
        n, grain,
        [](const void* context, int64_t begin, int64_t end, int thread) {
          (*static_cast<const Body*>(context))(begin, end, thread);
        },
        &body);
  }

 private:
  using Piece = void (*)(const void* context, int64_t begin, int64_t end, int thread);
  void run(int64_t n, int64_t grain, Piece piece, const void* context);

  struct Shared;
  int n_threads_;
  std::unique_ptr<Shared> shared_;
};

}  // namespace qwen3::cpu

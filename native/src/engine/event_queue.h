// Events on their way from the worker thread to the host. Any thread may push (the worker, or a thread that cancels)
// and any may take; order is kept. Alternatives (top logprobs) travel in a queue of their own beside the events.
// A host waits inside take(), or in its own event loop on descriptor().
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>

#include "qwen3.h"

namespace qwen3 {

class EventQueue {
 public:
  EventQueue() = default;
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;
  ~EventQueue();

  // event.n_logprobs is set from `alternatives`. Waiting threads are woken by flush().
  void push(const qwen3_event& event, std::span<const qwen3_logprob> alternatives = {});
  void flush();
  // So many events wait that no more should be made: the host does not poll.
  bool full() const;
  bool empty() const;
  // Returns once at most n_left batches wait, or after `limit`; a batch is what lies between two flushes. A host that
  // was late is not waited for again until it comes: one that never polls costs `limit` once.
  void wait_taken(int n_left, std::chrono::nanoseconds limit);
  // Wakes all waiting threads for good; take() then returns QWEN3_CLOSED.
  void close();
  // Readable while there is something to take. Made at the first call, lives as long as this object. Throws
  // Error(kOutOfMemory) where the process has no descriptor left.
  int descriptor();

  // The contract of qwen3_poll, arguments checked. Throws Error(kInvalidArgument) if the next event's alternatives do
  // not fit the caller's array.
  qwen3_status take(qwen3_event* events, size_t event_size, size_t capacity, std::span<qwen3_logprob> alternatives,
                    int32_t timeout_ms, size_t* n);

 private:
  static constexpr size_t kFull = size_t{1} << 18;  // 29 MB, and 42 MB of 20 alternatives each

  void signal();  // with the mutex held

  mutable std::mutex mutex_;
  std::condition_variable filled_;
  std::condition_variable taken_;
  std::deque<qwen3_event> events_;
  std::deque<qwen3_logprob> alternatives_;
  int descriptor_ = -1;     // an eventfd, or -1 while nobody has asked for it
  bool signalled_ = false;  // it is readable
  int n_batches_ = 0;       // flushes since the queue was last empty
  bool late_ = false;       // it was waited for in vain
  bool closed_ = false;
};

}  // namespace qwen3

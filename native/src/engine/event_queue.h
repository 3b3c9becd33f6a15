// Events on their way from the worker thread to the host. Any thread may push (the worker, or a thread that cancels)
// and any may take; order is kept. Alternatives (top logprobs) travel in a queue of their own beside the events.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>

#include "qwen3.h"

namespace qwen3 {

class EventQueue {
 public:
  // event.n_logprobs is set from `alternatives`. Waiting threads are woken by flush().
  void push(const qwen3_event& event, std::span<const qwen3_logprob> alternatives = {});
  void flush();
  // So many events wait that no more should be made: the host does not poll.
  bool full() const;
  bool empty() const;
  // Wakes all waiting threads for good; take() then returns QWEN3_CLOSED.
  void close();

  // The contract of qwen3_poll, arguments checked. Throws Error(kInvalidArgument) if the next event's alternatives do
  // not fit the caller's array.
  qwen3_status take(qwen3_event* events, size_t event_size, size_t capacity, std::span<qwen3_logprob> alternatives,
                    int32_t timeout_ms, size_t* n);

 private:
  static constexpr size_t kFull = size_t{1} << 18;  // 29 MB, and 42 MB of 20 alternatives each

  mutable std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<qwen3_event> events_;
  std::deque<qwen3_logprob> alternatives_;
  bool closed_ = false;
};

}  // namespace qwen3

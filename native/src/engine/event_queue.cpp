#include "engine/event_queue.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/error.h"

namespace qwen3 {

void EventQueue::push(const qwen3_event& event, std::span<const qwen3_logprob> alternatives) {
  const std::lock_guard lock(mutex_);
  events_.push_back(event);
  events_.back().n_logprobs = static_cast<uint32_t>(alternatives.size());
  alternatives_.insert(alternatives_.end(), alternatives.begin(), alternatives.end());
}

void EventQueue::flush() {
  filled_.notify_all();
}

bool EventQueue::full() const {
  const std::lock_guard lock(mutex_);
  return events_.size() >= kFull;
}

bool EventQueue::empty() const {
  const std::lock_guard lock(mutex_);
  return events_.empty();
}

void EventQueue::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  filled_.notify_all();
}

qwen3_status EventQueue::take(qwen3_event* events, size_t event_size, size_t capacity,
                              std::span<qwen3_logprob> alternatives, int32_t timeout_ms, size_t* n) {
  std::unique_lock lock(mutex_);
  const auto ready = [this] { return closed_ || !events_.empty(); };
  if (timeout_ms < 0)
    filled_.wait(lock, ready);
  else
    filled_.wait_for(lock, std::chrono::milliseconds(timeout_ms), ready);
  if (closed_) return QWEN3_CLOSED;

  size_t n_alternatives = 0;
  char* out = reinterpret_cast<char*>(events);
  for (*n = 0; *n < capacity && !events_.empty(); (*n)++) {
    qwen3_event event = events_.front();
    if (n_alternatives + event.n_logprobs > alternatives.size()) {
      if (*n > 0) break;
      throw Error(Status::kInvalidArgument, "qwen3_poll: logprobs_capacity is " + std::to_string(alternatives.size()) +
                                                ", the next event has " + std::to_string(event.n_logprobs) +
                                                " alternatives; pass an array of QWEN3_MAX_TOP_LOGPROBS or more");
    }
    event.first_logprob = static_cast<uint32_t>(n_alternatives);
    for (uint32_t i = 0; i < event.n_logprobs; i++, alternatives_.pop_front())
      alternatives[n_alternatives++] = alternatives_.front();
    // event_size is at least sizeof event; what a newer host has beyond it reads as zero.
    std::memcpy(out + *n * event_size, &event, sizeof event);
    std::memset(out + *n * event_size + sizeof event, 0, event_size - sizeof event);
    events_.pop_front();
  }
  return *n > 0 ? QWEN3_OK : QWEN3_TIMEOUT;
}

}  // namespace qwen3

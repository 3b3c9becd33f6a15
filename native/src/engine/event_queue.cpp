#include "engine/event_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace qwen3 {

EventQueue::~EventQueue() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void EventQueue::push(const qwen3_event& event, std::span<const qwen3_logprob> alternatives) {
  const std::lock_guard lock(mutex_);
  events_.push_back(event);
  events_.back().n_logprobs = static_cast<uint32_t>(alternatives.size());
  alternatives_.insert(alternatives_.end(), alternatives.begin(), alternatives.end());
}

void EventQueue::flush() {
  {
    const std::lock_guard lock(mutex_);
    if (!events_.empty()) {
      n_batches_++;
      signal();
    }
  }
  filled_.notify_all();
}

// A counter of 1 can be written and read whenever the flag says so: neither call blocks or fails.
void EventQueue::signal() {
  if (descriptor_ < 0 || signalled_) return;
  signalled_ = eventfd_write(descriptor_, 1) == 0;
}

int EventQueue::descriptor() {
  const std::lock_guard lock(mutex_);
  if (descriptor_ >= 0) return descriptor_;
  descriptor_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (descriptor_ < 0) throw Error(Status::kOutOfMemory, "qwen3_event_fd: the process has no file descriptor left");
  if (closed_ || !events_.empty()) signal();
  return descriptor_;
}

void EventQueue::wait_taken(int n_left, std::chrono::nanoseconds limit) {
  std::unique_lock lock(mutex_);
  if (late_) return;
  late_ = !taken_.wait_for(lock, limit, [&] { return closed_ || n_batches_ <= n_left; });
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
    signal();
  }
  filled_.notify_all();
  taken_.notify_all();
}

qwen3_status EventQueue::take(qwen3_event* events, size_t event_size, size_t capacity,
                              std::span<qwen3_logprob> alternatives, int32_t timeout_ms, size_t* n) {
  std::unique_lock lock(mutex_);
  late_ = false;
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
  if (*n == 0) return QWEN3_TIMEOUT;
  if (!events_.empty()) return QWEN3_OK;
  n_batches_ = 0;
  taken_.notify_all();
  if (signalled_) {
    eventfd_t count = 0;
    signalled_ = eventfd_read(descriptor_, &count) != 0;
  }
  return QWEN3_OK;
}

}  // namespace qwen3

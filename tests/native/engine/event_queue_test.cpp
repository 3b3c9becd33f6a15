// The queue's descriptor, and waiting for a host to take what is there.
#include "engine/event_queue.h"

#include <poll.h>

#include <chrono>
#include <future>

#include "check.h"

using namespace qwen3;
using namespace std::chrono_literals;

namespace {

bool readable(int descriptor) {
  pollfd entry{.fd = descriptor, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) == 1 && (entry.revents & POLLIN) != 0;
}

void push(EventQueue& queue, int n = 1) {
  for (int i = 0; i < n; i++) queue.push(qwen3_event{});
  queue.flush();
}

// How many events a host gets that does not wait.
size_t take(EventQueue& queue, size_t capacity = 8) {
  std::vector<qwen3_event> events(capacity);
  size_t n = 0;
  queue.take(events.data(), sizeof events[0], capacity, {}, 0, &n);
  return n;
}

}  // namespace

TEST("event queue: the descriptor is readable while events wait") {
  EventQueue queue;
  push(queue);
  const int descriptor = queue.descriptor();
  CHECK(readable(descriptor));  // also for what was there before it
  CHECK_EQ(queue.descriptor(), descriptor);
  push(queue, 4);
  CHECK_EQ(take(queue, 3), 3u);
  CHECK(readable(descriptor));
  CHECK_EQ(take(queue), 2u);
  CHECK(!readable(descriptor));
  CHECK_EQ(take(queue), 0u);
  CHECK(!readable(descriptor));
  push(queue);
  CHECK(readable(descriptor));
  CHECK_EQ(take(queue), 1u);
  queue.close();
  CHECK(readable(descriptor));
}

TEST("event queue: a descriptor that is asked for after the end is readable") {
  EventQueue queue;
  queue.close();
  CHECK(readable(queue.descriptor()));
}

TEST("event queue: waiting for a host that is more than some batches behind") {
  EventQueue queue;
  queue.wait_taken(0, 1h);  // nothing to take
  push(queue, 3);
  queue.flush();
  push(queue);
  queue.wait_taken(3, 1h);
  auto taken = std::async(std::launch::async, [&] { queue.wait_taken(2, 1h); });
  CHECK_EQ(take(queue, 2), 2u);
  CHECK(taken.wait_for(20ms) == std::future_status::timeout);
  CHECK_EQ(take(queue, 2), 2u);
  taken.get();
  queue.flush();  // nothing is no batch
  queue.wait_taken(0, 1h);
}

TEST("event queue: a host that is late is not waited for again until it comes") {
  EventQueue queue;
  push(queue);
  queue.wait_taken(0, 1ns);
  queue.wait_taken(0, 1h);
  push(queue);
  queue.wait_taken(0, 1h);
  CHECK_EQ(take(queue), 2u);
  push(queue);
  auto taken = std::async(std::launch::async, [&] { queue.wait_taken(0, 1h); });
  CHECK(taken.wait_for(20ms) == std::future_status::timeout);
  queue.close();  // the end ends the wait too
  taken.get();
}

// While an object of this kind lives, its thread lets others go first: Linux (6.12 and newer) lets a thread have time
// slices of its own, and whoever wakes with shorter ones takes the core. The thread's share stays what it was. Where
// the kernel does not know this, nothing happens. Not to be held together with a lock that others wait for.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace qwen3 {

class LongTimeSlices {
 public:
  LongTimeSlices() {
    if (::syscall(SYS_sched_getattr, 0, &before_, sizeof before_, 0) != 0 || before_.policy != 0) return;
    Attributes attributes = before_;
    attributes.runtime = 100'000'000;  // ns, the longest slice
    changed_ = set(attributes);
  }
  ~LongTimeSlices() {
    if (changed_) set(before_);
  }
  LongTimeSlices(const LongTimeSlices&) = delete;
  LongTimeSlices& operator=(const LongTimeSlices&) = delete;

 private:
  struct Attributes {  // the kernel's struct sched_attr, as it was at first
    uint32_t size = sizeof(Attributes);
    uint32_t policy = 0;  // 0: SCHED_OTHER
    uint64_t flags = 0;
    int32_t nice = 0;
    uint32_t priority = 0;
    uint64_t runtime = 0;  // of SCHED_OTHER: the slice
    uint64_t deadline = 0;
    uint64_t period = 0;
  };
  static_assert(sizeof(Attributes) == 48);

  static bool set(Attributes& attributes) { return ::syscall(SYS_sched_setattr, 0, &attributes, 0) == 0; }

  Attributes before_;
  bool changed_ = false;
};

}  // namespace qwen3

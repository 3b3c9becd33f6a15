// The threads on which matchers are asked for masks, beside the worker's step.
//
// Owns: the jobs that wait, and which thread may take which. Refuses to know: what a mask is for. A job is quick (some
// microseconds) unless its matcher is slow. A thread takes quick jobs in turns and tells their answers together: the
// engine's lock is taken once, and its worker woken once. A slow job must not be in the way: slow ones have a queue and
// a number of threads of their own, and where a quick one turns out to take long, a watch tells what its turn has
// answered before and lets another thread go on with the quick ones. What is not begun waits in the queues alone, so
// nothing is ever behind a slow job of its turn. Every function may be called from any thread.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "engine/matcher.h"
#include "engine/request.h"

namespace qwen3 {

struct MaskJob {
  std::shared_ptr<Matcher> matcher;
  std::shared_ptr<Request> request;  // keeps the sample; nullptr: the matcher is only let go of
  Sample* sample = nullptr;
  int32_t token = Matcher::kNoToken;  // to take in first
  // What the matcher said.
  Matcher::Answer answer = Matcher::Answer::kFailed;
  std::vector<uint32_t> mask = {};
};

class MaskThreads {
 public:
  // Jobs that are done, of one thread. `told` says that their answers are known, and returns whether no quick job is
  // left.
  class Turn {
   public:
    std::span<MaskJob> answered() { return answered_; }
    bool told();

   private:
    friend class MaskThreads;
    using Clock = std::chrono::steady_clock;
    MaskThreads* owner_ = nullptr;
    std::vector<MaskJob> answered_;
    enum class Kind { kNone, kQuick, kSlow } kind_ = Kind::kNone;
    Clock::time_point begin_;
    bool asks_ = false;  // a matcher, right now
    Clock::time_point asks_since_;
  };
  using Tell = std::function<void(Turn&)>;

  // tell: makes answers known and calls turn.told().
  explicit MaskThreads(Tell tell) : tell_(std::move(tell)) {}
  // Waits for the jobs that are being done and drops those that wait.
  ~MaskThreads();
  MaskThreads(const MaskThreads&) = delete;
  MaskThreads& operator=(const MaskThreads&) = delete;

  // Begins the threads, once; before the first job. Throws where the system gives too few: then no job may be added,
  // and the next call begins the others. n_words: of a mask.
  void start(size_t n_words);
  void add(MaskJob job);
  // Wakes threads for the jobs added before. Best called without a lock that their work takes.
  void flush();

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Kind = Turn::Kind;

  void run(size_t thread);
  void ask(MaskJob& job) const;
  bool take(Turn& turn, MaskJob& job);
  bool goes_on(const Turn& turn) const;
  void tell(Turn& turn, Lock& lock);
  void release(Turn& turn);
  void watch();
  size_t take_late(Turn& watch_turn);
  void wake(size_t n, Lock& lock);

  struct Sleepers {
    std::condition_variable wake;
    size_t n = 0;
  };

  const Tell tell_;
  size_t n_words_ = 0;  // constant after start
  std::mutex mutex_;
  std::array<Sleepers, 2> asleep_;  // those that begin with quick jobs, the others
  std::condition_variable wake_watch_;
  // Guarded by mutex_.
  std::deque<MaskJob> quick_;
  std::deque<MaskJob> slow_;
  std::vector<Turn> turns_;  // one for each thread, the last one the watch's
  size_t most_quick_ = 0;    // jobs done at once
  size_t most_slow_ = 0;
  size_t n_quick_ = 0;  // jobs being done
  size_t n_slow_ = 0;
  uint64_t n_taken_ = 0;  // jobs so far
  bool watching_ = false;
  bool closing_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace qwen3

#include "engine/mask_threads.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

namespace qwen3 {

namespace {

// Jobs done at once, a quarter of the cores within these bounds: the others are the device's and the host's. A step of
// 256 samples asks for 1 ms of quick jobs.
constexpr size_t kMostQuick = 8;
constexpr size_t kMostSlow = 2;
constexpr size_t kSpare = 2;  // threads that take over where quick jobs take long

// After so long, or at most twice that, a quick job counts as slow, so that another thread goes on with the quick ones.
// The watch wakes as often: at 2 ms it made half of these threads' context switches.
constexpr std::chrono::milliseconds kPatience{5};

}  // namespace

MaskThreads::~MaskThreads() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  for (Sleepers& sleepers : asleep_) sleepers.wake.notify_all();
  wake_watch_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void MaskThreads::add(MaskJob job) {
  const std::lock_guard lock(mutex_);
  (job.request == nullptr || job.matcher->slow() ? slow_ : quick_).push_back(std::move(job));
}

void MaskThreads::flush() {
  Lock lock(mutex_);
  const size_t n_quick = std::min(quick_.size(), most_quick_ - std::min(n_quick_, most_quick_));
  const size_t n_slow = std::min(slow_.size(), most_slow_ - std::min(n_slow_, most_slow_));
  if (!quick_.empty() && !watching_) wake_watch_.notify_one();
  wake(n_quick + n_slow, lock);
}

// Wakes up to `n` threads, the first ones before the others: a thread that has just worked has the matchers at hand.
// Gives the mutex up before, as who is woken may run at once in the caller's place.
void MaskThreads::wake(size_t n, Lock& lock) {
  std::array<size_t, 2> n_each;
  for (size_t i = 0; i < asleep_.size(); i++) {
    n_each[i] = std::min(n, asleep_[i].n);
    n -= n_each[i];
  }
  lock.unlock();
  for (size_t i = 0; i < asleep_.size(); i++)
    for (; n_each[i] > 0; n_each[i]--) asleep_[i].wake.notify_one();
}

void MaskThreads::start() {
  const std::lock_guard lock(mutex_);
  if (!threads_.empty()) return;
  const size_t share = std::thread::hardware_concurrency() / 4;
  most_quick_ = std::clamp<size_t>(share, 2, kMostQuick);
  most_slow_ = std::clamp<size_t>(share, 1, kMostSlow);
  turns_.resize(most_quick_ + most_slow_ + kSpare);
  for (size_t i = 0; i < turns_.size(); i++) threads_.emplace_back([this, i] { run(i); });
  threads_.emplace_back([this] { watch(); });
}

void MaskThreads::run(size_t thread) {
  pthread_setname_np(pthread_self(), "qwen3-masks");
  Lock lock(mutex_);
  Turn& turn = turns_[thread];
  turn.owner_ = this;
  Sleepers& sleepers = asleep_[thread < most_quick_ ? 0 : 1];
  while (!closing_) {
    MaskJob job;
    if (!take(turn, job)) {
      sleepers.n++;
      sleepers.wake.wait(lock);
      sleepers.n--;
      continue;
    }
    lock.unlock();
    if (job.request != nullptr) work_(job, turn);
    job = {};  // what it holds is freed here, without a lock
    lock.lock();
    release(turn);
  }
}

// Finds a job that may be done now.
bool MaskThreads::take(Turn& turn, MaskJob& job) {
  const bool quick = !quick_.empty() && n_quick_ < most_quick_;
  if (!quick && (slow_.empty() || n_slow_ >= most_slow_)) return false;
  std::deque<MaskJob>& jobs = quick ? quick_ : slow_;
  job = std::move(jobs.front());
  jobs.pop_front();
  turn.kind_ = quick ? Kind::kQuick : Kind::kSlow;
  turn.begin_ = Turn::Clock::now();
  n_taken_++;
  (quick ? n_quick_ : n_slow_)++;
  return true;
}

void MaskThreads::release(Turn& turn) {
  if (turn.kind_ == Kind::kQuick) n_quick_--;
  if (turn.kind_ == Kind::kSlow) n_slow_--;
  turn.kind_ = Kind::kNone;
}

bool MaskThreads::Turn::done() {
  const std::lock_guard lock(owner_->mutex_);
  owner_->release(*this);
  return owner_->n_quick_ == 0 && owner_->quick_.empty();
}

// While jobs come, looks for quick ones that take long.
void MaskThreads::watch() {
  pthread_setname_np(pthread_self(), "qwen3-masks");
  Lock lock(mutex_);
  uint64_t n_seen = 0;
  while (!closing_) {
    watching_ = !quick_.empty() || n_quick_ > 0 || n_taken_ != n_seen;
    if (!watching_) {
      wake_watch_.wait(lock);
      continue;
    }
    n_seen = n_taken_;
    wake_watch_.wait_for(lock, kPatience);
    const Turn::Clock::time_point now = Turn::Clock::now();
    size_t n_late = 0;
    for (Turn& turn : turns_) {
      if (turn.kind_ != Kind::kQuick || now - turn.begin_ < kPatience) continue;
      turn.kind_ = Kind::kSlow;
      n_quick_--;
      n_slow_++;
      n_late++;
    }
    if (n_late > 0) {
      wake(n_late, lock);
      lock.lock();
    }
  }
}

}  // namespace qwen3

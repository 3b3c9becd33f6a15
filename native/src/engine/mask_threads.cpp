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

// A turn that has lasted so long ends: others may wait for its answers.
constexpr std::chrono::microseconds kTurn{200};
// Quick jobs for which one more thread is woken.
constexpr size_t kJobsPerThread = 16;

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
  const size_t n_wanted = (quick_.size() + kJobsPerThread - 1) / kJobsPerThread;
  const size_t n_quick = std::min(n_wanted, most_quick_ - std::min(n_quick_, most_quick_));
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

void MaskThreads::start(size_t n_words) {
  const std::lock_guard lock(mutex_);
  if (turns_.empty()) {
    n_words_ = n_words;
    const size_t share = std::thread::hardware_concurrency() / 4;
    most_quick_ = std::clamp<size_t>(share, 2, kMostQuick);
    most_slow_ = std::clamp<size_t>(share, 1, kMostSlow);
    turns_.resize(most_quick_ + most_slow_ + kSpare + 1);
    for (Turn& turn : turns_) turn.owner_ = this;
  }
  // Goes on where an earlier call ran out of threads.
  for (size_t i = threads_.size(); i < turns_.size(); i++)
    threads_.emplace_back([this, i] { i + 1 < turns_.size() ? run(i) : watch(); });
}

void MaskThreads::run(size_t thread) {
  pthread_setname_np(pthread_self(), "qwen3-masks");
  Lock lock(mutex_);
  Turn& turn = turns_[thread];
  Sleepers& sleepers = asleep_[thread < most_quick_ ? 0 : 1];
  while (!closing_) {
    MaskJob job;
    if (!take(turn, job)) {
      sleepers.n++;
      sleepers.wake.wait(lock);
      sleepers.n--;
      continue;
    }
    do {
      lock.unlock();
      ask(job);
      lock.lock();
      turn.asks_ = false;
      if (job.request != nullptr) turn.answered_.push_back(std::move(job));
    } while (goes_on(turn) && take(turn, job));
    tell(turn, lock);
  }
}

void MaskThreads::ask(MaskJob& job) const {
  if (job.request == nullptr) {
    job = {};  // freed here, without a lock
    return;
  }
  job.mask.resize(n_words_);
  job.answer = job.matcher->next(job.token, job.mask);
}

// Finds a job that may be done now, of the turn's kind if it has begun.
bool MaskThreads::take(Turn& turn, MaskJob& job) {
  const bool begins = turn.kind_ == Kind::kNone;
  const bool quick = !quick_.empty() && (!begins || n_quick_ < most_quick_);
  if (!quick && (slow_.empty() || n_slow_ >= most_slow_)) return false;
  std::deque<MaskJob>& jobs = quick ? quick_ : slow_;
  job = std::move(jobs.front());
  jobs.pop_front();
  n_taken_++;
  turn.asks_ = true;
  turn.asks_since_ = Turn::Clock::now();
  if (!begins) return true;
  turn.kind_ = quick ? Kind::kQuick : Kind::kSlow;
  turn.begin_ = turn.asks_since_;
  (quick ? n_quick_ : n_slow_)++;
  return true;
}

// Whether a turn takes one more job before its answers are told.
bool MaskThreads::goes_on(const Turn& turn) const {
  return turn.kind_ == Kind::kQuick && !quick_.empty() && !closing_ && Turn::Clock::now() - turn.begin_ < kTurn;
}

// Ends a turn.
void MaskThreads::tell(Turn& turn, Lock& lock) {
  if (turn.answered_.empty()) return release(turn);
  lock.unlock();
  tell_(turn);
  turn.answered_.clear();  // what the jobs hold is freed here, without a lock
  lock.lock();
}

void MaskThreads::release(Turn& turn) {
  if (turn.kind_ == Kind::kQuick) n_quick_--;
  if (turn.kind_ == Kind::kSlow) n_slow_--;
  turn.kind_ = Kind::kNone;
}

bool MaskThreads::Turn::told() {
  const std::lock_guard lock(owner_->mutex_);
  owner_->release(*this);
  return owner_->n_quick_ == 0 && owner_->quick_.empty();
}

// While jobs come, looks for quick ones that take long.
void MaskThreads::watch() {
  pthread_setname_np(pthread_self(), "qwen3-masks");
  Lock lock(mutex_);
  Turn& turn = turns_.back();
  uint64_t n_seen = 0;
  while (!closing_) {
    watching_ = !quick_.empty() || n_quick_ > 0 || n_taken_ != n_seen;
    if (!watching_) {
      wake_watch_.wait(lock);
      continue;
    }
    n_seen = n_taken_;
    wake_watch_.wait_for(lock, kPatience);
    const size_t n_late = take_late(turn);
    tell(turn, lock);
    if (n_late > 0) {
      wake(n_late, lock);
      lock.lock();
    }
  }
}

// Makes turns slow whose quick job takes long, and takes over what they have answered before. Returns how many.
size_t MaskThreads::take_late(Turn& watch_turn) {
  const Turn::Clock::time_point now = Turn::Clock::now();
  size_t n_late = 0;
  for (Turn& turn : turns_) {
    if (turn.kind_ != Kind::kQuick || !turn.asks_ || now - turn.asks_since_ < kPatience) continue;
    turn.kind_ = Kind::kSlow;
    n_quick_--;
    n_slow_++;
    n_late++;
    for (MaskJob& job : turn.answered_) watch_turn.answered_.push_back(std::move(job));
    turn.answered_.clear();
  }
  return n_late;
}

}  // namespace qwen3

#include "backend/cpu/thread_pool.h"

#include <dirent.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "check.h"

namespace {

using qwen3::Error;
using qwen3::cpu::ThreadPool;

double process_cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Names of all threads of this process.
std::multiset<std::string> thread_names() {
  std::multiset<std::string> names;
  DIR* directory = ::opendir("/proc/self/task");
  if (directory == nullptr) return names;
  while (const dirent* entry = ::readdir(directory)) {
    std::ifstream file(std::string("/proc/self/task/") + entry->d_name + "/comm");
    std::string name;
    if (std::getline(file, name)) names.insert(name);
  }
  ::closedir(directory);
  return names;
}

TEST("thread pool: pieces cover the range once, whatever n, grain and threads") {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    CHECK_EQ(pool.n_threads(), threads);
    for (const int64_t n : {0, 1, 2, 7, 100, 1001}) {
      for (const int64_t grain : {0, 1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
        std::atomic<bool> valid{true};
        pool.parallel_for(n, grain, [&](int64_t begin, int64_t end, int thread) {
          if (begin < 0 || begin >= end || end > n || end - begin > std::max<int64_t>(grain, 1)) valid = false;
          if (thread < 0 || thread >= threads) valid = false;
          for (int64_t i = begin; i < end; i++) seen[static_cast<size_t>(i)]++;
        });
        CHECK(valid);
        for (const std::atomic<int>& count : seen) CHECK_EQ(count.load(), 1);
      }
    }
  }
}

TEST("thread pool: two threads never share an index, and what they wrote is visible after the loop") {
  ThreadPool pool(4);
  std::vector<int64_t> values(64);
  for (int64_t round = 1; round <= 20'000; round++) {
    pool.parallel_for(64, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; i++) values[static_cast<size_t>(i)] += i;
    });
    if (round % 1000 == 0) {
      for (int64_t i = 0; i < 64; i++) CHECK_EQ(values[static_cast<size_t>(i)], i * round);
    }
  }
}

TEST("thread pool: helpers that slept wake up for the next loop") {
  ThreadPool pool(2);
  for (int round = 0; round < 20; round++) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    // Ends only when both threads are inside at the same time.
    std::atomic<int> inside{0};
    pool.parallel_for(2, 1, [&](int64_t, int64_t, int) {
      inside++;
      while (inside.load() < 2) std::this_thread::yield();
    });
    CHECK_EQ(inside.load(), 2);
  }
}

TEST("thread pool: idle helpers use no processor time") {
  ThreadPool pool(3);
  std::atomic<int> count{0};
  pool.parallel_for(3, 1, [&](int64_t, int64_t, int) { count++; });
  double used = 1;  // on a busy machine it may take a while until they have got to sleep
  for (int i = 0; i < 50 && used >= 0.02; i++) {
    const double before = process_cpu_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    used = process_cpu_seconds() - before;
  }
  CHECK(used < 0.02);  // spinning helpers would use 0.4 s, each time
}

TEST("thread pool: an exception of a body ends the loop and reaches the caller, and the pool goes on") {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 50; round++) {
      CHECK_THROWS_WITH(pool.parallel_for(1000, 1,
                                          [&](int64_t begin, int64_t, int) {
                                            if (begin == round * 7) throw std::runtime_error("piece failed");
                                          }),
                        std::runtime_error, "piece failed");
      std::atomic<int> count{0};
      pool.parallel_for(100, 1, [&](int64_t, int64_t, int) { count++; });
      CHECK_EQ(count.load(), 100);
    }
  }
}

TEST("thread pool: helpers carry names and end with the pool") {
  const size_t before = thread_names().size();
  {
    ThreadPool pool(3);
    // A helper names itself when it starts.
    std::multiset<std::string> names;
    for (int i = 0; i < 100'000 && names.count("qwen3-cpu-1") + names.count("qwen3-cpu-2") < 2; i++) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      names = thread_names();
    }
    CHECK_EQ(names.count("qwen3-cpu-1"), size_t{1});
    CHECK_EQ(names.count("qwen3-cpu-2"), size_t{1});
    CHECK_EQ(names.size(), before + 2);
  }
  CHECK_EQ(thread_names().size(), before);
}

TEST("thread pool: a wrong number of threads is refused in one sentence") {
  CHECK_THROWS_WITH(ThreadPool(0), Error, "the number of CPU threads is 0");
  CHECK_THROWS_WITH(ThreadPool(-3), Error, "between 1 and");
  CHECK_THROWS_WITH(ThreadPool(100'000), Error, "between 1 and");
}

}  // namespace

// A matcher of the host (qwen3_matcher) as a sample owns it. Whichever thread lets go of it last frees it.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>

#include "qwen3.h"

namespace qwen3 {

class Matcher {
 public:
  static constexpr int32_t kNoToken = -1;

  enum class Answer {
    kMask,   // the mask says what may follow
    kOver,   // nothing but an end may follow
    kFailed  // see error()
  };

  explicit Matcher(const qwen3_matcher& calls) : calls_(calls), slow_(calls.slow != 0) {}
  ~Matcher() { calls_.free(calls_.matcher); }
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  // Takes in `token`, or nothing, and fills `mask` [(n_token_ids + 31) / 32]. One thread at a time.
  Answer next(int32_t token, std::span<uint32_t> mask);
  // Why it failed, in one line.
  std::string error();

  // It is known to take long, or has just done so: it must not be in the way of others. Any thread.
  bool slow() const { return slow_; }

 private:
  Answer advance(int32_t token, std::span<uint32_t> mask);

  const qwen3_matcher calls_;
  std::atomic<bool> slow_;
};

}  // namespace qwen3

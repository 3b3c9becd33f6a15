#include "engine/matcher.h"

#include <algorithm>
#include <chrono>

namespace qwen3 {

namespace {

// An answer that takes longer makes a matcher slow until one takes less. A plain JSON schema takes 3 us on the mean and
// 0.2 ms at worst, one of thousands of alternatives 150 ms.
constexpr std::chrono::milliseconds kSlow{1};

}  // namespace

Matcher::Answer Matcher::next(int32_t token, std::span<uint32_t> mask) {
  const auto begin = std::chrono::steady_clock::now();
  const Answer answer = advance(token, mask);
  slow_ = calls_.slow != 0 || std::chrono::steady_clock::now() - begin > kSlow;
  return answer;
}

Matcher::Answer Matcher::advance(int32_t token, std::span<uint32_t> mask) {
  void* matcher = calls_.matcher;
  if (token != kNoToken && calls_.consume_token(matcher, static_cast<uint32_t>(token)) != 0) return Answer::kFailed;
  if (calls_.compute_mask(matcher, mask.data(), mask.size_bytes()) != 0) return Answer::kFailed;
  if (!calls_.is_stopped(matcher)) return Answer::kMask;
  return calls_.get_error(matcher) == nullptr && calls_.is_accepting(matcher) ? Answer::kOver : Answer::kFailed;
}

std::string Matcher::error() {
  const char* text = calls_.get_error(calls_.matcher);
  std::string line = text != nullptr ? text : "no text meets it";
  line.resize(std::min(line.find('\n'), line.size()));
  return line;
}

}  // namespace qwen3

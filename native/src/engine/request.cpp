#include "engine/request.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/error.h"

namespace qwen3 {

namespace {

constexpr int32_t kMaxSamples = 128;
constexpr size_t kMostIds = size_t{1} << 20;  // of logit_bias and stop_ids; no vocabulary has as many

[[noreturn]] void reject(const std::string& message) {
  throw Error(Status::kInvalidArgument, message);
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.10g", value);  // all of a 32-bit integer
  return text;
}

// NaN is outside every range.
void check_range(const char* field, double value, double low, double high) {
  if (!(value >= low && value <= high))
    reject(std::string(field) + " is " + number(value) + "; it must be between " + number(low) + " and " +
           number(high));
}

// Before any element is read: a length that nobody means leads beyond the array.
template <typename T>
std::span<const T> checked_array(const char* field, const T* data, size_t n, size_t most) {
  if (n > 0 && data == nullptr) reject(std::string(field) + " is NULL but its length is " + std::to_string(n));
  if (n > most)
    reject(std::string(field) + " has a length of " + std::to_string(n) + "; more than " + std::to_string(most) +
           " are never needed");
  return {data, n};
}

}  // namespace

TokenCount& TokenHistory::entry(int32_t token) {
  const auto [it, is_new] = index_.emplace(token, counts_.size());
  if (is_new) counts_.push_back({token, 0});
  return counts_[it->second];
}

void TokenHistory::add_prompt(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) entry(token);
}

void TokenHistory::add_output(int32_t token) {
  entry(token).in_output++;
}

bool Request::ends(int32_t token) const {
  return std::binary_search(end_ids.begin(), end_ids.end(), token);
}

bool Request::may_end(std::span<const uint32_t> mask, int64_t n_output) const {
  return n_output >= min_tokens && std::any_of(end_ids.begin(), end_ids.end(), [&](int32_t token) {
           const size_t word = static_cast<size_t>(token) / 32;
           return word < mask.size() && (mask[word] >> (token % 32) & 1u) != 0;
         });
}

void check_tokens(std::span<const int32_t> tokens, int32_t vocab) {
  for (size_t i = 0; i < tokens.size(); i++) {
    if (tokens[i] < 0 || tokens[i] >= vocab)
      reject("token " + std::to_string(i) + " is " + std::to_string(tokens[i]) + "; the model's ids are 0 to " +
             std::to_string(vocab - 1));
  }
}

std::unique_ptr<Request> make_request(const qwen3_request& r, const RequestLimits& limits) {
  const auto refuse_length = [&](size_t n_prompt, int64_t asked) {
    throw Error(Status::kContextOverflow, "the prompt has " + std::to_string(n_prompt) + " tokens and " +
                                              (r.max_tokens >= 0 ? "" : "at least ") + std::to_string(asked) +
                                              " more are wanted, but the context holds " +
                                              std::to_string(limits.max_context));
  };
  const int64_t asked = r.max_tokens >= 0 ? r.max_tokens : 1;
  if (r.n_prompt > static_cast<size_t>(limits.max_context)) refuse_length(r.n_prompt, asked);
  const auto prompt = checked_array("prompt", r.prompt, r.n_prompt, r.n_prompt);
  const auto bias = checked_array("logit_bias", r.logit_bias, r.n_logit_bias, kMostIds);
  const auto stop_ids = checked_array("stop_ids", r.stop_ids, r.n_stop_ids, kMostIds);
  if (prompt.empty()) reject("the prompt is empty; give at least one token");
  check_tokens(prompt, limits.vocab);
  if (r.max_tokens < -1) reject("max_tokens is " + std::to_string(r.max_tokens) + "; it must be -1 (no limit) or more");
  if (r.max_tokens == 0 && r.prompt_logprobs == 0) reject("max_tokens 0 makes sense only with prompt_logprobs");
  if (r.min_tokens < 0) reject("min_tokens is " + std::to_string(r.min_tokens) + "; it must be 0 or more");
  if (r.max_tokens >= 0 && r.min_tokens > r.max_tokens)
    reject("min_tokens is " + std::to_string(r.min_tokens) + ", more than max_tokens " + std::to_string(r.max_tokens));
  check_range("n", r.n, 1, kMaxSamples);
  check_range("temperature", r.temperature, 0, 1e6);
  check_range("min_p", r.min_p, 0, 1);
  check_range("top_p", r.top_p, 0, 1);
  if (r.top_k < -1) reject("top_k is " + std::to_string(r.top_k) + "; it must be -1 or 0 (off) or more");
  if (!(r.repetition_penalty > 0 && std::isfinite(r.repetition_penalty)))
    reject("repetition_penalty is " + number(r.repetition_penalty) + "; it must be a number above 0");
  check_range("presence_penalty", r.presence_penalty, -2, 2);
  check_range("frequency_penalty", r.frequency_penalty, -2, 2);
  check_range("top_logprobs", r.top_logprobs, 0, QWEN3_MAX_TOP_LOGPROBS);
  for (const qwen3_logit_bias& b : bias) {
    if (b.token < 0 || b.token >= limits.vocab)
      reject("logit_bias names id " + std::to_string(b.token) + "; the model's ids are 0 to " +
             std::to_string(limits.vocab - 1));
    if (std::isnan(b.bias) || b.bias == INFINITY)
      reject("logit_bias of id " + std::to_string(b.token) + " is " + number(b.bias) +
             "; it must be finite or -infinity");
  }

  const int64_t n_prompt = static_cast<int64_t>(prompt.size());
  if (asked > limits.max_context - n_prompt) refuse_length(prompt.size(), asked);

  auto request = std::make_unique<Request>();
  request->tag = r.tag;
  request->max_tokens = r.max_tokens >= 0 ? r.max_tokens : limits.max_context - n_prompt;
  request->min_tokens = r.min_tokens;
  request->has_penalties = r.repetition_penalty != 1.0f || r.presence_penalty != 0.0f || r.frequency_penalty != 0.0f;
  request->prompt_logprobs = r.prompt_logprobs != 0;
  request->constrained = r.constrained != 0;
  for (const qwen3_logit_bias& b : bias) request->bias.push_back({b.token, b.bias});
  request->end_ids.assign(stop_ids.begin(), stop_ids.end());
  if (r.ignore_eos == 0) request->end_ids.insert(request->end_ids.end(), limits.eos_ids.begin(), limits.eos_ids.end());
  std::sort(request->end_ids.begin(), request->end_ids.end());
  SampleRow& s = request->sampling;
  s.temperature = r.temperature;
  s.min_p = r.min_p;
  s.top_p = r.top_p;
  s.top_k = std::max(r.top_k, 0);
  s.repetition_penalty = r.repetition_penalty;
  s.presence_penalty = r.presence_penalty;
  s.frequency_penalty = r.frequency_penalty;
  s.logprob = r.logprobs != 0 || r.top_logprobs > 0;
  s.n_top = r.top_logprobs;
  s.bias = request->bias;

  const auto group = std::make_shared<SequenceGroup>();
  for (int32_t i = 0; i < r.n; i++) {
    auto sample = std::make_unique<Sample>();
    sample->request = request.get();
    sample->index = i;
    sample->tokens.assign(prompt.begin(), prompt.end());
    sample->n_prompt = n_prompt;
    sample->priority = r.priority;
    sample->reads_prefix_cache = !request->prompt_logprobs;
    sample->cache_salt = r.cache_salt != nullptr ? r.cache_salt : "";
    sample->max_length = n_prompt + request->max_tokens;
    sample->group = group;
    group->push_back(sample.get());
    if (request->has_penalties) sample->history.add_prompt(prompt);
    request->samples.push_back(std::move(sample));
  }
  request->sampling.seed = r.seed;
  request->n_alive = r.n;
  return request;
}

}  // namespace qwen3

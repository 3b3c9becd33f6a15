// A request as the engine holds it: a checked copy of qwen3_request, and the state of its samples.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/matcher.h"
#include "ops/ops.h"
#include "qwen3.h"
#include "sched/sequence.h"

namespace qwen3 {

// Which ids occur in a sample's prompt and output, for the penalties. Kept only if a penalty is on.
class TokenHistory {
 public:
  void add_prompt(std::span<const int32_t> tokens);
  void add_output(int32_t token);
  std::span<const TokenCount> counts() const { return counts_; }

 private:
  TokenCount& entry(int32_t token);

  std::vector<TokenCount> counts_;
  std::unordered_map<int32_t, size_t> index_;  // token -> place in counts_
};

struct Request;

struct Sample : Sequence {
  const Request* request = nullptr;
  int32_t index = 0;
  TokenHistory history;
  int64_t n_prompt_scored = 0;  // prompt tokens whose PROMPT_TOKEN event is out
  int64_t n_cached_first = 0;   // tokens found in the prefix cache at the first admission
  int64_t started_ns = 0;
  int64_t first_token_ns = 0;
  std::vector<uint32_t> mask;  // for output token mask_index
  int64_t mask_index = -1;
  std::shared_ptr<Matcher> matcher;  // gives the masks; nullptr: the host does
  int32_t sampled_row = 0;           // row of the last issued step that samples this sample's unknown token
};

struct Request {
  uint64_t id = 0;
  uint64_t tag = 0;
  int64_t submitted_ns = 0;
  int64_t max_tokens = 0;  // resolved: 0.. what the context leaves
  int64_t min_tokens = 0;
  SampleRow sampling;  // template of every row; the spans are filled per row
  std::vector<TokenBias> bias;
  std::vector<int32_t> end_ids;  // sorted: EOS ids (unless ignored) and stop ids
  bool has_penalties = false;
  bool prompt_logprobs = false;
  bool constrained = false;
  bool admitted = false;                         // a sample has had a slot
  std::vector<std::unique_ptr<Sample>> samples;  // an ended sample stays until the request goes
  int n_alive = 0;

  bool ends(int32_t token) const;
  // True if an id of `mask` may end a sample of n_output tokens.
  bool may_end(std::span<const uint32_t> mask, int64_t n_output) const;
  // True if a step needs the last token on the host: for the penalties' counts, or for the host's mask.
  bool waits_for_tokens() const { return has_penalties || constrained; }
};

struct RequestLimits {
  int32_t vocab;
  int32_t n_token_ids;
  int64_t max_context;
  std::span<const int32_t> eos_ids;
};

// Copies and checks. Throws Error(kInvalidArgument) naming the field, or Error(kContextOverflow).
std::unique_ptr<Request> make_request(const qwen3_request& request, const RequestLimits& limits);

// Throws Error(kInvalidArgument) if a token is outside 0..vocab-1.
void check_tokens(std::span<const int32_t> tokens, int32_t vocab);

}  // namespace qwen3

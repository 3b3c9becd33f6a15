// extern "C": checks pointers and struct sizes, calls the engine, and translates errors. The only place where an
// exception becomes a status. Contracts are in qwen3.h.
#include "qwen3.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <new>
#include <string>

#include "base/error.h"
#include "engine/engine.h"
#include "model/config.h"

using qwen3::Engine;
using qwen3::Error;
using qwen3::Status;

static_assert(static_cast<int32_t>(Status::kInvalidArgument) == QWEN3_INVALID_ARGUMENT);
static_assert(static_cast<int32_t>(Status::kNotFound) == QWEN3_NOT_FOUND);
static_assert(static_cast<int32_t>(Status::kBadModel) == QWEN3_BAD_MODEL);
static_assert(static_cast<int32_t>(Status::kUnsupported) == QWEN3_UNSUPPORTED);
static_assert(static_cast<int32_t>(Status::kOutOfMemory) == QWEN3_OUT_OF_MEMORY);
static_assert(static_cast<int32_t>(Status::kContextOverflow) == QWEN3_CONTEXT_OVERFLOW);
static_assert(static_cast<int32_t>(Status::kQueueFull) == QWEN3_QUEUE_FULL);
static_assert(static_cast<int32_t>(Status::kTimeout) == QWEN3_TIMEOUT);
static_assert(static_cast<int32_t>(Status::kClosed) == QWEN3_CLOSED);
static_assert(static_cast<int32_t>(Status::kDeviceError) == QWEN3_DEVICE_ERROR);
static_assert(static_cast<int32_t>(Status::kInternal) == QWEN3_INTERNAL);
static_assert(static_cast<int32_t>(Status::kCancelled) == QWEN3_CANCELLED);
static_assert(sizeof(qwen3_event) == 112, "the event is read as raw bytes by bindings");

// The engine and the number of calls that are inside it, so that close can wait for them.
struct qwen3_engine {
  qwen3_engine(const char* model_dir, const qwen3_options& options) : engine(model_dir, options) {}

  Engine engine;
  std::mutex mutex;
  std::condition_variable left;
  int n_calls = 0;
};

struct qwen3_sequence {
  qwen3_engine* owner;
  qwen3::ManualSequence state;
};

namespace {

thread_local std::string last_error;

[[noreturn]] void invalid(const std::string& message) {
  throw Error(Status::kInvalidArgument, message);
}

// Runs a call's body and turns what it throws into a status and a sentence.
template <typename Body>
qwen3_status guarded(const Body& body) noexcept {
  try {
    return body();
  } catch (const Error& error) {
    last_error = error.what();
    return static_cast<qwen3_status>(error.status());
  } catch (const std::bad_alloc&) {
    last_error = "out of host memory";
    return QWEN3_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    last_error = std::string("internal error: ") + error.what();
    return QWEN3_INTERNAL;
  }
}

class Call {
 public:
  explicit Call(qwen3_engine* owner) : owner_(owner) {
    const std::lock_guard lock(owner_->mutex);
    owner_->n_calls++;
  }
  ~Call() {
    const std::lock_guard lock(owner_->mutex);
    if (--owner_->n_calls == 0) owner_->left.notify_all();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  qwen3_engine* owner_;
};

// A call with an engine: not NULL, counted, guarded.
template <typename Body>
qwen3_status with_engine(const qwen3_engine* owner, const char* function, const Body& body) noexcept {
  return guarded([&]() -> qwen3_status {
    if (owner == nullptr) invalid(std::string(function) + ": engine is NULL");
    qwen3_engine* mutable_owner = const_cast<qwen3_engine*>(owner);  // locking is not a change that hosts can see
    const Call call(mutable_owner);
    return body(mutable_owner->engine);
  });
}

template <typename Body>
qwen3_status with_sequence(qwen3_sequence* sequence, const char* function, const Body& body) noexcept {
  if (sequence == nullptr)
    return guarded([&]() -> qwen3_status { invalid(std::string(function) + ": sequence is NULL"); });
  return with_engine(sequence->owner, function, [&](Engine& engine) { return body(engine, sequence->state); });
}

// qwen3_sequence_prefill() and _decode(), which `function` names.
qwen3_status append_tokens(const char* function, qwen3_sequence* sequence, const int32_t* tokens, size_t n_tokens,
                           float* logits, size_t logits_len) noexcept {
  return with_sequence(sequence, function, [&](Engine& engine, qwen3::ManualSequence& state) -> qwen3_status {
    if (tokens == nullptr || n_tokens == 0) invalid(std::string(function) + ": no tokens were given");
    const size_t vocab = static_cast<size_t>(engine.info().vocab);
    if (logits != nullptr && logits_len != vocab)
      invalid(std::string(function) + ": logits_len is " + std::to_string(logits_len) + ", expected " +
              std::to_string(vocab));
    if (logits != nullptr)
      engine.append(state, {tokens, n_tokens}, n_tokens - 1, {logits, logits_len});
    else
      engine.append(state, {tokens, n_tokens}, n_tokens, {});
    return QWEN3_OK;
  });
}

// Structs only grow at their end. A host that was compiled against a newer header may pass a longer one, as long as the
// part that this library does not know is zero.
constexpr size_t kLargestStruct = 4096;  // more is a struct_size that nobody set
constexpr const char* kHowToSetSize = "call the _init function, or set it to the struct's size where there is none";

template <typename Struct>
void check_size(const char* name, size_t size) {
  if (size > kLargestStruct)
    invalid(std::string(name) + ".struct_size is " + std::to_string(size) + ", which no version of it can be; " +
            kHowToSetSize);
  if (size < sizeof(Struct))
    invalid(std::string(name) + ".struct_size is " + std::to_string(size) + ", this library needs at least " +
            std::to_string(sizeof(Struct)) + "; " + kHowToSetSize);
}

// The size that a caller gives for the elements of an array.
template <typename Struct>
void check_element_size(const char* name, size_t size) {
  if (size < sizeof(Struct))
    invalid(std::string(name) + " is " + std::to_string(size) + ", this library needs at least " +
            std::to_string(sizeof(Struct)));
  if (size > kLargestStruct)
    invalid(std::string(name) + " is " + std::to_string(size) + ", which no version of the struct can be");
}

template <typename Struct>
Struct read_struct(const char* name, const Struct* from) {
  check_size<Struct>(name, from->struct_size);
  const char* bytes = reinterpret_cast<const char*>(from);
  if (std::any_of(bytes + sizeof(Struct), bytes + from->struct_size, [](char c) { return c != 0; }))
    invalid(std::string(name) + " sets a field that this version of the library does not know");
  return *from;
}

template <typename Struct>
void write_struct(const char* name, Struct* to, const Struct& from) {
  const size_t size = to->struct_size;
  check_size<Struct>(name, size);
  *to = from;
  to->struct_size = size;
  std::memset(reinterpret_cast<char*>(to) + sizeof(Struct), 0, size - sizeof(Struct));
}

template <typename Struct>
void init_struct(const char* name, Struct* to, size_t size, const Struct& defaults) {
  if (to == nullptr) invalid(std::string(name) + " is NULL");
  to->struct_size = size;
  write_struct(name, to, defaults);
}

qwen3_options default_options() {
  qwen3_options options{};
  options.max_queue = 1024;
  options.prefix_cache = 1;
  options.log_level = QWEN3_LOG_INFO;
  options.struct_size = sizeof options;
  return options;
}

}  // namespace

uint32_t qwen3_abi_version(void) {
  return QWEN3_ABI_VERSION;
}

const char* qwen3_version(void) {
  return QWEN3_VERSION;
}

const char* qwen3_status_name(qwen3_status status) {
  switch (status) {
    case QWEN3_OK:
      return "QWEN3_OK";
    case QWEN3_INVALID_ARGUMENT:
      return "QWEN3_INVALID_ARGUMENT";
    case QWEN3_NOT_FOUND:
      return "QWEN3_NOT_FOUND";
    case QWEN3_BAD_MODEL:
      return "QWEN3_BAD_MODEL";
    case QWEN3_UNSUPPORTED:
      return "QWEN3_UNSUPPORTED";
    case QWEN3_OUT_OF_MEMORY:
      return "QWEN3_OUT_OF_MEMORY";
    case QWEN3_CONTEXT_OVERFLOW:
      return "QWEN3_CONTEXT_OVERFLOW";
    case QWEN3_QUEUE_FULL:
      return "QWEN3_QUEUE_FULL";
    case QWEN3_TIMEOUT:
      return "QWEN3_TIMEOUT";
    case QWEN3_CLOSED:
      return "QWEN3_CLOSED";
    case QWEN3_DEVICE_ERROR:
      return "QWEN3_DEVICE_ERROR";
    case QWEN3_INTERNAL:
      return "QWEN3_INTERNAL";
    case QWEN3_CANCELLED:
      return "QWEN3_CANCELLED";
    default:
      return "unknown status";
  }
}

const char* qwen3_last_error(void) {
  return last_error.c_str();
}

qwen3_status qwen3_options_init(qwen3_options* options, size_t struct_size) {
  return guarded([&]() -> qwen3_status {
    init_struct("options", options, struct_size, default_options());
    return QWEN3_OK;
  });
}

qwen3_status qwen3_config_check(const char* model_dir) {
  return guarded([&]() -> qwen3_status {
    if (model_dir == nullptr) invalid("qwen3_config_check: model_dir is NULL");
    (void)qwen3::load_config(model_dir);
    return QWEN3_OK;
  });
}

qwen3_status qwen3_engine_open(const char* model_dir, const qwen3_options* options, qwen3_engine** engine) {
  return guarded([&]() -> qwen3_status {
    if (engine == nullptr) invalid("qwen3_engine_open: engine is NULL");
    *engine = nullptr;
    if (model_dir == nullptr) invalid("qwen3_engine_open: model_dir is NULL");
    *engine = new qwen3_engine(model_dir, options != nullptr ? read_struct("options", options) : default_options());
    return QWEN3_OK;
  });
}

void qwen3_engine_close(qwen3_engine* owner) {
  if (owner == nullptr) return;
  owner->engine.begin_close();
  {
    std::unique_lock lock(owner->mutex);
    owner->left.wait(lock, [owner] { return owner->n_calls == 0; });
  }
  delete owner;
}

qwen3_status qwen3_engine_info(const qwen3_engine* owner, qwen3_info* info) {
  return with_engine(owner, "qwen3_engine_info", [&](Engine& engine) -> qwen3_status {
    if (info == nullptr) invalid("qwen3_engine_info: info is NULL");
    write_struct("info", info, engine.info());
    return QWEN3_OK;
  });
}

qwen3_status qwen3_engine_stats(const qwen3_engine* owner, qwen3_stats* stats) {
  return with_engine(owner, "qwen3_engine_stats", [&](Engine& engine) -> qwen3_status {
    if (stats == nullptr) invalid("qwen3_engine_stats: stats is NULL");
    write_struct("stats", stats, engine.stats());
    return QWEN3_OK;
  });
}

qwen3_status qwen3_request_init(qwen3_request* request, size_t struct_size) {
  return guarded([&]() -> qwen3_status {
    qwen3_request defaults{};
    defaults.max_tokens = -1;
    defaults.n = 1;
    defaults.repetition_penalty = 1.0f;
    defaults.temperature = 1.0f;
    defaults.top_p = 1.0f;
    init_struct("request", request, struct_size, defaults);
    return QWEN3_OK;
  });
}

qwen3_status qwen3_submit(qwen3_engine* owner, const qwen3_request* request, uint64_t* id) {
  return with_engine(owner, "qwen3_submit", [&](Engine& engine) -> qwen3_status {
    if (request == nullptr) invalid("qwen3_submit: request is NULL");
    if (id == nullptr) invalid("qwen3_submit: id is NULL");
    *id = engine.submit(read_struct("request", request));
    return QWEN3_OK;
  });
}

qwen3_status qwen3_cancel(qwen3_engine* owner, uint64_t id, int32_t sample) {
  return with_engine(owner, "qwen3_cancel", [&](Engine& engine) -> qwen3_status {
    engine.cancel(id, sample);
    return QWEN3_OK;
  });
}

qwen3_status qwen3_request_mask(qwen3_engine* owner, uint64_t id, int32_t sample, int64_t index, const uint32_t* mask,
                                size_t n_words) {
  return with_engine(owner, "qwen3_request_mask", [&](Engine& engine) -> qwen3_status {
    if (mask == nullptr) invalid("qwen3_request_mask: mask is NULL");
    engine.set_mask(id, sample, index, {mask, n_words});
    return QWEN3_OK;
  });
}

qwen3_status qwen3_request_matcher(qwen3_engine* owner, uint64_t id, int32_t sample, int64_t index,
                                   const qwen3_matcher* matcher) {
  return with_engine(owner, "qwen3_request_matcher", [&](Engine& engine) -> qwen3_status {
    if (matcher == nullptr) invalid("qwen3_request_matcher: matcher is NULL");
    const qwen3_matcher calls = read_struct("matcher", matcher);
    if (calls.consume_token == nullptr || calls.compute_mask == nullptr || calls.is_stopped == nullptr ||
        calls.is_accepting == nullptr || calls.get_error == nullptr || calls.free == nullptr)
      invalid("qwen3_request_matcher: a function of the matcher is NULL");
    engine.set_matcher(id, sample, index, calls);
    return QWEN3_OK;
  });
}

qwen3_status qwen3_poll(qwen3_engine* owner, qwen3_event* events, size_t event_size, size_t capacity,
                        qwen3_logprob* logprobs, size_t logprobs_capacity, int32_t timeout_ms, size_t* n) {
  return with_engine(owner, "qwen3_poll", [&](Engine& engine) -> qwen3_status {
    if (n == nullptr) invalid("qwen3_poll: n is NULL");
    *n = 0;
    if (events == nullptr || capacity == 0) invalid("qwen3_poll: events is NULL or its capacity is 0");
    check_element_size<qwen3_event>("qwen3_poll: event_size", event_size);
    if (logprobs == nullptr && logprobs_capacity > 0) invalid("qwen3_poll: logprobs is NULL but its capacity is not 0");
    return engine.events().take(events, event_size, capacity, {logprobs, logprobs_capacity}, timeout_ms, n);
  });
}

qwen3_status qwen3_event_fd(qwen3_engine* owner, int32_t* fd) {
  return with_engine(owner, "qwen3_event_fd", [&](Engine& engine) -> qwen3_status {
    if (fd == nullptr) invalid("qwen3_event_fd: fd is NULL");
    *fd = engine.events().descriptor();
    return QWEN3_OK;
  });
}

qwen3_status qwen3_score_logits(qwen3_engine* owner, const int32_t* tokens, size_t n_tokens, size_t first, float* out,
                                size_t out_len) {
  return with_engine(owner, "qwen3_score_logits", [&](Engine& engine) -> qwen3_status {
    if (tokens == nullptr || out == nullptr) invalid("qwen3_score_logits: tokens or out is NULL");
    if (first >= n_tokens)
      invalid("qwen3_score_logits: first is " + std::to_string(first) + " of " + std::to_string(n_tokens) + " tokens");
    const size_t expected = (n_tokens - first) * static_cast<size_t>(engine.info().vocab);
    if (out_len != expected)
      invalid("qwen3_score_logits: out_len is " + std::to_string(out_len) + ", expected " + std::to_string(expected));
    engine.score_logits({tokens, n_tokens}, first, {out, out_len});
    return QWEN3_OK;
  });
}

qwen3_status qwen3_score_logprobs(qwen3_engine* owner, const int32_t* tokens, size_t n_tokens, float* out) {
  return with_engine(owner, "qwen3_score_logprobs", [&](Engine& engine) -> qwen3_status {
    if (tokens == nullptr || out == nullptr) invalid("qwen3_score_logprobs: tokens or out is NULL");
    engine.score_logprobs({tokens, n_tokens}, {out, n_tokens});
    return QWEN3_OK;
  });
}

qwen3_status qwen3_sequence_open(qwen3_engine* owner, qwen3_sequence** sequence) {
  if (sequence != nullptr) *sequence = nullptr;
  return with_engine(owner, "qwen3_sequence_open", [&](Engine&) -> qwen3_status {
    if (sequence == nullptr) invalid("qwen3_sequence_open: sequence is NULL");
    *sequence = new qwen3_sequence{owner, {}};
    return QWEN3_OK;
  });
}

qwen3_status qwen3_sequence_prefill(qwen3_sequence* sequence, const int32_t* tokens, size_t n_tokens, float* logits,
                                    size_t logits_len) {
  return append_tokens("qwen3_sequence_prefill", sequence, tokens, n_tokens, logits, logits_len);
}

qwen3_status qwen3_sequence_decode(qwen3_sequence* sequence, int32_t token, float* logits, size_t logits_len) {
  return append_tokens("qwen3_sequence_decode", sequence, &token, 1, logits, logits_len);
}

qwen3_status qwen3_sequence_reset(qwen3_sequence* sequence) {
  return with_sequence(sequence, "qwen3_sequence_reset",
                       [](Engine& engine, qwen3::ManualSequence& state) -> qwen3_status {
                         engine.release(state);
                         return QWEN3_OK;
                       });
}

int64_t qwen3_sequence_length(const qwen3_sequence* sequence) {
  return sequence != nullptr ? sequence->state.length : 0;
}

void qwen3_sequence_close(qwen3_sequence* sequence) {
  if (sequence == nullptr) return;
  qwen3_sequence_reset(sequence);
  delete sequence;
}

qwen3_status qwen3_measure_peaks(qwen3_engine* owner, qwen3_peaks* peaks) {
  return with_engine(owner, "qwen3_measure_peaks", [&](Engine& engine) -> qwen3_status {
    if (peaks == nullptr) invalid("qwen3_measure_peaks: peaks is NULL");
    check_size<qwen3_peaks>("peaks", peaks->struct_size);
    const qwen3::DevicePeaks measured = engine.measure_peaks();
    qwen3_peaks result{};
    result.read_bytes_per_second = measured.read_bytes_per_second;
    result.flops_per_second = measured.flops_per_second;
    std::strncpy(result.flops_of, measured.flops_of.c_str(), sizeof result.flops_of - 1);
    write_struct("peaks", peaks, result);
    return QWEN3_OK;
  });
}

qwen3_status qwen3_profile_spec_init(qwen3_profile_spec* spec, size_t struct_size) {
  return guarded([&]() -> qwen3_status {
    qwen3_profile_spec defaults{};
    defaults.n_sequences = 1;
    defaults.n_tokens = 1;
    defaults.repeat = 5;
    init_struct("spec", spec, struct_size, defaults);
    return QWEN3_OK;
  });
}

qwen3_status qwen3_profile_step(qwen3_engine* owner, const qwen3_profile_spec* spec, qwen3_op_time* ops, size_t op_size,
                                size_t capacity, size_t* n, int64_t* step_ns) {
  return with_engine(owner, "qwen3_profile_step", [&](Engine& engine) -> qwen3_status {
    if (spec == nullptr || ops == nullptr || n == nullptr || step_ns == nullptr)
      invalid("qwen3_profile_step: spec, ops, n or step_ns is NULL");
    *n = 0;
    *step_ns = 0;
    check_element_size<qwen3_op_time>("qwen3_profile_step: op_size", op_size);
    const qwen3::StepProfile profile = engine.profile_step(read_struct("spec", spec));
    *n = profile.ops.size();
    *step_ns = profile.step_ns;
    for (size_t i = 0; i < std::min(capacity, profile.ops.size()); i++) {
      const qwen3::OpTime& op = profile.ops[i];
      const qwen3_op_time time{op.name, op.layer, 0, op.begin_ns, op.end_ns};
      char* to = reinterpret_cast<char*>(ops) + i * op_size;
      std::memset(to, 0, op_size);
      std::memcpy(to, &time, sizeof time);
    }
    return QWEN3_OK;
  });
}

// The C ABI from outside: every documented status, struct sizes, the last error, and a host's whole life. Uses the
// smallest checkpoint on the real CPU backend.
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "model/model_dir.h"
#include "qwen3.h"

namespace {

constexpr int kVocab = 8;
constexpr uint64_t kBlockBytes = 2 * 2 * 32 * 128 * 2;

std::string last() {
  return qwen3_last_error();
}

bool last_has(const std::string& text) {
  if (last().find(text) != std::string::npos) return true;
  std::fprintf(stderr, "the last error is \"%s\", it lacks \"%s\"\n", last().c_str(), text.c_str());
  return false;
}

bool is_asleep(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(") ");
  return name_end != std::string::npos && line[name_end + 2] == 'S';
}

// The call must return `status`, and the sentence must contain `text`.
#define CHECK_FAILS(call, status, text) \
  do {                                  \
    CHECK_EQ(call, status);             \
    CHECK(last_has(text));              \
  } while (0)

struct Model : model_dir::TempDir {
  Model() {
    write("config.json", model_dir::config_text());
    write("model.safetensors", model_dir::safetensors(model_dir::model_tensors()));
  }
};

qwen3_options small_options() {
  qwen3_options options;
  CHECK_EQ(qwen3_options_init(&options, sizeof options), QWEN3_OK);
  options.device = "cpu";
  options.threads = 1;
  options.kv_bytes = 8 * kBlockBytes;
  return options;
}

struct Opened {
  explicit Opened(const qwen3_options& options = small_options()) {
    REQUIRE(qwen3_engine_open(model.path().c_str(), &options, &engine) == QWEN3_OK);
    REQUIRE(engine != nullptr);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  ~Opened() { qwen3_engine_close(engine); }
  Model model;
  qwen3_engine* engine = nullptr;
};

const int32_t kPrompt[] = {1, 2, 3};

qwen3_request small_request() {
  qwen3_request request;
  CHECK_EQ(qwen3_request_init(&request, sizeof request), QWEN3_OK);
  request.prompt = kPrompt;
  request.n_prompt = 3;
  request.max_tokens = 4;
  request.temperature = 0;
  request.ignore_eos = 1;
  return request;
}

// A struct as a host compiled against a newer header has it: with a field that this library does not know.
template <typename Struct>
struct Newer {
  Struct known;
  uint64_t newer;
};

}  // namespace

TEST("api: version, status names, no error at first") {
  CHECK_EQ(qwen3_abi_version(), static_cast<uint32_t>(QWEN3_ABI_VERSION));
  CHECK_EQ(std::string(qwen3_version()).find("0."), 0u);
  const char* const names[] = {
      "QWEN3_OK",          "QWEN3_INVALID_ARGUMENT", "QWEN3_NOT_FOUND",        "QWEN3_BAD_MODEL",
      "QWEN3_UNSUPPORTED", "QWEN3_OUT_OF_MEMORY",    "QWEN3_CONTEXT_OVERFLOW", "QWEN3_QUEUE_FULL",
      "QWEN3_TIMEOUT",     "QWEN3_CLOSED",           "QWEN3_DEVICE_ERROR",     "QWEN3_INTERNAL",
      "QWEN3_CANCELLED"};
  for (qwen3_status status = 0; status < 13; status++)
    CHECK_EQ(std::string(qwen3_status_name(status)), std::string(names[status]));
  CHECK_EQ(std::string(qwen3_status_name(13)), "unknown status");
  CHECK_EQ(std::string(qwen3_status_name(-1)), "unknown status");
  std::thread([] { CHECK_EQ(last(), ""); }).join();
}

TEST("api: the last error belongs to its thread and stays until its next failure") {
  CHECK_EQ(qwen3_options_init(nullptr, 0), QWEN3_INVALID_ARGUMENT);
  const std::string mine = last();
  CHECK(!mine.empty());
  std::thread([] {
    CHECK_EQ(last(), "");
    CHECK_EQ(qwen3_request_init(nullptr, 0), QWEN3_INVALID_ARGUMENT);
    CHECK(last_has("request is NULL"));
  }).join();
  CHECK_EQ(last(), mine);
  qwen3_options options;
  CHECK_EQ(qwen3_options_init(&options, sizeof options), QWEN3_OK);
  CHECK_EQ(last(), mine);
}

TEST("api: _init fills the documented defaults, and clears what a newer host has beyond them") {
  Newer<qwen3_options> o;
  std::memset(static_cast<void*>(&o), 0xff, sizeof o);
  CHECK_EQ(qwen3_options_init(&o.known, sizeof o), QWEN3_OK);
  CHECK_EQ(o.known.struct_size, sizeof o);
  CHECK_EQ(o.newer, 0u);
  CHECK_EQ(o.known.max_slots + o.known.token_budget, 0);
  CHECK_EQ(o.known.max_queue, 1024);
  CHECK_EQ(o.known.prefix_cache, 1);
  CHECK_EQ(o.known.log_level, QWEN3_LOG_INFO);
  CHECK(o.known.device == nullptr && o.known.kernels == nullptr && o.known.log == nullptr &&
        o.known.progress == nullptr);
  CHECK_EQ(o.known.max_context + o.known.threads + o.known.n_token_ids, 0);
  CHECK_EQ(o.known.kv_bytes, 0u);
  CHECK_EQ(o.known.yarn_factor, 0.0);
  CHECK_EQ(o.known.gpu_memory_fraction, 0.0);

  Newer<qwen3_request> r;
  std::memset(static_cast<void*>(&r), 0xff, sizeof r);
  CHECK_EQ(qwen3_request_init(&r.known, sizeof r), QWEN3_OK);
  CHECK_EQ(r.known.struct_size, sizeof r);
  CHECK_EQ(r.newer, 0u);
  CHECK(r.known.prompt == nullptr);
  CHECK_EQ(r.known.max_tokens, -1);
  CHECK_EQ(r.known.n, 1);
  CHECK_EQ(r.known.repetition_penalty, 1.0f);
  CHECK_EQ(r.known.temperature, 1.0f);
  CHECK_EQ(r.known.top_p, 1.0f);
  CHECK_EQ(r.known.seed, 0u);
  CHECK_EQ(r.known.top_k + r.known.ignore_eos + r.known.logprobs + r.known.constrained + r.known.priority, 0);

  CHECK_FAILS(qwen3_options_init(&o.known, sizeof o.known - 1), QWEN3_INVALID_ARGUMENT, "options.struct_size is");
  CHECK_FAILS(qwen3_request_init(&r.known, 8), QWEN3_INVALID_ARGUMENT, "request.struct_size is 8");
  CHECK_FAILS(qwen3_request_init(&r.known, size_t{1} << 40), QWEN3_INVALID_ARGUMENT, "call the _init function");
}

TEST("api: a config can be judged before there are weights") {
  const Model model;
  model.remove("model.safetensors");
  const char* dir = model.path().c_str();
  CHECK_EQ(qwen3_config_check(dir), QWEN3_OK);
  CHECK_FAILS(qwen3_config_check(nullptr), QWEN3_INVALID_ARGUMENT, "model_dir is NULL");
  CHECK_FAILS(qwen3_config_check((model / "nowhere").c_str()), QWEN3_NOT_FOUND, "nowhere");
  model.write("generation_config.json", "[]");
  CHECK_FAILS(qwen3_config_check(dir), QWEN3_BAD_MODEL, "generation_config.json");
  model.remove("generation_config.json");
  model.write("config.json", model_dir::replace(model_dir::config_text(), "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"));
  CHECK_FAILS(qwen3_config_check(dir), QWEN3_UNSUPPORTED, "Qwen3MoeForCausalLM");
  model.remove("config.json");
  CHECK_FAILS(qwen3_config_check(dir), QWEN3_NOT_FOUND, "config.json does not exist");
}

TEST("api: open reports what is wrong and leaves NULL behind") {
  const Model model;
  const char* dir = model.path().c_str();
  qwen3_options options = small_options();
  qwen3_engine* const garbage = reinterpret_cast<qwen3_engine*>(1);
  qwen3_engine* engine = garbage;
  const auto fails = [&](const char* path, qwen3_status status, const std::string& text) {
    engine = garbage;
    CHECK_FAILS(qwen3_engine_open(path, &options, &engine), status, text);
    CHECK(engine == nullptr);
    options = small_options();
  };
  CHECK_FAILS(qwen3_engine_open(dir, &options, nullptr), QWEN3_INVALID_ARGUMENT, "engine is NULL");
  fails(nullptr, QWEN3_INVALID_ARGUMENT, "model_dir is NULL");
  options.struct_size = 16;
  fails(dir, QWEN3_INVALID_ARGUMENT, "options.struct_size is 16");
  options.struct_size = 0;
  fails(dir, QWEN3_INVALID_ARGUMENT, "call the _init function");
  options.max_slots = -1;
  fails(dir, QWEN3_INVALID_ARGUMENT, "max_slots");
  options.device = "tpu";
  fails(dir, QWEN3_INVALID_ARGUMENT, "\"tpu\" is no device");
  options.device = "cuda:x";
  fails(dir, QWEN3_INVALID_ARGUMENT, "\"cuda:x\" is no device");
  options.kernels = "sse";
  fails(dir, QWEN3_INVALID_ARGUMENT, "sse");
  options.kv_bytes = 1;
  fails(dir, QWEN3_INVALID_ARGUMENT, "less than one block");
  fails((model / "nowhere").c_str(), QWEN3_NOT_FOUND, "nowhere");

  Newer<qwen3_options> newer{small_options(), 0};
  newer.known.struct_size = sizeof newer;
  CHECK_EQ(qwen3_engine_open(dir, &newer.known, &engine), QWEN3_OK);  // the unknown field is zero
  qwen3_engine_close(engine);
  newer.newer = 1;
  CHECK_FAILS(qwen3_engine_open(dir, &newer.known, &engine), QWEN3_INVALID_ARGUMENT,
              "options sets a field that this version of the library does not know");

  options.progress = [](void*, const char*, uint64_t, uint64_t) -> int32_t { return 1; };
  fails(dir, QWEN3_CANCELLED, "progress callback");
  model.write("config.json", model_dir::replace(model_dir::config_text(), "Qwen3ForCausalLM", "LlamaForCausalLM"));
  fails(dir, QWEN3_UNSUPPORTED, "LlamaForCausalLM");
  model.write("config.json", "{");
  fails(dir, QWEN3_BAD_MODEL, "config.json");
}

TEST("api: NULL engines, sequences and outputs are refused; closing NULL does nothing") {
  qwen3_info info{};
  qwen3_stats stats{};
  qwen3_event event;
  uint64_t id = 0;
  size_t n = 0;
  float value = 0;
  uint32_t mask = 1;
  qwen3_sequence* sequence = reinterpret_cast<qwen3_sequence*>(1);
  qwen3_request request = small_request();
  CHECK_FAILS(qwen3_engine_info(nullptr, &info), QWEN3_INVALID_ARGUMENT, "qwen3_engine_info: engine is NULL");
  CHECK_FAILS(qwen3_engine_stats(nullptr, &stats), QWEN3_INVALID_ARGUMENT, "engine is NULL");
  CHECK_FAILS(qwen3_submit(nullptr, &request, &id), QWEN3_INVALID_ARGUMENT, "engine is NULL");
  CHECK_FAILS(qwen3_cancel(nullptr, 1, -1), QWEN3_INVALID_ARGUMENT, "engine is NULL");
  CHECK_FAILS(qwen3_request_mask(nullptr, 1, 0, 0, &mask, 1), QWEN3_INVALID_ARGUMENT, "engine is NULL");
  CHECK_FAILS(qwen3_poll(nullptr, &event, sizeof event, 1, nullptr, 0, 0, &n), QWEN3_INVALID_ARGUMENT,
              "engine is NULL");
  CHECK_FAILS(qwen3_score_logits(nullptr, kPrompt, 3, 0, &value, 1), QWEN3_INVALID_ARGUMENT, "engine is NULL");
  CHECK_FAILS(qwen3_score_logprobs(nullptr, kPrompt, 3, &value), QWEN3_INVALID_ARGUMENT, "engine is NULL");
  CHECK_FAILS(qwen3_sequence_open(nullptr, &sequence), QWEN3_INVALID_ARGUMENT, "engine is NULL");
  CHECK(sequence == nullptr);
  CHECK_FAILS(qwen3_sequence_prefill(nullptr, kPrompt, 3, nullptr, 0), QWEN3_INVALID_ARGUMENT, "sequence is NULL");
  CHECK_FAILS(qwen3_sequence_decode(nullptr, 1, nullptr, 0), QWEN3_INVALID_ARGUMENT,
              "qwen3_sequence_decode: sequence is NULL");
  CHECK_FAILS(qwen3_sequence_reset(nullptr), QWEN3_INVALID_ARGUMENT, "sequence is NULL");
  CHECK_EQ(qwen3_sequence_length(nullptr), 0);
  qwen3_sequence_close(nullptr);
  qwen3_engine_close(nullptr);

  const Opened opened;
  qwen3_engine* const e = opened.engine;
  CHECK_FAILS(qwen3_engine_info(e, nullptr), QWEN3_INVALID_ARGUMENT, "info is NULL");
  CHECK_FAILS(qwen3_engine_stats(e, nullptr), QWEN3_INVALID_ARGUMENT, "stats is NULL");
  CHECK_FAILS(qwen3_submit(e, nullptr, &id), QWEN3_INVALID_ARGUMENT, "request is NULL");
  CHECK_FAILS(qwen3_submit(e, &request, nullptr), QWEN3_INVALID_ARGUMENT, "id is NULL");
  CHECK_FAILS(qwen3_request_mask(e, 1, 0, 0, nullptr, 1), QWEN3_INVALID_ARGUMENT, "mask is NULL");
  CHECK_FAILS(qwen3_poll(e, &event, sizeof event, 1, nullptr, 0, 0, nullptr), QWEN3_INVALID_ARGUMENT, "n is NULL");
  n = 7;
  CHECK_FAILS(qwen3_poll(e, nullptr, sizeof event, 1, nullptr, 0, 0, &n), QWEN3_INVALID_ARGUMENT, "events is NULL");
  CHECK_EQ(n, 0u);
  CHECK_FAILS(qwen3_poll(e, &event, sizeof event, 0, nullptr, 0, 0, &n), QWEN3_INVALID_ARGUMENT, "capacity is 0");
  CHECK_FAILS(qwen3_poll(e, &event, sizeof event - 1, 1, nullptr, 0, 0, &n), QWEN3_INVALID_ARGUMENT,
              "event_size is 111");
  CHECK_FAILS(qwen3_poll(e, &event, sizeof event, 1, nullptr, 5, 0, &n), QWEN3_INVALID_ARGUMENT, "logprobs is NULL");
  CHECK_EQ(qwen3_poll(e, &event, sizeof event, 1, nullptr, 0, 0, &n), QWEN3_TIMEOUT);
  CHECK_FAILS(qwen3_sequence_open(e, nullptr), QWEN3_INVALID_ARGUMENT, "sequence is NULL");
  CHECK_FAILS(qwen3_cancel(e, 1, -1), QWEN3_NOT_FOUND, "no request 1 is alive");
  CHECK_FAILS(qwen3_request_mask(e, 1, 0, 0, &mask, 1), QWEN3_NOT_FOUND, "no request 1 is alive");
}

TEST("api: info and stats fill what the caller has room for") {
  const Opened opened;
  Newer<qwen3_info> info;
  std::memset(static_cast<void*>(&info), 0xff, sizeof info);
  info.known.struct_size = sizeof info;
  CHECK_EQ(qwen3_engine_info(opened.engine, &info.known), QWEN3_OK);
  CHECK_EQ(info.known.struct_size, sizeof info);
  CHECK_EQ(info.newer, 0u);
  CHECK_EQ(info.known.vocab, kVocab);
  CHECK_EQ(info.known.n_layers, 2);
  CHECK_EQ(info.known.n_blocks, 8);
  CHECK_EQ(std::string(info.known.device), "cpu");
  CHECK_EQ(info.known.eos_ids[0], 7);
  info.known.struct_size = 100;
  CHECK_FAILS(qwen3_engine_info(opened.engine, &info.known), QWEN3_INVALID_ARGUMENT, "info.struct_size is 100");

  Newer<qwen3_stats> stats;
  std::memset(static_cast<void*>(&stats), 0xff, sizeof stats);
  stats.known.struct_size = sizeof stats;
  CHECK_EQ(qwen3_engine_stats(opened.engine, &stats.known), QWEN3_OK);
  CHECK_EQ(stats.known.struct_size, sizeof stats);
  CHECK_EQ(stats.newer, 0u);
  CHECK_EQ(stats.known.blocks_total, 8);
  CHECK_EQ(stats.known.blocks_free, 8);
  CHECK_EQ(stats.known.requests_submitted, 0u);
  stats.known.struct_size = sizeof stats.known - 8;
  CHECK_FAILS(qwen3_engine_stats(opened.engine, &stats.known), QWEN3_INVALID_ARGUMENT, "stats.struct_size");
}

TEST("api: submit refuses by name, leaves id alone, and takes structs of newer hosts") {
  const Opened opened;
  uint64_t id = 77;
  const auto fails = [&](qwen3_request& request, qwen3_status status, const char* text) {
    CHECK_FAILS(qwen3_submit(opened.engine, &request, &id), status, text);
    CHECK_EQ(id, 77u);
    request = small_request();
  };
  qwen3_request r = small_request();
  r.struct_size = 10;
  fails(r, QWEN3_INVALID_ARGUMENT, "request.struct_size is 10");
  r.struct_size = SIZE_MAX;
  fails(r, QWEN3_INVALID_ARGUMENT, "request.struct_size");
  r.n_prompt = 0;
  fails(r, QWEN3_INVALID_ARGUMENT, "the prompt is empty");
  r.temperature = -1;
  fails(r, QWEN3_INVALID_ARGUMENT, "temperature is -1");
  r.max_tokens = 8 * 32;
  fails(r, QWEN3_CONTEXT_OVERFLOW, "but the context holds 256");
  r.max_tokens = INT64_MAX;
  fails(r, QWEN3_CONTEXT_OVERFLOW, "but the context holds 256");
  for (const size_t wrong : {size_t{257}, size_t{1} << 40, SIZE_MAX}) {  // nothing behind the array is read
    r.n_prompt = wrong;
    fails(r, QWEN3_CONTEXT_OVERFLOW, "but the context holds 256");
  }
  for (const size_t wrong : {size_t{1} << 40, SIZE_MAX}) {
    r.stop_ids = kPrompt;
    r.n_stop_ids = wrong;
    fails(r, QWEN3_INVALID_ARGUMENT, "stop_ids has a length of");
    const qwen3_logit_bias bias{1, 1.0f};
    r.logit_bias = &bias;
    r.n_logit_bias = wrong;
    fails(r, QWEN3_INVALID_ARGUMENT, "logit_bias has a length of");
  }
  r.n = INT32_MIN;
  fails(r, QWEN3_INVALID_ARGUMENT, "n is -2147483648; it must be between 1 and 128");
  Newer<qwen3_request> newer{small_request(), 3};
  newer.known.struct_size = sizeof newer;
  CHECK_FAILS(qwen3_submit(opened.engine, &newer.known, &id), QWEN3_INVALID_ARGUMENT, "request sets a field");
  newer.newer = 0;
  CHECK_EQ(qwen3_submit(opened.engine, &newer.known, &id), QWEN3_OK);
  CHECK_EQ(id, 1u);
}

TEST("api: a full queue has its own status") {
  qwen3_options options = small_options();
  options.max_slots = 1;
  options.max_queue = 0;
  const Opened opened(options);
  qwen3_request request = small_request();
  request.constrained = 1;  // waits for a mask that never comes, and so holds the one slot
  uint64_t id = 0;
  REQUIRE(qwen3_submit(opened.engine, &request, &id) == QWEN3_OK);
  CHECK_FAILS(qwen3_submit(opened.engine, &request, &id), QWEN3_QUEUE_FULL, "max_queue is 0");
}

TEST("api: more samples than can ever run and wait are refused for good") {
  qwen3_options options = small_options();
  options.max_slots = 1;
  options.max_queue = 1;
  const Opened opened(options);
  qwen3_request request = small_request();
  request.n = 3;
  uint64_t id = 0;
  CHECK_FAILS(qwen3_submit(opened.engine, &request, &id), QWEN3_INVALID_ARGUMENT, "n is 3, but only 2 samples");
  request.n = 2;
  CHECK_EQ(qwen3_submit(opened.engine, &request, &id), QWEN3_OK);
}

TEST("api: a request's life, and events with a newer host's size") {
  const Opened opened;
  qwen3_request request = small_request();
  request.top_logprobs = 2;
  request.tag = 99;
  uint64_t id = 0;
  REQUIRE(qwen3_submit(opened.engine, &request, &id) == QWEN3_OK);
  Newer<qwen3_event> events[2];
  qwen3_logprob logprobs[QWEN3_MAX_TOP_LOGPROBS];
  size_t n = 0;
  int n_tokens = 0;
  CHECK_FAILS(qwen3_poll(opened.engine, &events[0].known, sizeof events[0], 2, nullptr, 0, -1, &n),
              QWEN3_INVALID_ARGUMENT, "logprobs_capacity is 0");
  CHECK_EQ(n, 0u);
  CHECK_FAILS(qwen3_poll(opened.engine, &events[0].known, SIZE_MAX, 2, logprobs, 20, 0, &n), QWEN3_INVALID_ARGUMENT,
              "event_size is 18446744073709551615, which no version of the struct can be");
  for (bool ended = false; !ended;) {
    REQUIRE(qwen3_poll(opened.engine, &events[0].known, sizeof events[0], 2, logprobs, 20, 300'000, &n) == QWEN3_OK);
    for (size_t i = 0; i < n; i++) {
      CHECK_EQ(events[i].newer, 0u);
      CHECK_EQ(events[i].known.request, id);
      CHECK_EQ(events[i].known.tag, 99u);
      if (events[i].known.kind == QWEN3_EVENT_TOKEN) {
        CHECK_EQ(events[i].known.index, n_tokens++);
        CHECK_EQ(events[i].known.n_logprobs, 2u);
        CHECK_EQ(logprobs[events[i].known.first_logprob].token, events[i].known.token);  // greedy: the best one
      }
      ended = events[i].known.kind == QWEN3_EVENT_FINISHED;
    }
  }
  CHECK_EQ(n_tokens, 4);
  CHECK_FAILS(qwen3_cancel(opened.engine, id, -1), QWEN3_NOT_FOUND, "is alive");
}

TEST("api: a host may wait for events on a descriptor") {
  const Opened opened;
  int32_t fd = -1, again = -1;
  CHECK_FAILS(qwen3_event_fd(opened.engine, nullptr), QWEN3_INVALID_ARGUMENT, "fd is NULL");
  CHECK_FAILS(qwen3_event_fd(nullptr, &fd), QWEN3_INVALID_ARGUMENT, "engine is NULL");
  REQUIRE(qwen3_event_fd(opened.engine, &fd) == QWEN3_OK);
  CHECK_EQ(qwen3_event_fd(opened.engine, &again), QWEN3_OK);
  CHECK_EQ(again, fd);
  qwen3_request request = small_request();
  uint64_t id = 0;
  REQUIRE(qwen3_submit(opened.engine, &request, &id) == QWEN3_OK);
  int n_tokens = 0;
  for (bool ended = false; !ended;) {
    pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
    REQUIRE(poll(&entry, 1, 60'000) == 1);
    qwen3_event events[16];
    size_t n = 0;
    REQUIRE(qwen3_poll(opened.engine, events, sizeof events[0], 16, nullptr, 0, 0, &n) == QWEN3_OK);
    for (size_t i = 0; i < n; i++) {
      n_tokens += events[i].kind == QWEN3_EVENT_TOKEN;
      ended = events[i].kind == QWEN3_EVENT_FINISHED;
    }
  }
  CHECK_EQ(n_tokens, 4);
}

TEST("api: masks and cancels reach the engine") {
  const Opened opened;
  qwen3_request request = small_request();
  request.constrained = 1;
  uint64_t id = 0;
  REQUIRE(qwen3_submit(opened.engine, &request, &id) == QWEN3_OK);
  const uint32_t only_five = 1u << 5;
  CHECK_FAILS(qwen3_request_mask(opened.engine, id, 0, 1, &only_five, 1), QWEN3_INVALID_ARGUMENT, "the next one is 0");
  CHECK_FAILS(qwen3_request_mask(opened.engine, id, 0, 0, &only_five, 0), QWEN3_INVALID_ARGUMENT,
              "0 words, 1 are needed");
  CHECK_FAILS(qwen3_request_mask(opened.engine, id, 3, 0, &only_five, 1), QWEN3_NOT_FOUND, "has no sample 3");
  CHECK_EQ(qwen3_request_mask(opened.engine, id, 0, 0, &only_five, 1), QWEN3_OK);
  qwen3_event event;
  size_t n = 0;
  REQUIRE(qwen3_poll(opened.engine, &event, sizeof event, 1, nullptr, 0, 300'000, &n) == QWEN3_OK);
  CHECK_EQ(event.token, 5);
  CHECK_FAILS(qwen3_cancel(opened.engine, id, 1), QWEN3_NOT_FOUND, "has no sample 1");
  CHECK_EQ(qwen3_cancel(opened.engine, id, 0), QWEN3_OK);
  REQUIRE(qwen3_poll(opened.engine, &event, sizeof event, 1, nullptr, 0, 300'000, &n) == QWEN3_OK);
  CHECK_EQ(event.finish_reason, QWEN3_FINISH_CANCELLED);
  CHECK_EQ(event.n_generated, 1);
}

TEST("api: scoring and sequences check their sizes and agree with each other") {
  const Opened opened;
  qwen3_engine* const e = opened.engine;
  std::vector<float> logits(3 * kVocab), logprobs(3), one(kVocab);
  CHECK_FAILS(qwen3_score_logits(e, nullptr, 3, 0, logits.data(), logits.size()), QWEN3_INVALID_ARGUMENT,
              "tokens or out");
  CHECK_FAILS(qwen3_score_logits(e, kPrompt, 3, 0, nullptr, 24), QWEN3_INVALID_ARGUMENT, "tokens or out");
  CHECK_FAILS(qwen3_score_logits(e, kPrompt, 3, 3, logits.data(), 0), QWEN3_INVALID_ARGUMENT, "first is 3 of 3 tokens");
  CHECK_FAILS(qwen3_score_logits(e, kPrompt, 3, 0, logits.data(), 23), QWEN3_INVALID_ARGUMENT,
              "out_len is 23, expected 24");
  CHECK_FAILS(qwen3_score_logprobs(e, nullptr, 3, logprobs.data()), QWEN3_INVALID_ARGUMENT, "tokens or out");
  CHECK_FAILS(qwen3_score_logprobs(e, kPrompt, 3, nullptr), QWEN3_INVALID_ARGUMENT, "tokens or out");
  CHECK_FAILS(qwen3_score_logprobs(e, kPrompt, 0, logprobs.data()), QWEN3_INVALID_ARGUMENT, "give at least one");
  const int32_t outside[] = {1, kVocab};
  CHECK_FAILS(qwen3_score_logprobs(e, outside, 2, logprobs.data()), QWEN3_INVALID_ARGUMENT, "token 1 is 8");
  const std::vector<int32_t> too_long(257, 1);
  std::vector<float> many(257);
  CHECK_FAILS(qwen3_score_logprobs(e, too_long.data(), 257, many.data()), QWEN3_CONTEXT_OVERFLOW, "holds 256");
  CHECK_EQ(qwen3_score_logits(e, kPrompt, 3, 0, logits.data(), logits.size()), QWEN3_OK);
  CHECK_EQ(qwen3_score_logprobs(e, kPrompt, 3, logprobs.data()), QWEN3_OK);
  CHECK(std::isnan(logprobs[0]));
  for (size_t i = 1; i < 3; i++) {
    const float* row = logits.data() + (i - 1) * kVocab;
    double sum = 0;
    for (int id = 0; id < kVocab; id++) sum += std::exp(static_cast<double>(row[id]));
    CHECK_NEAR(logprobs[i], row[kPrompt[i]] - std::log(sum), 1e-5);
  }

  qwen3_sequence *a = nullptr, *b = nullptr;
  REQUIRE(qwen3_sequence_open(e, &a) == QWEN3_OK);
  REQUIRE(qwen3_sequence_open(e, &b) == QWEN3_OK);
  CHECK_FAILS(qwen3_sequence_prefill(a, nullptr, 3, nullptr, 0), QWEN3_INVALID_ARGUMENT, "no tokens");
  CHECK_FAILS(qwen3_sequence_prefill(a, kPrompt, 0, nullptr, 0), QWEN3_INVALID_ARGUMENT, "no tokens");
  CHECK_FAILS(qwen3_sequence_prefill(a, kPrompt, 3, one.data(), 7), QWEN3_INVALID_ARGUMENT,
              "logits_len is 7, expected 8");
  CHECK_EQ(qwen3_sequence_length(a), 0);
  CHECK_EQ(qwen3_sequence_prefill(a, kPrompt, 2, nullptr, 0), QWEN3_OK);
  CHECK_EQ(qwen3_sequence_length(a), 2);
  CHECK_EQ(qwen3_sequence_decode(a, kPrompt[2], one.data(), one.size()), QWEN3_OK);
  CHECK(std::equal(one.begin(), one.end(), logits.begin() + 2 * kVocab));
  CHECK_EQ(qwen3_sequence_prefill(b, too_long.data(), 32 * 7, nullptr, 0), QWEN3_OK);  // all other blocks
  CHECK_FAILS(qwen3_sequence_prefill(b, kPrompt, 1, nullptr, 0), QWEN3_OUT_OF_MEMORY, "all 8 KV blocks are in use");
  CHECK_EQ(qwen3_sequence_length(b), 32 * 7);
  CHECK_EQ(qwen3_sequence_reset(a), QWEN3_OK);
  CHECK_EQ(qwen3_sequence_length(a), 0);
  CHECK_EQ(qwen3_sequence_decode(b, 1, nullptr, 0), QWEN3_OK);
  qwen3_sequence_close(a);
  qwen3_sequence_close(b);
  qwen3_stats stats;
  stats.struct_size = sizeof stats;
  CHECK_EQ(qwen3_engine_stats(e, &stats), QWEN3_OK);
  CHECK_EQ(stats.blocks_used, 0);
}

TEST("api: peaks and profiles") {
  Opened opened;
  qwen3_engine* e = opened.engine;
  Newer<qwen3_peaks> peaks{};
  CHECK_FAILS(qwen3_measure_peaks(nullptr, &peaks.known), QWEN3_INVALID_ARGUMENT, "engine is NULL");
  CHECK_FAILS(qwen3_measure_peaks(e, nullptr), QWEN3_INVALID_ARGUMENT, "peaks is NULL");
  CHECK_FAILS(qwen3_measure_peaks(e, &peaks.known), QWEN3_INVALID_ARGUMENT, "peaks.struct_size is 0");
  peaks.known.struct_size = sizeof peaks;
  peaks.newer = 1;
  CHECK_EQ(qwen3_measure_peaks(e, &peaks.known), QWEN3_OK);
  CHECK_EQ(peaks.known.struct_size, sizeof peaks);
  CHECK_EQ(peaks.newer, 0u);
  CHECK(peaks.known.read_bytes_per_second > 1e8 && peaks.known.read_bytes_per_second < 1e13);
  CHECK(peaks.known.flops_per_second > 1e8 && peaks.known.flops_per_second < 1e15);
  const std::string instruction = peaks.known.flops_of;
  CHECK(instruction == "float32 multiply-add" || instruction == "bf16 dot product");

  CHECK_FAILS(qwen3_profile_spec_init(nullptr, sizeof(qwen3_profile_spec)), QWEN3_INVALID_ARGUMENT, "spec is NULL");
  Newer<qwen3_profile_spec> spec;
  CHECK_FAILS(qwen3_profile_spec_init(&spec.known, sizeof spec.known - 1), QWEN3_INVALID_ARGUMENT, "spec.struct_size");
  std::memset(static_cast<void*>(&spec), 0xff, sizeof spec);
  CHECK_EQ(qwen3_profile_spec_init(&spec.known, sizeof spec), QWEN3_OK);
  CHECK_EQ(spec.newer, 0u);
  CHECK_EQ(spec.known.n_sequences, 1);
  CHECK_EQ(spec.known.n_tokens, 1);
  CHECK_EQ(spec.known.n_past, 0);
  CHECK_EQ(spec.known.repeat, 5);
  CHECK_EQ(spec.known.reserved, 0);

  Newer<qwen3_op_time> ops[64];
  std::memset(static_cast<void*>(ops), 0xff, sizeof ops);
  qwen3_op_time* first = &ops[0].known;
  size_t n = 0;
  int64_t step_ns = 0;
  CHECK_FAILS(qwen3_profile_step(e, nullptr, first, sizeof ops[0], 64, &n, &step_ns), QWEN3_INVALID_ARGUMENT,
              "spec, ops, n or step_ns is NULL");
  CHECK_FAILS(qwen3_profile_step(e, &spec.known, nullptr, sizeof ops[0], 64, &n, &step_ns), QWEN3_INVALID_ARGUMENT,
              "is NULL");
  CHECK_FAILS(qwen3_profile_step(e, &spec.known, first, sizeof(qwen3_op_time) - 1, 64, &n, &step_ns),
              QWEN3_INVALID_ARGUMENT, "op_size is");
  n = 1;
  step_ns = 1;
  CHECK_FAILS(qwen3_profile_step(e, &spec.known, first, SIZE_MAX, 64, &n, &step_ns), QWEN3_INVALID_ARGUMENT,
              "op_size is 18446744073709551615, which no version of the struct can be");
  CHECK_EQ(n, 0u);  // a failure says that nothing was written
  CHECK_EQ(step_ns, 0);
  spec.known.n_past = 256;
  CHECK_FAILS(qwen3_profile_step(e, &spec.known, first, sizeof ops[0], 64, &n, &step_ns), QWEN3_CONTEXT_OVERFLOW,
              "the sequences would have 257 tokens, but the context holds 256");
  spec.known.n_past = 40;
  spec.known.n_sequences = 2;
  spec.newer = 1;
  CHECK_FAILS(qwen3_profile_step(e, &spec.known, first, sizeof ops[0], 64, &n, &step_ns), QWEN3_INVALID_ARGUMENT,
              "spec sets a field that this version of the library does not know");
  spec.newer = 0;
  CHECK_EQ(qwen3_profile_step(e, &spec.known, first, sizeof ops[0], 3, &n, &step_ns), QWEN3_OK);
  REQUIRE(n > 10 && n < 64);
  CHECK(step_ns > 0);
  CHECK(ops[3].newer == ~uint64_t{0});  // the first 3 alone were written
  CHECK_EQ(ops[2].newer, 0u);
  CHECK_EQ(qwen3_profile_step(e, &spec.known, first, sizeof ops[0], 64, &n, &step_ns), QWEN3_OK);
  CHECK_EQ(ops[0].known.begin_ns, 0);
  CHECK_EQ(std::string(ops[n - 1].known.name), "sample");
  CHECK_EQ(ops[n - 1].known.layer, -1);
  CHECK_EQ(ops[n - 1].known.reserved, 0);
  for (size_t i = 1; i < n; i++) CHECK_EQ(ops[i].known.begin_ns, ops[i - 1].known.end_ns);
}

TEST("api: closing with live requests lets blocked pollers go") {
  auto* opened = new Opened;
  qwen3_request request = small_request();
  request.max_tokens = -1;
  request.constrained = 1;  // waits for a mask that never comes
  uint64_t id = 0;
  REQUIRE(qwen3_submit(opened->engine, &request, &id) == QWEN3_OK);
  std::vector<qwen3_status> results(3, QWEN3_OK);
  std::atomic<pid_t> threads[3] = {};
  std::vector<std::thread> pollers;
  for (size_t i = 0; i < results.size(); i++)
    pollers.emplace_back([&result = results[i], &thread = threads[i], engine = opened->engine] {
      qwen3_event event;
      size_t n = 0;
      thread = static_cast<pid_t>(::syscall(SYS_gettid));
      result = qwen3_poll(engine, &event, sizeof event, 1, nullptr, 0, -1, &n);
    });
  // The handle ends with the call: all must be inside, which shows by their being asleep.
  for (const std::atomic<pid_t>& thread : threads)
    while (thread == 0 || !is_asleep(thread)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  delete opened;
  for (std::thread& poller : pollers) poller.join();
  for (const qwen3_status result : results) CHECK_EQ(result, QWEN3_CLOSED);
}

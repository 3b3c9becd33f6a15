// Opening an engine: options, model files, memory, worker thread.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/memory_plan.h"

namespace qwen3 {

namespace {

void check_range(const char* option, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high)
    throw Error(Status::kInvalidArgument, std::string("option ") + option + " is " + std::to_string(value) +
                                              "; it must be between " + std::to_string(low) + " and " +
                                              std::to_string(high));
}

void check_options(const qwen3_options& o) {
  check_range("max_context", o.max_context, 0, INT32_MAX);
  check_range("max_slots", o.max_slots, 0, 4096);
  if (o.token_budget != 0) check_range("token_budget", o.token_budget, 16, 65536);
  check_range("max_queue", o.max_queue, 0, INT32_MAX);
  check_range("prefill_spread", o.prefill_spread, 0, 4096);
  check_range("threads", o.threads, 0, 1024);
  check_range("n_token_ids", o.n_token_ids, 0, INT32_MAX);
  check_range("log_level", o.log_level, QWEN3_LOG_DEBUG, QWEN3_LOG_ERROR);
  if (o.yarn_factor != 0 && !(o.yarn_factor > 1 && o.yarn_factor <= 64))
    throw Error(Status::kInvalidArgument, "option yarn_factor is " + std::to_string(o.yarn_factor) +
                                              "; it must be 0 (as the config says), or more than 1 and at most 64");
  if (!(o.gpu_memory_fraction >= 0 && o.gpu_memory_fraction <= 1))
    throw Error(Status::kInvalidArgument, "option gpu_memory_fraction is " + std::to_string(o.gpu_memory_fraction) +
                                              "; it must be more than 0 and at most 1, or 0 for 0.9");
}

template <size_t N>
void copy_text(char (&out)[N], const std::string& text) {
  std::strncpy(out, text.c_str(), N - 1);
  out[N - 1] = '\0';
}

}  // namespace

Engine::Engine(const std::string& model_dir, const qwen3_options& options, const OpenBackend& open)
    : options_(options) {
  check_options(options);
  load(model_dir, options, open);
  // Pointers of the host's that were only valid during the call.
  options_.device = options_.kernels = nullptr;
  worker_ = std::thread([this] { run(); });
}

void Engine::load(const std::string& model_dir, const qwen3_options& options, const OpenBackend& open) {
  const auto started = std::chrono::steady_clock::now();
  const auto text = [](const char* value) { return std::string(value != nullptr && *value != '\0' ? value : "auto"); };
  const auto report = [this](const char* phase, uint64_t done, uint64_t total) {
    if (!progress(phase, done, total)) throw Error(Status::kCancelled, "loading was stopped by the progress callback");
  };

  report("map", 0, 1);
  ModelConfig config = load_config(model_dir);
  if (options.yarn_factor != 0) apply_yarn(config, options.yarn_factor);
  check_range("n_token_ids", options.n_token_ids, 0, config.vocab);
  std::unique_ptr<Ops> ops = open({.device = text(options.device),
                                   .kernels = text(options.kernels),
                                   .threads = options.threads,
                                   .warn = [this](const std::string& line) { log(QWEN3_LOG_WARNING, line); }});
  const DeviceInfo device = ops->info();
  Checkpoint checkpoint = Checkpoint::open(model_dir, config);
  report("map", 1, 1);

  const MemoryPlan plan(options_, config, device, static_cast<uint64_t>(checkpoint.n_elements) * sizeof(bf16));
  if (options_.max_slots == 0) options_.max_slots = device.max_slots;
  if (options_.token_budget == 0) options_.token_budget = plan.fitting_token_budget(*ops);
  const uint64_t workspace = Model::workspace_bytes(config, options_.token_budget, *ops);
  plan.check_weights(workspace);
  auto weights = std::make_unique<Weights>(std::move(checkpoint), config, *ops, [this](uint64_t done, uint64_t total) {
    return progress("weights", done, total);
  });
  const uint64_t coded = weights->code(*ops, plan.coded_room(ops->info(), workspace));
  const KvSize kv = plan.size_kv(ops->info(), workspace);
  report("kv", 0, 1);

  info_.struct_size = sizeof info_;
  info_.hidden = config.hidden;
  info_.intermediate = config.intermediate;
  info_.n_layers = config.n_layers;
  info_.n_heads = config.n_heads;
  info_.n_kv_heads = config.n_kv_heads;
  info_.head_dim = config.head_dim;
  info_.vocab = config.vocab;
  info_.tied = config.tied;
  info_.n_token_ids = options.n_token_ids > 0 ? options.n_token_ids : config.vocab;
  for (const int32_t id : config.eos_ids)
    if (info_.n_eos_ids < QWEN3_MAX_EOS_IDS) info_.eos_ids[info_.n_eos_ids++] = id;
  info_.n_parameters = weights->n_parameters;
  info_.max_context = kv.max_context;
  info_.model_max_context = config.max_positions;
  info_.block_size = kBlockSize;
  info_.n_blocks = kv.n_blocks;
  info_.token_budget = options_.token_budget;
  info_.threads = device.threads;
  info_.prefix_cache = options.prefix_cache != 0;
  info_.weight_bytes = weights->total_bytes;
  info_.kv_bytes = static_cast<uint64_t>(kv.n_blocks) * Model::kv_block_bytes(config);
  info_.workspace_bytes = workspace;
  info_.graph_bytes = plan.graph_bytes();
  info_.free_bytes = device.free_bytes;
  info_.total_bytes = device.total_bytes;
  info_.coded_bytes = coded;
  copy_text(info_.device, device.device);
  copy_text(info_.device_name, device.device_name);
  copy_text(info_.kernels, device.kernels);

  model_ = std::make_unique<Model>(
      config, std::move(ops), std::move(weights),
      ModelLimits{.token_budget = options_.token_budget, .n_blocks = kv.n_blocks, .n_token_ids = info_.n_token_ids});
  pool_ = std::make_unique<BlockPool>(static_cast<int>(kv.n_blocks));
  if (info_.prefix_cache != 0) prefix_cache_ = std::make_unique<PrefixCache>(*pool_, kBlockSize);
  scheduler_ = std::make_unique<Scheduler>(SchedulerLimits{.max_slots = options_.max_slots,
                                                           .token_budget = options_.token_budget,
                                                           .block_size = kBlockSize,
                                                           .prefill_spread = options_.prefill_spread},
                                           *pool_, prefix_cache_.get());
  info_.max_slots = scheduler_->max_running();
  report("kv", 1, 1);

  info_.open_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  log(QWEN3_LOG_INFO, "model ready on " + device.device + " (" + device.device_name + ", " + device.kernels +
                          "): weights " + gib(info_.weight_bytes) + (coded > 0 ? " and coded " + gib(coded) : "") +
                          ", KV " + gib(info_.kv_bytes) + " = " + std::to_string(kv.n_blocks * kBlockSize) +
                          " tokens, workspace " + gib(workspace));
}

void Engine::log(qwen3_log_level level, const std::string& line) const {
  if (options_.log != nullptr && level >= options_.log_level) options_.log(options_.log_user, level, line.c_str());
}

bool Engine::progress(const char* phase, uint64_t done, uint64_t total) const {
  return options_.progress == nullptr || options_.progress(options_.progress_user, phase, done, total) == 0;
}

}  // namespace qwen3

#include "engine/memory_plan.h"

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "model/model.h"

namespace qwen3 {

namespace {

// Share of the free memory beside weights and workspace that the KV pool takes on the CPU when its size is not given:
// the rest belongs to the page cache that holds the weights, and to other programs.
constexpr double kHostKvShare = 0.25;
constexpr double kMemoryFraction = 0.9;
// Recorded steps: half a MB each or less at 28 layers (native/bench/LOG.md), 256 of them at most.
constexpr uint64_t kGraphBytes = uint64_t{256} << 20;
constexpr int kLeastTokenBudget = 512;
// Coded weights may take one part in so many of the KV pool's memory.
constexpr uint64_t kCodedShare = 4;

uint64_t less(uint64_t bytes, uint64_t taken) {
  return bytes > taken ? bytes - taken : 0;
}

int64_t blocks_for(int64_t tokens) {
  return (tokens + kBlockSize - 1) / kBlockSize;
}

}  // namespace

std::string gib(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

MemoryPlan::MemoryPlan(const qwen3_options& options, const ModelConfig& config, const DeviceInfo& before,
                       uint64_t weight_bytes)
    : options_(options), config_(config), before_(before), weight_bytes_(weight_bytes) {}

uint64_t MemoryPlan::graph_bytes() const {
  return shared_out() ? kGraphBytes : 0;
}

// What the engine may take in all.
uint64_t MemoryPlan::limit() const {
  if (!shared_out()) return before_.free_bytes;
  const double fraction = options_.gpu_memory_fraction > 0 ? options_.gpu_memory_fraction : kMemoryFraction;
  return std::min(before_.free_bytes, static_cast<uint64_t>(static_cast<double>(before_.total_bytes) * fraction));
}

std::string MemoryPlan::ledger(uint64_t workspace_bytes) const {
  std::string text = "weights " + gib(weight_bytes_) + ", workspace " + gib(workspace_bytes);
  if (!shared_out()) return text + "; " + gib(before_.free_bytes) + " were free";
  text += ", recorded steps " + gib(graph_bytes()) + "; of " + gib(before_.total_bytes) + " on " + before_.device +
          ", " + gib(before_.free_bytes) + " were free";
  if (limit() < before_.free_bytes) text += " and gpu_memory_fraction allows " + gib(limit());
  return text;
}

int MemoryPlan::fitting_token_budget(const Ops& ops) const {
  int budget = before_.token_budget;
  const uint64_t room = less(limit(), weight_bytes_ + graph_bytes()) / 8;
  while (budget > kLeastTokenBudget && before_.free_bytes > 0 && Model::workspace_bytes(config_, budget, ops) > room)
    budget /= 2;
  return budget;
}

void MemoryPlan::check_weights(uint64_t workspace_bytes) const {
  if (!shared_out() || before_.free_bytes == 0) return;
  const uint64_t needed = weight_bytes_ + workspace_bytes + graph_bytes() + Model::kv_block_bytes(config_);
  if (needed > limit())
    throw Error(Status::kOutOfMemory, "the model does not fit: " + gib(needed) + " are needed and " + gib(limit()) +
                                          " can be had (" + ledger(workspace_bytes) + "); free memory of the GPU" +
                                          (limit() < before_.free_bytes ? ", raise gpu_memory_fraction" : "") +
                                          " or lower token_budget");
}

MemoryPlan::Room MemoryPlan::room(const DeviceInfo& now, uint64_t workspace_bytes) const {
  const uint64_t beside = workspace_bytes + (shared_out() ? graph_bytes() : weight_bytes_);
  const uint64_t free = less(now.free_bytes, beside);
  const uint64_t used = less(before_.free_bytes, now.free_bytes);
  return {free, shared_out() ? std::min(free, less(limit(), used + beside)) : free};
}

int64_t MemoryPlan::pool_blocks(uint64_t room) const {
  const uint64_t block_bytes = Model::kv_block_bytes(config_);
  if (options_.kv_bytes > 0)
    return static_cast<int64_t>(std::min<uint64_t>(options_.kv_bytes / block_bytes, INT32_MAX));
  const int64_t longest = blocks_for(wanted_context());
  const double share = shared_out() ? 1.0 : kHostKvShare;
  int64_t n_blocks = static_cast<int64_t>(static_cast<double>(room) * share / static_cast<double>(block_bytes));
  // A context that was asked for is a promise: take more than the usual share for one such request.
  if (options_.max_context > 0) n_blocks = std::max(n_blocks, longest);
  return std::min(n_blocks, longest * options_.max_slots);
}

uint64_t MemoryPlan::coded_room(const DeviceInfo& now, uint64_t workspace_bytes) const {
  if (!shared_out()) return 0;
  const uint64_t share = room(now, workspace_bytes).share;
  const uint64_t block_bytes = Model::kv_block_bytes(config_);
  const uint64_t pool = static_cast<uint64_t>(pool_blocks(share)) * block_bytes;
  if (options_.kv_bytes > 0) return less(share, pool);
  const uint64_t longest = static_cast<uint64_t>(blocks_for(wanted_context())) * block_bytes;
  return less(share, std::max(pool - pool / kCodedShare, longest));
}

KvSize MemoryPlan::size_kv(const DeviceInfo& now, uint64_t workspace_bytes) const {
  if (options_.max_context > config_.max_positions)
    throw Error(Status::kInvalidArgument, "max_context is " + std::to_string(options_.max_context) +
                                              ", but the model was made for " + std::to_string(config_.max_positions) +
                                              " tokens; extend it with yarn_factor, or ask for less");
  const int64_t wanted = wanted_context();
  const uint64_t block_bytes = Model::kv_block_bytes(config_);

  const bool known = now.free_bytes > 0;
  const auto [free, room] = this->room(now, workspace_bytes);
  const bool by_size = options_.kv_bytes > 0;
  const int64_t n_blocks = pool_blocks(room);
  const uint64_t available = by_size ? free : room;
  const auto fitting = [&](uint64_t bytes) {
    return std::to_string(
        std::min<uint64_t>(bytes / block_bytes * kBlockSize, static_cast<uint64_t>(config_.max_positions)));
  };
  if (known && static_cast<uint64_t>(n_blocks) * block_bytes > available)
    throw Error(Status::kOutOfMemory,
                (by_size ? "a KV pool of " + gib(options_.kv_bytes) + " was asked for"
                         : "a context of " + std::to_string(wanted) + " tokens needs " +
                               gib(static_cast<uint64_t>(n_blocks) * block_bytes) + " of KV") +
                    ", but beside the weights only " + gib(available) + " are left (" + ledger(workspace_bytes) +
                    "); the largest context that fits is " + fitting(available) +
                    (!by_size && free > room ? ", or " + fitting(free) + " with a higher gpu_memory_fraction" : ""));
  if (n_blocks < 1)
    throw Error(by_size ? Status::kInvalidArgument : Status::kOutOfMemory,
                "the KV pool would hold less than one block: " + std::to_string(block_bytes) +
                    " bytes are the least for this model, there are " +
                    (by_size ? std::to_string(options_.kv_bytes) : gib(room) + " (" + ledger(workspace_bytes) + ")"));
  const int64_t capacity = n_blocks * kBlockSize;
  if (options_.max_context > capacity)
    throw Error(Status::kInvalidArgument,
                "max_context is " + std::to_string(options_.max_context) + ", but a KV pool of " +
                    gib(options_.kv_bytes) + " holds " + std::to_string(capacity) + " tokens; give it " +
                    gib(static_cast<uint64_t>(blocks_for(options_.max_context)) * block_bytes) + " or more");
  return {n_blocks, std::min(wanted, capacity)};
}

}  // namespace qwen3

// How an engine divides a device's memory: what it may take in all, whether the weights fit, how many KV blocks remain.
// Arithmetic on byte counts; it knows no device. Used while an engine opens.
//
// A GPU is shared out by a fraction of all its memory: weights, coded weights, workspace, recorded steps and KV pool
// together stay below it, and below what is free. Coded weights only make steps faster: they get what the pool does not
// take, and a quarter of what it would. On the CPU the weights are mapped files, whose memory counts as free, and the
// KV pool takes a quarter of what they leave.
#pragma once

#include <cstdint>
#include <string>

#include "model/config.h"
#include "ops/ops.h"
#include "qwen3.h"

namespace qwen3 {

struct KvSize {
  int64_t n_blocks;
  int64_t max_context;  // tokens of the longest request
};

class MemoryPlan {
 public:
  // before: the device when nothing has been loaded. options: max_slots resolved.
  MemoryPlan(const qwen3_options& options, const ModelConfig& config, const DeviceInfo& before, uint64_t weight_bytes);

  // What is kept free for recorded steps.
  uint64_t graph_bytes() const;
  // The device's budget, halved until its workspace takes at most an eighth of what the weights leave.
  int fitting_token_budget(const Ops& ops) const;
  // Throws Error(kOutOfMemory) if weights and workspace leave no room for a single KV block.
  void check_weights(uint64_t workspace_bytes) const;
  // What the weights' smaller form may take (Ops::code). It leaves a pool whose size was asked for, else three quarters
  // of the pool and one request of the longest context: size_kv() refuses nothing because of it. now: the device when
  // the weights are loaded.
  uint64_t coded_room(const DeviceInfo& now, uint64_t workspace_bytes) const;
  // now: the device when the weights are loaded, and coded. Throws Error: kOutOfMemory, kInvalidArgument (max_context
  // against the model or against kv_bytes).
  KvSize size_kv(const DeviceInfo& now, uint64_t workspace_bytes) const;

 private:
  struct Room {
    uint64_t free;   // beside all that is not KV
    uint64_t share;  // of it, what this engine may take by itself
  };
  Room room(const DeviceInfo& now, uint64_t workspace_bytes) const;
  // Of the KV pool, if `room` bytes are left.
  int64_t pool_blocks(uint64_t room) const;
  int64_t wanted_context() const { return options_.max_context > 0 ? options_.max_context : config_.max_positions; }
  bool shared_out() const { return before_.owns_weights; }
  uint64_t limit() const;
  std::string ledger(uint64_t workspace_bytes) const;

  const qwen3_options& options_;
  const ModelConfig& config_;
  const DeviceInfo before_;
  const uint64_t weight_bytes_;
};

std::string gib(uint64_t bytes);

}  // namespace qwen3

// Opening: every option's range, the size of the KV pool, progress and its cancellation, the log.
#include <cmath>
#include <functional>

#include "check.h"
#include "engine/host.h"
#include "engine/memory_plan.h"

using host::kBlockBytes;
using host::options;
using qwen3::BackendOptions;
using qwen3::Engine;
using qwen3::Error;
using qwen3::Status;

namespace {

// A device with little memory; total_bytes 0: a CPU, else a GPU, where weights take memory of their own.
struct Memory {
  uint64_t free_bytes = uint64_t{1} << 30;
  uint64_t total_bytes = 0;
  uint64_t coded_bytes = 0;  // what coding the weights takes, if it may
};

// What the device was told when the weights might be coded.
struct Coding {
  size_t n_weights;
  uint64_t room;
};

class SmallOps final : public qwen3::Ops {
 public:
  SmallOps(const Memory& memory, Coding& coding) : memory_(memory), coding_(coding) {}
  qwen3::DeviceInfo info() const override {
    qwen3::DeviceInfo info = toy_.info();
    info.device_name = "a small toy";
    info.free_bytes = memory_.free_bytes - taken_;
    info.total_bytes = memory_.total_bytes;
    info.owns_weights = memory_.total_bytes > 0;
    if (info.owns_weights) {
      info.token_budget = 8192;
      info.max_slots = 256;
    }
    return info;
  }
  void* allocate(size_t bytes, const char* what) override { return toy_.allocate(bytes, what); }
  qwen3::LinearWeight load_linear(std::span<const qwen3::HostMatrix> p, qwen3::LinearLayout l) override {
    for (const qwen3::HostMatrix& part : p) take(part);
    return toy_.load_linear(p, l);
  }
  const qwen3::bf16* load_vector(const qwen3::HostMatrix& t) override {
    take(t);
    return toy_.load_vector(t);
  }
  const float* load_floats(std::span<const float> v) override { return toy_.load_floats(v); }
  bool worth_coding(const qwen3::LinearWeight&) const override { return true; }
  uint64_t code(std::span<qwen3::LinearWeight* const> weights, uint64_t room) override {
    coding_ = {weights.size(), room};
    if (memory_.coded_bytes > room) return 0;
    taken_ += memory_.coded_bytes;
    return memory_.coded_bytes;
  }
  qwen3::BatchView upload_batch(const qwen3::BatchArrays& a) override { return toy_.upload_batch(a); }
  void embed(const qwen3::EmbedArgs&) override {}
  void rope_angles(const qwen3::RopeAnglesArgs&) override {}
  void rms_norm(const qwen3::RmsNormArgs&) override {}
  void linear(const qwen3::LinearArgs&) override {}
  void gate_up(const qwen3::GateUpArgs&) override {}
  void qk_norm_rope(const qwen3::QkNormRopeArgs&) override {}
  void attention(const qwen3::AttentionArgs&) override {}
  void sample(const qwen3::SampleArgs&) override {}
  void download(std::span<float>, const float*) override {}
  void wait() override {}
  std::unique_ptr<qwen3::OpClock> make_clock() override { return toy_.make_clock(); }
  qwen3::DevicePeaks measure_peaks() override { return toy_.measure_peaks(); }

 private:
  void take(const qwen3::HostMatrix& matrix) {
    if (memory_.total_bytes > 0) taken_ += static_cast<uint64_t>(matrix.rows * matrix.cols) * sizeof(qwen3::bf16);
  }

  const Memory memory_;
  Coding& coding_;
  uint64_t taken_ = 0;  // by weights
  toy::ToyOps toy_{std::make_shared<toy::Faults>()};
};

struct Opened {
  qwen3_info info;
  BackendOptions asked;
  Coding coding;
};

// Opens and closes an engine on a device that says it has this memory.
Opened open(const qwen3_options& o, const Memory& memory = {}) {
  model_dir::TempDir dir;
  toy::write_model(dir);
  Opened opened{};
  const Engine engine(dir.path(), o, [&](const BackendOptions& asked) {
    opened.asked = asked;
    return std::make_unique<SmallOps>(memory, opened.coding);
  });
  opened.info = engine.info();
  return opened;
}

Opened open(const qwen3_options& o, uint64_t free_bytes) {
  return open(o, Memory{.free_bytes = free_bytes});
}

constexpr uint64_t kMiB = uint64_t{1} << 20;

// All that a GPU's ledger counts.
uint64_t used(const qwen3_info& i) {
  return i.weight_bytes + i.coded_bytes + i.workspace_bytes + i.graph_bytes + i.kv_bytes;
}

}  // namespace

TEST("open: an option out of range is refused by name") {
  const auto refuse = [](const char* name, const std::function<void(qwen3_options&)>& change) {
    qwen3_options o = options();
    change(o);
    try {
      open(o);
      check::fail(__FILE__, __LINE__, std::string(name) + " was accepted");
    } catch (const Error& error) {
      CHECK_EQ(static_cast<int>(error.status()), static_cast<int>(Status::kInvalidArgument));
      if (std::string(error.what()).find(name) == std::string::npos)
        check::fail(__FILE__, __LINE__, std::string("\"") + error.what() + "\" does not name " + name);
    }
  };
  refuse("max_context", [](auto& o) { o.max_context = -1; });
  refuse("max_context", [](auto& o) { o.max_context = 40'961; });
  refuse("max_slots", [](auto& o) { o.max_slots = -1; });
  refuse("max_slots", [](auto& o) { o.max_slots = 4097; });
  refuse("token_budget", [](auto& o) { o.token_budget = 15; });
  refuse("token_budget", [](auto& o) { o.token_budget = 65'537; });
  refuse("max_queue", [](auto& o) { o.max_queue = -1; });
  refuse("prefill_spread", [](auto& o) { o.prefill_spread = 4'097; });
  refuse("threads", [](auto& o) { o.threads = -1; });
  refuse("threads", [](auto& o) { o.threads = 1025; });
  refuse("n_token_ids", [](auto& o) { o.n_token_ids = -1; });
  refuse("n_token_ids", [](auto& o) { o.n_token_ids = toy::kVocab + 1; });
  refuse("log_level", [](auto& o) { o.log_level = 4; });
  refuse("yarn_factor", [](auto& o) { o.yarn_factor = -2; });
  refuse("yarn_factor", [](auto& o) { o.yarn_factor = 65; });
  refuse("gpu_memory_fraction", [](auto& o) { o.gpu_memory_fraction = -0.1; });
  refuse("gpu_memory_fraction", [](auto& o) { o.gpu_memory_fraction = 1.01; });
  refuse("gpu_memory_fraction", [](auto& o) { o.gpu_memory_fraction = NAN; });
  refuse("less than one block", [](auto& o) { o.kv_bytes = kBlockBytes - 1; });
  refuse("holds 96 tokens", [](auto& o) { o.kv_bytes = 3 * kBlockBytes, o.max_context = 97; });
}

TEST("open: the pool's size follows kv_bytes, or the memory that is left, or the context that was asked for") {
  qwen3_options o = options(10);
  qwen3_info info = open(o).info;
  CHECK_EQ(info.n_blocks, 10);
  CHECK_EQ(info.block_size, 32);
  CHECK_EQ(info.max_context, 320);  // lowered to what the pool holds
  CHECK_EQ(info.model_max_context, 40'960);
  CHECK_EQ(info.kv_bytes, 10 * kBlockBytes);
  CHECK_EQ(info.max_slots, 32);

  o.kv_bytes = 0;
  o.max_context = 64;
  o.max_slots = 3;
  info = open(o).info;  // plenty of memory: a full context for every slot, not more
  CHECK_EQ(info.n_blocks, 6);
  CHECK_EQ(info.max_context, 64);

  const uint64_t taken = info.weight_bytes + info.workspace_bytes;
  o.max_context = 0;
  info = open(o, taken + 40 * kBlockBytes).info;  // a quarter of what is left
  CHECK_EQ(info.n_blocks, 10);
  CHECK_EQ(info.max_context, 320);
  o.max_context = 32 * 30;  // a promise: takes more than the usual share
  info = open(o, taken + 40 * kBlockBytes).info;
  CHECK_EQ(info.n_blocks, 30);
  o.max_context = 32 * 41;
  CHECK_THROWS_WITH(open(o, taken + 40 * kBlockBytes), Error, "the largest context that fits is 1280");
  CHECK_THROWS_WITH(open(o, taken / 2), Error, "the largest context that fits is 0");
  o.kv_bytes = 3000 * kBlockBytes;  // what fits holds more than the model allows
  CHECK_THROWS_WITH(open(o, taken + 2000 * kBlockBytes), Error, "the largest context that fits is 40960");
  o.kv_bytes = 0;
  o.max_context = 0;
  CHECK_THROWS_WITH(open(o, taken), Error, "less than one block");
  // A size that was asked for must fit too: else the system's out-of-memory killer would find out.
  o.kv_bytes = 40 * kBlockBytes;
  CHECK_EQ(open(o, taken + 40 * kBlockBytes).info.n_blocks, 40);
  o.kv_bytes = 41 * kBlockBytes;
  CHECK_THROWS_WITH(open(o, taken + 40 * kBlockBytes), Error, "a KV pool of 0.00 GiB was asked for");
  o.kv_bytes = UINT64_MAX;
  CHECK_THROWS_WITH(open(o), Error, "was asked for, but beside the weights only");
  o.kv_bytes = 4 * kBlockBytes;
  CHECK_EQ(open(o, 0).info.n_blocks, 4);  // a device that does not know what is free
}

TEST("open: a GPU is shared out by a fraction of all its memory") {
  qwen3_options o = options();
  o.kv_bytes = 0;
  o.max_slots = o.token_budget = 0;
  const qwen3_info info = open(o, Memory{.free_bytes = 8000 * kMiB, .total_bytes = 10'000 * kMiB}).info;
  CHECK_EQ(info.max_slots, 256);
  CHECK_EQ(info.token_budget, 8192);
  CHECK_EQ(info.total_bytes, 10'000 * kMiB);
  CHECK_EQ(info.graph_bytes, 256 * kMiB);
  // The default, 0.9 of it, is more than is free: all that is free is divided.
  CHECK(used(info) <= 8000 * kMiB && used(info) + kBlockBytes > 8000 * kMiB);

  // Half of it, whatever else holds memory.
  o.gpu_memory_fraction = 0.5;
  for (const uint64_t free : {10'000 * kMiB, 5000 * kMiB}) {
    const qwen3_info half = open(o, Memory{.free_bytes = free, .total_bytes = 10'000 * kMiB}).info;
    CHECK(used(half) <= 5000 * kMiB && used(half) + kBlockBytes > 5000 * kMiB);
  }

  // Little memory: a smaller step, so that the workspace takes at most an eighth.
  const qwen3_info small = open(o, Memory{.free_bytes = 600 * kMiB, .total_bytes = 600 * kMiB}).info;
  CHECK(small.token_budget < 8192 && small.token_budget >= 512);
  CHECK(small.workspace_bytes <= (300 - 256) * kMiB / 8);

  // A size that is given is bound by what is free alone; a context by the fraction.
  o.kv_bytes = 700 * kMiB;
  const Memory gib{.free_bytes = 1000 * kMiB, .total_bytes = 1000 * kMiB};
  o.token_budget = 512;
  CHECK_EQ(open(o, gib).info.kv_bytes, 700 * kMiB);
  o.kv_bytes = 1000 * kMiB;
  CHECK_THROWS_WITH(open(o, gib), Error, "a KV pool of 0.98 GiB was asked for, but beside the weights only 0.7");
  CHECK_THROWS_WITH(open(o, gib), Error, "recorded steps 0.25 GiB; of 0.98 GiB on toy, 0.98 GiB were free");
  o.kv_bytes = 0;
  o.max_context = 10'000;
  CHECK_EQ(open(o, gib).info.max_context, 10'000);
  o.gpu_memory_fraction = 0.26;
  CHECK_THROWS_WITH(open(o, gib), Error, "a context of 10000 tokens needs 0.01 GiB of KV, but beside the weights only");
  CHECK_THROWS_WITH(open(o, gib), Error, "with a higher gpu_memory_fraction");

  // Weights that do not fit are not even begun to load.
  o.gpu_memory_fraction = 0.1;
  CHECK_THROWS_WITH(open(o, gib), Error, "the model does not fit: 0.2");
  CHECK_THROWS_WITH(open(o, gib), Error, "gpu_memory_fraction allows 0.10 GiB); free memory of the GPU, raise");
  CHECK_THROWS_WITH(open(o, Memory{.free_bytes = kMiB, .total_bytes = 1000 * kMiB}), Error, "0.00 GiB were free");
}

TEST("open: coded weights take a quarter of the KV pool at most") {
  qwen3_options o = options();
  o.kv_bytes = 0;
  o.max_slots = o.token_budget = 0;
  Memory gpu{.free_bytes = 8000 * kMiB, .total_bytes = 10'000 * kMiB};
  const Opened plain = open(o, gpu);
  CHECK_EQ(plain.coding.n_weights, 9u);  // four of each layer, and the head
  CHECK_EQ(plain.info.coded_bytes, 0u);
  const uint64_t room = plain.coding.room;
  CHECK_EQ(room, 8000 * kMiB - used(plain.info) + plain.info.kv_bytes / 4);

  host::Log log;
  o.log = host::Log::write;
  o.log_user = &log;
  gpu.coded_bytes = room;
  const qwen3_info coded = open(o, gpu).info;
  CHECK(log.contains(" and coded " + qwen3::gib(room) + ", KV "));
  CHECK_EQ(coded.coded_bytes, room);
  CHECK(used(coded) <= 8000 * kMiB && used(coded) + kBlockBytes > 8000 * kMiB);
  CHECK_EQ(coded.kv_bytes, (plain.info.kv_bytes - plain.info.kv_bytes / 4) / kBlockBytes * kBlockBytes);
  CHECK_EQ(coded.max_context, plain.info.max_context);
  CHECK_EQ(coded.weight_bytes, plain.info.weight_bytes);
  CHECK_EQ(coded.token_budget, plain.info.token_budget);

  // What does not fit, and a CPU's, changes nothing.
  gpu.coded_bytes = room + 1;
  const qwen3_info without = open(o, gpu).info;
  CHECK_EQ(without.coded_bytes, 0u);
  CHECK_EQ(without.n_blocks, plain.info.n_blocks);
  CHECK_EQ(log.count("and coded"), 1);
  const Opened cpu = open(o, Memory{.coded_bytes = 1});
  CHECK_EQ(cpu.coding.room, 0u);
  CHECK_EQ(cpu.info.coded_bytes, 0u);

  // The fraction holds for all of it together.
  o.gpu_memory_fraction = 0.5;
  gpu.coded_bytes = 1000 * kMiB;
  const qwen3_info half = open(o, gpu).info;
  CHECK_EQ(half.coded_bytes, 1000 * kMiB);
  CHECK(used(half) <= 5000 * kMiB && used(half) + kBlockBytes > 5000 * kMiB);
}

TEST("open: coded weights take nothing of a pool or context that was asked for, nor of the longest request") {
  qwen3_options o = options();
  o.kv_bytes = kMiB;
  o.token_budget = 512;
  o.gpu_memory_fraction = 1;
  Memory gpu{.free_bytes = 1000 * kMiB, .total_bytes = 1000 * kMiB};
  const uint64_t beside = used(open(o, gpu).info) - kMiB;  // all but the pool
  // Opens with so much left beside weights and workspace, and coded weights that take all they may.
  const auto open_with = [&](uint64_t left) {
    gpu = {.free_bytes = beside + left, .total_bytes = beside + left};
    gpu.coded_bytes = open(o, gpu).coding.room;
    return open(o, gpu).info;
  };
  // By size: all else is theirs, down to nothing.
  o.kv_bytes = 700 * kMiB;
  for (const uint64_t more : {200 * kMiB, uint64_t{1}, uint64_t{0}}) {
    const qwen3_info info = open_with(700 * kMiB + more);
    CHECK_EQ(info.kv_bytes, 700 * kMiB);
    CHECK_EQ(info.coded_bytes, more);
  }
  // Such a pool may exceed the fraction, they may not.
  o.gpu_memory_fraction = 0.5;
  qwen3_info info = open_with(900 * kMiB);
  CHECK_EQ(info.kv_bytes, 700 * kMiB);
  CHECK_EQ(info.coded_bytes, 0u);
  o.gpu_memory_fraction = 1;

  // 40,960 tokens, asked for or the model's own, are 40 MiB.
  o.kv_bytes = 0;
  for (const int32_t context : {40'960, 0}) {
    o.max_context = context;
    info = open_with(44 * kMiB);
    CHECK_EQ(info.coded_bytes, 4 * kMiB);
    CHECK_EQ(info.max_context, 40'960);
    CHECK_EQ(open_with(40 * kMiB).coded_bytes, 0u);
    CHECK_EQ(open_with(64 * kMiB).coded_bytes, 16 * kMiB);
  }
  info = open_with(30 * kMiB);  // less than one such request
  CHECK_EQ(info.coded_bytes, 0u);
  CHECK_EQ(info.kv_bytes, 30 * kMiB);

  // A pool that is bound by the requests that run at once leaves them the rest.
  o.max_context = 1024;
  o.max_slots = 4;
  info = open_with(100 * kMiB);
  CHECK_EQ(info.coded_bytes, 97 * kMiB);
  CHECK_EQ(info.kv_bytes, 3 * kMiB);
}

TEST("open: what the host asked for reaches the backend, and info says what it got") {
  qwen3_options o = options();
  o.device = "cuda:3";
  o.kernels = "generic";
  o.threads = 7;
  Opened opened = open(o);
  CHECK_EQ(opened.asked.device, "cuda:3");
  CHECK_EQ(opened.asked.kernels, "generic");
  CHECK_EQ(opened.asked.threads, 7);
  CHECK_EQ(std::string(opened.info.device_name), "a small toy");
  o.device = "";
  o.kernels = nullptr;
  o.n_token_ids = 0;
  o.token_budget = 16;
  opened = open(o);
  CHECK_EQ(opened.asked.device, "auto");
  CHECK_EQ(opened.asked.kernels, "auto");
  CHECK_EQ(opened.info.n_token_ids, toy::kVocab);
  CHECK_EQ(opened.info.max_slots, 16);  // capped by the budget
  CHECK_EQ(opened.info.n_eos_ids, 1);
  CHECK_EQ(opened.info.eos_ids[0], toy::kEos);
  CHECK_EQ(opened.info.tied, 1);
  CHECK(opened.info.open_seconds >= 0);
  o.yarn_factor = 4;
  CHECK_EQ(open(o).info.model_max_context, 131'072);
}

TEST("open: progress comes phase by phase and may stop it at any call") {
  struct Seen {
    std::vector<std::string> phases;
    int stop_at = -1;
    int n = 0;
    uint64_t last_done = 0;
  };
  const auto callback = [](void* user, const char* phase, uint64_t done, uint64_t total) -> int32_t {
    Seen& seen = *static_cast<Seen*>(user);
    CHECK(done <= total);
    if (seen.phases.empty() || seen.phases.back() != phase) {
      seen.phases.push_back(phase);
      seen.last_done = 0;
    }
    CHECK(done >= seen.last_done);
    seen.last_done = done;
    return seen.n++ == seen.stop_at ? 1 : 0;
  };
  qwen3_options o = options();
  Seen all;
  o.progress = callback;
  o.progress_user = &all;
  open(o);
  CHECK(all.phases == std::vector<std::string>({"map", "weights", "kv"}));
  for (int stop = 0; stop < all.n; stop++) {
    Seen seen;
    seen.stop_at = stop;
    o.progress_user = &seen;
    CHECK_THROWS_WITH(open(o), Error, "stopped by the progress callback");
    CHECK_EQ(seen.n, stop + 1);  // not called again
  }
}

TEST("open: the log level filters") {
  host::Log log;
  qwen3_options o = options();
  o.log = host::Log::write;
  o.log_user = &log;
  o.log_level = QWEN3_LOG_WARNING;
  open(o);
  CHECK_EQ(log.text, "");
  o.log_level = QWEN3_LOG_INFO;
  open(o);
  CHECK(log.contains("model ready on toy"));
}

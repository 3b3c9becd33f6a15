#include "backend/cpu/cpu_ops.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>

#include "backend/cpu/machine.h"
#include "backend/cpu/op_clock.h"
#include "backend/cpu/peaks.h"
#include "base/error.h"

namespace qwen3::cpu {
namespace {

struct KernelSet {
  const KernelTable* table;
  bool (*supported)();
};

// __builtin_cpu_supports asks cpuid and, for AVX and AVX-512, whether the operating system saves the registers.
bool always() {
  return true;
}
#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool has_avx512bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16");
}
#endif

// The slowest first.
const KernelSet kSets[] = {
    {&scalar::kTable, always},
#if defined(__x86_64__)
    {&avx2::kTable, has_avx2},
    {&avx512::kTable, has_avx512},
    {&avx512bf16::kTable, has_avx512bf16},
#endif
};

int choose_threads(int threads) {
  if (threads < 0) {
    throw Error(Status::kInvalidArgument,
                "the number of CPU threads is " + std::to_string(threads) + "; give 0 (one per core) or more");
  }
  return threads > 0 ? threads : usable_cores();
}

std::string size_text(uint64_t bytes) {
  char text[32];
  if (bytes >= 1000'000'000) {
    std::snprintf(text, sizeof text, "%.2f GB", static_cast<double>(bytes) / 1e9);
  } else if (bytes >= 1000'000) {
    std::snprintf(text, sizeof text, "%.1f MB", static_cast<double>(bytes) / 1e6);
  } else {
    std::snprintf(text, sizeof text, "%llu bytes", static_cast<unsigned long long>(bytes));
  }
  return text;
}

}  // namespace

std::vector<const KernelTable*> supported_kernels() {
  std::vector<const KernelTable*> supported;
  for (const KernelSet& set : kSets) {
    if (set.supported()) supported.push_back(set.table);
  }
  return supported;
}

const KernelTable& choose_kernels(const std::string& name) {
  const std::vector<const KernelTable*> supported = supported_kernels();
  if (name.empty() || name == "auto") return *supported.back();
  std::string names;
  for (const KernelTable* table : supported) {
    if (name == table->name) return *table;
    names += names.empty() ? table->name : std::string(", ") + table->name;
  }
  for (const char* known : {"avx2", "avx512", "avx512bf16"}) {
    if (name == known) {
      throw Error(Status::kUnsupported, "this processor (" + processor_name() + ") cannot run the \"" + name +
                                            "\" kernels; it can run " + names);
    }
  }
  throw Error(
      Status::kInvalidArgument,
      "\"" + name + "\" names no CPU kernels; use \"auto\", \"scalar\", \"avx2\", \"avx512\" or \"avx512bf16\"");
}

CpuOps::CpuOps(const std::string& kernels, int threads)
    : kernels_(choose_kernels(kernels)), pool_(choose_threads(threads)) {}

CpuOps::~CpuOps() {
  for (const Mapping& mapping : mappings_) ::munmap(mapping.data, mapping.bytes);
}

DeviceInfo CpuOps::info() const {
  return {.device = "cpu",
          .device_name = processor_name(),
          .kernels = kernels_.name,
          .threads = pool_.n_threads(),
          .free_bytes = available_bytes(),
          .total_bytes = 0,
          .owns_weights = false,
          .token_budget = kTokenBudget,
          .max_slots = kMaxSlots};
}

// Allocations from this size on are worth pages of 2 MB.
constexpr size_t kHugePageFrom = size_t{16} << 20;

// Fresh pages of the system: zero, and without cost until touched.
void* CpuOps::allocate(size_t bytes, const char* what) {
  const uint64_t free_bytes = available_bytes();
  // Refused here rather than by the system's out-of-memory killer when the pages are touched later.
  const bool too_large = free_bytes > 0 && bytes > free_bytes;
  const size_t length = std::max<size_t>(bytes, 1);
  mappings_.reserve(mappings_.size() + 1);
  void* data =
      too_large ? MAP_FAILED : ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw Error(Status::kOutOfMemory, "no memory for " + std::string(what) + ": " + size_text(bytes) +
                                          " are needed and " + size_text(free_bytes) +
                                          " are free; ask for less (context, slots, KV size) or free some");
  }
  mappings_.push_back({data, length});
  // Attention over a long context jumps from block to block; large pages spare it most address translations (17 -> 20
  // to 25 GB/s of KV at 4,096 tokens and more, native/bench/LOG.md). A refusal is no loss.
  if (length >= kHugePageFrom) ::madvise(data, length, MADV_HUGEPAGE);
  return data;
}

LinearWeight CpuOps::load_linear(std::span<const HostMatrix> parts, LinearLayout layout) {
  LinearWeight weight;
  if (parts.empty() || parts.size() > weight.parts.size()) {
    throw Error(Status::kInternal, "a linear weight has " + std::to_string(parts.size()) + " parts, expected 1 to " +
                                       std::to_string(weight.parts.size()));
  }
  if (layout == LinearLayout::kGateUp && (parts.size() != 2 || parts[0].rows != parts[1].rows)) {
    throw Error(Status::kInternal, "a gate-up weight needs two matrices of equal shape");
  }
  int64_t rows = 0;
  for (const HostMatrix& part : parts) {
    if (part.rows <= 0 || part.cols <= 0 || part.cols != parts[0].cols) {
      throw Error(Status::kInternal, "the parts of a linear weight have different or empty rows");
    }
    rows += part.rows;
  }
  if (rows > std::numeric_limits<int>::max() || parts[0].cols > std::numeric_limits<int>::max() / 2) {
    throw Error(Status::kUnsupported, "a weight matrix of " + std::to_string(rows) + " x " +
                                          std::to_string(parts[0].cols) + " is larger than the kernels can index");
  }
  weight.n_out = static_cast<int>(rows);
  weight.n_in = static_cast<int>(parts[0].cols);
  weight.n_parts = static_cast<int>(parts.size());
  for (size_t i = 0; i < parts.size(); i++) weight.parts[i] = {parts[i].data, static_cast<int>(parts[i].rows)};
  return weight;
}

const bf16* CpuOps::load_vector(const HostMatrix& vector) {
  return vector.data;
}

const float* CpuOps::load_floats(std::span<const float> values) {
  auto* data = static_cast<float*>(allocate(values.size_bytes(), "a table"));
  std::copy(values.begin(), values.end(), data);
  return data;
}

BatchView CpuOps::upload_batch(const BatchArrays& arrays) {
  batch_.clear();
  for (const std::span<const int32_t>& array : {arrays.token_ids, arrays.positions, arrays.seq_of, arrays.query_start,
                                                arrays.block_tables, arrays.logit_rows}) {
    batch_.insert(batch_.end(), array.begin(), array.end());
  }
  const int32_t* next = batch_.data();
  const auto take = [&](const std::span<const int32_t>& array) {
    const int32_t* data = next;
    next += array.size();
    return data;
  };
  BatchView view{};
  view.n_tokens = arrays.n_tokens;
  view.n_seqs = arrays.n_seqs;
  view.max_blocks = arrays.max_blocks;
  view.token_ids = take(arrays.token_ids);
  view.positions = take(arrays.positions);
  view.seq_of = take(arrays.seq_of);
  view.query_start = take(arrays.query_start);
  view.block_tables = take(arrays.block_tables);
  view.n_logit_rows = static_cast<int>(arrays.logit_rows.size());
  view.logit_rows = take(arrays.logit_rows);
  return view;
}

void CpuOps::embed(const EmbedArgs& args) {
  kernels_.embed(args, pool_);
}
void CpuOps::rope_angles(const RopeAnglesArgs& args) {
  kernels_.rope_angles(args, pool_);
}
void CpuOps::rms_norm(const RmsNormArgs& args) {
  kernels_.rms_norm(args, pool_);
}
void CpuOps::linear(const LinearArgs& args) {
  kernels_.linear(args, pool_);
}
void CpuOps::gate_up(const GateUpArgs& args) {
  kernels_.gate_up(args, pool_);
}
void CpuOps::qk_norm_rope(const QkNormRopeArgs& args) {
  kernels_.qk_norm_rope(args, pool_);
}
void CpuOps::attention(const AttentionArgs& args) {
  kernels_.attention(args, pool_);
}
void CpuOps::sample(const SampleArgs& args) {
  kernels_.sample(args, pool_);
}

void CpuOps::download(std::span<float> out, const float* device) {
  std::copy_n(device, out.size(), out.data());
}

void CpuOps::wait() {}

std::unique_ptr<OpClock> CpuOps::make_clock() {
  return std::make_unique<SteadyOpClock>();
}

DevicePeaks CpuOps::measure_peaks() {
  return cpu::measure_peaks(kernels_.name, pool_);
}

}  // namespace qwen3::cpu

// What CpuOps does besides the kernels: choosing them, memory, index arrays, and the questions to the system.
#include "backend/cpu/cpu_ops.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "backend/cpu/machine.h"
#include "backend/cpu/peaks.h"
#include "base/error.h"
#include "check.h"

namespace {

using namespace qwen3;

TEST("open_backend: auto and cpu open the CPU, every other device is refused with a sentence") {
  for (const char* device : {"", "auto", "cpu"}) {
    const std::unique_ptr<Ops> ops = open_backend({device, "auto", 1});
    const DeviceInfo info = ops->info();
    CHECK_EQ(info.device, "cpu");
    CHECK_EQ(info.threads, 1);
    CHECK(!info.device_name.empty());
    CHECK_EQ(info.kernels, std::string(cpu::supported_kernels().back()->name));
    CHECK(info.free_bytes > 0);
  }
  for (const char* device : {"cuda", "cuda:0", "cuda:17"}) {
    CHECK_THROWS_WITH(open_backend({device, "auto", 1}), Error, "no CUDA backend");
  }
  for (const char* device : {"gpu", "CPU", "cuda:", "cuda:x", "cuda:0 ", "cpu:0"}) {
    CHECK_THROWS_WITH(open_backend({device, "auto", 1}), Error, "is no device");
  }
}

TEST("peaks: every kernel set multiplies, and what is read counts once") {
  cpu::ThreadPool pool(2);
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    const double operations = cpu::multiply_add(kernels->name, pool);
    // 2^20 rounds on two threads, of 8 accumulators of 4 lanes at least and of 24 of 32 at most.
    CHECK(operations >= 2.0 * 8 * 4 * 2 * (1 << 20));
    CHECK(operations <= 2.0 * 24 * 32 * 2 * (1 << 20));
  }
  const std::vector<std::byte> memory((size_t{3} << 20) + 17);
  cpu::read_memory(memory.data(), memory.size(), pool);  // the end lies inside a chunk and a vector
}

TEST("clock: stamps since the begin, in order, forgotten once taken") {
  cpu::CpuOps ops("scalar", 1);
  const std::unique_ptr<OpClock> clock = ops.make_clock();
  for (int round = 0; round < 2; round++) {
    clock->begin();
    for (int i = 0; i < 5; i++) clock->stamp();
    const std::vector<int64_t> stamps = clock->take();
    REQUIRE(stamps.size() == 5);
    CHECK(stamps.front() >= 0);
    CHECK(std::is_sorted(stamps.begin(), stamps.end()));
  }
  clock->begin();
  CHECK(clock->take().empty());
}

TEST("kernels: each supported set can be chosen by name, others are refused") {
  const std::vector<const cpu::KernelTable*> supported = cpu::supported_kernels();
  REQUIRE(!supported.empty());
  CHECK_EQ(std::string(supported.front()->name), "scalar");
  for (const cpu::KernelTable* kernels : supported) {
    CHECK(&cpu::choose_kernels(kernels->name) == kernels);
    CHECK_EQ(open_backend({"cpu", kernels->name, 1})->info().kernels, std::string(kernels->name));
  }
  CHECK(&cpu::choose_kernels("auto") == supported.back());
  CHECK(&cpu::choose_kernels("") == supported.back());
  CHECK_THROWS_WITH(cpu::choose_kernels("neon2"), Error, "names no CPU kernels");
  for (const char* name : {"avx2", "avx512", "avx512bf16"}) {
    const bool has = std::any_of(supported.begin(), supported.end(),
                                 [&](const cpu::KernelTable* kernels) { return std::string(kernels->name) == name; });
    if (!has) CHECK_THROWS_WITH(cpu::choose_kernels(name), Error, "cannot run");
  }
  try {
    (void)cpu::choose_kernels("AVX2");
    CHECK(false);
  } catch (const Error& error) {
    CHECK(error.status() == Status::kInvalidArgument);
  }
}

TEST("threads: 0 means one per usable core, a negative number is refused") {
  CHECK_EQ(cpu::CpuOps("auto", 0).info().threads, cpu::usable_cores());
  CHECK_EQ(cpu::CpuOps("auto", 3).info().threads, 3);
  CHECK_THROWS_WITH(cpu::CpuOps("auto", -1), Error, "the number of CPU threads is -1");
}

TEST("allocate: zeroed, aligned, and a sentence when there is not enough") {
  cpu::CpuOps ops("auto", 1);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{100}, size_t{1} << 20}) {
    const auto* data = static_cast<const unsigned char*>(ops.allocate(bytes, "a test"));
    REQUIRE(data != nullptr);
    CHECK_EQ(reinterpret_cast<uintptr_t>(data) % 64, uintptr_t{0});
    CHECK(std::all_of(data, data + bytes, [](unsigned char byte) { return byte == 0; }));
  }
  for (const size_t bytes : {size_t{1} << 50, SIZE_MAX}) {
    try {
      (void)ops.allocate(bytes, "the KV pool");
      CHECK(false);
    } catch (const Error& error) {
      CHECK(error.status() == Status::kOutOfMemory);
      CHECK(std::strstr(error.what(), "no memory for the KV pool") != nullptr);
      CHECK(std::strstr(error.what(), "are free") != nullptr);
    }
  }
  // Untouched memory costs nothing: half of what is free can be had without being used.
  const uint64_t free_before = cpu::available_bytes();
  (void)ops.allocate(free_before / 2, "a large pool");
  CHECK(cpu::available_bytes() > free_before / 4 * 3);
}

TEST("load: weights stay where they are, tables are copied") {
  cpu::CpuOps ops("auto", 1);
  const std::vector<bf16> a(6 * 4), b(2 * 4), c(2 * 4);
  const HostMatrix qkv[] = {{a.data(), 6, 4}, {b.data(), 2, 4}, {c.data(), 2, 4}};
  const LinearWeight weight = ops.load_linear(qkv, LinearLayout::kConcat);
  CHECK_EQ(weight.n_out, 10);
  CHECK_EQ(weight.n_in, 4);
  CHECK_EQ(weight.n_parts, 3);
  CHECK(weight.parts[1].data == b.data());
  CHECK_EQ(weight.parts[1].rows, 2);
  CHECK(ops.load_vector(qkv[0]) == a.data());
  std::vector<float> table = {1, 2, 3};
  const float* copy = ops.load_floats(table);
  table[1] = 9;
  CHECK_EQ(copy[1], 2.0f);

  CHECK_THROWS_WITH(ops.load_linear({}, LinearLayout::kConcat), Error, "0 parts");
  CHECK_THROWS_WITH(ops.load_linear({qkv, 2}, LinearLayout::kGateUp), Error, "equal shape");
  const HostMatrix ragged[] = {{a.data(), 6, 4}, {b.data(), 4, 2}};
  CHECK_THROWS_WITH(ops.load_linear(ragged, LinearLayout::kConcat), Error, "different");
}

TEST("upload: index arrays are copied and keep their places") {
  cpu::CpuOps ops("auto", 1);
  std::vector<int32_t> tokens = {7, 8, 9}, positions = {0, 1, 5}, seq_of = {0, 0, 1}, start = {0, 2, 3},
                       tables = {3, 4, 5, 6}, rows = {1, 2};
  const BatchView view = ops.upload_batch({3, 2, 2, 0, 0, tokens, positions, seq_of, start, tables, rows, {}, {}});
  tokens[0] = -1;
  CHECK_EQ(view.n_tokens, 3);
  CHECK_EQ(view.n_seqs, 2);
  CHECK_EQ(view.max_blocks, 2);
  CHECK_EQ(view.token_ids[0], 7);
  CHECK_EQ(view.positions[2], 5);
  CHECK_EQ(view.seq_of[2], 1);
  CHECK_EQ(view.query_start[2], 3);
  CHECK_EQ(view.block_tables[3], 6);
  rows[1] = 0;
  CHECK_EQ(view.n_logit_rows, 2);
  CHECK_EQ(view.logit_rows[1], 2);
  const std::vector<float> values = {1.5f, 2.5f};
  std::vector<float> out(2);
  ops.download(out, values.data());
  ops.wait();
  CHECK_EQ(out[1], 2.5f);
}

TEST("machine: texts of the system are read right") {
  CHECK_EQ(cpu::parse_cpu_max("max 100000\n"), 0);
  CHECK_EQ(cpu::parse_cpu_max("200000 100000\n"), 2);
  CHECK_EQ(cpu::parse_cpu_max("150000 100000"), 2);
  CHECK_EQ(cpu::parse_cpu_max("1000 100000"), 1);
  CHECK_EQ(cpu::parse_cpu_max("-1\n 100000\n"), 0);
  CHECK_EQ(cpu::parse_cpu_max(""), 0);
  CHECK_EQ(cpu::parse_cpu_max("nonsense"), 0);
  const char* meminfo = "MemTotal:       24684136 kB\nMemFree:         1 kB\nMemAvailable:   23999999 kB\n";
  CHECK_EQ(cpu::parse_meminfo(meminfo, "MemAvailable"), uint64_t{23999999} * 1024);
  CHECK_EQ(cpu::parse_meminfo(meminfo, "Mem"), uint64_t{0});
  CHECK_EQ(cpu::parse_memory_stat("file 10\ninactive_file 4096\n", "inactive_file"), uint64_t{4096});
  CHECK_EQ(cpu::parse_memory_stat("file 10\n", "inactive_file"), uint64_t{0});
  CHECK_EQ(cpu::parse_cpuinfo("processor\t: 0\nmodel name\t: Some CPU @ 2\nmodel name\t: other\n", "model name"),
           "Some CPU @ 2");
  CHECK_EQ(cpu::parse_cpuinfo("processor\t: 0\n", "model name"), "");
  CHECK(cpu::usable_cores() >= 1);
  CHECK(!cpu::processor_name().empty());
}

}  // namespace

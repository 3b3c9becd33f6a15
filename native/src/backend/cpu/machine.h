// What the operating system says about this machine: processor, cores and memory that this process may use.
//
// Knows Linux (/proc, /sys, cgroups of both versions) and no op. Where a source is missing the answer falls back to the
// next best; nothing here throws. Any thread; each call reads files (microseconds), nothing is cached.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace qwen3::cpu {

// The processor's name as /proc/cpuinfo has it; "unknown processor" where it has none.
std::string processor_name();

// Physical cores that this process may compute on: its affinity mask, siblings of one core counted once (a second
// hardware thread adds nothing to kernels that are bound by memory or by multipliers), capped by the cgroup's CPU
// quota.
int usable_cores();

// Bytes that could be allocated now: MemAvailable, or less under a cgroup's memory limit. 0: unknown.
uint64_t available_bytes();

// ---- parsers, separate so that tests reach them
// CPUs allowed by the text of cgroup v2's cpu.max ("200000 100000"), rounded up; 0: no limit.
int parse_cpu_max(std::string_view text);
// The value in bytes of "Key:   123 kB" in /proc/meminfo; 0 when absent.
uint64_t parse_meminfo(std::string_view text, std::string_view key);
// The value of "key 123" in a cgroup's memory.stat; 0 when absent.
uint64_t parse_memory_stat(std::string_view text, std::string_view key);
// The value after "key : " of the first such line in /proc/cpuinfo; empty when absent.
std::string parse_cpuinfo(std::string_view text, std::string_view key);

}  // namespace qwen3::cpu

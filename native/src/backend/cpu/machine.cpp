#include "backend/cpu/machine.h"

#include <sched.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <utility>
#include <vector>

namespace qwen3::cpu {
namespace {

// The whole of a small file; empty when it cannot be read.
std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t' || text.front() == '\n')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\n')) text.remove_suffix(1);
  return text;
}

// The number that text begins with after white space; -1 when there is none.
int64_t leading_number(std::string_view text) {
  text = trim(text);
  int64_t value = -1;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() && value >= 0 ? value : -1;
}

// Calls visit(line) for each line until it returns true.
template <typename Visit>
void for_lines(std::string_view text, const Visit& visit) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (visit(text.substr(0, end))) return;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

// The directories of this process's cgroup and its parents under `mount`, innermost first. `controller`: "" for cgroup
// v2, else the v1 controller. Inside a container the path may not exist under the mount; the mount itself is always
// listed.
std::vector<std::string> cgroup_directories(const std::string& mount, std::string_view controller) {
  std::string path = "/";
  for_lines(read_file("/proc/self/cgroup"), [&](std::string_view line) {
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) return false;
    const std::string_view names = line.substr(first + 1, second - first - 1);
    const std::string list = "," + std::string(names) + ",";
    const bool match =
        controller.empty() ? names.empty() : list.find("," + std::string(controller) + ",") != std::string::npos;
    if (match) path = line.substr(second + 1);
    return match;
  });
  std::vector<std::string> directories;
  while (path.size() > 1) {
    directories.push_back(mount + path);
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
  directories.push_back(mount);
  return directories;
}

int quota_cores() {
  int limit = 0;
  const auto lower = [&](int cores) {
    if (cores > 0 && (limit == 0 || cores < limit)) limit = cores;
  };
  for (const std::string& directory : cgroup_directories("/sys/fs/cgroup", "")) {
    lower(parse_cpu_max(read_file(directory + "/cpu.max")));
  }
  for (const std::string& directory : cgroup_directories("/sys/fs/cgroup/cpu", "cpu")) {
    lower(
        parse_cpu_max(read_file(directory + "/cpu.cfs_quota_us") + " " + read_file(directory + "/cpu.cfs_period_us")));
  }
  return limit;
}

// What the memory cgroups leave; the largest number when none has a limit. Clean file pages count as free, as they are
// given back on demand, but not those in active use (the mapped weights).
uint64_t cgroup_available() {
  uint64_t available = std::numeric_limits<uint64_t>::max();
  const auto lower = [&](int64_t limit, int64_t used, uint64_t inactive_file) {
    if (limit < 0 || used < 0) return;  // "max", or no such file
    const uint64_t held = static_cast<uint64_t>(used) - std::min(static_cast<uint64_t>(used), inactive_file);
    available = std::min(available, static_cast<uint64_t>(limit) - std::min(static_cast<uint64_t>(limit), held));
  };
  for (const std::string& directory : cgroup_directories("/sys/fs/cgroup", "")) {
    lower(leading_number(read_file(directory + "/memory.max")),
          leading_number(read_file(directory + "/memory.current")),
          parse_memory_stat(read_file(directory + "/memory.stat"), "inactive_file"));
  }
  for (const std::string& directory : cgroup_directories("/sys/fs/cgroup/memory", "memory")) {
    lower(leading_number(read_file(directory + "/memory.limit_in_bytes")),
          leading_number(read_file(directory + "/memory.usage_in_bytes")),
          parse_memory_stat(read_file(directory + "/memory.stat"), "total_inactive_file"));
  }
  return available;
}

// CPUs of the affinity mask.
std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  for (int size = 1024; size <= 1 << 20; size *= 2) {  // the kernel refuses a mask smaller than its own
    cpu_set_t* set = CPU_ALLOC(size);
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(size);
    const bool done = ::sched_getaffinity(0, bytes, set) == 0;
    for (int cpu = 0; done && cpu < size; cpu++) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set)) cpus.push_back(cpu);
    }
    CPU_FREE(set);
    if (done) break;
  }
  return cpus;
}

}  // namespace

int parse_cpu_max(std::string_view text) {
  text = trim(text);
  const size_t space = std::min(text.find_first_of(" \t\n"), text.size());
  const int64_t quota = leading_number(text.substr(0, space));  // "max" (v2) and -1 (v1) are no numbers
  const int64_t period = leading_number(text.substr(space));
  if (quota <= 0 || period <= 0) return 0;
  return static_cast<int>(std::min<int64_t>((quota + period - 1) / period, std::numeric_limits<int>::max()));
}

uint64_t parse_meminfo(std::string_view text, std::string_view key) {
  uint64_t bytes = 0;
  for_lines(text, [&](std::string_view line) {
    if (!line.starts_with(key) || !line.substr(key.size()).starts_with(":")) return false;
    bytes = static_cast<uint64_t>(std::max<int64_t>(leading_number(line.substr(key.size() + 1)), 0)) * 1024;
    return true;
  });
  return bytes;
}

uint64_t parse_memory_stat(std::string_view text, std::string_view key) {
  uint64_t value = 0;
  for_lines(text, [&](std::string_view line) {
    if (!line.starts_with(key) || !line.substr(key.size()).starts_with(" ")) return false;
    value = static_cast<uint64_t>(std::max<int64_t>(leading_number(line.substr(key.size())), 0));
    return true;
  });
  return value;
}

std::string parse_cpuinfo(std::string_view text, std::string_view key) {
  std::string value;
  for_lines(text, [&](std::string_view line) {
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos || trim(line.substr(0, colon)) != key) return false;
    value = trim(line.substr(colon + 1));
    return true;
  });
  return value;
}

std::string processor_name() {
  const std::string text = read_file("/proc/cpuinfo");
  for (const char* key : {"model name", "Model", "cpu", "Hardware"}) {  // x86, ARM boards, POWER
    const std::string name = parse_cpuinfo(text, key);
    if (!name.empty()) return name;
  }
  return "unknown processor";
}

int usable_cores() {
  const std::vector<int> cpus = allowed_cpus();
  std::set<std::pair<std::string, std::string>> cores;
  for (const int cpu : cpus) {
    const std::string topology = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    const std::string core = read_file(topology + "core_id");
    cores.insert(core.empty() ? std::pair("cpu" + std::to_string(cpu), std::string())
                              : std::pair(core, read_file(topology + "physical_package_id")));
  }
  const int count = std::max(static_cast<int>(cores.size()), 1);
  const int quota = quota_cores();
  return quota > 0 ? std::min(count, quota) : count;
}

uint64_t available_bytes() {
  uint64_t machine = parse_meminfo(read_file("/proc/meminfo"), "MemAvailable");
  struct sysinfo totals = {};
  if (machine == 0 && ::sysinfo(&totals) == 0) {  // no /proc, as in a bare chroot: the kernel's lower estimate
    machine = (static_cast<uint64_t>(totals.freeram) + totals.bufferram) * totals.mem_unit;
  }
  const uint64_t cgroup = cgroup_available();
  return machine == 0 ? (cgroup == std::numeric_limits<uint64_t>::max() ? 0 : cgroup) : std::min(machine, cgroup);
}

}  // namespace qwen3::cpu

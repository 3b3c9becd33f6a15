// op_twins: each op of one backend against its CPU twin, over random shapes.
//
//   op_twins [--device cuda:0] [--kernels auto,generic] [--reference-kernels auto] [--seed N] [--few] [GROUP...]
//
// GROUP: linear, small, attention, sample (none: all). Exits 1 if a case fails and 2 if the device cannot be opened.
// With --device cpu it compares two kernel sets of the CPU backend, which keeps the tests themselves tested where there
// is no GPU.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "twins/twin.h"

namespace qwen3::twins {

void Report::check(bool ok, const std::string& what) {
  cases_++;
  if (ok) return;
  failures_++;
  if (failures_ <= 40) std::printf("FAIL  %s (seed %llu)\n", what.c_str(), static_cast<unsigned long long>(seed_));
}

namespace {

const std::vector<bf16>& normal_values() {
  static const std::vector<bf16> values = op_test::Random(12345).normals_bf16(1 << 16, 1.0);
  return values;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

struct Group {
  const char* name;
  void (*run)(const Settings&, Report&);
};
constexpr Group kGroups[] = {
    {"small", small_op_twins}, {"linear", linear_twins}, {"attention", attention_twins}, {"sample", sample_twins}};

int run(const std::vector<std::string>& arguments) {
  Settings settings;
  std::vector<std::string> wanted;
  for (size_t i = 0; i < arguments.size(); i++) {
    const std::string& name = arguments[i];
    const auto value = [&] {
      if (i + 1 == arguments.size()) throw std::invalid_argument(name + " needs a value");
      return arguments[++i];
    };
    if (name == "--device") {
      settings.device = value();
    } else if (name == "--kernels") {
      settings.kernels = split(value());
    } else if (name == "--reference-kernels") {
      settings.reference.kernels = value();
    } else if (name == "--seed") {
      settings.seed = std::stoull(value());
    } else if (name == "--few") {
      settings.few = true;
    } else if (std::any_of(std::begin(kGroups), std::end(kGroups), [&](const Group& g) { return name == g.name; })) {
      wanted.push_back(name);
    } else {
      throw std::invalid_argument("\"" + name + "\" is no option and no group; see the head of twins/main.cpp");
    }
  }
  settings.reference.device = "cpu";
  settings.equal_sets = settings.device != "cpu";
  int cases = 0, failures = 0;
  for (const Group& group : kGroups) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), group.name) == wanted.end()) continue;
    const auto start = std::chrono::steady_clock::now();
    Report report(settings.seed);
    group.run(settings, report);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::printf("%-10s %5d checks, %d failed, %.1f s\n", group.name, report.cases(), report.failures(), seconds);
    std::fflush(stdout);
    cases += report.cases();
    failures += report.failures();
  }
  std::printf("op_twins: %d checks, %d failed, seed %llu\n", cases, failures,
              static_cast<unsigned long long>(settings.seed));
  return failures == 0 && cases > 0 ? 0 : 1;
}

}  // namespace

Source::Source(uint64_t seed) : random_(seed) {}

std::vector<bf16> Source::normals(size_t n, float scale) {
  const std::vector<bf16>& values = normal_values();
  std::vector<bf16> out(n);
  // Scaled by a power of two, values stay exact and the table can be used as it is.
  const int exponent = static_cast<int>(std::lround(std::log2(scale))) * 128;
  for (size_t i = 0; i < n;) {
    uint64_t bits = random_.bits();
    for (int piece = 0; piece < 4 && i < n; piece++, i++, bits >>= 16) {
      const bf16 value = values[bits & 0xffff];
      out[i] = (value & 0x7f80) == 0 ? bf16{0} : static_cast<bf16>(value + exponent);
    }
  }
  return out;
}

std::vector<float> Source::floats(size_t n, float scale) {
  std::vector<float> out(n);
  const std::vector<bf16> coarse = normals(n, scale);
  // A little more, so that not all are bfloat16.
  for (size_t i = 0; i < n; i++)
    out[i] = bf16_to_float(coarse[i]) * (1.0f + static_cast<float>((i * 2654435761u) >> 8 & 0xffff) * 0x1p-24f);
  return out;
}

std::vector<bf16> magnitudes(std::vector<bf16> values) {
  for (bf16& value : values) value &= 0x7fff;
  return values;
}

Device::Device(const BackendOptions& options) : ops_(open_backend(options)) {
  const DeviceInfo info = ops_->info();
  name_ = info.device + " " + info.kernels;
}

float* Device::floats(std::span<const float> values) {
  // The waist hands out loaded numbers for reading; as test data they are written to as well.
  return const_cast<float*>(ops_->load_floats(values));
}

float* Device::blank_floats(size_t n) {
  return floats(std::vector<float>(n + kGuardBytes / sizeof(float), std::bit_cast<float>(0x7fc07fc0u)));
}

bf16* Device::blank_bf16(size_t n) {
  return reinterpret_cast<bf16*>(blank_floats((n + 1) / 2));
}

const bf16* Device::table(std::span<const bf16> values) {
  // As floats, which are loaded without the preparations that weights take.
  std::vector<float> pairs((values.size() + 1) / 2);
  std::memcpy(pairs.data(), values.data(), values.size_bytes());
  return reinterpret_cast<const bf16*>(floats(pairs));
}

const LinearWeight* Device::linear(const std::vector<std::vector<bf16>>& parts, int n_in, LinearLayout layout) {
  std::vector<HostMatrix> matrices;
  for (const std::vector<bf16>& part : parts)
    matrices.push_back({part.data(), static_cast<int64_t>(part.size()) / n_in, n_in});
  weights_.push_back(ops_->load_linear(matrices, layout));
  return &weights_.back();
}

const LinearWeight* Device::coded(const LinearWeight& weight) {
  LinearWeight& copy = weights_.emplace_back(weight);
  LinearWeight* const all[] = {&copy};
  ops_->code(all, UINT64_MAX);
  return copy.coded != nullptr ? &copy : nullptr;
}

std::vector<float> Device::read(const float* from, size_t n) {
  std::vector<float> out(n);
  ops_->download(out, from);
  ops_->wait();
  return out;
}

std::vector<bf16> Device::read(const bf16* from, size_t n) {
  const std::vector<float> pairs = read(reinterpret_cast<const float*>(from), (n + 1) / 2);
  std::vector<bf16> out(n);
  std::memcpy(out.data(), pairs.data(), n * sizeof(bf16));
  return out;
}

Bench::Bench(const Settings& settings) : reference(settings.reference) {
  for (const std::string& kernels : settings.kernels)
    tested.push_back(std::make_unique<Device>(BackendOptions{.device = settings.device, .kernels = kernels}));
}

}  // namespace qwen3::twins

int main(int argc, char** argv) {
  try {
    return qwen3::twins::run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& error) {
    std::printf("op_twins: %s\n", error.what());
    return 2;
  }
}

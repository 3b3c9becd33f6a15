// Random mutations of everything that the loader reads: config.json, generation_config.json, safetensors files and the
// index, one after the other, in memory and through a real directory.
//
// Built with -fsanitize=address,undefined it proves: whatever the bytes, the loader either opens the model or throws
// one Error with a printable sentence; it never reads outside the file, never hangs (10 s of a core a case), and never
// holds more memory than 64 times the bytes it was given plus 1 MiB. What it accepts must keep its promises: every byte
// of every tensor can be read. Deterministic: case i of a seed is the same everywhere, and a failing case prints both.
//
//   loader_fuzz [--seconds 20] [--iterations N] [--seed 1] [--only CASE]
#include <malloc.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/model_dir.h"
#include "model/safetensors.h"

namespace {

// ---- memory: every operator new is counted, and a loader call runs under a budget

std::size_t live_bytes = 0;
std::size_t live_limit = SIZE_MAX;
uint64_t current_seed = 0;
uint64_t current_case = 0;

[[noreturn]] void fail(const char* what) {
  live_limit = SIZE_MAX;
  std::fprintf(stderr, "loader_fuzz: %s; repeat with --seed %llu --only %llu\n", what,
               static_cast<unsigned long long>(current_seed), static_cast<unsigned long long>(current_case));
  std::abort();
}

void* counted_new(std::size_t size) {
  if (size > live_limit || live_bytes > live_limit - size) fail("more memory is held than the input justifies");
  void* p = std::malloc(size);
  if (p == nullptr) throw std::bad_alloc();
  live_bytes += malloc_usable_size(p);
  return p;
}

void counted_delete(void* p) noexcept {
  if (p != nullptr) live_bytes -= malloc_usable_size(p);
  std::free(p);
}

}  // namespace

void* operator new(std::size_t size) {
  return counted_new(size);
}
void* operator new[](std::size_t size) {
  return counted_new(size);
}
void operator delete(void* p) noexcept {
  counted_delete(p);
}
void operator delete[](void* p) noexcept {
  counted_delete(p);
}
void operator delete(void* p, std::size_t) noexcept {
  counted_delete(p);
}
void operator delete[](void* p, std::size_t) noexcept {
  counted_delete(p);
}

namespace {

using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t n) {
  return n == 0 ? 0 : random() % n;
}

// ---- mutation

// Pieces that make a JSON text of ours mean something else.
constexpr std::array<std::string_view, 50> kPieces = {"0",
                                                      "-1",
                                                      "1",
                                                      "2",
                                                      "16",
                                                      "128",
                                                      "1e999",
                                                      "-0",
                                                      "1.5",
                                                      "4294967296",
                                                      "9223372036854775807",
                                                      "18446744073709551615",
                                                      "18446744073709551616",
                                                      "99999999999999999999999999",
                                                      "null",
                                                      "true",
                                                      "false",
                                                      "[]",
                                                      "{}",
                                                      "\"\"",
                                                      "[0]",
                                                      "{\"a\":1}",
                                                      ",",
                                                      ":",
                                                      "[",
                                                      "]",
                                                      "{",
                                                      "}",
                                                      "\"",
                                                      "\\u0000",
                                                      "\\ud800",
                                                      "\xff",
                                                      "\xc3\xa4",
                                                      "\"BF16\"",
                                                      "\"F32\"",
                                                      "\"F4\"",
                                                      "\"shape\"",
                                                      "\"data_offsets\"",
                                                      "\"yarn\"",
                                                      "\"default\"",
                                                      "\"rope_parameters\":{\"rope_theta\":1e6},",
                                                      "\"factor\":4,",
                                                      "\"rope_type\":\"yarn\",",
                                                      "\"quantization_config\":{},",
                                                      "\"layer_types\":[\"full_attention\"],",
                                                      "\"../x.safetensors\"",
                                                      "\"a.safetensors\"",
                                                      "\"b.safetensors\"",
                                                      "\"model.norm.weight\"",
                                                      "\"__metadata__\":{},"};

// A number in the text, or its end when there is none after a random place.
std::pair<std::size_t, std::size_t> pick_number(Random& random, const std::string& text) {
  std::size_t begin = below(random, text.size());
  while (begin < text.size() && (text[begin] < '0' || text[begin] > '9')) ++begin;
  std::size_t end = begin;
  while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
  return {begin, end};
}

void mutate_once(Random& random, std::string& text) {
  const std::size_t at = below(random, text.size() + 1);
  const std::size_t length = std::min(below(random, 1 + below(random, 40)), text.size() - at);
  switch (below(random, 10)) {
    case 0:
      if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(random, 8)));
      break;
    case 1:
      if (at < text.size()) text[at] = static_cast<char>(random());
      break;
    case 2:
      text.erase(at, length);
      break;
    case 3:
      text.insert(below(random, text.size() + 1), text.substr(at, length));
      break;
    case 4:
      text.insert(at, kPieces[below(random, kPieces.size())]);
      break;
    case 5:
    case 6: {  // a number becomes another piece
      const auto [begin, end] = pick_number(random, text);
      text.replace(begin, end - begin, kPieces[below(random, kPieces.size())]);
      break;
    }
    case 7: {  // a number moves a little
      const auto [begin, end] = pick_number(random, text);
      if (end == begin || end - begin > 15) break;
      const long long value =
          std::stoll(text.substr(begin, end - begin)) + static_cast<long long>(below(random, 33)) - 16;
      text.replace(begin, end - begin, std::to_string(value));
      break;
    }
    case 8:
      text.resize(at);
      break;
    default:
      text.insert(at, below(random, 200), "[{\" ,0"[below(random, 6)]);
      break;
  }
}

std::string mutate(Random& random, std::string text) {
  // Mostly one or two: enough damage to be wrong, little enough to get past the first check.
  for (std::size_t n = 1 + below(random, 1 + below(random, 6)); n > 0; --n) mutate_once(random, text);
  return text;
}

// Mostly the header's text changes and the length before it follows; else any byte of the file, or only its end.
std::string mutate_safetensors(Random& random, const std::string& file) {
  const std::size_t kind = below(random, 8);
  if (kind == 0) return mutate(random, file);
  if (kind == 1) return file.substr(0, file.size() - std::min(file.size(), 1 + below(random, 16)));
  if (kind == 2) return file + std::string(1 + below(random, 16), 'x');
  uint64_t header = 0;
  for (std::size_t i = 0; i < 8; ++i) header |= uint64_t{static_cast<unsigned char>(file[i])} << (8 * i);
  const std::string text = mutate(random, file.substr(8, header));
  return model_dir::container(text, file.substr(8 + header));
}

// ---- checks

void check_message(const std::string& message) {
  if (message.empty() || message.size() > 1200) fail("an error message is empty or endless");
  for (const char c : message) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e)
      fail("an error message is not printable");
  }
}

volatile unsigned char sink;

void touch(const void* data, std::size_t bytes) {
  unsigned char sum = 0;
  for (std::size_t i = 0; i < bytes; ++i)
    sum = static_cast<unsigned char>(sum + static_cast<const unsigned char*>(data)[i]);
  sink = sum;
}

void touch(const qwen3::HostTensor& tensor) {
  if (tensor.bytes() < 0 ||
      reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(dtype_bytes(tensor.dtype)) != 0) {
    fail("a tensor is misaligned");
  }
  touch(tensor.data, static_cast<std::size_t>(tensor.bytes()));
}

// Ends the program when it has used so much processor time from now on; 0: no more. Not by the clock: a busy machine
// may let any program stand still.
void limit_seconds(int seconds) {
  const itimerval limit{.it_interval = {}, .it_value = {.tv_sec = seconds, .tv_usec = 0}};
  ::setitimer(ITIMER_PROF, &limit, nullptr);
}

// Runs the loader on `input_bytes` of mutated files under the memory budget; true when it accepted them.
template <typename Load>
bool guarded(std::size_t input_bytes, const Load& load) {
  limit_seconds(10);
  live_limit = live_bytes + (std::size_t{1} << 20) + 64 * input_bytes;
  bool accepted = false;
  try {
    load();
    accepted = true;
  } catch (const qwen3::Error& error) {
    live_limit = SIZE_MAX;
    check_message(error.what());
  } catch (const std::exception& error) {
    live_limit = SIZE_MAX;
    std::fprintf(stderr, "%s\n", error.what());
    fail("the loader threw something that is not an Error");
  }
  live_limit = SIZE_MAX;
  return accepted;
}

bool run_in_memory(Random& random, const std::string& file) {
  const std::string bytes = mutate_safetensors(random, file);
  // An exact allocation of its own: AddressSanitizer sees a read of one byte more.
  const std::unique_ptr<std::byte[]> copy(new std::byte[bytes.size()]);
  if (!bytes.empty()) std::memcpy(copy.get(), bytes.data(), bytes.size());
  return guarded(bytes.size(), [&] {
    std::size_t position = 0;
    for (const auto& entry : qwen3::parse_safetensors({copy.get(), bytes.size()}, "f")) {
      if (entry.begin > entry.end || entry.end > bytes.size() || (position != 0 && entry.begin != position)) {
        fail("an entry lies outside the file or beside its neighbour");
      }
      position = entry.end;
      touch(copy.get() + entry.begin, entry.end - entry.begin);
    }
  });
}

// One directory whose files are put back when a case changed them.
class Directory {
 public:
  explicit Directory(bool sharded) {
    files_.emplace_back("config.json", model_dir::config_text());
    files_.emplace_back("generation_config.json", R"({"eos_token_id": [7, 3], "temperature": 0.6, "top_k": 20})");
    if (sharded) {
      model_dir::write_shards(dir_);
      for (const char* name : {"model.safetensors.index.json", "a.safetensors", "b.safetensors"}) {
        files_.emplace_back(name, dir_.read(name));
      }
    } else {
      std::vector<model_dir::Tensor> tensors = model_dir::model_tensors();
      tensors[3].dtype = "F32";
      tensors[4].dtype = "F16";
      files_.emplace_back("model.safetensors", model_dir::safetensors(tensors));
    }
    for (const auto& [name, text] : files_) dir_.write(name, text);
  }

  bool run(Random& random) {
    std::array<std::size_t, 2> changed = {below(random, files_.size()), SIZE_MAX};
    if (below(random, 8) == 0) changed[1] = below(random, files_.size());
    std::size_t bytes = 0;
    for (const auto& [name, text] : files_) bytes += text.size();
    for (const std::size_t i : changed) {
      if (i == SIZE_MAX) continue;
      const auto& [name, text] = files_[i];
      const bool weights = name.ends_with(".safetensors");
      const std::string mutated = weights ? mutate_safetensors(random, text) : mutate(random, text);
      bytes += mutated.size();
      dir_.write(name, mutated);
      if (below(random, 200) == 0) dir_.remove(name);
    }
    const bool accepted = guarded(bytes, [&] {
      qwen3::ModelConfig config = qwen3::load_config(dir_.path());
      for (const float f : qwen3::rope_inv_freq(config.rope, config.head_dim)) {
        if (!(f > 0 && f <= 1)) fail("a RoPE frequency is not in (0, 1]");
      }
      if (!(qwen3::rope_attention_scale(config.rope) > 0)) fail("RoPE's scale is not positive");
      const qwen3::Checkpoint checkpoint = qwen3::Checkpoint::open(dir_.path(), config);
      if (checkpoint.layers.size() != static_cast<std::size_t>(config.n_layers)) fail("layers are missing");
      for (const auto* tensor : {&checkpoint.embed_tokens, &checkpoint.norm, &checkpoint.lm_head}) touch(*tensor);
      for (const qwen3::LayerTensors& l : checkpoint.layers) {
        for (const auto* tensor : {&l.input_layernorm, &l.q_proj, &l.k_proj, &l.v_proj, &l.q_norm, &l.k_norm, &l.o_proj,
                                   &l.post_attention_layernorm, &l.gate_proj, &l.up_proj, &l.down_proj}) {
          touch(*tensor);
        }
      }
    });
    for (const std::size_t i : changed) {
      if (i != SIZE_MAX) dir_.write(files_[i].first, files_[i].second);
    }
    return accepted;
  }

 private:
  model_dir::TempDir dir_;
  std::vector<std::pair<std::string, std::string>> files_;
};

}  // namespace

int main(int argc, char** argv) {
  double seconds = 20;
  uint64_t iterations = UINT64_MAX;
  uint64_t seed = 1;
  uint64_t only = UINT64_MAX;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view option = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (value != nullptr && option == "--seconds") {
      seconds = std::strtod(value, nullptr);
    } else if (value != nullptr && option == "--iterations") {
      iterations = std::strtoull(value, nullptr, 10);
    } else if (value != nullptr && option == "--seed") {
      seed = std::strtoull(value, nullptr, 10);
    } else if (value != nullptr && option == "--only") {
      only = std::strtoull(value, nullptr, 10);
    } else {
      std::fprintf(stderr, "usage: loader_fuzz [--seconds S] [--iterations N] [--seed N] [--only CASE]\n");
      return 2;
    }
  }

  ::setenv("TMPDIR", ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", 0);  // unless it is set
  const std::string plain = model_dir::safetensors(
      {{"a", {2, 3}}, {"b", {4}, "F32"}, {"c", {5}, "U8"}, {"d", {3, 0}}, {"e", {1, 1, 1}, "F16"}});
  Directory single(false);
  Directory sharded(true);
  constexpr std::array<const char*, 3> kNames = {"bytes", "file", "shards"};
  std::array<uint64_t, 3> accepted{};
  std::array<uint64_t, 3> refused{};
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  current_seed = seed;
  uint64_t done = 0;
  for (uint64_t i = only == UINT64_MAX ? 0 : only; i < iterations && elapsed() < seconds; ++i, ++done) {
    current_case = i;
    Random random(seed * 0x9e3779b97f4a7c15U + i);
    // A case in memory takes a fiftieth of one on disk.
    const std::size_t draw = below(random, 8);
    const std::size_t target = draw < 6 ? 0 : draw - 5;
    const bool ok = target == 0 ? run_in_memory(random, plain) : target == 1 ? single.run(random) : sharded.run(random);
    ++(ok ? accepted : refused)[target];
    if (only != UINT64_MAX) break;
  }
  limit_seconds(0);
  std::printf("loader_fuzz: seed %llu, %llu cases in %.1f s;", static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(done), elapsed());
  for (std::size_t t = 0; t < kNames.size(); ++t) {
    std::printf(" %s: %llu accepted, %llu refused;", kNames[t], static_cast<unsigned long long>(accepted[t]),
                static_cast<unsigned long long>(refused[t]));
  }
  std::printf("\n");
  // A fuzzer whose every case ends at the first check finds nothing, and one that damages nothing neither.
  if (only == UINT64_MAX && done > 3000) {
    for (std::size_t t = 0; t < kNames.size(); ++t) {
      if (accepted[t] * 1000 < done || refused[t] * 1000 < done) fail("a target is hardly exercised");
    }
  }
  return 0;
}

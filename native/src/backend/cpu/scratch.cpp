#include "backend/cpu/scratch.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error.h"

namespace qwen3::cpu {
namespace {

constexpr size_t kAlignment = 64;

struct Buffer {
  void* data = nullptr;
  size_t bytes = 0;
  ~Buffer() { std::free(data); }
};

}  // namespace

void* thread_scratch(Scratch purpose, size_t bytes) {
  thread_local std::array<Buffer, static_cast<size_t>(Scratch::kCount)> buffers;
  Buffer& buffer = buffers[static_cast<size_t>(purpose)];
  if (buffer.bytes >= bytes) return buffer.data;
  // A quarter more than asked: sizes that creep up with the context reallocate rarely.
  const size_t size = (bytes + bytes / 4 + kAlignment - 1) / kAlignment * kAlignment;
  void* data = std::aligned_alloc(kAlignment, size);
  if (data == nullptr) {
    throw Error(Status::kOutOfMemory, "no memory for " + std::to_string(size) +
                                          " bytes of a CPU kernel's working space; free memory or lower the token "
                                          "budget");
  }
  std::memset(data, 0, size);
  std::free(buffer.data);
  buffer.data = data;
  buffer.bytes = size;
  return data;
}

}  // namespace qwen3::cpu

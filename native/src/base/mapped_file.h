// Read-only files: mapped whole (weights) or read whole with a limit (small text files).
//
// Owns the mapping and nothing else; knows no file format. Opening never blocks (a FIFO or a device is refused) and the
// file descriptor is closed before open() returns, so thousands of files may be mapped.
//
// Invariant: data() stays valid and constant until the object dies, as long as nobody shrinks or rewrites the file. A
// file that is truncated while mapped raises SIGBUS on access: that is a property of mmap that no check can remove. The
// size is therefore taken once, at open, and every reader checks its offsets against it before it touches a byte;
// replace a model by writing a new file and renaming it, never in place.
//
// Any thread may read; opening and destroying belong to the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace qwen3 {

class MappedFile {
 public:
  // Throws Error: kNotFound when it does not exist, kBadModel when it cannot be read or is not a regular file.
  static MappedFile open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const noexcept { return path_; }
  const std::byte* data() const noexcept { return data_; }  // [size()] bytes, page aligned; null when empty
  std::size_t size() const noexcept { return size_; }
  std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }

  // Starts reading the first max_bytes from disk in the background; costs nothing for what is in the page cache.
  void prefetch(std::size_t max_bytes) const noexcept;

  // Drops this process's pages of [offset, offset + length) after they were read once; they stay in the page cache.
  void release(std::size_t offset, std::size_t length) const noexcept;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// The whole content of a small file; refuses more than max_bytes without reading it. Same errors as MappedFile::open.
std::string read_text_file(const std::string& path, std::size_t max_bytes);

}  // namespace qwen3

#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace qwen3 {
namespace {

// Owns one descriptor for the length of a function.
struct Descriptor {
  int fd;
  explicit Descriptor(int value) : fd(value) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { ::close(fd); }
};

[[noreturn]] void throw_errno(const std::string& path, const char* doing, int error) {
  if (error == ENOENT || error == ENOTDIR) throw Error(Status::kNotFound, path + " does not exist");
  if (error == EACCES || error == EPERM) {
    throw Error(Status::kBadModel, path + ": permission denied; make it readable for the user that runs this process");
  }
  throw Error(error == ENOMEM ? Status::kOutOfMemory : Status::kBadModel,
              path + ": cannot " + doing + " it: " + std::strerror(error));
}

// Opens a regular file without ever blocking and returns its descriptor and size.
int open_regular(const std::string& path, std::size_t* size) {
  if (path.find('\0') != std::string::npos) throw Error(Status::kInvalidArgument, "a file path contains a zero byte");
  int fd = -1;
  do {
    fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // O_NONBLOCK: a FIFO must not hang the start
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) throw_errno(path, "open", errno);
  struct stat info{};
  if (::fstat(fd, &info) != 0) {
    const int error = errno;
    ::close(fd);
    throw_errno(path, "examine", error);
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    throw Error(Status::kBadModel, path + (S_ISDIR(info.st_mode) ? " is a directory, expected a file"
                                                                 : " is not a regular file, expected one"));
  }
  *size = static_cast<std::size_t>(info.st_size);
  return fd;
}

}  // namespace

MappedFile MappedFile::open(const std::string& path) {
  MappedFile file;
  file.path_ = path;
  const Descriptor descriptor(open_regular(path, &file.size_));
  if (file.size_ == 0) return file;  // mmap refuses length 0; the reader of the format says what an empty file means
  void* data = ::mmap(nullptr, file.size_, PROT_READ, MAP_SHARED, descriptor.fd, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    file.size_ = 0;
    throw_errno(path, "map", error);
  }
  file.data_ = static_cast<const std::byte*>(data);
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, std::size_t{0})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  // mmap hands out and munmap takes void*; the mapping was never writable.
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::prefetch(std::size_t max_bytes) const noexcept {
  if (data_ != nullptr) ::madvise(const_cast<std::byte*>(data_), std::min(size_, max_bytes), MADV_WILLNEED);
}

void MappedFile::release(std::size_t offset, std::size_t length) const noexcept {
  if (data_ == nullptr || offset >= size_) return;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t end = length > size_ - offset ? size_ : offset + length;
  const std::size_t first = (offset + page - 1) / page * page;  // only whole pages: the edges belong to neighbours
  const std::size_t last = end / page * page;
  if (first < last) ::madvise(const_cast<std::byte*>(data_) + first, last - first, MADV_DONTNEED);
}

std::string read_text_file(const std::string& path, std::size_t max_bytes) {
  std::size_t size = 0;
  const Descriptor descriptor(open_regular(path, &size));
  if (size > max_bytes) {
    throw Error(Status::kBadModel, path + " has " + std::to_string(size) + " bytes, the limit is " +
                                       std::to_string(max_bytes) + "; this is not the file that a model needs");
  }
  std::string text(size, '\0');
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got = ::read(descriptor.fd, text.data() + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno(path, "read", errno);
    if (got == 0) break;  // it shrank since fstat: keep what there is, the parser judges it
    done += static_cast<std::size_t>(got);
  }
  text.resize(done);
  return text;
}

}  // namespace qwen3

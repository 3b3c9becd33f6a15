// The one exception type of the library, and the status codes it carries.
//
// Every failure inside is thrown as Error with a sentence for a person: what is wrong, where, with the number that was
// exceeded and its limit, and what to do. api/ holds the only translation to the C ABI.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace qwen3 {

// Same values as qwen3_status in qwen3.h (static_asserted in api/qwen3.cpp).
enum class Status : int32_t {
  kOk = 0,
  kInvalidArgument = 1,
  kNotFound = 2,
  kBadModel = 3,
  kUnsupported = 4,
  kOutOfMemory = 5,
  kContextOverflow = 6,
  kQueueFull = 7,
  kTimeout = 8,
  kClosed = 9,
  kDeviceError = 10,
  kInternal = 11,
  kCancelled = 12,
};

class Error : public std::runtime_error {
 public:
  Error(Status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  Status status() const noexcept { return status_; }

 private:
  Status status_;
};

}  // namespace qwen3

// The safetensors container: one file mapped and its header checked, so that every entry may be read without a thought.
//
// Layout: u64 little-endian header length, that many bytes of JSON, then the data. Knows names, dtypes, shapes and byte
// ranges; knows no model. Invariant after open: every entry lies inside the file, has exactly shape x dtype bytes, and
// the entries tile the data without overlap or hole, to the last byte. Opening touches only the header's pages.
// Runs on the thread that opens the model; the result is constant and may be read by any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.h"

namespace qwen3 {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // as in the file: "BF16", "F32", "F8_E4M3", ...
  std::vector<int64_t> shape;
  std::size_t begin = 0;  // bytes from the start of the file
  std::size_t end = 0;
};

// The header of a whole file's bytes; `where` (the path) begins every error, all kBadModel.
std::vector<SafetensorsEntry> parse_safetensors(std::span<const std::byte> bytes, const std::string& where);

struct SafetensorsFile {
  std::shared_ptr<const MappedFile> file;
  std::vector<SafetensorsEntry> entries;  // ordered by offset
};

// Errors of MappedFile::open and of parse_safetensors.
SafetensorsFile open_safetensors(const std::string& path);

}  // namespace qwen3

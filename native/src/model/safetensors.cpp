#include "model/safetensors.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "model/json.h"

namespace qwen3 {
namespace {

constexpr std::size_t kLengthBytes = 8;
// The largest Qwen3 (32B, one file) needs 85 KB; the parsed form costs up to 40 times the text, so the format's own
// limit of 100 MB would let a hostile file take gigabytes.
constexpr std::size_t kMaxHeaderBytes = std::size_t{8} << 20U;
constexpr std::size_t kMaxRank = 16;

struct DTypeBits {
  std::string_view name;
  std::size_t bits;
};
// Every dtype of the format, so that a tensor that we then refuse is named for what it is, not as a broken file.
constexpr std::array<DTypeBits, 22> kDTypes = {{
    {"BF16", 16},   {"F16", 16},    {"F32", 32},        {"F64", 64},        {"F8_E4M3", 8}, {"F8_E5M2", 8},
    {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"F4", 4},          {"BOOL", 8},    {"I8", 8},
    {"U8", 8},      {"I16", 16},    {"U16", 16},        {"I32", 32},        {"U32", 32},    {"I64", 64},
    {"U64", 64},    {"C64", 64},    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
}};

[[noreturn]] void bad(const std::string& sentence) {
  throw Error(Status::kBadModel, sentence);
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// One value of the header's object; begin and end still count from the start of the data.
SafetensorsEntry parse_entry(const std::string& name, const Json& value, const std::string& where) {
  const std::string tensor = where + ": tensor " + quote(name);
  if (!value.is_object()) bad(tensor + " is described by " + describe(value) + ", expected an object");
  SafetensorsEntry entry;
  entry.name = name;
  for (const auto& [key, field] : value.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      bad(tensor + " has the unknown field " + quote(key) + " in its header entry");
    }
    if (field.is_array() && field.size() > kMaxRank) {
      bad(tensor + " has " + std::to_string(field.size()) + " numbers in its " + key + ", at most " +
          std::to_string(kMaxRank) + " are allowed");
    }
  }
  const auto dtype = value.find("dtype");
  if (dtype == value.end() || !dtype->is_string()) bad(tensor + " has no dtype in its header entry");
  entry.dtype = dtype->get<std::string>();
  const auto known =
      std::find_if(kDTypes.begin(), kDTypes.end(), [&](const DTypeBits& d) { return d.name == entry.dtype; });
  if (known == kDTypes.end()) bad(tensor + " has the unknown dtype " + quote(entry.dtype));

  const auto shape = value.find("shape");
  if (shape == value.end() || !shape->is_array()) bad(tensor + " has no shape in its header entry");
  uint64_t bits = known->bits;
  for (const Json& dimension : *shape) {
    if (!dimension.is_number_unsigned() ||
        dimension.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      bad(tensor + " has " + describe(dimension) + " in its shape, expected a whole number");
    }
    entry.shape.push_back(dimension.get<int64_t>());
  }
  for (const int64_t dimension : entry.shape) {
    if (__builtin_mul_overflow(bits, static_cast<uint64_t>(dimension), &bits)) {
      bad(tensor + " has the shape " + shape_text(entry.shape) + ", more bytes than any file holds");
    }
  }
  const auto offsets = value.find("data_offsets");
  if (offsets == value.end() || !offsets->is_array() || offsets->size() != 2 || !(*offsets)[0].is_number_unsigned() ||
      !(*offsets)[1].is_number_unsigned()) {
    bad(tensor + " has no data_offsets of two whole numbers in its header entry");
  }
  entry.begin = (*offsets)[0].get<std::size_t>();
  entry.end = (*offsets)[1].get<std::size_t>();
  if (entry.end < entry.begin) {
    bad(tensor + " ends at offset " + std::to_string(entry.end) + ", before it begins at " +
        std::to_string(entry.begin));
  }
  if (bits % 8 != 0 || entry.end - entry.begin != bits / 8) {
    bad(tensor + " has " + std::to_string(entry.end - entry.begin) + " bytes of data, expected " +
        std::to_string(bits / 8) + " for its shape " + shape_text(entry.shape) + " and dtype " + entry.dtype);
  }
  return entry;
}

void check_metadata(const Json& value, const std::string& where) {
  if (!value.is_object()) bad(where + ": __metadata__ is " + describe(value) + ", expected an object");
  for (const auto& [key, field] : value.items()) {
    if (!field.is_string())
      bad(where + ": __metadata__ has " + describe(field) + " at " + quote(key) + ", expected text");
  }
}

// Entries are ordered by offset: each must begin where the one before ended, and the last must end the file.
void check_tiling(const std::vector<SafetensorsEntry>& entries, std::size_t data_bytes, const std::string& where) {
  const auto declared =
      std::max_element(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.end < b.end; });
  if (declared != entries.end() && declared->end > data_bytes) {
    bad(where + " is truncated: tensor " + quote(declared->name) + " ends at byte " + std::to_string(declared->end) +
        " of the data, but only " + std::to_string(data_bytes) + " bytes are there; is the download complete?");
  }
  std::size_t position = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin < position) {
      bad(where + ": tensor " + quote(entry.name) + " begins at offset " + std::to_string(entry.begin) +
          " and overlaps the one before it, which ends at " + std::to_string(position));
    }
    if (entry.begin > position) {
      bad(where + ": tensor " + quote(entry.name) + " begins at offset " + std::to_string(entry.begin) +
          " and leaves a hole after the one before it, which ends at " + std::to_string(position));
    }
    position = entry.end;
  }
  if (position != data_bytes) {
    bad(where + " has " + std::to_string(data_bytes) + " bytes of data, but its tensors end at " +
        std::to_string(position) + "; " + std::to_string(data_bytes - position) +
        " bytes at the end belong to no tensor");
  }
}

}  // namespace

std::vector<SafetensorsEntry> parse_safetensors(std::span<const std::byte> bytes, const std::string& where) {
  if (bytes.empty()) bad(where + " is empty (0 bytes); download it again");
  refuse_lfs_pointer({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, where);
  if (bytes.size() < kLengthBytes) {
    bad(where + " is truncated: it has " + std::to_string(bytes.size()) +
        " bytes, fewer than the 8 of a header length");
  }
  uint64_t header_bytes = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) header_bytes |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  const auto after_length = bytes.subspan(kLengthBytes);
  if (header_bytes > kMaxHeaderBytes) {
    bad(where + " declares a header of " + std::to_string(header_bytes) + " bytes, the limit is " +
        std::to_string(kMaxHeaderBytes) + "; this is not a safetensors file of a Qwen3 model");
  }
  if (header_bytes > after_length.size()) {
    bad(where + " is truncated: it declares a header of " + std::to_string(header_bytes) + " bytes, but only " +
        std::to_string(after_length.size()) + " follow; is the download complete?");
  }
  const std::string text = text_of(after_length.first(header_bytes));
  if (text.empty() || text.front() != '{')
    bad(where + ": the header is not a JSON object; this is not a safetensors file");
  const Json header = parse_json_object(text, where + ": the header");

  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      check_metadata(value, where);
    } else {
      entries.push_back(parse_entry(name, value, where));
    }
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);  // an empty tensor stands before its neighbour
  });
  check_tiling(entries, after_length.size() - header_bytes, where);
  for (SafetensorsEntry& entry : entries) {
    entry.begin += kLengthBytes + header_bytes;
    entry.end += kLengthBytes + header_bytes;
  }
  return entries;
}

SafetensorsFile open_safetensors(const std::string& path) {
  auto file = std::make_shared<const MappedFile>(MappedFile::open(path));
  auto entries = parse_safetensors(file->bytes(), path);
  return {std::move(file), std::move(entries)};
}

}  // namespace qwen3

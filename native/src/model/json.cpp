#include "model/json.h"

#include <algorithm>
#include <cstddef>
#include <unordered_set>
#include <utility>

#include "base/error.h"

namespace qwen3 {
namespace {

constexpr int kMaxDepth = 32;  // the deepest file of a model directory (config.json) nests 3 deep

}  // namespace

std::string quote(std::string_view text) {
  constexpr std::size_t kLimit = 96;
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text.substr(0, kLimit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f && c != '"' && c != '\\') {
      out += c;
    } else {
      out += "\\x";
      out += kHex[byte / 16];
      out += kHex[byte % 16];
    }
  }
  return out + (text.size() > kLimit ? "...\"" : "\"");
}

std::string describe(const Json& value) {
  if (value.is_string()) return quote(value.get_ref<const std::string&>());
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list of " + std::to_string(value.size());
  return value.dump();  // null, true, a number
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i == 8) return out + ", ...]";
    out += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return out + "]";
}

void refuse_lfs_pointer(std::string_view text, const std::string& where) {
  if (text.starts_with("version https://git-lfs")) {
    throw Error(Status::kBadModel,
                where + " is a git-lfs pointer (" + std::to_string(text.size()) +
                    " bytes of text), not the file itself; run `git lfs pull` in the model directory");
  }
}

Json parse_json(std::string_view text, const std::string& where) {
  refuse_lfs_pointer(text, where);
  // keys[d]: the keys seen so far in the object that is open at depth d.
  std::vector<std::unordered_set<std::string>> keys;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start) {
      if (depth >= kMaxDepth) {
        throw Error(Status::kBadModel, where + " nests deeper than " + std::to_string(kMaxDepth) + " levels");
      }
      if (event == Json::parse_event_t::object_start) {
        keys.resize(static_cast<std::size_t>(depth) + 1);
        keys.back().clear();
      }
    } else if (event == Json::parse_event_t::key) {
      // A key's depth is one more than its object's.
      const auto object = static_cast<std::size_t>(depth) - 1;
      keys.resize(object + 1);
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) {
        throw Error(Status::kBadModel, where + " has the key " + quote(key) + " twice");
      }
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::parse_error& error) {
    throw Error(Status::kBadModel, where + " is not valid JSON (at byte " +
                                       std::to_string(std::min(error.byte, text.size())) + " of " +
                                       std::to_string(text.size()) + "); is the download complete?");
  } catch (const nlohmann::json::exception&) {
    throw Error(Status::kBadModel, where + " is not valid JSON: it has a number out of range");
  }
}

Json parse_json_object(std::string_view text, const std::string& where) {
  Json value = parse_json(text, where);
  if (!value.is_object()) throw Error(Status::kBadModel, where + " is " + describe(value) + ", expected an object");
  return value;
}

}  // namespace qwen3

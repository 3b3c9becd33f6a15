// Reading JSON that was written by others: strict, bounded, with one sentence for each fault.
//
// Owns the parser's settings (no duplicate keys, limited depth) and how foreign text is quoted in messages. Knows no
// model. Pure functions: any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace qwen3 {

using Json = nlohmann::json;

// Throws kBadModel if the file `where` with this text is a git-lfs pointer: a clone without git-lfs has these in the
// places of its large files, and some hubs keep every file there.
void refuse_lfs_pointer(std::string_view text, const std::string& where);

// Parses text as one JSON value. `where` names the source in errors (kBadModel): a git-lfs pointer, broken syntax, a
// key that appears twice in one object, nesting deeper than 32. Memory is at most a fixed multiple of the text (about
// 40 times).
Json parse_json(std::string_view text, const std::string& where);

// As parse_json, and the value must be an object.
Json parse_json_object(std::string_view text, const std::string& where);

// Foreign text made fit for a message: in double quotes, at most 96 bytes, everything unprintable escaped.
std::string quote(std::string_view text);

// A short description of a JSON value for messages: its text when short, else its type.
std::string describe(const Json& value);

// "[4096, 1024]"; a rank above 8 is cut with "...".
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace qwen3

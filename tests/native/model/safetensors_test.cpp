// The container format: a file of the reference library reads as it should, and every kind of damage has its sentence.
#include "model/safetensors.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "model/model_dir.h"

using model_dir::container;
using model_dir::length_prefix;
using model_dir::replace;
using model_dir::TempDir;
using qwen3::Error;
using qwen3::SafetensorsEntry;

namespace {

std::vector<SafetensorsEntry> parse(const std::string& bytes) {
  return qwen3::parse_safetensors(std::as_bytes(std::span(bytes)), "f.safetensors");
}

// Two tensors, "a" of 8 bytes and "b" of 6.
const std::string kHeader = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                            R"("b":{"dtype":"BF16","shape":[3,1],"data_offsets":[8,14]}})";

std::vector<SafetensorsEntry> parse_with(const std::string& from, const std::string& to, std::size_t data_bytes = 14) {
  return parse(container(replace(kHeader, from, to), std::string(data_bytes, 'd')));
}

}  // namespace

TEST("safetensors: reads a file of the reference library") {
  // safetensors 0.8.0: save({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([1.5, -2], np.float16)},
  //                         metadata={"k": "v"})
  const std::string file =
      length_prefix(0x90) +
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"F16","shape":[2],"data_offsets":[24,28]}}       )" +
      std::string("\x00\x00\x00\x00\x00\x00\x80?\x00\x00\x00@\x00\x00@@\x00\x00\x80@\x00\x00\xa0@\x00>\x00\xc0", 28);
  const TempDir dir;
  dir.write("f.safetensors", file);
  const qwen3::SafetensorsFile opened = qwen3::open_safetensors(dir / "f.safetensors");
  REQUIRE(opened.entries.size() == 2);
  const SafetensorsEntry& a = opened.entries[0];
  CHECK_EQ(a.name, "a");
  CHECK_EQ(a.dtype, "F32");
  CHECK(a.shape == std::vector<int64_t>({2, 3}));
  REQUIRE(a.end - a.begin == 24);
  for (int i = 0; i < 6; ++i) {
    float value = 0;
    std::memcpy(&value, opened.file->data() + a.begin + 4 * i, 4);
    CHECK_EQ(value, static_cast<float>(i));
  }
  const SafetensorsEntry& b = opened.entries[1];
  CHECK_EQ(b.end, opened.file->size());
  uint16_t half = 0;
  std::memcpy(&half, opened.file->data() + b.begin + 2, 2);
  CHECK_EQ(half, uint16_t{0xc000});  // -2
}

TEST("safetensors: entries come in file order and may be empty or scalar") {
  const auto entries = parse(container(R"({"z":{"dtype":"U8","shape":[],"data_offsets":[0,1]},)"
                                       R"("b":{"dtype":"F32","shape":[0,5],"data_offsets":[1,1]},)"
                                       R"("a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                                       "xyz"));
  REQUIRE(entries.size() == 3);
  CHECK_EQ(entries[0].name, "z");
  CHECK_EQ(entries[1].name, "b");
  CHECK_EQ(entries[2].name, "a");
  CHECK_EQ(parse(container("{}", "")).size(), std::size_t{0});
}

TEST("safetensors: broken downloads") {
  CHECK_THROWS_WITH(parse(""), Error, "f.safetensors is empty (0 bytes)");
  CHECK_THROWS_WITH(parse("abcd"), Error, "is truncated: it has 4 bytes, fewer than the 8 of a header length");
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1192135096\n";
  CHECK_THROWS_WITH(parse(pointer), Error,
                    "f.safetensors is a git-lfs pointer (73 bytes of text), not the file itself; run `git lfs pull`");
  const std::string whole = container(kHeader, std::string(14, 'd'));
  CHECK_EQ(parse(whole).size(), std::size_t{2});
  CHECK_THROWS_WITH(parse(whole.substr(0, whole.size() - 1)), Error,
                    R"(is truncated: tensor "b" ends at byte 14 of the data, but only 13 bytes are there)");
  CHECK_THROWS_WITH(parse(whole.substr(0, 8 + kHeader.size())), Error, "only 0 bytes are there");
  CHECK_THROWS_WITH(parse(whole.substr(0, 50)), Error, "but only 42 follow");
  CHECK_THROWS_WITH(parse(whole + "x"), Error, "1 bytes at the end belong to no tensor");
  CHECK_THROWS_WITH(parse("<!DOCTYPE html><html>"), Error, "the limit is 8388608; this is not a safetensors file");
}

TEST("safetensors: broken headers") {
  CHECK_THROWS_WITH(parse(container("", "")), Error, "the header is not a JSON object");
  CHECK_THROWS_WITH(parse(container(" {}", "")), Error, "the header is not a JSON object");
  CHECK_THROWS_WITH(parse(container("{\"a\":", "")), Error, "the header is not valid JSON");
  CHECK_THROWS_WITH(parse(container("{}x", "")), Error, "the header is not valid JSON");
  CHECK_THROWS_WITH(parse(length_prefix(UINT64_MAX) + "{}"), Error, "declares a header of 18446744073709551615 bytes");
  CHECK_THROWS_WITH(parse(length_prefix(9'000'000) + "{}"), Error, "declares a header of 9000000 bytes, the limit is");
  CHECK_THROWS_WITH(parse(container(R"({"__metadata__":[]})", "")), Error, "__metadata__ is a list of 0");
  CHECK_THROWS_WITH(parse(container(R"({"__metadata__":{"k":1}})", "")), Error, "__metadata__ has 1 at \"k\"");
  CHECK_THROWS_WITH(parse_with("\"b\"", "\"a\""), Error, R"(the header has the key "a" twice)");
  CHECK_THROWS_WITH(parse(container(R"({"a":3})", "")), Error, R"(tensor "a" is described by 3, expected an object)");
}

TEST("safetensors: broken entries") {
  CHECK_THROWS_WITH(parse_with(R"("dtype":"F32")", R"("dtype":"Q4")"), Error,
                    R"(tensor "a" has the unknown dtype "Q4")");
  CHECK_THROWS_WITH(parse_with(R"("dtype":"F32",)", ""), Error, "has no dtype");
  CHECK_THROWS_WITH(parse_with(R"("dtype":"F32")", R"("dtype":32)"), Error, "has no dtype");
  CHECK_THROWS_WITH(parse_with(R"("shape":[2],)", ""), Error, "has no shape");
  CHECK_THROWS_WITH(parse_with("[2]", "[-2]"), Error, "has -2 in its shape, expected a whole number");
  CHECK_THROWS_WITH(parse_with("[2]", "[2.0]"), Error, "in its shape, expected a whole number");
  CHECK_THROWS_WITH(parse_with("[2]", "[18446744073709551615]"), Error, "in its shape, expected a whole number");
  CHECK_THROWS_WITH(parse_with("[2]", "[4294967296,4294967296,16]"), Error, "more bytes than any file holds");
  CHECK_THROWS_WITH(parse_with("[2]", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2]"), Error, "has 17 numbers in its shape");
  CHECK_THROWS_WITH(parse_with("[2]", "[1,1,1,1,1,1,1,1,1,5]"), Error, "[1, 1, 1, 1, 1, 1, 1, 1, ...]");
  CHECK_THROWS_WITH(parse_with("[2]", "[3]"), Error,
                    R"(tensor "a" has 8 bytes of data, expected 12 for its shape [3] and dtype F32)");
  CHECK_THROWS_WITH(parse_with("F32", "F4"), Error, "expected 1 for its shape [2] and dtype F4");
  CHECK_THROWS_WITH(parse_with(R"("F32","shape":[2],"data_offsets":[0,8])", R"("F4","shape":[3],"data_offsets":[0,1])"),
                    Error, "has 1 bytes of data");
  CHECK_THROWS_WITH(parse_with(R"(,"data_offsets":[0,8])", ""), Error, "has no data_offsets");
  CHECK_THROWS_WITH(parse_with("[0,8]", "[0]"), Error, "has no data_offsets of two whole numbers");
  CHECK_THROWS_WITH(parse_with("[0,8]", "[0,-8]"), Error, "has no data_offsets of two whole numbers");
  CHECK_THROWS_WITH(parse_with("[0,8]", "[8,0]"), Error, "ends at offset 0, before it begins at 8");
  CHECK_THROWS_WITH(parse_with("[0,8]", "[0,8],\"x\":1"), Error, R"(has the unknown field "x")");
}

TEST("safetensors: offsets tile the data") {
  CHECK_THROWS_WITH(parse_with("[8,14]", "[7,13]"), Error,
                    R"(tensor "b" begins at offset 7 and overlaps the one before it, which ends at 8)");
  CHECK_THROWS_WITH(parse_with("[8,14]", "[10,16]", 16), Error,
                    R"(tensor "b" begins at offset 10 and leaves a hole after the one before it, which ends at 8)");
  CHECK_THROWS_WITH(parse_with("[0,8]", "[1,9]"), Error, R"(tensor "a" begins at offset 1 and leaves a hole)");
  CHECK_THROWS_WITH(parse_with("[8,14]", "[18446744073709551609,18446744073709551615]"), Error,
                    "ends at byte 18446744073709551615 of the data, but only 14 bytes are there");
}

TEST("safetensors: what is not a file") {
  const TempDir dir;
  CHECK_THROWS_WITH(qwen3::open_safetensors(dir / "none"), Error, "none does not exist");
  CHECK_THROWS_WITH(qwen3::open_safetensors(dir.path()), Error, "is a directory, expected a file");
  CHECK_THROWS_WITH(qwen3::open_safetensors("/dev/null"), Error, "is not a regular file");
  CHECK_THROWS_WITH(qwen3::open_safetensors(std::string("a\0b", 3)), Error, "contains a zero byte");
  dir.write("empty", "");
  CHECK_THROWS_WITH(qwen3::open_safetensors(dir / "empty"), Error, "empty is empty (0 bytes)");
}

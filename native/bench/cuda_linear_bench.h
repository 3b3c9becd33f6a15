// What the benches of matrix products share: shapes, calls, the kernels and their variants, and which of these the
// command line wants. Header only.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "backend/cuda/kernels.h"
#include "backend/cuda/linear_kernels.h"
#include "cuda_bench.h"

namespace bench {

using namespace qwen3;
using namespace qwen3::cuda;

inline std::string only;            // variants whose name starts so; empty: all
inline std::string only_shape;      // the shape of this name; empty: all
inline std::vector<int> only_rows;  // row counts; empty: all
inline int repeats = 1;             // of each checked case, where "repeat=N" is known

inline bool wants_rows(int rows) {
  return only_rows.empty() || std::find(only_rows.begin(), only_rows.end(), rows) != only_rows.end();
}

// The row counts that rows= gives, of those within the borders; without it the usual ones.
inline std::vector<int> chosen_rows(const std::vector<int>& usual, int least, int most) {
  if (only_rows.empty()) return usual;
  std::vector<int> rows;
  for (const int each : only_rows)
    if (each >= least && each <= most) rows.push_back(each);
  return rows;
}

struct Shape {
  const char* name;
  int n_out, n_in;
  bool gate_up;
  int most_rows;

  LinearLayout layout() const { return gate_up ? LinearLayout::kGateUp : LinearLayout::kConcat; }
  int weight_rows() const { return gate_up ? 2 * n_out : n_out; }
  size_t weight_bytes() const { return packed_bytes(weight_rows(), n_in, layout()); }
};

inline Context linear_context(bool hopper, bool pdl = true) {
  Context ctx = context(hopper, pdl);
  const size_t bytes = sums_bytes(sm_count);
  ctx.sums = reinterpret_cast<float*>(allocate<uint8_t>(bytes));
  ok(cudaMemsetAsync(ctx.sums, 0xff, bytes, stream));
  return ctx;
}

struct Variant {
  std::string name;
  int most_rows;
  std::function<void(const LinearCall&, const Context&)> run;
  bool coded = false;  // of calls with coded weights
};

inline std::vector<Variant> all_variants(bool hopper) {
  std::vector<Variant> v;
  for (const int ring : {4, 6, 8}) {
    v.push_back({"coded decode " + std::to_string(ring), kMaxDecodeRows,
                 [=](const LinearCall& c, const Context& x) { linear_decode(c, x, ring); }, true});
  }
  v.push_back({"coded any", 1 << 30, [](const LinearCall& c, const Context& x) { linear_any(c, x); }, true});
  if (hopper) {
    v.push_back({"coded or any", 1 << 30,
                 [](const LinearCall& c, const Context& x) {
                   linear_coded_serves(c, x) ? linear_coded(c, x) : linear_any(c, x);
                 },
                 true});
    v.push_back({"coded sums or any", kMaxSumsRows,
                 [](const LinearCall& c, const Context& x) {
                   if (!linear_sums_serves(c, x)) return linear_any(c, x);
                   linear_sums(c, x);
                   add_sums(c, x);
                 },
                 true});
    v.push_back({"coded wide or any", kMaxCodedWideRows,
                 [](const LinearCall& c, const Context& x) {
                   if (linear_coded_wide_serves(c, x)) return linear_coded_wide(c, x);
                   linear_any(c, x);
                 },
                 true});
  }
  v.push_back({"generic", 1 << 30, [](const LinearCall& c, const Context& x) { linear_generic(c, x); }});
  for (const int ring : {0, 4, 6, 8}) {
    v.push_back({ring == 0 ? "decode" : "decode " + std::to_string(ring), kMaxDecodeRows,
                 [=](const LinearCall& c, const Context& x) { linear_decode(c, x, ring); }});
  }
  v.push_back({"any", 1 << 30, [](const LinearCall& c, const Context& x) { linear_any(c, x); }});
  if (hopper) {
    for (const int tile : {32, 48, 64}) {
      v.push_back({"batch " + std::to_string(tile), kMaxBatchRows,
                   [=](const LinearCall& c, const Context& x) { linear_batch(c, x, tile); }});
    }
    v.push_back({"split or any", kMaxSplitRows, [](const LinearCall& c, const Context& x) {
                   if (linear_split_serves(c, x)) return linear_split(c, x);
                   linear_any(c, x);
                 }});
    v.push_back({"slabs or any", kMaxSlabRows, [](const LinearCall& c, const Context& x) {
                   if (linear_slabs_serves(c, x)) return linear_slabs(c, x);
                   linear_any(c, x);
                 }});
    v.push_back({"cluster", kMaxClusterRows, [](const LinearCall& c, const Context& x) { linear_cluster(c, x); }});
    for (const int tile : {128, 192, 256}) {
      v.push_back({"hopper " + std::to_string(tile), 1 << 30,
                   [=](const LinearCall& c, const Context& x) { linear_hopper(c, x, tile); }});
    }
  }
  if (!only.empty()) std::erase_if(v, [](const Variant& each) { return !each.name.starts_with(only); });
  if (v.empty()) {
    std::printf("only=%s: no variant's name starts so\n", only.c_str());
    std::exit(2);
  }
  return v;
}

inline LinearCall make_call(const Shape& s, LinearMode mode, const bf16* x, int rows, const bf16* packed, float* out,
                            bf16* gated) {
  LinearCall c = {};
  c.mode = mode;
  c.x = x;
  c.n_rows = rows;
  c.n_in = s.n_in;
  c.weight = packed;
  c.coded = nullptr;
  c.row_tiles = pack_row_tiles(s.weight_rows(), s.layout());
  c.col_blocks = pack_col_blocks(s.n_in);
  c.n_out = s.n_out;
  c.out = out;
  c.gated = gated;
  return c;
}

// Room for coded weights, and what makes them of packed ones.
class Coded {
 public:
  Coded(const Shape& s, uint8_t* data)
      : row_tiles_(pack_row_tiles(s.weight_rows(), s.layout())),
        col_blocks_(pack_col_blocks(s.n_in)),
        n_in_(s.n_in),
        data_(data) {}
  size_t bytes() const { return coded_bytes(row_tiles_, col_blocks_); }
  void make(const bf16* packed, int32_t* overflows, const Context& ctx) const {
    code_weight({packed, row_tiles_, col_blocks_, n_in_, data_, bases(), overflows}, ctx);
  }
  LinearCall in(LinearCall call) const {
    call.coded = data_;
    call.coded_bases = bases();
    return call;
  }

 private:
  uint8_t* bases() const { return data_ + coded_blocks_bytes(row_tiles_, col_blocks_); }
  int row_tiles_, col_blocks_, n_in_;
  uint8_t* data_;
};

// The words of the command line but for `only`, `shape`, `rows` and `repeat`, which are kept here.
inline std::set<std::string> read_words(int argc, char** argv, std::vector<std::string> known) {
  std::set<std::string> words;
  for (int i = 1; i < argc; i++) {
    const std::string word = argv[i];
    if (word.starts_with("only=")) {
      only = word.substr(5);
    } else if (word.starts_with("shape=")) {
      only_shape = word.substr(6);
    } else if (word.starts_with("repeat=") && std::find(known.begin(), known.end(), "repeat=N") != known.end()) {
      repeats = std::atoi(word.c_str() + 7);
      if (repeats <= 0) {
        std::printf("%s: expected a number from 1 on, for instance repeat=200\n", word.c_str());
        std::exit(2);
      }
    } else if (word.starts_with("rows=")) {
      for (size_t at = 4; at != std::string::npos; at = word.find(',', at + 1)) {
        only_rows.push_back(std::atoi(word.c_str() + at + 1));
      }
      if (*std::min_element(only_rows.begin(), only_rows.end()) <= 0) {
        std::printf("%s: expected row counts with commas between them, for instance rows=512,1024\n", word.c_str());
        std::exit(2);
      }
    } else {
      words.insert(word);
    }
  }
  known.insert(known.end(), {"rows=N,...", "only=NAME", "shape=NAME"});
  expect_words(words, known);
  return words;
}

}  // namespace bench

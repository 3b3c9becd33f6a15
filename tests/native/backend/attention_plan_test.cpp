// The plan of a decode step's attention on a GPU: every split is dealt out once, what a piece says of itself is true,
// and no CTA has much more than its share.
#include "backend/cuda/attention_plan.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "check.h"

using namespace qwen3::cuda;
using qwen3::kBlockSize;

namespace {

struct Batch {
  std::vector<int32_t> positions;
  std::vector<int32_t> block_tables;
  int max_blocks = 1;

  explicit Batch(std::vector<int32_t> last) : positions(std::move(last)) {
    for (const int32_t p : positions) max_blocks = std::max(max_blocks, p / kBlockSize + 1);
    for (size_t s = 0; s < positions.size(); s++)
      for (int b = 0; b < max_blocks; b++) block_tables.push_back(static_cast<int32_t>(s) * 10000 + b);
  }
  std::vector<StepPiece> plan(int n_kv_heads, int sm_count, int64_t max_states, int n_ctas) const {
    std::vector<StepPiece> pieces(static_cast<size_t>(n_ctas));
    plan_attention_step({positions, block_tables, max_blocks, n_kv_heads, sm_count, max_states}, pieces);
    return pieces;
  }
};

// A split on its CTA's way along the line: what the kernel makes of a piece, written down anew.
struct Split {
  int seq, head, split;
  auto operator<=>(const Split&) const = default;
};
std::vector<Split> walk(const StepPiece& piece, const Batch& batch, int n_kv_heads) {
  std::vector<Split> way;
  int place = piece.pair_place;
  Split at{piece.seq, piece.head, piece.split};
  while (at.seq < static_cast<int>(batch.positions.size())) {
    const int last = batch.positions[static_cast<size_t>(at.seq)];
    if ((piece.pairs != 0 ? place : place + at.split * kSplitSteps) >= piece.end) break;
    way.push_back(at);
    if (++at.split <= last / kSplit) continue;
    at.split = 0;
    place += last / kStep + 1;
    if (++at.head < n_kv_heads) continue;
    at.head = 0;
    at.seq++;
  }
  return way;
}

int steps_of(const Split& s, const Batch& batch) {
  return std::min(batch.positions[static_cast<size_t>(s.seq)] / kStep + 1 - s.split * kSplitSteps, kSplitSteps);
}

// Steps of the busiest CTA.
int check_plan(const Batch& batch, int n_kv_heads, int sm_count, int64_t max_states, int n_ctas) {
  const std::vector<StepPiece> pieces = batch.plan(n_kv_heads, sm_count, max_states, n_ctas);
  std::map<Split, int> number;  // in the order of the line
  std::map<Split, int> place;
  int n_steps = 0;
  for (int s = 0; s < static_cast<int>(batch.positions.size()); s++) {
    for (int h = 0; h < n_kv_heads; h++) {
      for (int i = 0; i <= batch.positions[static_cast<size_t>(s)] / kSplit; i++) {
        number.emplace(Split{s, h, i}, static_cast<int>(number.size()));
        place[{s, h, i}] = n_steps;
        n_steps += steps_of({s, h, i}, batch);
      }
    }
  }
  std::map<Split, int> dealt;
  int most = 0;
  for (size_t cta = 0; cta < pieces.size(); cta++) {
    const StepPiece& piece = pieces[cta];
    int steps = 0;
    for (const Split& split : walk(piece, batch, n_kv_heads)) {
      CHECK_EQ(dealt.count(split), size_t{0});
      dealt[split] = static_cast<int>(cta);
      steps += steps_of(split, batch);
    }
    most = std::max(most, steps);
    if (steps == 0) continue;
    const int last = batch.positions[static_cast<size_t>(piece.seq)];
    CHECK_EQ(piece.last, last);
    CHECK_EQ(piece.first_state, number[Split({piece.seq, piece.head, 0})]);
    CHECK_EQ(piece.pair_place, place[Split({piece.seq, piece.head, 0})]);
    for (int i = 0; i < kSplitBlocks; i++)
      CHECK_EQ(piece.blocks[i], piece.seq * 10000 + std::min(piece.split * kSplitBlocks + i, last / kBlockSize));
    if (piece.pairs != 0) CHECK_EQ(piece.split, 0);
    CHECK(piece.pairs != 0 || static_cast<int64_t>(number.size()) <= max_states);
    CHECK_EQ(piece.pairs, pieces[0].pairs);
  }
  CHECK_EQ(dealt.size(), number.size());
  return most;
}

}  // namespace

TEST("attention plan: random batches are dealt out once and whole") {
  std::mt19937 random(1);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 300; round++) {
    const int n_seqs = round % 50 == 0 ? kMaxStepSeqs : 1 + below(round % 3 == 0 ? 8 : 120);
    const int n_kv_heads = std::vector<int>{1, 2, 3, 8}[static_cast<size_t>(below(4))];
    const int longest = std::vector<int>{1, 64, 300, 3000, 9000}[static_cast<size_t>(below(5))];
    std::vector<int32_t> positions;
    for (int s = 0; s < n_seqs; s++) positions.push_back(below(below(4) == 0 ? longest : longest / 8 + 1));
    const int sm_count = std::vector<int>{1, 2, 16, 132}[static_cast<size_t>(below(4))];
    const int64_t max_states = below(3) == 0 ? below(200) : 1000000;
    const Batch batch(positions);
    const int padded = n_seqs + below(3) * 16;
    const int n_ctas = planned_ctas(padded, n_kv_heads, batch.max_blocks * kBlockSize * (1 + below(4)), sm_count);
    if (n_ctas == 0) continue;
    const int most = check_plan(batch, n_kv_heads, sm_count, max_states, n_ctas);
    // Whole pairs where there is no room for states; else the share of a CTA (or of an SM, where CTAs are few), what
    // costs as much as states that travel, and what begins in a piece and ends behind it.
    int64_t n_steps = 0, n_splits = 0;
    for (const int32_t last : positions) {
      n_steps += (last / kStep + 1) * n_kv_heads;
      n_splits += (last / kSplit + 1) * n_kv_heads;
    }
    if (n_splits > max_states) continue;
    CHECK(most <= 2 * (n_steps / std::min(n_ctas, sm_count) + 1) + 5 + 2 * kSplitSteps + longest / kStep);
  }
}

TEST("attention plan: no CTA has more than a split beyond its share, or pairs divide as evenly") {
  // 132 SMs, 8 KV heads.
  CHECK_EQ(check_plan(Batch({8191}), 8, 132, 1000000, 264), 4);                           // 256 splits
  CHECK_EQ(check_plan(Batch(std::vector<int32_t>(33, 1023)), 8, 132, 1000000, 264), 16);  // a pair each
  CHECK_EQ(check_plan(Batch(std::vector<int32_t>(64, 511)), 8, 132, 1000000, 264), 16);   // 512 pairs: two each
  // 8 x (32,000 + 20 x 64 ..) / 264 steps are 16; whole pairs would be 500.
  std::vector<int32_t> mixed(20, 63);
  mixed.insert(mixed.begin() + 7, 31999);
  CHECK(check_plan(Batch(mixed), 8, 132, 1000000, 264) <= 16 + 2 * kSplitSteps);
  CHECK(check_plan(Batch(mixed), 8, 132, 1000, 264) <= 500 + 16);  // no room for states: whole pairs
}

TEST("attention plan: as many CTAs as there is work for, none where a cluster serves") {
  CHECK_EQ(planned_ctas(1, 8, 512, 132), 0);
  CHECK_EQ(planned_ctas(8, 8, 512, 132), 0);    // 128 splits
  CHECK_EQ(planned_ctas(9, 8, 512, 132), 264);  // 144
  CHECK_EQ(planned_ctas(33, 4, 256, 132), 0);   // one per SM
  CHECK_EQ(planned_ctas(33, 4, 257, 132), 264);
  CHECK_EQ(planned_ctas(1, 8, 2048, 132), 0);
  CHECK_EQ(planned_ctas(1, 8, 4096, 132), 128);  // 16 splits are more than a cluster's
  CHECK_EQ(planned_ctas(1, 8, 8192, 132), 264);
  CHECK_EQ(planned_ctas(512, 8, 262144, 132), 264);
}

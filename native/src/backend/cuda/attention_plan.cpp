#include "backend/cuda/attention_plan.h"

#include <algorithm>

namespace qwen3::cuda {
namespace {

// Steps of reading that cost about as much time as states that travel.
constexpr double kTravel = 5.0;

int steps_of(int last) {
  return last / kStep + 1;
}
int splits_of(int last) {
  return last / kSplit + 1;
}
int ceil_div(int64_t a, int64_t b) {
  return static_cast<int>((a + b - 1) / b);
}

// A sequence of the batch.
struct Sequence {
  const StepPlanArgs& args;
  int number;
  int place, state;  // steps and splits of those before it

  bool exists() const { return number < static_cast<int>(args.positions.size()); }
  int last() const { return args.positions[static_cast<size_t>(number)]; }
  int steps() const { return steps_of(last()); }
  int splits() const { return splits_of(last()); }
  int end() const { return place + steps() * args.n_kv_heads; }
  void next() {
    place = end();
    state += splits() * args.n_kv_heads;
    number++;
  }
  StepPiece piece(int head, int split, int piece_end, bool pairs) const {
    StepPiece piece{.seq = number,
                    .head = head,
                    .split = split,
                    .last = last(),
                    .pair_place = place + head * steps(),
                    .first_state = state + head * splits(),
                    .end = piece_end,
                    .pairs = pairs ? 1 : 0};
    const auto table = args.block_tables.subspan(static_cast<size_t>(number) * static_cast<size_t>(args.max_blocks));
    for (int i = 0; i < kSplitBlocks; i++) {
      piece.blocks[i] = table[static_cast<size_t>(std::min(split * kSplitBlocks + i, last() / kBlockSize))];
    }
    return piece;
  }
};

}  // namespace

// With at most one CTA per SM latency counts, beyond that bandwidth.
int planned_ctas(int n_seqs, int n_kv_heads, int max_context, int sm_count) {
  const int max_splits = ceil_div(max_context, kSplit);
  const int64_t n_splits = static_cast<int64_t>(n_seqs) * n_kv_heads * max_splits;
  if (n_splits > sm_count) return kStepCtasPerSm * sm_count;
  return max_splits <= kMaxCluster ? 0 : static_cast<int>(n_splits);
}

void plan_attention_step(const StepPlanArgs& args, std::span<StepPiece> pieces) {
  const int n_ctas = static_cast<int>(pieces.size());
  int n_steps = 0, n_splits = 0;
  for (const int32_t last : args.positions) {
    n_steps += steps_of(last) * args.n_kv_heads;
    n_splits += splits_of(last) * args.n_kv_heads;
  }
  const int n_pairs = static_cast<int>(args.positions.size()) * args.n_kv_heads;
  // Few items get an SM each.
  const auto parts = [&](int items) { return items <= args.sm_count ? std::min(args.sm_count, n_ctas) : n_ctas; };
  // Steps that the busiest CTA has more than the average.
  const auto excess = [&](int items) {
    const int n = parts(items);
    return static_cast<double>(ceil_div(items, n)) * n_steps / std::max(items, 1) - static_cast<double>(n_steps) / n;
  };
  const bool pairs = excess(n_pairs) <= excess(n_splits) + kTravel || n_splits > args.max_states;
  const int n_parts = parts(pairs ? n_pairs : n_splits);
  const auto border = [&](int cta) {
    return cta >= n_parts ? n_steps : ceil_div(static_cast<int64_t>(cta) * n_steps, n_parts);
  };

  Sequence at{args, 0, 0, 0};  // that the piece begins in
  for (int cta = 0; cta < n_ctas; cta++) {
    const int begin = border(cta), end = border(cta + 1);
    StepPiece piece;
    if (begin < end) {
      while (begin >= at.end()) at.next();
      Sequence seq = at;
      const int inside = begin - seq.place;
      int head = inside / seq.steps();
      const int rest = inside % seq.steps();  // what begins before the piece belongs to the CTA before
      int split = pairs ? (rest > 0 ? seq.splits() : 0) : ceil_div(rest, kSplitSteps);
      if (split == seq.splits()) {
        split = 0;
        if (++head == args.n_kv_heads) {
          head = 0;
          seq.next();
        }
      }
      if (seq.exists()) piece = seq.piece(head, split, end, pairs);
    }
    pieces[static_cast<size_t>(cta)] = piece;
  }
}

}  // namespace qwen3::cuda

// Time of sampling one row of a full vocabulary, per kind of request and kernel set: sample_bench [kernels].
//
// Two rows: "flat" has normal logits of deviation 1 (hardly any id can be ruled out), "peaked" a few likely ids as a
// trained model has. Best of 5 rounds.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "base/random.h"

namespace {

using namespace qwen3;

constexpr int kVocab = 151936, kIds = 151669;

std::vector<float> make_logits(bool peaked) {
  std::vector<float> logits(kVocab);
  const uint64_t key = noise_key(1, 1);
  for (int i = 0; i < kVocab; i++) {
    const double a = noise_uniform(noise_bits(key, static_cast<uint32_t>(2 * i)));
    const double b = noise_uniform(noise_bits(key, static_cast<uint32_t>(2 * i + 1)));
    logits[static_cast<size_t>(i)] = static_cast<float>(std::sqrt(-2 * std::log(a)) * std::cos(6.283185307 * b));
    if (peaked) logits[static_cast<size_t>(i)] *= 2.5f;
  }
  if (peaked) {
    for (int i = 0; i < 40; i++) logits[static_cast<size_t>(i * 3701)] = 22.0f - 0.3f * static_cast<float>(i);
  }
  return logits;
}

double now() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double microseconds(const cpu::KernelTable& kernels, cpu::ThreadPool& pool, const std::vector<float>& logits,
                    SampleRow row) {
  SampleResult result;
  double best = 1e30;
  for (int round = 0; round < 5; round++) {
    const double start = now();
    constexpr int kRepeats = 10;
    for (int i = 0; i < kRepeats; i++) {
      row.position = i;
      kernels.sample({logits.data(), kVocab, kIds, {&row, 1}, {&result, 1}}, pool);
    }
    best = std::min(best, (now() - start) * 1e6 / kRepeats);
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string wanted = argc > 1 ? argv[1] : "";
  cpu::ThreadPool pool(1);
  const std::vector<uint32_t> mask((kVocab + 31) / 32, 0x55ffff55u);
  std::vector<TokenCount> history;
  for (int i = 0; i < 2000; i++) history.push_back({i * 70, i % 3});
  std::printf("us per row of %d ids\n%-11s %-7s", kVocab, "kernels", "logits");
  for (const char* name :
       {"greedy", "+logprob", "+top20", "plain", "top_p.9", "k20,p.95", "k50000", "min_p", "penalty", "mask"}) {
    std::printf(" %9s", name);
  }
  std::printf("\n");
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    if (!wanted.empty() && wanted != kernels->name) continue;
    for (const bool peaked : {false, true}) {
      const std::vector<float> logits = make_logits(peaked);
      std::vector<SampleRow> rows(10);
      for (size_t i = 3; i < rows.size(); i++) rows[i].temperature = 1.0f;
      rows[1].logprob = rows[2].logprob = true;
      rows[2].n_top = 20;
      rows[4].top_p = 0.9f;
      rows[5].top_k = 20;
      rows[5].top_p = 0.95f;
      rows[6].top_k = 50000;
      rows[7].min_p = 0.05f;
      rows[8].history = history;
      rows[8].repetition_penalty = 1.1f;
      rows[9].mask = mask;
      std::printf("%-11s %-7s", kernels->name, peaked ? "peaked" : "flat");
      for (const SampleRow& row : rows) std::printf(" %9.1f", microseconds(*kernels, pool, logits, row));
      std::printf("\n");
    }
  }
  return 0;
}

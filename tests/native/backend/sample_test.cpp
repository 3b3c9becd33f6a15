// sample against a plain sorted float64 reference (sample_reference.h), its distribution, and everything that must not
// matter.
#include <algorithm>
#include <limits>

#include "base/random.h"
#include "op_test.h"
#include "sample_reference.h"

namespace qwen3 {
namespace {

using op_test::check_case;
using op_test::Random;
using sample_reference::agrees;
using sample_reference::kInf;
using sample_reference::survivors;

SampleResult sample_one(const cpu::KernelTable& kernels, const std::vector<float>& logits, int n_ids,
                        const SampleRow& row) {
  cpu::ThreadPool pool(1);
  SampleResult result;
  kernels.sample({logits.data(), static_cast<int>(logits.size()), n_ids, {&row, 1}, {&result, 1}}, pool);
  return result;
}

TEST("noise has pinned values, a flat distribution and no relation between neighbours") {
  CHECK_EQ(noise_key(0, 0), 0x48218226ff3cd4bfu);
  CHECK_EQ(noise_bits(noise_key(0, 0), 0), 0x568a9b0b1a2c05ecu);
  CHECK_EQ(noise_bits(noise_key(~uint64_t{0}, 1234567), 151668), 0x646f3c7ed0c6d254u);
  CHECK(noise_key(1, 0) != noise_key(0, 1));
  CHECK(noise_bits(noise_key(7, 3), 5) != noise_bits(noise_key(7, 4), 5));
  CHECK(noise_uniform(0) > 0.0 && noise_uniform(~uint64_t{0}) < 1.0);
  // Chi-square with 255 degrees of freedom: mean 255, deviation 22.6; 5 deviations are 368.
  for (int kind = 0; kind < 3; kind++) {
    std::vector<int> top(256), low(256), change(256);
    const int n = 1 << 16;
    uint64_t before = 0;
    for (int i = 0; i < n; i++) {
      const uint64_t bits = kind == 0   ? noise_bits(noise_key(1, 2), static_cast<uint32_t>(i))
                            : kind == 1 ? noise_bits(noise_key(1, i), 2)
                                        : noise_bits(noise_key(static_cast<uint64_t>(i), 1), 2);
      top[bits >> 56]++;
      low[(bits >> 12) & 255]++;
      change[(bits ^ before) >> 40 & 255]++;
      before = bits;
    }
    for (const std::vector<int>& counts : {top, low, change}) {
      double chi = 0.0;
      for (const int count : counts) chi += (count - n / 256.0) * (count - n / 256.0) / (n / 256.0);
      CHECK(chi < 368 && chi > 142);
    }
  }
}

TEST("greedy takes the highest logit and the lowest id among equals, whatever the other settings") {
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    Random random(10);
    for (const int vocab : {1, 2, 17, 255, 256, 257, 1000, 5000}) {
      for (int trial = 0; trial < 20; trial++) {
        std::vector<float> logits = random.normals(static_cast<size_t>(vocab), 3.0);
        const int n_ids = vocab - random.below(vocab);
        const float top = 20.0f;
        const int first = random.below(n_ids);
        logits[static_cast<size_t>(first)] = top;
        for (int i = 0; i < 3; i++) logits[static_cast<size_t>(first + random.below(n_ids - first))] = top;
        if (n_ids < vocab) logits[static_cast<size_t>(n_ids)] = 100.0f;  // ids without a token never win
        SampleRow row;
        row.temperature = trial % 2 == 0 ? 0.0f : -0.0f;
        row.top_k = random.below(5);
        row.top_p = static_cast<float>(random.uniform());
        row.min_p = static_cast<float>(random.uniform());
        row.seed = random.bits();
        const SampleResult result = sample_one(*kernels, logits, n_ids, row);
        check_case(result.token == first && result.finite, std::string(kernels->name) + ": greedy");
      }
    }
    std::vector<float> zeros = {-1.0f, -0.0f, 0.0f, -0.0f};
    check_case(sample_one(*kernels, zeros, 4, {}).token == 1, "-0 equals 0");
  }
}

TEST("every filter, alone and together, draws what a sorted float64 reference draws") {
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    Random random(11);
    for (int trial = 0; trial < 1500; trial++) {
      const int vocab = trial % 3 == 0 ? 1 + random.below(40) : 1 + random.below(3000);
      const int n_ids = vocab - random.below(std::min(vocab, 30));
      std::vector<float> logits = random.normals(static_cast<size_t>(vocab), std::exp(3 * random.uniform() - 1));
      if (trial % 4 == 0) {  // many ties
        for (float& x : logits) x = std::round(x);
      }
      SampleRow row;
      const double temperatures[] = {0.1, 0.6, 1.0, 1.0, 2.0, 100.0};
      row.temperature = static_cast<float>(temperatures[random.below(6)]);
      if (random.below(2) == 0) row.top_k = 1 + random.below(random.below(2) == 0 ? 10 : vocab);
      if (random.below(2) == 0) row.top_p = static_cast<float>(random.uniform());
      if (random.below(3) == 0) row.min_p = static_cast<float>(std::pow(random.uniform(), 3));
      row.position = random.below(100);
      for (int seed = 0; seed < 6; seed++) {
        row.seed = random.bits();
        const SampleResult result = sample_one(*kernels, logits, n_ids, row);
        check_case(
            result.finite && agrees(logits, n_ids, row, result.token),
            std::string(kernels->name) + ": trial " + std::to_string(trial) + " drew " + std::to_string(result.token));
      }
    }
  }
}

TEST("a full vocabulary draws what the reference draws: flat, peaked, tied and spread rows") {
  constexpr int kVocab = 151936, kIds = 151669;
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    Random random(12);
    for (int shape = 0; shape < 5; shape++) {
      std::vector<float> logits = random.normals(kVocab, shape == 0 ? 0.1 : 2.5);
      if (shape == 1) {
        for (int i = 0; i < 30; i++)
          logits[static_cast<size_t>(random.below(kIds))] = 12.0f + static_cast<float>(i) / 3;
      } else if (shape == 2) {
        std::fill(logits.begin(), logits.end(), 1.5f);
      } else if (shape == 3) {
        for (float& x : logits) x = std::round(x * 4) / 4;
      } else if (shape == 4) {
        logits[5] = -1e30f;
        logits[77] = 60.0f;
      }
      for (const auto& [top_k, top_p, min_p] :
           {std::tuple{0, 1.0f, 0.0f}, std::tuple{20, 0.95f, 0.0f}, std::tuple{0, 0.9f, 0.0f},
            std::tuple{0, 0.5f, 0.0f}, std::tuple{50000, 0.8f, 0.0f}, std::tuple{700, 1.0f, 0.0f},
            std::tuple{0, 1.0f, 0.05f}, std::tuple{151936, 0.999f, 0.0f}}) {
        SampleRow row;
        row.top_k = top_k;
        row.top_p = top_p;
        row.min_p = min_p;
        row.temperature = shape % 2 == 0 ? 1.0f : 0.6f;
        row.seed = random.bits();
        row.position = shape;
        const SampleResult result = sample_one(*kernels, logits, kIds, row);
        check_case(agrees(logits, kIds, row, result.token),
                   std::string(kernels->name) + ": shape " + std::to_string(shape) + " top_k " + std::to_string(top_k));
      }
    }
  }
}

TEST("among equal values the filters keep the lowest ids") {
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    const std::vector<float> logits(2000, 3.25f);
    for (const auto& [top_k, top_p, kept] :
         {std::tuple{5, 1.0f, 5}, std::tuple{1500, 1.0f, 1500}, std::tuple{0, 0.25f, 500}, std::tuple{100, 0.5f, 50},
          std::tuple{0, 0.0f, 1}, std::tuple{1, 1.0f, 1}}) {
      std::vector<int> seen(2000);
      int highest = -1;
      for (int seed = 0; seed < 400; seed++) {
        SampleRow row;
        row.temperature = 1.0f;
        row.top_k = top_k;
        row.top_p = top_p;
        row.seed = static_cast<uint64_t>(seed);
        highest = std::max(highest, sample_one(*kernels, logits, 2000, row).token);
      }
      // 400 draws of `kept` equal ids miss the upper 5% with probability 0.95^400 = 1e-9.
      check_case(highest < kept && highest >= kept * 95 / 100 - 1,
                 std::string(kernels->name) + ": top " + std::to_string(kept) + " gave " + std::to_string(highest));
    }
  }
}

TEST("draws follow the softmax of the survivors (chi-square)") {
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    Random random(13);
    const int vocab = 600;
    std::vector<float> logits = random.normals(vocab, 1.0);
    for (int i = 0; i < 12; i++) logits[static_cast<size_t>(i * 49)] = 5.0f + 0.4f * static_cast<float>(i % 5);
    const int n_draws = 20000;
    for (int kind = 0; kind < 4; kind++) {
      SampleRow row;
      row.temperature = kind == 1 ? 0.7f : kind == 3 ? 1.5f : 1.0f;
      if (kind == 1) row.top_k = 9;
      if (kind == 2) row.top_p = 0.8f;
      if (kind == 3) row.min_p = 0.2f;
      const std::vector<int32_t> ids = survivors(logits, row, row.top_p);
      double total = 0.0;
      for (const int32_t id : ids)
        total += std::exp(static_cast<double>(logits[static_cast<size_t>(id)]) / row.temperature);
      std::vector<SampleRow> rows(n_draws, row);
      std::vector<int> counts(vocab);
      cpu::ThreadPool pool(2);
      for (int i = 0; i < n_draws; i++) {  // half over seeds, half over positions
        rows[static_cast<size_t>(i)].seed = static_cast<uint64_t>(i % 2 == 0 ? i : 5);
        rows[static_cast<size_t>(i)].position = i % 2 == 0 ? 3 : i;
        SampleResult result;
        kernels->sample({logits.data(), vocab, vocab, {&rows[static_cast<size_t>(i)], 1}, {&result, 1}}, pool);
        counts[static_cast<size_t>(result.token)]++;
      }
      double chi = 0.0, rest_expected = 0.0, rest_count = n_draws;
      int freedom = -1;
      for (const int32_t id : ids) {
        const double expected =
            n_draws * std::exp(static_cast<double>(logits[static_cast<size_t>(id)]) / row.temperature) / total;
        if (expected < 10) {
          rest_expected += expected;
          continue;
        }
        const double difference = counts[static_cast<size_t>(id)] - expected;
        chi += difference * difference / expected;
        rest_count -= counts[static_cast<size_t>(id)];
        freedom++;
      }
      if (rest_expected > 5) {
        chi += (rest_count - rest_expected) * (rest_count - rest_expected) / rest_expected;
        freedom++;
      } else {
        check_case(rest_count <= rest_expected * 4 + 4, "draws outside the survivors");
      }
      // Mean `freedom`, deviation sqrt(2 freedom); the seeds are fixed, so this passes always or never.
      check_case(freedom > 3 && chi < freedom + 4 * std::sqrt(2.0 * freedom),
                 std::string(kernels->name) + ": chi-square " + std::to_string(chi) + " of " + std::to_string(freedom));
    }
  }
}

TEST("the grid of extreme settings gives finite answers from the right set") {
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    Random random(14);
    std::vector<float> logits = random.normals(3000, 4.0);
    logits[1234] = 30.0f;
    logits[1235] = 30.0f;
    logits[7] = -3e38f;
    logits[8] = -kInf;
    for (const float temperature : {0.0f, 1e-45f, 1e-10f, 1e-4f, 1.0f, 2.0f, 100.0f, 1e30f}) {
      for (const float top_p : {0.0f, 1e-9f, 0.5f, 1.0f}) {
        for (const int top_k : {-1, 0, 1, 151936, 1000000000}) {
          for (const float min_p : {0.0f, 1e-30f, 0.1f, 1.0f}) {
            SampleRow row;
            row.temperature = temperature;
            row.top_p = top_p;
            row.top_k = top_k;
            row.min_p = min_p;
            row.seed = random.bits();
            row.logprob = true;
            const SampleResult result = sample_one(*kernels, logits, 2990, row);
            bool right = result.finite && std::isfinite(result.logprob) && result.token != 8;
            if (temperature == 0 || top_p <= 1e-9f || top_k == 1) right = right && result.token == 1234;
            if (temperature <= 1e-4f || min_p == 1.0f) right = right && (result.token == 1234 || result.token == 1235);
            if (temperature <= 100) right = right && agrees(logits, 2990, row, result.token);
            check_case(right, std::string(kernels->name) + ": temperature " + std::to_string(temperature) + " top_p " +
                                  std::to_string(top_p) + " top_k " + std::to_string(top_k) + " min_p " +
                                  std::to_string(min_p) + " gave " + std::to_string(result.token));
          }
        }
      }
    }
  }
}

TEST("bias, mask, forbidden ids and penalties act as a plain implementation of them") {
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    Random random(15);
    for (int trial = 0; trial < 600; trial++) {
      const int vocab = 40 + random.below(600);
      const int n_ids = vocab - random.below(20);
      const std::vector<float> logits = random.normals(static_cast<size_t>(vocab), 2.0);
      SampleRow row;
      std::vector<TokenBias> bias;
      std::vector<int32_t> forbidden;
      std::vector<uint32_t> mask;
      std::vector<TokenCount> history;
      if (random.below(2) == 0) {
        for (int i = 0; i < 5; i++) {
          bias.push_back({random.below(vocab), i == 0 ? -kInf : static_cast<float>(random.normal() * 20)});
        }
      }
      if (random.below(2) == 0) {
        for (int i = 0; i < 4; i++) forbidden.push_back(random.below(vocab));
      }
      if (random.below(2) == 0) {
        const int words = random.below(4) == 0 ? 1 : (vocab + 31) / 32;
        for (int i = 0; i < words; i++) {
          mask.push_back(random.below(3) == 0 ? ~0u : random.below(3) == 0 ? 0u : static_cast<uint32_t>(random.bits()));
        }
        mask[0] |= 1u << 20;
        std::erase(forbidden, 20);
        std::erase_if(bias, [](const TokenBias& b) { return b.token == 20; });
      }
      if (random.below(2) == 0) {
        for (int token = 0; token < vocab; token += 1 + random.below(30)) history.push_back({token, random.below(4)});
        row.repetition_penalty = random.below(2) == 0 ? 1.0f : static_cast<float>(0.5 + 1.5 * random.uniform());
        row.presence_penalty = random.below(2) == 0 ? 0.0f : static_cast<float>(4 * random.uniform() - 2);
        row.frequency_penalty = random.below(2) == 0 ? 0.0f : static_cast<float>(4 * random.uniform() - 2);
      }
      row.bias = bias;
      row.forbidden = forbidden;
      row.mask = mask;
      row.history = history;
      row.temperature = random.below(3) == 0 ? 0.0f : 1.0f;
      row.top_k = random.below(3) == 0 ? 3 : 0;
      row.top_p = random.below(3) == 0 ? 0.7f : 1.0f;
      row.seed = random.bits();
      const SampleResult result = sample_one(*kernels, logits, n_ids, row);
      check_case(
          result.finite && agrees(logits, n_ids, row, result.token),
          std::string(kernels->name) + ": trial " + std::to_string(trial) + " gave " + std::to_string(result.token));
    }
  }
}

TEST("penalties and biases beyond the range of float32 neither allow nor forbid an id") {
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    const std::vector<float> logits = {5.0f, -5.0f, 1.0f, 2.0f};
    const std::vector<TokenCount> history = {{0, 1}, {1, 1}, {2, 1}, {3, 1}};
    SampleRow row;
    row.history = history;
    row.repetition_penalty = 1e-45f;
    check_case(sample_one(*kernels, logits, 4, row).token == 0, "tiny repetition penalty");
    row.repetition_penalty = 3e38f;
    check_case(sample_one(*kernels, logits, 4, row).finite, "huge repetition penalty");
    const std::vector<int32_t> forbidden = {0, 2, 3};
    row.forbidden = forbidden;
    check_case(sample_one(*kernels, logits, 4, row).token == 1, "the one id left, however unlikely");
    SampleRow biased;
    const std::vector<TokenBias> bias = {{2, kInf}, {3, 3.4e38f}};
    biased.bias = bias;
    check_case(sample_one(*kernels, logits, 4, biased).token == 2, "infinite bias");
  }
}

TEST("log-probabilities are of the raw logits over the whole vocabulary, with the best ids in order") {
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    Random random(16);
    for (const int vocab : {1, 7, 300, 5000, 151936}) {
      for (int trial = 0; trial < (vocab > 10000 ? 3 : 10); trial++) {
        std::vector<float> logits = random.normals(static_cast<size_t>(vocab), 4.0);
        if (trial == 1) std::fill(logits.begin(), logits.end(), -7.0f);
        if (trial == 2) {
          for (float& x : logits) x = std::round(x);
        }
        const int n_ids = vocab - random.below(std::min(vocab, 200));
        const std::vector<TokenBias> bias = {{0, 9.0f}};
        SampleRow row;
        row.temperature = 0.5f;
        row.bias = bias;
        row.seed = random.bits();
        row.logprob = true;
        row.n_top = trial % 2 == 0 ? kMaxTopLogprobs : 1 + random.below(kMaxTopLogprobs);
        if (trial % 3 == 0) row.target = random.below(vocab);
        const SampleResult result = sample_one(*kernels, logits, n_ids, row);
        double highest = -1e300, sum = 0.0;
        for (const float x : logits) highest = std::max(highest, static_cast<double>(x));
        for (const float x : logits) sum += std::exp(static_cast<double>(x) - highest);
        const auto exact = [&](int32_t id) {
          return static_cast<double>(logits[static_cast<size_t>(id)]) - highest - std::log(sum);
        };
        if (row.target >= 0) CHECK_EQ(result.token, row.target);
        REQUIRE(result.token >= 0);
        CHECK_NEAR(result.logprob, exact(result.token), 3e-6 + std::fabs(exact(result.token)) * 0x1p-24);
        std::vector<int32_t> order(static_cast<size_t>(n_ids));
        for (int i = 0; i < n_ids; i++) order[static_cast<size_t>(i)] = i;
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
          return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
        });
        CHECK_EQ(result.n_top, std::min(row.n_top, n_ids));
        for (int i = 0; i < result.n_top; i++) {
          const TopLogprob top = result.top[static_cast<size_t>(i)];
          CHECK_EQ(top.token, order[static_cast<size_t>(i)]);
          CHECK_NEAR(top.logprob, exact(top.token), 3e-6 + std::fabs(exact(top.token)) * 0x1p-24);
        }
      }
    }
  }
}

TEST("a NaN anywhere, +infinity, nothing allowed or nothing above -infinity is reported, not sampled") {
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    Random random(17);
    for (const float temperature : {0.0f, 0.8f}) {
      for (const bool scored : {false, true}) {
        SampleRow row;
        row.temperature = temperature;
        if (scored) row.target = 3;
        const std::vector<float> good = random.normals(1000, 1.0);
        check_case(sample_one(*kernels, good, 900, row).finite, "good row");
        for (const int at : {0, 1, 255, 256, 899, 900, 999}) {
          std::vector<float> logits = good;
          logits[static_cast<size_t>(at)] = std::numeric_limits<float>::quiet_NaN();
          check_case(!sample_one(*kernels, logits, 900, row).finite, "NaN at " + std::to_string(at));
          logits[static_cast<size_t>(at)] = -std::numeric_limits<float>::quiet_NaN();
          check_case(!sample_one(*kernels, logits, 900, row).finite, "-NaN at " + std::to_string(at));
          logits[static_cast<size_t>(at)] = kInf;
          check_case(!sample_one(*kernels, logits, 900, row).finite, "infinity at " + std::to_string(at));
          logits[static_cast<size_t>(at)] = -kInf;
          check_case(sample_one(*kernels, logits, 900, row).finite, "one -infinity is only impossible");
        }
        check_case(!sample_one(*kernels, std::vector<float>(1000, -kInf), 900, row).finite, "all -infinity");
        check_case(
            !sample_one(*kernels, std::vector<float>(1000, std::numeric_limits<float>::quiet_NaN()), 900, row).finite,
            "all NaN");
      }
      SampleRow row;
      row.temperature = temperature;
      const std::vector<uint32_t> nothing(32, 0u);
      row.mask = nothing;
      const SampleResult result = sample_one(*kernels, random.normals(1000, 1.0), 1000, row);
      check_case(!result.finite && result.token == -1, "an empty mask");
    }
  }
}

TEST("a row's result does not depend on its place, its company or the threads; seeds and positions do matter") {
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    Random random(18);
    const int vocab = 4001;
    const int n_rows = 23;
    const std::vector<float> logits = random.normals(static_cast<size_t>(vocab * n_rows), 1.0);
    std::vector<SampleRow> rows(n_rows);
    for (size_t r = 0; r < rows.size(); r++) {
      rows[r].temperature = r % 4 == 0 ? 0.0f : 1.0f;
      rows[r].top_k = r % 3 == 0 ? 40 : 0;
      rows[r].top_p = r % 5 == 0 ? 0.9f : 1.0f;
      rows[r].seed = r;
      rows[r].position = static_cast<int64_t>(r);
      rows[r].logprob = true;
      rows[r].n_top = static_cast<int32_t>(r % 4);
    }
    for (int threads = 1; threads <= 3; threads++) {
      cpu::ThreadPool pool(threads);
      std::vector<SampleResult> results(n_rows);
      kernels->sample({logits.data(), vocab, vocab - 5, rows, results}, pool);
      for (size_t r = 0; r < rows.size(); r++) {
        const std::vector<float> own(logits.begin() + static_cast<std::ptrdiff_t>(r) * vocab,
                                     logits.begin() + static_cast<std::ptrdiff_t>(r + 1) * vocab);
        const SampleResult alone = sample_one(*kernels, own, vocab - 5, rows[r]);
        bool same = alone.token == results[r].token && alone.n_top == results[r].n_top &&
                    std::memcmp(&alone.logprob, &results[r].logprob, sizeof(float)) == 0;
        for (size_t i = 0; i < static_cast<size_t>(alone.n_top); i++) {
          same = same && alone.top[i].token == results[r].top[i].token &&
                 alone.top[i].logprob == results[r].top[i].logprob;
        }
        check_case(same, std::string(kernels->name) + ": row " + std::to_string(r));
      }
    }
    SampleRow row;
    row.temperature = 1.0f;
    const std::vector<float> flat(1000, 0.0f);
    std::vector<int32_t> by_seed, by_position;
    for (int i = 0; i < 50; i++) {
      row.seed = static_cast<uint64_t>(i);
      row.position = 0;
      by_seed.push_back(sample_one(*kernels, flat, 1000, row).token);
      row.seed = 0;
      row.position = i;
      by_position.push_back(sample_one(*kernels, flat, 1000, row).token);
    }
    for (std::vector<int32_t>* tokens : {&by_seed, &by_position}) {
      std::sort(tokens->begin(), tokens->end());
      // 50 draws of 1000 collide 1.2 times on average.
      check_case(std::unique(tokens->begin(), tokens->end()) - tokens->begin() > 40, "draws repeat");
    }
  }
}

}  // namespace
}  // namespace qwen3

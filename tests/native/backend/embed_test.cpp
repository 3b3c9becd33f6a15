// embed: exact copies of table rows.
#include "op_test.h"

namespace qwen3 {
namespace {

using op_test::Random;

TEST("embed widens the rows of the table exactly, whatever the width and the number of threads") {
  Random random(1);
  for (const cpu::KernelTable* kernels : cpu::supported_kernels()) {
    for (const int hidden : {1, 3, 15, 16, 17, 64, 100, 1024}) {
      const int vocab = 50;
      const std::vector<bf16> table = random.normals_bf16(static_cast<size_t>(vocab * hidden), 1.0);
      LinearWeight weight;
      weight.n_out = vocab;
      weight.n_in = hidden;
      weight.n_parts = 1;
      weight.parts[0] = {table.data(), vocab};
      for (const int n_tokens : {1, 2, 33, 70}) {
        std::vector<int32_t> ids(static_cast<size_t>(n_tokens));
        for (int32_t& id : ids) id = random.below(vocab);
        for (int threads = 1; threads <= 3; threads++) {
          cpu::ThreadPool pool(threads);
          BatchView batch{};
          batch.n_tokens = n_tokens;
          batch.token_ids = ids.data();
          const size_t n = static_cast<size_t>(n_tokens * hidden);
          std::vector<float> out(n + 1, -7.0f);
          kernels->embed({&batch, &weight, out.data()}, pool);
          bool equal = out[n] == -7.0f;
          for (size_t i = 0; i < n; i++) {
            const size_t token = i / static_cast<size_t>(hidden);
            const size_t at = static_cast<size_t>(ids[token]) * static_cast<size_t>(hidden);
            equal = equal && out[i] == bf16_to_float(table[at + i % static_cast<size_t>(hidden)]);
          }
          op_test::check_case(equal, std::string(kernels->name) + " hidden " + std::to_string(hidden));
        }
      }
    }
  }
}

}  // namespace
}  // namespace qwen3

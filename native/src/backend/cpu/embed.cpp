// Embedding rows, widened to float32. Any thread of the pool; a row is copied by one thread.
#include "backend/cpu/kernels.h"
#include "backend/cpu/simd.h"

namespace qwen3::cpu::QWEN3_ISA {

void embed(const EmbedArgs& args, ThreadPool& pool) {
  const int hidden = args.table->n_in;
  const int32_t* ids = args.batch->token_ids;     // [n_tokens]
  const bf16* table = args.table->parts[0].data;  // [vocab, hidden]
  float* out = args.out;                          // [n_tokens, hidden]
  pool.parallel_for(args.batch->n_tokens, 16, [=](int64_t begin, int64_t end, int) {
    for (int64_t token = begin; token < end; token++) {
      const bf16* from = table + static_cast<int64_t>(ids[token]) * hidden;
      float* to = out + token * hidden;
      int i = 0;
      for (; i + kLanes <= hidden; i += kLanes) store(to + i, load_bf16(from + i));
      if (i < hidden) store_n(to + i, load_bf16_n(from + i, hidden - i), hidden - i);
    }
  });
}

}  // namespace qwen3::cpu::QWEN3_ISA

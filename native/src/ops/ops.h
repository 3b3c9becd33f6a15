// The narrow waist between the model and a device: a small closed set of ops.
//
// The forward pass (model/forward.cpp) is written once over this class; a backend (backend/cpu, backend/cuda) supplies
// the ops and the memory. This file knows no requests, no scheduler, no files. All calls come from the engine's worker
// thread (loading: from the opening thread, before the worker starts). A backend may run ops asynchronously in call
// order; results reach the host only through `wait`.
//
// Data types: weights, KV and the operands of matrix products are bfloat16; accumulation, the residual stream, norms,
// softmax and logits are float32.
//
// Determinism: a row's result depends on that row, the weights and the KV of its own sequence only - never on n_tokens,
// on its place in the batch, on chunking or on the number of threads. Every implementation of an op (small or large
// batch) sums in the same order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bf16.h"

namespace qwen3 {

// Tokens of one KV block. One constant for pool, prefix cache and kernels; see docs/decisions.md for the measurement.
inline constexpr int kBlockSize = 32;

// Rows of logits that the model computes and samples in one go; bounds the logits buffer (64 x 151,936 x 4 B = 39 MB).
// A backend may ask for more.
inline constexpr int kMaxLogitRows = 64;

// A backend pads a batch's rows to at most the next multiple of this.
inline constexpr int kRowPadding = 32;

inline constexpr int kMaxTopLogprobs = 20;

// A weight matrix in host memory (usually the mapped file): [rows, cols] bf16, row-major, any alignment of 2 bytes.
struct HostMatrix {
  const bf16* data;
  int64_t rows;
  int64_t cols;
};

// How load_linear may merge matrices that read the same input.
enum class LinearLayout {
  kConcat,  // outputs one after the other: q, k, v
  kGateUp,  // two matrices of equal shape whose outputs are used in pairs: gate, up (a backend may interleave them)
};

// A weight [n_out, n_in] as the backend keeps it. `parts` point to host memory on the CPU, to device memory on a GPU
// (which packs everything into parts[0]); only the backend looks inside.
struct LinearWeight {
  int n_out = 0;  // of all parts together
  int n_in = 0;
  LinearLayout layout = LinearLayout::kConcat;
  int n_parts = 0;
  struct Part {
    const bf16* data;  // [rows, n_in]
    int rows;
  };
  std::array<Part, 3> parts{};
  const void* coded = nullptr;  // the same weights once more, in fewer bytes, where a backend keeps them so (code())
};

// The step's index arrays, in device memory. A step holds the new tokens ("queries") of n_seqs sequences, one sequence
// after the other. A backend may add rows and sequences at the end, to meet fewer different shapes; what ops compute
// for them is nobody's concern, but they write no KV.
struct BatchView {
  int n_tokens;
  int n_seqs;
  int max_blocks;               // row length of block_tables
  const int32_t* token_ids;     // [n_tokens]; -1 - r stands for the token that row r of the last sampled step gave
  const int32_t* positions;     // [n_tokens] absolute position in the token's sequence
  const int32_t* seq_of;        // [n_tokens] index of the token's sequence in this step; -1: a row of padding
  const int32_t* query_start;   // [n_seqs + 1] first token row of each sequence; the last entry is n_tokens
  const int32_t* block_tables;  // [n_seqs, max_blocks] KV block of positions j * kBlockSize .. of each sequence
  int n_logit_rows;
  const int32_t* logit_rows;  // [n_logit_rows] token rows whose logits are wanted
  uint64_t record_key;        // batches of equal keys, 0 excepted, take the same ops with the same arguments
  bool records_rows;          // the key speaks of the logits and the sampling too, not of the layers alone
};

struct SampleRow;
struct SampleResult;

// Host arrays that become a BatchView; same shapes, without padding. Everything that a step reads from the host is in
// it, so that it reaches the device in one copy.
struct BatchArrays {
  int n_tokens = 0;
  int n_seqs = 0;
  int max_blocks = 0;
  int n_heads = 0, n_kv_heads = 0;  // of the model's attention, which a backend may plan ahead; 0: not told
  std::span<const int32_t> token_ids{}, positions{}, seq_of{}, query_start{}, block_tables{};
  std::span<const int32_t> logit_rows{};     // any number of them
  std::span<const SampleRow> sample_rows{};  // what to do with each logit row; empty: raw logits are wanted
  std::span<SampleResult> results{};         // one for each sample row; host memory, filled by the time of `wait`
};

// One layer's part of the paged KV pool. Each of k and v has n_blocks blocks of kBlockSize * n_kv_heads * head_dim
// bf16; the order inside a block is the backend's own affair.
struct KvLayer {
  bf16* k;
  bf16* v;
};

struct EmbedArgs {
  const BatchView* batch;
  const LinearWeight* table;  // [vocab, hidden], one part
  float* out;                 // [n_tokens, hidden]
};

// out[i] = x[i] * rsqrt(mean(x[i]^2) + eps) * weight, rows independent.
struct RmsNormArgs {
  const float* x;            // [*, hidden]
  const bf16* weight;        // [hidden]
  const int32_t* row_index;  // [n_rows] rows of x to take (BatchView::logit_rows), or nullptr: row i
  int n_rows;
  int hidden;
  float eps;
  bf16* out;  // [n_rows, hidden]
};

// y = x * weight^T with float32 accumulation.
struct LinearArgs {
  const bf16* x;  // [n_rows, weight.n_in]
  int n_rows;
  const LinearWeight* weight;
  float* out;       // [n_rows, weight.n_out]
  bool accumulate;  // true: out += y (the residual add); false: out = y
};

// out = silu(x * gate^T) * (x * up^T) for a kGateUp weight.
struct GateUpArgs {
  const bf16* x;  // [n_rows, weight.n_in]
  int n_rows;
  const LinearWeight* weight;  // n_out = 2 * intermediate
  bf16* out;                   // [n_rows, intermediate]
};

// RoPE's factors for the step's positions, once for all layers: cos and sin of position * inv_freq[i] (a float32
// product), each times rope_scale.
struct RopeAnglesArgs {
  const BatchView* batch;
  const float* inv_freq;  // [head_dim / 2], from load_floats
  float rope_scale;
  int head_dim;
  float* out;  // [n_tokens, head_dim] cos and sin of head_dim / 2 angles; their order in a row is the backend's affair
};

// Per head of q and k: RMSNorm over head_dim with weights q_norm / k_norm, then RoPE on halves (i, i + head_dim/2).
// q goes to q_out, k and v to the sequence's KV blocks.
struct QkNormRopeArgs {
  const BatchView* batch;
  const float* qkv;     // [n_tokens, (n_heads + 2 * n_kv_heads) * head_dim]: q heads, k heads, v heads
  const bf16* q_norm;   // [head_dim]
  const bf16* k_norm;   // [head_dim]
  const float* angles;  // [n_tokens, head_dim], from rope_angles
  float eps;
  int n_heads, n_kv_heads, head_dim;
  bf16* q_out;  // [n_tokens, n_heads, head_dim]
  KvLayer kv;
};

// Causal attention of each query over positions 0..its own, read from the KV blocks; softmax scale 1/sqrt(head_dim).
// The keys and values of this step's tokens are in the blocks already.
struct AttentionArgs {
  const BatchView* batch;
  const bf16* q;  // [n_tokens, n_heads, head_dim]
  KvLayer kv;
  int n_heads, n_kv_heads, head_dim;
  bf16* out;  // [n_tokens, n_heads, head_dim]
};

// The end of one half of a layer and the beginning of the next: a product that is added to the residual stream, and the
// norm of what comes of it.
struct ResidualNormArgs {
  LinearArgs linear;  // accumulate is true
  RmsNormArgs norm;   // of linear.out, all its rows
};

// One layer's attention from its normed input to what o_proj reads: qkv_proj, qk_norm_rope and attention in one. qkv
// and q are working memory that only the op looks at: a backend may leave them out where it fuses.
struct SelfAttentionArgs {
  const BatchView* batch;
  const bf16* x;                 // [n_tokens, qkv_proj.n_in]
  const LinearWeight* qkv_proj;  // n_out = (n_heads + 2 * n_kv_heads) * head_dim
  const bf16* q_norm;            // [head_dim]
  const bf16* k_norm;            // [head_dim]
  const float* angles;           // [n_tokens, head_dim], from rope_angles
  float eps;
  int n_heads, n_kv_heads, head_dim;
  float* qkv;  // [n_tokens, qkv_proj.n_out]
  bf16* q;     // [n_tokens, n_heads, head_dim]
  KvLayer kv;
  bf16* out;  // [n_tokens, n_heads, head_dim]
};

// The three ops that it stands for.
inline LinearArgs qkv_part(const SelfAttentionArgs& a) {
  return {.x = a.x, .n_rows = a.batch->n_tokens, .weight = a.qkv_proj, .out = a.qkv, .accumulate = false};
}
inline QkNormRopeArgs rope_part(const SelfAttentionArgs& a) {
  return {.batch = a.batch,
          .qkv = a.qkv,
          .q_norm = a.q_norm,
          .k_norm = a.k_norm,
          .angles = a.angles,
          .eps = a.eps,
          .n_heads = a.n_heads,
          .n_kv_heads = a.n_kv_heads,
          .head_dim = a.head_dim,
          .q_out = a.q,
          .kv = a.kv};
}
inline AttentionArgs attention_part(const SelfAttentionArgs& a) {
  return {.batch = a.batch,
          .q = a.q,
          .kv = a.kv,
          .n_heads = a.n_heads,
          .n_kv_heads = a.n_kv_heads,
          .head_dim = a.head_dim,
          .out = a.out};
}

struct TokenBias {
  int32_t token;
  float bias;
};

// How often an id occurs in a sequence: in its prompt or not, and how many times in its output.
struct TokenCount {
  int32_t token;
  int32_t in_output;
};

// What to do with one row of logits. Host memory, valid until the step's results have been waited for.
// Order: bias and mask, penalties, temperature, min_p, top_k, top_p, then one draw. Log-probabilities are of the raw
// logits over the whole vocab.
struct SampleRow {
  int32_t target = -1;       // >= 0: do not sample, only score this id (a prompt token)
  float temperature = 0.0f;  // 0: greedy, the highest logit and the lowest id among equals
  float min_p = 0.0f;
  float top_p = 1.0f;
  int32_t top_k = 0;  // <= 0: off
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  uint64_t seed = 0;
  int64_t position = 0;  // counter of the draw: index of this token in its sequence
  std::span<const TokenBias> bias;
  std::span<const TokenCount> history;  // distinct ids of prompt and output; empty when all penalties are off
  std::span<const int32_t> forbidden;   // ids that may not be sampled at this row (stop ids before min_tokens)
  std::span<const uint32_t> mask;       // bit set = allowed; empty: no mask
  bool logprob = false;
  int32_t n_top = 0;  // alternatives wanted, best first, at most kMaxTopLogprobs; ids with a token only
};

struct TopLogprob {
  int32_t token;
  float logprob;
};

struct SampleResult {
  int32_t token = -1;    // the sampled id, or the target
  float logprob = 0.0f;  // of token, if asked for
  int32_t n_top = 0;
  std::array<TopLogprob, kMaxTopLogprobs> top{};
  bool finite = true;  // false: a logit was NaN (or all were -inf): the model's output is broken
};

// Samples a piece of the uploaded batch's sample_rows.
struct SampleArgs {
  const float* logits;  // [n_rows, vocab]
  int vocab;
  int n_token_ids;                  // ids from here on are never sampled and never listed
  std::span<const SampleRow> rows;  // the piece
  std::span<SampleResult> results;  // the same piece of the batch's results
  int first_row = 0;                // place of the piece in the batch's rows
  int n_rows = 0;                   // rows of the piece, the backend's padding included
  void* workspace = nullptr;        // Ops::sample_workspace_bytes
};

// What a device can do at most, to compare a model's speed with.
struct DevicePeaks {
  double read_bytes_per_second;  // reading memory, several times what the caches hold
  double flops_per_second;       // multiplying bf16 or float32 on operands that are at hand; a multiply-add counts two
  std::string flops_of;          // the instruction that does it
};

// Moments in the order of ops, for profiles. Used by one thread, the one that calls the ops.
class OpClock {
 public:
  virtual ~OpClock() = default;
  // Moment 0. An asynchronous device holds back what follows until `take`, or for 50 ms at most, so that the time that
  // the host needs to issue ops does not show.
  virtual void begin() = 0;
  // The moment at which everything before it is done.
  virtual void stamp() = 0;
  // Waits for the last stamp and returns all since `begin`, in nanoseconds after it.
  virtual std::vector<int64_t> take() = 0;
};

struct DeviceInfo {
  std::string device;       // "cpu", "cuda:0"
  std::string device_name;  // processor or GPU name
  std::string kernels;      // "avx512bf16", ...
  int threads;              // CPU: computing threads; else 0
  uint64_t free_bytes;      // memory available to allocate now; 0: unknown
  uint64_t total_bytes;     // all memory of a device that is shared out by fractions of it; 0: it is not (CPU)
  bool owns_weights;  // weights were copied to the device; else they are mapped files, in memory that still is free
  int token_budget;   // what suits the device: most tokens of a step,
  int max_slots;      // and sequences at once
};

class Ops {
 public:
  virtual ~Ops() = default;

  virtual DeviceInfo info() const = 0;

  // ---- memory. Everything lives as long as the Ops object.
  // Zeroed device memory, 64-byte aligned. `what` names it in the out-of-memory sentence.
  virtual void* allocate(size_t bytes, const char* what) = 0;
  // The CPU keeps the host pointers (the mapping must outlive the Ops object); a GPU copies.
  virtual LinearWeight load_linear(std::span<const HostMatrix> parts, LinearLayout layout) = 0;
  virtual const bf16* load_vector(const HostMatrix& vector) = 0;  // norm weights
  virtual const float* load_floats(std::span<const float> values) = 0;
  // Returns when all of it is on the device; frees what loading took.
  virtual void finish_loading() {}
  // Keeps loaded weights in a smaller form too, for steps of few rows, which take as long as their weights take to
  // read: all that have such a form, or none if they take more than `room` bytes of DeviceInfo::free_bytes, where an
  // allocator's rounding counts. Returns the bytes that they take.
  virtual uint64_t code(std::span<LinearWeight* const> /*weights*/, uint64_t /*room*/) { return 0; }
  // Whether steps of few rows would gain by it.
  virtual bool worth_coding(const LinearWeight& /*weight*/) const { return false; }

  // ---- one step
  // Makes the step's arrays visible to the ops; valid until the next call. Rows may come alone (n_tokens 0), for the
  // batch before.
  virtual BatchView upload_batch(const BatchArrays& arrays) = 0;
  virtual void embed(const EmbedArgs& args) = 0;
  virtual void rope_angles(const RopeAnglesArgs& args) = 0;
  virtual void rms_norm(const RmsNormArgs& args) = 0;
  virtual void linear(const LinearArgs& args) = 0;
  virtual void gate_up(const GateUpArgs& args) = 0;
  virtual void qk_norm_rope(const QkNormRopeArgs& args) = 0;
  virtual void attention(const AttentionArgs& args) = 0;
  virtual void self_attention(const SelfAttentionArgs& args) {
    parts().linear(qkv_part(args));
    parts().qk_norm_rope(rope_part(args));
    parts().attention(attention_part(args));
  }
  virtual void residual_norm(const ResidualNormArgs& args) {
    parts().linear(args.linear);
    parts().rms_norm(args.norm);
  }
  virtual void sample(const SampleArgs& args) = 0;
  // Runs `issue`, which calls ops above. A backend may record what it issues for a key other than 0 and replay that
  // instead when the same key comes again.
  virtual void run_recorded(uint64_t key, const std::function<void()>& issue) {
    (void)key;
    issue();
  }
  // Copies device floats to host memory; there by the time of `wait`.
  virtual void download(std::span<float> out, const float* device) = 0;
  // Blocks until everything before it is done. Throws Error(kDeviceError) if the device failed.
  virtual void wait() = 0;
  // True if ops run on while the host works, so that a step may be issued before the last one's results are known.
  virtual bool asynchronous() const { return false; }
  // A place in the order of ops, and a wait for all that was issued before it.
  virtual uint64_t mark() { return 0; }
  virtual void wait_for(uint64_t mark) {
    (void)mark;
    wait();
  }
  virtual int max_logit_rows() const { return kMaxLogitRows; }
  virtual uint64_t sample_workspace_bytes(int vocab) const {
    (void)vocab;
    return 0;
  }

  // ---- measuring
  // An op that is made of other ops calls these on parts(): an Ops around this one puts itself there and sees them.
  void set_parts(Ops& parts) { parts_ = &parts; }
  // What it calls on parts() where a part is done by other means than its op: the product with this weight.
  virtual void product_done(const LinearWeight& /*weight*/) {}
  virtual std::unique_ptr<OpClock> make_clock() = 0;
  // Takes a second or less and, for that time, up to 2 GB of memory. Throws Error(kOutOfMemory).
  virtual DevicePeaks measure_peaks() = 0;

 protected:
  Ops& parts() { return *parts_; }

 private:
  Ops* parts_ = this;
};

struct BackendOptions {
  std::string device = "auto";   // "auto", "cpu", "cuda:N"
  std::string kernels = "auto";  // see qwen3_options.kernels
  int threads = 0;
  std::function<void(const std::string&)> warn{};  // told when "auto" passes a GPU by
};

// Picks and opens a backend. Throws Error: kInvalidArgument for an unknown name, kUnsupported for a device that this
// build or machine does not have.
std::unique_ptr<Ops> open_backend(const BackendOptions& options);

}  // namespace qwen3

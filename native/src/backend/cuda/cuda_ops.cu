#include <algorithm>
#include <bit>
#include <cstring>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/linear_kernels.h"
#include "backend/cuda/measure.h"
#include "backend/cuda/open.h"
#include "base/error.h"

namespace qwen3::cuda {

namespace {

// Decode steps of up to this many sequences are padded and recorded; larger ones are bound by arithmetic, where
// launches hide behind kernels.
constexpr int kMaxRecordedSeqs = 256;
// See docs/decisions.md.
constexpr int kTokenBudget = 8192;
constexpr int kMaxSlots = 256;
constexpr int kMaxAttentionPairs = 1 << 16;  // sequences of a step x KV heads

// Padded sizes are few, so that graphs are few, and close, so that padding costs little.
int padded_size(int n) {
  if (n <= 2) return n;
  if (n <= 16) return (n + 3) / 4 * 4;
  if (n <= 64) return (n + 7) / 8 * 8;
  return (n + 31) / 32 * 32;
}

size_t align(size_t bytes) {
  return (bytes + 15) / 16 * 16;
}

unsigned needs_bits(const SampleNeeds& needs) {
  return (needs.adjust ? 1u : 0u) | (needs.logprob ? 2u : 0u) | (needs.search ? 4u : 0u) | (needs.wide ? 8u : 0u);
}

std::string version_text(int version) {  // CUDA's 13020: 13.2
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

constexpr const char* kNoGpu = "there is no NVIDIA GPU with a working driver";

// Number of GPUs that the driver can use. why_none: a sentence, if it is 0.
int device_count(std::string& why_none) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  cudaGetLastError();
  int driver = 0;
  if (error == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0) {
    constexpr int kLeastDriver = CUDART_VERSION >= 13000 ? 580 : 525;
    why_none = "the NVIDIA driver supports CUDA " + version_text(driver) + ", this build needs CUDA " +
               version_text(CUDART_VERSION / 1000 * 1000) + ": install driver " + std::to_string(kLeastDriver) +
               " or newer";
  } else {
    why_none = error == cudaSuccess || error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver
                   ? kNoGpu
                   : std::string("the NVIDIA driver does not work: ") + cudaGetErrorString(error);
  }
  return 0;
}

}  // namespace

bool usable(std::string& why_not) {
  std::string why_none;
  if (device_count(why_none) == 0) {
    if (why_none != kNoGpu) why_not = why_none;
    return false;
  }
  int major = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess && major >= 8) return true;
  why_not = "it has compute capability " + std::to_string(major) + ".x; 8.0 (Ampere) or newer is needed";
  return false;
}

std::unique_ptr<Ops> open(int device, const std::string& kernels) {
  return std::make_unique<CudaOps>(device, kernels);
}

CudaOps::CudaOps(int device, const std::string& kernels) : device_(device) {
  std::string why_none;
  const int count = device_count(why_none);
  if (count == 0)
    throw Error(Status::kUnsupported, "device \"cuda:" + std::to_string(device) + "\" cannot be used: " + why_none);
  if (device >= count)
    throw Error(Status::kUnsupported, "device \"cuda:" + std::to_string(device) + "\" cannot be used: there " +
                                          (count == 1 ? "is one GPU" : "are " + std::to_string(count) + " GPUs") +
                                          ", numbered from 0");
  check(cudaSetDevice(device), "choosing the GPU");
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "reading the GPU's properties");
  device_name_ = properties.name;
  if (properties.major < 8)
    throw Error(Status::kUnsupported, device_name_ + " has compute capability " + std::to_string(properties.major) +
                                          "." + std::to_string(properties.minor) + "; 8.0 (Ampere) or newer is needed");
  if (kernels != "auto" && kernels != "generic")
    throw Error(Status::kInvalidArgument, "\"" + kernels + "\" is no kernel set of a GPU; use \"auto\" or \"generic\"");
  ctx_.sm_count = properties.multiProcessorCount;
  ctx_.hopper = properties.major == 9 && kernels == "auto";
  ctx_.pdl = properties.major >= 9;
  kernels_ = ctx_.hopper ? "hopper" : "generic";
  check(cudaStreamCreateWithFlags(&ctx_.stream, cudaStreamNonBlocking), "creating a stream");
  for (cudaEvent_t& event : marks_)
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
  last_tokens_ = static_cast<int32_t*>(memory_.allocate(kMaxStepRows * sizeof(int32_t), "sampling", ctx_.stream));
  if (ctx_.hopper) {
    ctx_.sums = static_cast<float*>(memory_.allocate(sums_bytes(ctx_.sm_count), "products", ctx_.stream));
  }
  attention_workspace_ = {
      .partials = static_cast<float*>(memory_.allocate(kAttentionWorkspaceBytes, "attention", ctx_.stream)),
      .bytes = kAttentionWorkspaceBytes,
      .counters =
          static_cast<int32_t*>(memory_.allocate(kMaxAttentionPairs * sizeof(int32_t), "attention", ctx_.stream)),
      .n_counters = kMaxAttentionPairs};
}

CudaOps::~CudaOps() {
  cudaSetDevice(device_);
  cudaStreamSynchronize(ctx_.stream);
  recordings_.clear();
  for (cudaEvent_t event : marks_) cudaEventDestroy(event);
  cudaStreamDestroy(ctx_.stream);
}

DeviceInfo CudaOps::info() const {
  check(cudaSetDevice(device_), "choosing the GPU");
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for free memory");
  return {.device = "cuda:" + std::to_string(device_),
          .device_name = device_name_,
          .kernels = kernels_,
          .threads = 0,
          .free_bytes = free,
          .total_bytes = total,
          .owns_weights = true,
          .token_budget = kTokenBudget,
          .max_slots = kMaxSlots};
}

void* CudaOps::allocate(size_t bytes, const char* what) {
  return memory_.allocate(bytes, what, ctx_.stream);
}

LinearWeight CudaOps::load_linear(std::span<const HostMatrix> parts, LinearLayout layout) {
  LinearWeight weight;
  weight.n_in = static_cast<int>(parts[0].cols);
  weight.layout = layout;
  for (const HostMatrix& part : parts) weight.n_out += static_cast<int>(part.rows);
  bf16* packed = static_cast<bf16*>(allocate(packed_bytes(weight.n_out, weight.n_in, layout), "the weights"));
  int offset = 0;
  for (const HostMatrix& part : parts) {
    upload_.pack_part(part, layout, offset, packed, memory_, ctx_);
    offset += layout == LinearLayout::kGateUp ? 1 : static_cast<int>(part.rows);
  }
  weight.n_parts = 1;
  weight.parts[0] = {packed, weight.n_out};
  return weight;
}

// One piece of memory for all: a weight that turns out to have no such form leaves its share of it unused.
uint64_t CudaOps::code(std::span<LinearWeight* const> weights, uint64_t room) {
  struct Coded {
    LinearWeight* weight;
    int row_tiles, col_blocks;
    size_t place;
  };
  constexpr size_t kPage = size_t{2} << 20;  // of the driver's allocator
  std::vector<Coded> all;
  size_t bytes = 0;
  for (LinearWeight* weight : weights) {
    const int row_tiles = pack_row_tiles(weight->n_out, weight->layout), col_blocks = pack_col_blocks(weight->n_in);
    all.push_back({weight, row_tiles, col_blocks, bytes});
    bytes += (coded_bytes(row_tiles, col_blocks) + 127) / 128 * 128;
  }
  const size_t overflows_at = bytes;
  bytes = (bytes + all.size() * sizeof(int32_t) + kPage - 1) / kPage * kPage;
  // A page more, for what loading the kernel that codes may take.
  if (bytes + kPage > room) return 0;
  uint8_t* memory = nullptr;
  try {
    memory = static_cast<uint8_t*>(allocate(bytes, "the coded weights"));
  } catch (const Error& error) {
    if (error.status() != Status::kOutOfMemory) throw;
    return 0;  // another process was faster
  }
  int32_t* const overflows = reinterpret_cast<int32_t*>(memory + overflows_at);
  for (size_t i = 0; i < all.size(); i++) {
    const Coded& c = all[i];
    code_weight({.packed = c.weight->parts[0].data,
                 .row_tiles = c.row_tiles,
                 .col_blocks = c.col_blocks,
                 .n_in = c.weight->n_in,
                 .blocks = memory + c.place,
                 .bases = memory + c.place + coded_blocks_bytes(c.row_tiles, c.col_blocks),
                 .overflows = overflows + i},
                ctx_);
  }
  std::vector<int32_t> counts(all.size());
  check(cudaMemcpyAsync(counts.data(), overflows, counts.size() * sizeof(int32_t), cudaMemcpyDeviceToHost, ctx_.stream),
        "coding the weights");
  check(cudaStreamSynchronize(ctx_.stream), "coding the weights");
  bool any = false;
  for (size_t i = 0; i < all.size(); i++) {
    if (counts[i] != 0) continue;
    all[i].weight->coded = memory + all[i].place;
    any = true;
  }
  if (any) return bytes;
  memory_.release(memory);
  return 0;
}

// Measured on an H200: 8B's smallest, o_proj, just gains; 0.6B's, but for lm_head, lose, bound by latency.
bool CudaOps::worth_coding(const LinearWeight& weight) const {
  constexpr size_t kLeastBytes = size_t{32} << 20;
  return packed_bytes(weight.n_out, weight.n_in, weight.layout) >= kLeastBytes;
}

const bf16* CudaOps::load_vector(const HostMatrix& vector) {
  bf16* device =
      static_cast<bf16*>(allocate(static_cast<size_t>(vector.rows * vector.cols) * sizeof(bf16), "the weights"));
  upload_.copy(vector, device, memory_, ctx_);
  return device;
}

const float* CudaOps::load_floats(std::span<const float> values) {
  float* device = static_cast<float*>(allocate(values.size_bytes(), "the workspace"));
  check(cudaMemcpyAsync(device, values.data(), values.size_bytes(), cudaMemcpyHostToDevice, ctx_.stream),
        "copying a table");
  check(cudaStreamSynchronize(ctx_.stream), "copying a table");
  return device;
}

// Rows and sequences beyond the real ones belong to no sequence (seq_of -1, no query): no op writes KV for them.
BatchView CudaOps::upload_batch(const BatchArrays& a) {
  check(cudaSetDevice(device_), "choosing the GPU");
  const bool recorded = a.n_seqs > 0 && a.n_tokens == a.n_seqs && a.n_seqs <= kMaxRecordedSeqs;
  const bool records_rows = recorded && a.sample_rows.size() == static_cast<size_t>(a.n_seqs);
  const int n_seqs = recorded ? padded_size(a.n_seqs) : a.n_seqs;
  const int n_tokens = recorded ? n_seqs : a.n_tokens;
  const int max_blocks = recorded ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(a.max_blocks))) : a.max_blocks;
  const int n_rows = records_rows ? n_seqs : static_cast<int>(a.logit_rows.size());
  if (a.sample_rows.size() > kMaxStepRows)
    throw Error(Status::kInternal, "a step samples more than " + std::to_string(kMaxStepRows) + " rows");

  query_start_.assign(a.query_start.begin(), a.query_start.end());
  query_start_.resize(static_cast<size_t>(n_seqs) + 1, a.n_tokens);
  // Where attention_step wants a plan.
  const bool plannable = ctx_.hopper && a.n_kv_heads > 0 && a.n_heads >= a.n_kv_heads && n_seqs > 0 &&
                         n_tokens == n_seqs && n_seqs <= kMaxStepSeqs;
  const int max_context = max_blocks * kBlockSize;
  const int n_pieces = plannable ? planned_ctas(n_seqs, a.n_kv_heads, max_context, ctx_.sm_count) : 0;
  const size_t plan_bytes = static_cast<size_t>(n_pieces) * sizeof(StepPiece);
  const size_t n_ints = 3 * static_cast<size_t>(n_tokens) + static_cast<size_t>(n_seqs) + 1 +
                        static_cast<size_t>(n_seqs) * static_cast<size_t>(max_blocks) + static_cast<size_t>(n_rows);
  const size_t rows_at = align(plan_bytes + n_ints * sizeof(int32_t));
  const size_t n_sampled = a.sample_rows.empty() ? 0 : static_cast<size_t>(n_rows);
  const size_t bytes = rows_at + sample_staging_bytes(a.sample_rows, n_sampled);
  if (batch_.begin(bytes, memory_, ctx_.stream)) recordings_.clear();
  const std::span<StepPiece> pieces(reinterpret_cast<StepPiece*>(batch_.host()), static_cast<size_t>(n_pieces));
  if (n_pieces > 0) {
    plan_attention_step({.positions = a.positions,
                         .block_tables = a.block_tables,
                         .max_blocks = a.max_blocks,
                         .n_kv_heads = a.n_kv_heads,
                         .sm_count = ctx_.sm_count,
                         .max_states = most_states(attention_workspace_, a.n_heads / a.n_kv_heads)},
                        pieces);
  }
  int32_t* const host = reinterpret_cast<int32_t*>(batch_.host() + plan_bytes);
  const int32_t* const device = reinterpret_cast<const int32_t*>(batch_.device() + plan_bytes);
  int32_t* to = host;
  const auto place = [&](std::span<const int32_t> values, int n, int32_t filler) {
    const int32_t* at = device + (to - host);
    to = std::copy(values.begin(), values.end(), to);
    to = std::fill_n(to, n - static_cast<int>(values.size()), filler);
    return at;
  };
  BatchView view{};
  view.n_tokens = n_tokens;
  view.n_seqs = n_seqs;
  view.max_blocks = max_blocks;
  view.token_ids = place(a.token_ids, n_tokens, 0);
  view.positions = place(a.positions, n_tokens, 0);
  view.seq_of = place(a.seq_of, n_tokens, -1);
  view.query_start = place(query_start_, n_seqs + 1, 0);
  view.block_tables = device + (to - host);
  for (int s = 0; s < n_seqs; s++) {
    if (s < a.n_seqs) std::copy_n(a.block_tables.begin() + s * a.max_blocks, a.max_blocks, to);
    to += max_blocks;
  }
  view.n_logit_rows = n_rows;
  view.logit_rows = place(a.logit_rows, n_rows, 0);
  if (n_sampled > 0) {
    std::unique_ptr<PinnedBuffer> results = take_buffer();
    sample_rows_ = reinterpret_cast<const SampleRowDevice*>(batch_.device() + rows_at);
    sample_needs_ = stage_sample_rows(
        a.sample_rows, n_sampled, static_cast<SampleResult*>(results->ensure(a.results.size_bytes())),
        reinterpret_cast<std::byte*>(batch_.host() + rows_at), reinterpret_cast<const std::byte*>(sample_rows_));
    pending_.push_back({std::move(results), std::as_writable_bytes(a.results), n_marks_ + 1});
  }
  batch_.send(bytes, ctx_.stream);
  if (recorded) {
    view.records_rows = records_rows;
    view.record_key = static_cast<uint64_t>(n_seqs) << 32 | static_cast<uint64_t>(max_blocks);
    if (records_rows) view.record_key |= uint64_t{1} << 63 | static_cast<uint64_t>(needs_bits(sample_needs_)) << 48;
  }
  batch_host_ = {.n_tokens = n_tokens,
                 .n_seqs = n_seqs,
                 .query_start = query_start_.data(),
                 .max_context = max_context,
                 .plan = n_pieces > 0 ? reinterpret_cast<const StepPiece*>(batch_.device()) : nullptr};
  if (recorded) {
    // A graph must serve any batch of its bucket: every sequence may have its one token.
    for (int s = 0; s <= n_seqs; s++) query_start_[static_cast<size_t>(s)] = s;
  }
  return view;
}

void CudaOps::embed(const EmbedArgs& args) {
  cuda::embed(args, last_tokens_, ctx_);
}
void CudaOps::rope_angles(const RopeAnglesArgs& args) {
  cuda::rope_angles(args, ctx_);
}
void CudaOps::rms_norm(const RmsNormArgs& args) {
  cuda::rms_norm(args, ctx_);
}
void CudaOps::linear(const LinearArgs& args) {
  cuda::linear(args, ctx_);
}
void CudaOps::gate_up(const GateUpArgs& args) {
  cuda::gate_up(args, ctx_);
}
void CudaOps::qk_norm_rope(const QkNormRopeArgs& args) {
  cuda::qk_norm_rope(args, ctx_);
}
void CudaOps::attention(const AttentionArgs& args) {
  cuda::attention(args, batch_host_, attention_workspace_, ctx_);
}

void CudaOps::self_attention(const SelfAttentionArgs& args) {
  if (attention_step_serves(args, batch_host_, attention_workspace_, ctx_)) {
    const LinearCall qkv = make_linear_call(qkv_part(args));
    const bool of_sums = batch_host_.plan != nullptr && linear_sums_pays(qkv, ctx_);
    if (of_sums) {
      linear_sums(qkv, ctx_);
      parts().product_done(*args.qkv_proj);
    } else {
      parts().linear(qkv_part(args));
    }
    attention_step(args, batch_host_, attention_workspace_, ctx_, of_sums);
    return;
  }
  if (!qkv_hopper_serves(args, ctx_)) return Ops::self_attention(args);
  qkv_hopper(args, ctx_);
  parts().attention(attention_part(args));
}

void CudaOps::residual_norm(const ResidualNormArgs& args) {
  const LinearCall call = make_linear_call(args.linear);
  if (!linear_sums_pays(call, ctx_)) return Ops::residual_norm(args);
  linear_sums(call, ctx_);
  parts().product_done(*args.linear.weight);
  rms_norm_of_sums(args.norm, args.linear.out, ctx_);
}

void CudaOps::sample(const SampleArgs& args) {
  cuda::sample({.logits = args.logits,
                .vocab = args.vocab,
                .n_token_ids = args.n_token_ids,
                .n_rows = args.n_rows,
                .rows = sample_rows_ + args.first_row,
                .needs = sample_needs_,
                .last_token = last_tokens_ + args.first_row,
                .workspace = args.workspace,
                .max_rows = kMaxRows},
               ctx_);
}

void CudaOps::download(std::span<float> out, const float* device) {
  std::unique_ptr<PinnedBuffer> buffer = take_buffer();
  check(
      cudaMemcpyAsync(buffer->ensure(out.size_bytes()), device, out.size_bytes(), cudaMemcpyDeviceToHost, ctx_.stream),
      "reading results");
  pending_.push_back({std::move(buffer), std::as_writable_bytes(out), n_marks_ + 1});
}

std::unique_ptr<PinnedBuffer> CudaOps::take_buffer() {
  if (free_buffers_.empty()) return std::make_unique<PinnedBuffer>();
  std::unique_ptr<PinnedBuffer> buffer = std::move(free_buffers_.back());
  free_buffers_.pop_back();
  return buffer;
}

uint64_t CudaOps::mark() {
  n_marks_++;
  check(cudaEventRecord(marks_[n_marks_ % kMarks], ctx_.stream), "recording an event");
  return n_marks_;
}

void CudaOps::wait_for(uint64_t mark) {
  // An event that has been recorded again stands for a later place in the stream: waiting for it is right, only longer.
  check(cudaEventSynchronize(marks_[mark % kMarks]), "waiting for a step");
  for (; !pending_.empty() && pending_.front().mark <= mark; pending_.pop_front()) {
    Pending& done = pending_.front();
    std::memcpy(done.to.data(), done.buffer->ensure(0), done.to.size());
    free_buffers_.push_back(std::move(done.buffer));
  }
}

void CudaOps::wait() {
  wait_for(mark());
}

void CudaOps::run_recorded(uint64_t key, const std::function<void()>& issue) {
  if (key == 0) return issue();
  recordings_.run(key, issue, ctx_.stream);
}

std::unique_ptr<OpClock> CudaOps::make_clock() {
  return std::make_unique<StreamOpClock>(ctx_.stream);
}

DevicePeaks CudaOps::measure_peaks() {
  check(cudaSetDevice(device_), "choosing the GPU");
  wait();
  return cuda::measure_peaks(ctx_);
}

}  // namespace qwen3::cuda

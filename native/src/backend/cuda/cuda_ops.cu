#include <algorithm>
#include <bit>
#include <cstring>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/measure.h"
#include "backend/cuda/open.h"
#include "base/error.h"

namespace qwen3::cuda {

namespace {

// Decode steps of up to this many sequences are padded and recorded; larger ones are bound by arithmetic, where
// launches hide behind kernels.
constexpr int kMaxRecordedSeqs = 256;
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

// Number of GPUs that the driver can use. why_none: a sentence, if it is 0.
int device_count(std::string& why_none) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  cudaGetLastError();
  int driver = 0;
  if (error == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0) {
    why_none = "the NVIDIA driver supports CUDA " + std::to_string(driver / 1000) + "." +
               std::to_string(driver % 1000 / 10) + ", this build needs CUDA 13.0: install driver 580 or newer";
  } else {
    why_none = error == cudaSuccess || error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver
                   ? "there is no NVIDIA GPU with a working driver"
                   : std::string("the NVIDIA driver does not work: ") + cudaGetErrorString(error);
  }
  return 0;
}

}  // namespace

bool usable() {
  std::string why_none;
  int major = 0;
  return device_count(why_none) > 0 &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess && major >= 8;
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
    throw Error(Status::kUnsupported, "device \"cuda:" + std::to_string(device) + "\" cannot be used: there are " +
                                          std::to_string(count) + " GPUs, numbered from 0");
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
  for (const auto& [key, recording] : recordings_)
    if (recording.graph != nullptr) cudaGraphExecDestroy(recording.graph);
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
          .owns_weights = true};
}

void* CudaOps::allocate(size_t bytes, const char* what) {
  return memory_.allocate(bytes, what, ctx_.stream);
}

LinearWeight CudaOps::load_linear(std::span<const HostMatrix> parts, LinearLayout layout) {
  LinearWeight weight;
  weight.n_in = static_cast<int>(parts[0].cols);
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

const bf16* CudaOps::load_table(const HostMatrix& table) {
  bf16* device =
      static_cast<bf16*>(allocate(static_cast<size_t>(table.rows * table.cols) * sizeof(bf16), "the weights"));
  upload_.copy(table, device, memory_, ctx_);
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
  upload_.finish(memory_, ctx_);
  const bool recorded = a.n_tokens == a.n_seqs && a.n_seqs <= kMaxRecordedSeqs;
  const int n_seqs = recorded ? padded_size(a.n_seqs) : a.n_seqs;
  const int n_tokens = recorded ? n_seqs : a.n_tokens;
  const int max_blocks = recorded ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(a.max_blocks))) : a.max_blocks;

  query_start_.assign(a.query_start.begin(), a.query_start.end());
  query_start_.resize(static_cast<size_t>(n_seqs) + 1, a.n_tokens);
  const size_t n_ints = 3 * static_cast<size_t>(n_tokens) + static_cast<size_t>(n_seqs) + 1 +
                        static_cast<size_t>(n_seqs) * static_cast<size_t>(max_blocks);
  if (batch_.begin(n_ints * sizeof(int32_t), memory_, ctx_.stream)) recordings_.clear();
  int32_t* const host = reinterpret_cast<int32_t*>(batch_.host());
  const int32_t* const device = reinterpret_cast<const int32_t*>(batch_.device());
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
  if (recorded) view.record_key = static_cast<uint64_t>(n_seqs) << 32 | static_cast<uint64_t>(max_blocks);
  batch_.send(n_ints * sizeof(int32_t), ctx_.stream);
  batch_host_ = {.n_tokens = n_tokens,
                 .n_seqs = n_seqs,
                 .query_start = query_start_.data(),
                 .max_context = max_blocks * kBlockSize};
  if (recorded) {
    // A graph must serve any batch of its bucket: every sequence may have its one token.
    for (int s = 0; s <= n_seqs; s++) query_start_[static_cast<size_t>(s)] = s;
  }
  return view;
}

const int32_t* CudaOps::upload_rows(std::span<const int32_t> rows) {
  rows_.begin(std::max<size_t>(rows.size(), kMaxRows) * sizeof(int32_t), memory_, ctx_.stream);
  std::memcpy(rows_.host(), rows.data(), rows.size_bytes());
  rows_.send(rows.size_bytes(), ctx_.stream);
  return reinterpret_cast<const int32_t*>(rows_.device());
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

void CudaOps::sample(const SampleArgs& args) {
  if (sample_vocab_ != args.vocab) {
    sample_workspace_ = allocate(sample_workspace_bytes(kMaxRows, args.vocab), "sampling");
    sample_vocab_ = args.vocab;
  }
  const size_t bytes = align(sample_staging_bytes(args.rows));
  sample_rows_.begin(bytes, memory_, ctx_.stream);
  const SampleNeeds needs = stage_sample_rows(args.rows, reinterpret_cast<std::byte*>(sample_rows_.host()),
                                              reinterpret_cast<const std::byte*>(sample_rows_.device()));
  sample_rows_.send(bytes, ctx_.stream);
  if (args.first_row + static_cast<int>(args.rows.size()) > kMaxStepRows)
    throw Error(Status::kInternal, "a step samples more than " + std::to_string(kMaxStepRows) + " rows");
  std::unique_ptr<PinnedBuffer> buffer = take_buffer();
  cuda::sample({.logits = args.logits,
                .vocab = args.vocab,
                .n_token_ids = args.n_token_ids,
                .n_rows = static_cast<int>(args.rows.size()),
                .rows = reinterpret_cast<const SampleRowDevice*>(sample_rows_.device()),
                .needs = needs,
                .results = static_cast<SampleResult*>(buffer->ensure(kMaxRows * sizeof(SampleResult))),
                .last_token = last_tokens_ + args.first_row,
                .workspace = sample_workspace_,
                .max_rows = kMaxRows},
               ctx_);
  pending_.push_back({std::move(buffer), std::as_writable_bytes(args.results), n_marks_ + 1});
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

// The first time, ops are launched one by one (which also loads their kernels), the second time they are recorded.
void CudaOps::run_recorded(uint64_t key, const std::function<void()>& issue) {
  if (key == 0) return issue();
  Recording& recording = recordings_[key];
  if (!recording.seen) {
    recording.seen = true;
    return issue();
  }
  if (recording.graph == nullptr) {
    check(cudaStreamBeginCapture(ctx_.stream, cudaStreamCaptureModeThreadLocal), "recording a step");
    cudaGraph_t graph = nullptr;
    try {
      issue();
    } catch (...) {
      cudaStreamEndCapture(ctx_.stream, &graph);
      throw;
    }
    check(cudaStreamEndCapture(ctx_.stream, &graph), "recording a step");
    const cudaError_t error = cudaGraphInstantiate(&recording.graph, graph, 0);
    cudaGraphDestroy(graph);
    check(error, "building a step's graph");
  }
  check(cudaGraphLaunch(recording.graph, ctx_.stream), "launching a step's graph");
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

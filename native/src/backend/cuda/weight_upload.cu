#include <algorithm>
#include <cstring>

#include "backend/cuda/weight_upload.h"

namespace qwen3::cuda {

WeightUpload::Piece::Piece(DeviceMemory& memory, cudaStream_t stream) {
  pinned.ensure(kPieceBytes);
  device = memory.allocate(kPieceBytes, "loading weights", stream);
  check(cudaEventCreateWithFlags(&free, cudaEventDisableTiming), "creating an event");
}

WeightUpload::Piece::~Piece() {
  cudaEventDestroy(free);
}

WeightUpload::Piece& WeightUpload::stage(const void* host, size_t bytes, DeviceMemory& memory, const Context& ctx) {
  if (threads_ == nullptr) {
    threads_ = std::make_unique<cpu::ThreadPool>(kThreads);
    for (auto& piece : pieces_) piece = std::make_unique<Piece>(memory, ctx.stream);
  }
  Piece& piece = *pieces_[static_cast<size_t>(next_)];
  next_ = (next_ + 1) % kPieces;
  check(cudaEventSynchronize(piece.free), "waiting for a weight copy");
  char* to = static_cast<char*>(piece.pinned.ensure(kPieceBytes));
  const char* from = static_cast<const char*>(host);
  threads_->parallel_for(static_cast<int64_t>(bytes), int64_t{1} << 20, [&](int64_t begin, int64_t end, int) {
    std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
  });
  return piece;
}

void WeightUpload::copy(const HostMatrix& matrix, bf16* device, DeviceMemory& memory, const Context& ctx) {
  const size_t total = static_cast<size_t>(matrix.rows * matrix.cols) * sizeof(bf16);
  for (size_t begin = 0; begin < total; begin += kPieceBytes) {
    const size_t bytes = std::min(kPieceBytes, total - begin);
    Piece& piece = stage(reinterpret_cast<const char*>(matrix.data) + begin, bytes, memory, ctx);
    check(cudaMemcpyAsync(reinterpret_cast<char*>(device) + begin, piece.pinned.ensure(bytes), bytes,
                          cudaMemcpyHostToDevice, ctx.stream),
          "copying weights");
    check(cudaEventRecord(piece.free, ctx.stream), "recording an event");
  }
}

void WeightUpload::pack_part(const HostMatrix& matrix, LinearLayout layout, int part_offset, bf16* packed,
                             DeviceMemory& memory, const Context& ctx) {
  const size_t row_bytes = static_cast<size_t>(matrix.cols) * sizeof(bf16);
  const int64_t rows_per_piece =
      std::max<int64_t>(kPackRows, static_cast<int64_t>(kPieceBytes / row_bytes) / kPackRows * kPackRows);
  for (int64_t first = 0; first < matrix.rows; first += rows_per_piece) {
    const int64_t rows = std::min(rows_per_piece, matrix.rows - first);
    const size_t bytes = static_cast<size_t>(rows) * row_bytes;
    Piece& piece = stage(matrix.data + first * matrix.cols, bytes, memory, ctx);
    check(cudaMemcpyAsync(piece.device, piece.pinned.ensure(bytes), bytes, cudaMemcpyHostToDevice, ctx.stream),
          "copying weights");
    pack({.rows = static_cast<const bf16*>(piece.device),
          .n_rows = static_cast<int>(rows),
          .first_row = static_cast<int>(first),
          .n_in = static_cast<int>(matrix.cols),
          .layout = layout,
          .part_offset = part_offset,
          .packed = packed},
         ctx);
    check(cudaEventRecord(piece.free, ctx.stream), "recording an event");
  }
}

void WeightUpload::finish(DeviceMemory& memory, const Context& ctx) {
  if (threads_ == nullptr) return;
  check(cudaStreamSynchronize(ctx.stream), "loading weights");
  for (auto& piece : pieces_) {
    memory.release(piece->device);
    piece.reset();
  }
  threads_.reset();
}

}  // namespace qwen3::cuda

// Moves weights from the mapped files to the GPU: several threads copy pieces into pinned buffers, the copy engine
// takes them from there, and linear weights are packed on the device while the next piece is on its way. Used by the
// opening thread only.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "backend/cpu/thread_pool.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/memory.h"
#include "ops/ops.h"

namespace qwen3::cuda {

class WeightUpload {
 public:
  WeightUpload() = default;
  WeightUpload(const WeightUpload&) = delete;
  WeightUpload& operator=(const WeightUpload&) = delete;

  // Copies a matrix as it is. device: rows * cols bf16.
  void copy(const HostMatrix& matrix, bf16* device, DeviceMemory& memory, const Context& ctx);
  // Copies and packs one part of a weight, see kernels.h.
  void pack_part(const HostMatrix& matrix, LinearLayout layout, int part_offset, bf16* packed, DeviceMemory& memory,
                 const Context& ctx);
  // Waits for everything and frees the buffers.
  void finish(DeviceMemory& memory, const Context& ctx);

 private:
  static constexpr size_t kPieceBytes = size_t{32} << 20;
  static constexpr int kPieces = 4;
  static constexpr int kThreads = 8;

  struct Piece {
    Piece(DeviceMemory& memory, cudaStream_t stream);
    ~Piece();
    PinnedBuffer pinned;
    void* device;      // row-major copy, for packing
    cudaEvent_t free;  // recorded after the last use
  };

  // Fills the next pinned piece from host memory and returns it.
  Piece& stage(const void* host, size_t bytes, DeviceMemory& memory, const Context& ctx);

  std::array<std::unique_ptr<Piece>, kPieces> pieces_;
  int next_ = 0;
  std::unique_ptr<cpu::ThreadPool> threads_;
};

}  // namespace qwen3::cuda

#include <cudaTypedefs.h>

#include <string>

#include "backend/cuda/tensor_map.h"
#include "base/error.h"

namespace qwen3::cuda {
namespace {

using Encode = PFN_cuTensorMapEncodeTiled_v12000;

Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
        "looking up cuTensorMapEncodeTiled");
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    throw Error(Status::kDeviceError, "the NVIDIA driver has no cuTensorMapEncodeTiled; install driver 580 or newer");
  }
  return reinterpret_cast<Encode>(function);
}

CUtensorMap encode(CUtensorMapDataType type, uint32_t rank, const void* address, const cuuint64_t* sizes,
                   const cuuint64_t* strides, const cuuint32_t* box, CUtensorMapSwizzle swizzle,
                   CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B) {
  static const Encode function = find_encode();
  const cuuint32_t steps[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      function(&map, type, rank, const_cast<void*>(address), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
               swizzle, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw Error(Status::kDeviceError, "cuTensorMapEncodeTiled failed with CUDA driver error " +
                                          std::to_string(static_cast<int>(result)) + " for a tensor of " +
                                          std::to_string(sizes[0]) + " x " + std::to_string(sizes[1]));
  }
  return map;
}

}  // namespace

CUtensorMap rows_map(const bf16* x, int rows, int cols, int box_rows) {
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(cols) * 2};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)};
  return encode(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, x, sizes, strides, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

// Elements of 8 bytes, because a box is at most 256 elements long: 256 of them are one block. No promotion: asking the
// second-level cache for more than the box made reading weights 1 to 4% slower.
CUtensorMap weight_map(const bf16* packed, int row_tiles, int col_blocks, int box_tiles) {
  const cuuint64_t sizes[3] = {256, static_cast<cuuint64_t>(col_blocks), static_cast<cuuint64_t>(row_tiles)};
  const cuuint64_t strides[2] = {kPackBlockBytes, static_cast<cuuint64_t>(col_blocks) * kPackBlockBytes};
  const cuuint32_t box[3] = {256, 1, static_cast<cuuint32_t>(box_tiles)};
  return encode(CU_TENSOR_MAP_DATA_TYPE_UINT64, 3, packed, sizes, strides, box, CU_TENSOR_MAP_SWIZZLE_NONE,
                CU_TENSOR_MAP_L2_PROMOTION_NONE);
}

CUtensorMap float_store_map(float* out, int rows, int cols, int box_rows) {
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(cols) * 4};
  const cuuint32_t box[2] = {32, static_cast<cuuint32_t>(box_rows)};
  return encode(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, out, sizes, strides, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

CUtensorMap bf16_store_map(bf16* out, int rows, int cols, int box_rows) {
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(cols) * 2};
  const cuuint32_t box[2] = {32, static_cast<cuuint32_t>(box_rows)};
  return encode(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, out, sizes, strides, box, CU_TENSOR_MAP_SWIZZLE_64B);
}

}  // namespace qwen3::cuda

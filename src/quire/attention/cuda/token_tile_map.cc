#include "quire/attention/cuda/token_tile_map.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <cstddef>
#include <cstdint>

#include "quire/attention/cuda/args.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"

namespace quire::attention::cuda {
namespace {

constexpr int kSmallestBox = 8;  // tokens: a swizzle takes eight rows

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// Returns the function of the driver, so that nothing links against it, or null where the driver
// has none.
EncodeTiled find_encode_tiled() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                             12000, cudaEnableDefault, &result);
  return error == cudaSuccess && result == cudaDriverEntryPointSuccess
             ? reinterpret_cast<EncodeTiled>(found)
             : nullptr;
}

EncodeTiled encode_tiled() {
  static const EncodeTiled found = find_encode_tiled();
  return found;
}

}  // namespace

bool can_make_map(std::int32_t block_tokens) {
  return box_of(block_tokens) >= kSmallestBox && encode_tiled() != nullptr;
}

// Describes the KV to the copy engine. The number of blocks is unknown here, so that dimension is
// as long as it can be.
cudaError_t make_map(const DeviceKV& kv, std::int32_t kv_heads, CUtensorMap& map) {
  const auto bytes = [](std::ptrdiff_t words) { return static_cast<cuuint64_t>(words) * 2; };
  const bool codes = kv.format != tensor::KVFormat::kPlain;
  const std::int32_t row_words = codes ? kv.head_dim / 2 : kv.head_dim;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(kv.head_dim),
                              static_cast<cuuint64_t>(kv.block_tokens), 2, cuuint64_t{1} << 31,
                              static_cast<cuuint64_t>(kv_heads)};
  const cuuint64_t strides[] = {bytes(row_words), bytes(kv.v_offset), bytes(kv.block_stride),
                                bytes(kv.head_stride)};
  const cuuint32_t box[] = {codes ? static_cast<cuuint32_t>(kv.head_dim) : 64,
                            static_cast<cuuint32_t>(box_of(kv.block_tokens)), 1, 1, 1};
  const cuuint32_t steps[] = {1, 1, 1, 1, 1};
  const CUtensorMapDataType type = codes ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : kv.dtype == tensor::DType::kFloat16
                                       ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                       : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const CUtensorMapSwizzle swizzle =
      codes && kv.head_dim == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
  const CUresult result = encode_tiled()(
      &map, type, 5, kv.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace quire::attention::cuda

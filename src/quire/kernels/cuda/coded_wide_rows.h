// Images of rows, by which coded_wide_rows.cu and the kernels that it launches understand each
// other.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "quire/kernels/cuda/coded_products.h"
#include "quire/kernels/device_codes.h"

namespace quire::kernels::cuda {

inline constexpr int kWideColumns = 8;    // rows of activations that lie together in an image
inline constexpr int kWideOutputs = 128;  // of a block

// Returns the bytes of a unit of so many rows: 16-bit inputs, and sums of groups for minimums.
[[nodiscard]] constexpr int wide_image_bytes(CodeFormat format, int rows) {
  return rows * (kUnitInputs * 2 + (unit_heads(format) == 2 ? kUnitGroups * 4 : 0));
}

struct WideProduct {
  CodedProduct product;
  const std::byte* images = nullptr;  // [blocks of rows][units][wide_image_bytes()]
  int block_rows = 0;                 // 32, 64 or 128
  bool split = false;                 // the slices of an output are blocks; always for 32 rows
};

// Launches for bf16, and for fp16.
[[nodiscard]] cudaError_t launch_wide_bf16(const WideProduct& wide, cudaStream_t stream);
[[nodiscard]] cudaError_t launch_wide_fp16(const WideProduct& wide, cudaStream_t stream);

}  // namespace quire::kernels::cuda

// Products of rows that are grouped by expert, each group with the matrix of its expert. An output
// sums its inputs in one order, whatever group its row is in. So a row's bits depend on that row
// and the weights alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "quire/kernels/cuda/experts.h"
#include "quire/kernels/cuda/rows.h"
#include "quire/kernels/device_codes.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {

// Matrices [outputs, inputs] of experts, one after the other: 16-bit floats by rows, or codes as
// device_codes.h arranges them. Borrows its bytes, which are 16-byte aligned. Inputs are a multiple
// of 8.
struct ExpertMatrices {
  const std::byte* data = nullptr;
  std::optional<CodeFormat> format;  // none: 16-bit floats. Not kE4m3
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
};

// out[p] fp32 [outputs] = the row of place p times the matrix of its expert, transposed.
struct GroupedProduct {
  tensor::DType dtype = tensor::DType::kBFloat16;
  ExpertMatrices weights;
  const Half* x = nullptr;               // [*, inputs], 16-byte aligned
  const std::int32_t* row_of = nullptr;  // [places] rows of x; null: row p is that of place p
  const ExpertRows* groups = nullptr;    // of grouped_block_rows() places at most
  std::int64_t num_groups = 0;
  int block_rows = 0;
  float* out = nullptr;         // [places, outputs]
  std::byte* images = nullptr;  // of grouped_images_bytes(), for groups of kGroupedWideRows
};

inline constexpr int kGroupedWideRows = 128;  // of a group whose rows are arranged

// Tells weights apart: floats, codes, and codes that warpgroups multiply here
// (can_multiply_wide()).
enum class GroupedWeights : std::uint8_t { kFloats, kCodes, kWideCodes };

// Returns the most places of a group, by how many each expert has on average.
[[nodiscard]] int grouped_block_rows(std::int64_t places, std::int32_t experts,
                                     GroupedWeights weights);
// Returns the bytes that the images of the rows of so many groups of kGroupedWideRows take.
[[nodiscard]] std::int64_t grouped_images_bytes(CodeFormat format, std::int64_t groups,
                                                std::int64_t inputs);

// Reads the weights of each group once.
[[nodiscard]] cudaError_t multiply_groups(const GroupedProduct& product, cudaStream_t stream);
// Does so where weights are codes; with the kernel of few rows.
[[nodiscard]] cudaError_t multiply_coded_groups(const GroupedProduct& product, cudaStream_t stream);
// Does so for groups of kGroupedWideRows, whose rows it arranges in `images` first.
[[nodiscard]] cudaError_t multiply_wide_groups(const GroupedProduct& product, cudaStream_t stream);

}  // namespace quire::kernels::cuda

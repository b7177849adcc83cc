// Products of 8-bit floats on Hopper: weights e4m3 with a scale of each output, rows e4m3 with a
// scale of each row (e4m3_rows.h). The tensor cores read both as they are stored. An output sums
// its inputs in kCodedSlices slices, which are added in order whatever kernel serves it, and each
// slice is one chain of wgmma.m64nNk32. So a row's bits depend on that row and the weights alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "quire/kernels/cuda/coded_products.h"

namespace quire::kernels::cuda {

// Returns the bytes that the codes of so many rows take, and their scales.
[[nodiscard]] std::int64_t e4m3_rows_bytes(std::int64_t rows, std::int64_t inputs);

// Does what multiply_wide_rows() does, for e4m3 and any number of rows. Writes codes of the rows to
// `rows`, of e4m3_rows_bytes(), first. Precondition: can_multiply_wide().
[[nodiscard]] cudaError_t multiply_e4m3(const CodedProduct& product, std::byte* rows,
                                        cudaStream_t stream);

}  // namespace quire::kernels::cuda

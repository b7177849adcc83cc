// Measures the best that this machine can do: the numbers that speeds are reported as ratios of.
// Each takes some tenths of a second and should run while nothing else does.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_weights.h"

namespace quire::kernels {

// Returns the bytes per second at which all threads of the pool together read `bytes` of memory
// once, the best of five passes. At least 512 MiB are beyond the caches. 0 if there is no memory
// for it.
[[nodiscard]] double measure_read_bandwidth(const KernelContext& context, std::size_t bytes);

// FLOP/s (2 * rows * columns * depth per call) of linear() alone, activations packed beforehand,
// over copies of the matrix that do not fit the caches; median. 0 if there is no memory for it.
[[nodiscard]] double measure_linear_rate(const KernelContext& context, WeightFormat format,
                                         std::int64_t rows, std::int64_t columns,
                                         std::int64_t depth);

// FLOP/s of the multiply-adds that the table's kernels use, on registers, all threads together.
struct ComputePeaks {
  double f32 = 0;
  double bf16 = 0;
  double int8 = 0;
};
[[nodiscard]] ComputePeaks measure_compute_peaks(const KernelContext& context);

}  // namespace quire::kernels

// Measures the best that this machine can do: the numbers that speeds are reported as ratios of.
// Each takes some tenths of a second and should run while nothing else does.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_weights.h"

namespace quire::kernels {

// Measures the bytes per second at which all threads of the pool together read `bytes` of memory
// again and again. They come from the caches, if these hold so much. Returns the best of five
// passes or more; 0 if there is no memory for it.
[[nodiscard]] double measure_read_bandwidth(const KernelContext& context, std::size_t bytes);

// Returns the FLOP/s (2 * rows * columns * depth per call) of linear() alone, with activations
// packed beforehand. It takes the median over copies of the matrix that do not fit the caches.
// Returns 0 if there is no memory for them.
[[nodiscard]] double measure_linear_rate(const KernelContext& context, WeightFormat format,
                                         std::int64_t rows, std::int64_t columns,
                                         std::int64_t depth);

// Returns the kind of product that linear() runs for most of so many rows. Precondition: the CPU
// computes with the format.
[[nodiscard]] Product product_of(const KernelContext& context, WeightFormat format,
                                 std::int64_t rows);

// Returns the FLOP/s of one kind of product on registers, all threads together. Precondition: some
// kernel of the instruction set runs it.
[[nodiscard]] double measure_peak(const KernelContext& context, Product product);

}  // namespace quire::kernels

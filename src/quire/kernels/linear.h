// Y = X W^T (+ bias) for packed weights: GEMV, small batches and prefill through one call.
//
// Row invariance: for a given instruction set, the bits of Y[row] depend on X[row] and W only. They
// never depend on the number of rows, the row's place or the number of threads. For q8g32 and q4g32
// all instruction sets with fused multiply-add give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "quire/device/aligned_buffer.h"
#include "quire/kernels/epilogue.h"  // IWYU pragma: export
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_rows.h"
#include "quire/kernels/packed_weights.h"
#include "quire/kernels/work_ranges.h"

namespace quire::kernels {

// Reusable storage for one caller; grows as needed, so steady-state calls allocate nothing.
class LinearScratch {
 public:
  // Makes room for at least `bytes` for each of `threads` threads. Contents are lost when it grows.
  void reserve(int threads, std::size_t bytes);
  [[nodiscard]] std::byte* of_thread(int thread) {
    return buffers_[static_cast<std::size_t>(thread)].data();
  }
  // Returns one work range for each of `threads` threads.
  [[nodiscard]] std::span<WorkRange> work_ranges(int threads);

 private:
  std::vector<device::AlignedBuffer<std::byte>> buffers_;  // [threads]
  std::unique_ptr<WorkRange[]> work_ranges_;
  int num_work_ranges_ = 0;
};

// fp32 rows to multiply: row r begins at values[r * stride] and has `depth` values.
struct InputRows {
  std::span<const float> values;
  std::ptrdiff_t stride = 0;  // >= depth
  std::int64_t rows = 0;
  std::int64_t depth = 0;
};

// Rounds or quantises x into `packed` (reshaped to rows x depth in the row format of `format`). 0
// rows: nothing to do.
void pack_rows(const KernelContext& context, WeightFormat format, const InputRows& x,
               PackedRows& packed);

// RMSNorm: row r becomes x[r] / sqrt(mean(x[r]^2) + epsilon) * weight.
struct RowNorm {
  std::span<const float> weight;  // [depth]
  double epsilon = 0;
};

// Packs rms_norm of x with the bits of pack_rows, without writing the normed rows anywhere.
void pack_normed_rows(const KernelContext& context, WeightFormat format, const InputRows& x,
                      const RowNorm& norm, PackedRows& packed);

// The place for products: row r begins at values[r * stride].
struct OutputRows {
  std::span<float> values;
  std::ptrdiff_t stride = 0;  // >= columns
};

// Sets out [rows, columns] to the product, or adds the product to it. Writes all columns and
// nothing beyond them. `packed` must have been filled for weights.format() and weights.depth().
// Bytes: the weights once per 256 rows; FLOPs: 2 * rows * columns * depth.
void linear(const KernelContext& context, const PackedWeights& weights, const PackedRows& packed,
            const OutputRows& out, const Epilogue& epilogue, LinearScratch& scratch);

// Computes the first half of a gated MLP for many rows: gated = pack(activation(gate) * up). There
// gate and up are the halves of the product with `weights` [2 * width, depth] plus `bias` [2 *
// width] or nothing. The bits are those of linear, gate_mul and pack_rows in turn, but only a few
// panels of gate and up are there at a time. Precondition: can_gate(weights). Cost as linear.
void linear_gated(const KernelContext& context, const PackedWeights& weights,
                  const PackedRows& packed, std::span<const float> bias, const GatedRows& gated,
                  LinearScratch& scratch);

// Tells whether gate and up are whole panels.
[[nodiscard]] bool can_gate(const PackedWeights& weights);

}  // namespace quire::kernels

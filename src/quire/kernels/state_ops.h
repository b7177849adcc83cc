// Updates of states from row to row: convolutions of the last rows, and the gated delta rule. All
// in fp32, strictly in order of the rows. So the bits depend on the rows alone, however they are
// cut into calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/kernels/kernel_context.h"

namespace quire::kernels {

// Rows inside a wider matrix.
struct StridedRows {
  float* data = nullptr;  // first element of the first row
  std::ptrdiff_t stride = 0;

  [[nodiscard]] float* row(std::int64_t index) const { return data + index * stride; }
};

// Rows of one sequence, and the last inputs before them.
struct ConvRows {
  StridedRows in;  // [rows, channels]
  std::int64_t rows = 0;
  const float* tail = nullptr;  // [taps - 1, channels], the newest last; null: zeros
};

// The last inputs that a convolution sees beside the newest one: [taps - 1, channels].
struct TailShape {
  std::int64_t taps = 0;
  std::int64_t channels = 0;
};

struct ConvWeights {
  std::span<const float> weights;  // [taps, channels], of the newest input last
  std::span<const float> bias;     // [channels] or empty
  std::int64_t channels = 0;
  bool silu = false;

  [[nodiscard]] std::int64_t taps() const { return std::ssize(weights) / channels; }
  [[nodiscard]] TailShape tail() const { return {.taps = taps(), .channels = channels}; }
};

// Sets out[r] to the convolution of rows r - taps + 1 to r. `out` is not `in`.
void convolve_rows(const KernelContext& context, const ConvWeights& conv, const ConvRows& rows,
                   const StridedRows& out);
// Copies the last inputs of the first `count` rows to `tail`, which may be rows.tail.
void copy_tail(const TailShape& shape, const ConvRows& rows, std::int64_t count, float* tail);

// Sets x[r][i] *= factor[r][i] for `width` elements of each row.
void multiply_rows(const KernelContext& context, const StridedRows& x, const StridedRows& factor,
                   std::int64_t rows, std::int64_t width);

// Sets each head to head / sqrt(sum of its squares + 1e-6) * factor, in place.
void l2_norm_heads(const KernelContext& context, const StridedRows& x, std::int64_t rows,
                   std::int64_t heads, std::int64_t head_dim, float factor);

// Turns gates [rows, 2 * heads], of b and a in this order, into beta = sigmoid(b) and exp(decay *
// softplus(a + shift)).
void delta_gates(const KernelContext& context, std::span<const float> decay,
                 std::span<const float> shift, std::int64_t rows, std::span<float> gates);

// The steps of a state space.
struct ScanSteps {
  std::span<const float> decay;  // [heads], below 0
  std::span<const float> shift;  // [heads]
  double least = 0, most = 0;    // bounds of a step
};

// Turns rows [rows, heads] of `raw` into gates [rows, 2 * heads]: step = softplus(raw + shift)
// within its bounds, then exp(decay * step).
void scan_gates(const KernelContext& context, const ScanSteps& steps, const StridedRows& raw,
                std::int64_t rows, std::span<float> gates);

}  // namespace quire::kernels

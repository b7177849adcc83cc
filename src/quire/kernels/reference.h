// Obvious, slow answers in double precision, and how far a kernel may be from them. Tests and the
// self-test compare every kernel with these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "quire/device/cpu/isa.h"
#include "quire/kernels/packed_rows.h"
#include "quire/kernels/packed_weights.h"
#include "quire/result.h"

namespace quire::kernels::reference {

// Largest ||kernel - reference|| / ||reference||, both given the same (packed) operands. The norm
// of the difference is that of fp32 rounding: 2^-24 * sqrt(depth) for sums, a few 2^-24 elsewhere.
struct Tolerance {
  static constexpr double kLinear = 1e-6;
  static constexpr double kRmsNorm = 2e-7;
  static constexpr double kSiluMul = 2e-7;  // with the exponential's own 2e-7 in its worst place
  static constexpr double kGeluMul = 2e-6;  // the exponential's argument grows with the cube
  static constexpr double kSoftCap = 1e-6;  // 1 - e cancels near 0
  static constexpr double kRotate = 2e-7;
  // Rounding activations, and products of the unpacked weights with plain activations.
  static constexpr double kBf16Rows = 4e-3;
  static constexpr double kInt8Rows = 8e-3;
};

// Returns ||a - b|| / ||b||, or ||a|| if b is zero. Returns NaN when a value is NaN.
[[nodiscard]] double relative_l2(std::span<const float> a, std::span<const double> b);

// Returns Ok if error <= bound. Else, NaN included, returns kDevice naming the kernel.
[[nodiscard]] Status within(std::string_view kernel, device::Isa isa, double error, double bound);

// Returns numbers in [-1, 1) without any pattern that could favour a kernel.
[[nodiscard]] std::vector<float> numbers(std::size_t count, std::uint64_t seed);

// Returns the values that the kernels see, row-major [columns, depth]; unpack_rows returns [rows,
// depth].
[[nodiscard]] std::vector<float> unpack_weights(const PackedWeights& weights);
[[nodiscard]] std::vector<float> unpack_rows(const PackedRows& rows);

// Returns y [rows, columns] = x [rows, depth] times w [columns, depth] transposed, plus bias (may
// be empty).
[[nodiscard]] std::vector<double> linear(std::span<const float> x, std::span<const float> w,
                                         std::int64_t depth, std::span<const float> bias);

// Returns one normed row.
[[nodiscard]] std::vector<double> rms_norm(std::span<const float> x, std::span<const float> weight,
                                           double epsilon);
// Returns silu(gate) * up of one row; gate_up [2 * width].
[[nodiscard]] std::vector<double> silu_mul(std::span<const float> gate_up);
// Returns gelu_tanh(gate) * up of one row.
[[nodiscard]] std::vector<double> gelu_mul(std::span<const float> gate_up);
// Returns cap * tanh(value / cap) of each value.
[[nodiscard]] std::vector<double> soft_cap(std::span<const float> values, double cap);
// Rotates one head: pairs (i, i + cos.size()) by the angles i. The rest stays as it is.
[[nodiscard]] std::vector<double> rotate(std::span<const float> head, std::span<const float> cos,
                                         std::span<const float> sin);

}  // namespace quire::kernels::reference

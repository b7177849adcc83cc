#include "quire/kernels/state_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/base/check.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/parallel.h"

namespace quire::kernels {
namespace {

// Returns whether there is an input of row `row`: before the first token there is none.
bool is_there(const ConvRows& rows, std::int64_t row) { return row >= 0 || rows.tail != nullptr; }

// Returns the input of a row, counted from the first of the call. Precondition: it is there.
const float* input(const ConvRows& rows, std::int64_t taps, std::int64_t channels,
                   std::int64_t row) {
  return row >= 0 ? rows.in.row(row) : rows.tail + (taps - 1 + row) * channels;
}

constexpr std::int64_t kGateElements = 64;  // that cost as much as a gate

// Returns ln(1 + e^x).
double softplus(double x) {
  constexpr double kLinear = 20.0;  // it is x from here on, as in torch
  return x > kLinear ? x : std::log1p(std::exp(x));
}

}  // namespace

void convolve_rows(const KernelContext& context, const ConvWeights& conv, const ConvRows& rows,
                   const StridedRows& out) {
  const std::int64_t taps = conv.taps();
  QUIRE_CHECK(taps <= kMaxConvTaps, "a convolution has too many taps");
  const std::vector<float> zeros(
      static_cast<std::size_t>(rows.tail == nullptr ? conv.channels : 0));
  parallel_ranges(
      context, rows.rows, conv.channels * taps, [&](std::int64_t first, std::int64_t last) {
        std::array<const float*, kMaxConvTaps> inputs = {};
        for (std::int64_t row = first; row < last; ++row) {
          for (std::int64_t tap = 0; tap < taps; ++tap) {
            const std::int64_t at = row - (taps - 1) + tap;
            inputs[static_cast<std::size_t>(tap)] =
                is_there(rows, at) ? input(rows, taps, conv.channels, at) : zeros.data();
          }
          context.table->convolve({.inputs = inputs.data(),
                                   .weights = conv.weights.data(),
                                   .weight_stride = conv.channels,
                                   .bias = conv.bias.empty() ? nullptr : conv.bias.data(),
                                   .taps = static_cast<int>(taps),
                                   .silu = conv.silu,
                                   .count = conv.channels,
                                   .out = out.row(row)});
        }
      });
}

// Goes upwards, so that inputs which stay in the tail are read before they are overwritten.
void copy_tail(const TailShape& shape, const ConvRows& rows, std::int64_t count, float* tail) {
  for (std::int64_t i = 0; i < shape.taps - 1; ++i) {
    const std::int64_t row = count - (shape.taps - 1) + i;
    float* to = tail + i * shape.channels;
    if (is_there(rows, row)) {
      std::copy_n(input(rows, shape.taps, shape.channels, row), shape.channels, to);
    } else {
      std::fill_n(to, shape.channels, 0.0f);
    }
  }
}

void multiply_rows(const KernelContext& context, const StridedRows& x, const StridedRows& factor,
                   std::int64_t rows, std::int64_t width) {
  parallel_ranges(context, rows, width, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      float* to = x.row(row);
      const float* by = factor.row(row);
      for (std::int64_t i = 0; i < width; ++i) {
        to[i] *= by[i];
      }
    }
  });
}

void l2_norm_heads(const KernelContext& context, const StridedRows& x, std::int64_t rows,
                   std::int64_t heads, std::int64_t head_dim, float factor) {
  constexpr double kEpsilon = 1e-6;
  const auto size = static_cast<double>(head_dim);
  const auto scale = static_cast<float>(factor / std::sqrt(size));
  parallel_ranges(context, rows, heads * head_dim, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      for (std::int64_t head = 0; head < heads; ++head) {
        float* values = x.row(row) + head * head_dim;
        const float by = context.table->rms_factor(values, head_dim, kEpsilon / size) * scale;
        for (std::int64_t i = 0; i < head_dim; ++i) {
          values[i] *= by;
        }
      }
    }
  });
}

void delta_gates(const KernelContext& context, std::span<const float> decay,
                 std::span<const float> shift, std::int64_t rows, std::span<float> gates) {
  const auto heads = std::ssize(decay);
  parallel_ranges(
      context, rows, 2 * heads * kGateElements, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t row = first; row < last; ++row) {
          float* values = gates.data() + row * 2 * heads;
          for (std::int64_t head = 0; head < heads; ++head) {
            const auto at = static_cast<std::size_t>(head);
            const double soft = softplus(static_cast<double>(values[heads + head]) + shift[at]);
            values[head] =
                static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(values[head]))));
            values[heads + head] = static_cast<float>(std::exp(decay[at] * soft));
          }
        }
      });
}

void scan_gates(const KernelContext& context, const ScanSteps& steps, const StridedRows& raw,
                std::int64_t rows, std::span<float> gates) {
  const auto heads = std::ssize(steps.decay);
  parallel_ranges(
      context, rows, 2 * heads * kGateElements, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t row = first; row < last; ++row) {
          float* values = gates.data() + row * 2 * heads;
          for (std::int64_t head = 0; head < heads; ++head) {
            const auto at = static_cast<std::size_t>(head);
            const double soft = softplus(static_cast<double>(raw.row(row)[head]) + steps.shift[at]);
            const auto step = static_cast<float>(std::clamp(soft, steps.least, steps.most));
            values[head] = step;
            values[heads + head] =
                static_cast<float>(std::exp(double{steps.decay[at]} * double{step}));
          }
        }
      });
}

}  // namespace quire::kernels

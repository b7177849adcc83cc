#include "quire/kernels/reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <span>
#include <string_view>
#include <vector>

#include "quire/base/str.h"
#include "quire/device/cpu/isa.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/packed_rows.h"
#include "quire/kernels/packed_weights.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::reference {
namespace {

template <class T>
T element(const std::byte* data, std::int64_t index) {
  T value;
  std::memcpy(&value, data + index * static_cast<std::int64_t>(sizeof value), sizeof value);
  return value;
}

}  // namespace

double relative_l2(std::span<const float> a, std::span<const double> b) {
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double difference = double{a[i]} - b[i];
    error += difference * difference;
    norm += b[i] * b[i];
  }
  return std::sqrt(norm > 0 ? error / norm : error);
}

Status within(std::string_view kernel, device::Isa isa, double error, double bound) {
  if (error <= bound) {  // false for NaN
    return {};
  }
  return {ErrorCode::kDevice,
          base::str_cat("kernel ", kernel, " of ", device::isa_name(isa), " is wrong: error ",
                        error, ", at most ", bound, " allowed; choose another instruction set")};
}

// Returns pseudo-random numbers in [-1, 1) of splitmix64 (Steele 2014).
std::vector<float> numbers(std::size_t count, std::uint64_t seed) {
  std::vector<float> values(count);
  for (float& value : values) {
    seed += 0x9e3779b97f4a7c15u;
    std::uint64_t bits = (seed ^ (seed >> 30)) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
    value = static_cast<float>(static_cast<std::int64_t>(bits) >> 40) * 0x1p-23f;
  }
  return values;
}

std::vector<float> unpack_weights(const PackedWeights& weights) {
  const auto depth = static_cast<std::size_t>(weights.depth());
  std::vector<float> plain(static_cast<std::size_t>(weights.columns()) * depth);
  for (std::size_t column = 0; column < static_cast<std::size_t>(weights.columns()); ++column) {
    weights.unpack_row(static_cast<std::int64_t>(column),
                       std::span(plain).subspan(column * depth, depth));
  }
  return plain;
}

std::vector<float> unpack_rows(const PackedRows& rows) {
  std::vector<float> plain;
  for (std::int64_t row = 0; row < rows.rows(); ++row) {
    const std::int64_t first = row / kBlockRows * kBlockRows;
    const std::int64_t block_rows = std::min<std::int64_t>(kBlockRows, rows.rows() - first);
    const std::byte* values = rows.values(first);
    for (std::int64_t k = 0; k < rows.depth(); ++k) {
      const std::int64_t group = k / kStepDepth * block_rows + row - first;
      const std::int64_t at = group * kStepDepth + k % kStepDepth;
      if (rows.format() == RowFormat::kF32) {
        plain.push_back(element<float>(values, at));
      } else if (rows.format() == RowFormat::kBf16) {
        plain.push_back(tensor::bf16_to_float(element<std::uint16_t>(values, at)));
      } else {
        plain.push_back(rows.scales(first)[group] *
                        static_cast<float>(element<std::int8_t>(values, at)));
      }
    }
  }
  return plain;
}

std::vector<double> linear(std::span<const float> x, std::span<const float> w, std::int64_t depth,
                           std::span<const float> bias) {
  const auto width = static_cast<std::size_t>(depth);
  std::vector<double> y;
  for (std::size_t row = 0; row < x.size() / width; ++row) {
    for (std::size_t column = 0; column < w.size() / width; ++column) {
      double sum = bias.empty() ? 0.0 : double{bias[column]};
      for (std::size_t k = 0; k < width; ++k) {
        sum += double{x[row * width + k]} * double{w[column * width + k]};
      }
      y.push_back(sum);
    }
  }
  return y;
}

std::vector<double> rms_norm(std::span<const float> x, std::span<const float> weight,
                             double epsilon) {
  double sum = 0;
  for (const float value : x) {
    sum += double{value} * double{value};
  }
  const double scale = 1.0 / std::sqrt(sum / static_cast<double>(x.size()) + epsilon);
  std::vector<double> out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    out[i] = double{x[i]} * scale * double{weight[i]};
  }
  return out;
}

std::vector<double> silu_mul(std::span<const float> gate_up) {
  const std::size_t width = gate_up.size() / 2;
  std::vector<double> out(width);
  for (std::size_t i = 0; i < width; ++i) {
    const double gate = gate_up[i];
    out[i] = gate / (1.0 + std::exp(-gate)) * double{gate_up[width + i]};
  }
  return out;
}

std::vector<double> gelu_mul(std::span<const float> gate_up) {
  const std::size_t width = gate_up.size() / 2;
  std::vector<double> out(width);
  for (std::size_t i = 0; i < width; ++i) {
    const double gate = gate_up[i];
    const double inner = std::sqrt(2.0 / std::numbers::pi) * (gate + 0.044715 * gate * gate * gate);
    out[i] = 0.5 * gate * (1.0 + std::tanh(inner)) * double{gate_up[width + i]};
  }
  return out;
}

std::vector<double> soft_cap(std::span<const float> values, double cap) {
  std::vector<double> out(values.begin(), values.end());
  for (double& value : out) {
    value = cap * std::tanh(value / cap);
  }
  return out;
}

std::vector<double> rotate(std::span<const float> head, std::span<const float> cos,
                           std::span<const float> sin) {
  const std::size_t half = cos.size();
  std::vector<double> out(head.begin(), head.end());
  for (std::size_t i = 0; i < half; ++i) {
    const double a = head[i];
    const double b = head[i + half];
    out[i] = a * double{cos[i]} - b * double{sin[i]};
    out[i + half] = b * double{cos[i]} + a * double{sin[i]};
  }
  return out;
}

}  // namespace quire::kernels::reference

#include "quire/kernels/small_codes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "quire/kernels/panel_bytes.h"
#include "quire/kernels/weight_format.h"
#include "quire/tensor/code_rows.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels {
namespace {

constexpr int kHalfDepth = kStepDepth / 2;
constexpr float kMultiples = 15;  // of q2m16, as in 4 bits
// Places in the header of a step.
constexpr int kMinimumsAt = 64;
constexpr int kMultiplesAt = 128;
constexpr int kMinimumMultiplesAt = 192;

constexpr int header_bytes(WeightFormat format) {
  return format == WeightFormat::kT4g32 ? 128 : format == WeightFormat::kT4g16 ? 192 : 256;
}

// Where a code lies: its byte behind the header, and the bit at which it begins. A byte holds
// `in_byte` codes, those of the earliest inputs in the lowest bits.
struct Place {
  std::ptrdiff_t byte;
  int shift;
};
constexpr Place place_of(WeightFormat format, int column, int k) {
  const int in_byte = format == WeightFormat::kQ2m16 ? 4 : 2;
  const int plane_depth = kStepDepth / in_byte;
  const int rows = plane_depth / 4;  // of 64 bytes
  const int row = column / kTileColumns * rows + k % plane_depth / 4;
  return {.byte = std::ptrdiff_t{row} * 64 + std::ptrdiff_t{column % kTileColumns} * 4 + k % 4,
          .shift = k / plane_depth * (8 / in_byte)};
}

// The numbers of one column of a step.
struct Group {
  std::array<std::uint8_t, kStepDepth> codes = {};
  float wide_scale = 0;     // of formats with a table
  std::uint16_t scale = 0;  // fp16, as the minimum
  std::uint16_t minimum = 0;
  std::array<std::int8_t, 2> multiples = {};
  std::array<std::int8_t, 2> minimum_multiples = {};
};

void write(WeightFormat format, const Group& group, int column, std::byte* step) {
  if (has_table(format)) {
    put(step + std::ptrdiff_t{4} * column, group.wide_scale);
  } else {
    put(step + std::ptrdiff_t{2} * column, group.scale);
    put(step + kMinimumsAt + std::ptrdiff_t{2} * column, group.minimum);
  }
  for (std::size_t half = 0; format != WeightFormat::kT4g32 && half < 2; ++half) {
    const auto at = static_cast<std::ptrdiff_t>(half * kPanelColumns) + column;
    put(step + kMultiplesAt + at, group.multiples[half]);
    if (format == WeightFormat::kQ2m16) {
      put(step + kMinimumMultiplesAt + at, group.minimum_multiples[half]);
    }
  }
  std::byte* const tiles = step + header_bytes(format);
  for (int k = 0; k < kStepDepth; ++k) {
    const Place place = place_of(format, column, k);
    const auto code =
        static_cast<std::byte>(group.codes[static_cast<std::size_t>(k)] << place.shift);
    tiles[place.byte] = place.shift == 0 ? code : tiles[place.byte] | code;
  }
}

float amax_of(std::span<const float> w) {
  float amax = 0;
  for (const float x : w) {
    amax = std::max(amax, std::fabs(x));
  }
  return amax;
}

// Finds the values of the table that, scaled, come nearest.
void find_nearest(std::span<const float> w, float scale, std::uint8_t* codes) {
  const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
  for (const float x : w) {
    const auto distance = [&](std::int8_t value) {
      return std::fabs(x * inverse - static_cast<float>(value));
    };
    *codes++ = static_cast<std::uint8_t>(std::ranges::min_element(kE2m1Table, {}, distance) -
                                         kE2m1Table.begin());
  }
}

Group group_with_table(WeightFormat format, std::span<const float, kStepDepth> w) {
  constexpr float kLargest = 12;
  Group group;
  if (format == WeightFormat::kT4g32) {
    group.wide_scale = amax_of(w) / kLargest;
    find_nearest(w, group.wide_scale, group.codes.data());
    return group;
  }
  group.wide_scale = amax_of(w) / (kLargest * 127);
  for (std::size_t half = 0; half < 2; ++half) {
    const auto part = w.subspan(half * kHalfDepth, kHalfDepth);
    const bool scaled = group.wide_scale > 0 && std::isfinite(group.wide_scale);
    const float wanted = scaled ? amax_of(part) / kLargest / group.wide_scale : 0;
    const float multiple = std::clamp(std::round(wanted), 0.0f, 127.0f);
    group.multiples[half] = static_cast<std::int8_t>(multiple);
    find_nearest(part, group.wide_scale * multiple, group.codes.data() + half * kHalfDepth);
  }
  return group;
}

Group group_of_two_bits(std::span<const float, kStepDepth> w) {
  std::array<float, 2> low = {}, scale = {};
  for (std::size_t half = 0; half < 2; ++half) {
    const auto [least, most] = std::ranges::minmax(w.subspan(half * kHalfDepth, kHalfDepth));
    low[half] = std::max(0.0f, -least);
    scale[half] = (std::max(most, 0.0f) + low[half]) / 3.0f;
  }
  Group group;
  group.scale = tensor::float_to_fp16(std::max(scale[0], scale[1]) / kMultiples);
  group.minimum = tensor::float_to_fp16(-std::max(low[0], low[1]) / kMultiples);
  const float scale_unit = tensor::fp16_to_float(group.scale);
  const float low_unit = -tensor::fp16_to_float(group.minimum);
  const auto multiple_of = [](float value, float unit) {
    return unit > 0 ? std::clamp(std::round(value / unit), 0.0f, kMultiples) : 0.0f;
  };
  for (std::size_t half = 0; half < 2; ++half) {
    const float multiple = multiple_of(scale[half], scale_unit);
    const float below = multiple_of(low[half], low_unit);
    group.multiples[half] = static_cast<std::int8_t>(multiple);
    group.minimum_multiples[half] = static_cast<std::int8_t>(below);
    const float step = scale_unit * multiple;
    for (std::size_t k = half * kHalfDepth; k < (half + 1) * kHalfDepth; ++k) {
      const float code = step > 0 ? (w[k] + low_unit * below) / step : 0.0f;
      group.codes[k] = static_cast<std::uint8_t>(std::clamp(std::round(code), 0.0f, 3.0f));
    }
  }
  return group;
}

}  // namespace

void put_code_table(const tensor::CodeTable& table, std::byte* panel) {
  std::memset(panel, 0, static_cast<std::size_t>(panel_head_bytes(WeightFormat::kT4g32)));
  for (std::size_t i = 0; i < table.size(); ++i) {
    panel[i] = static_cast<std::byte>(table[i] + 128);
  }
}

void place_small_codes(WeightFormat format, const tensor::CodeRows& from, std::size_t group,
                       int column, std::byte* step) {
  Group numbers = {.wide_scale = from.wide_scales[group],
                   .scale = from.scales[group],
                   .minimum = from.minimums[group],
                   .multiples = {from.multiples[group * 2], from.multiples[group * 2 + 1]},
                   .minimum_multiples = {from.minimum_multiples[group * 2],
                                         from.minimum_multiples[group * 2 + 1]}};
  std::ranges::copy(from.codes.subspan(group * kStepDepth, kStepDepth), numbers.codes.begin());
  write(format, numbers, column, step);
}

void pack_small_codes(WeightFormat format, const float* w, int column, std::byte* step) {
  const std::span<const float, kStepDepth> weights(w, kStepDepth);
  write(format, has_table(format) ? group_with_table(format, weights) : group_of_two_bits(weights),
        column, step);
}

void unpack_small_codes(WeightFormat format, const std::byte* head, const std::byte* step,
                        int column, float* w) {
  const auto half = [&](int at) {
    return tensor::fp16_to_float(get<std::uint16_t>(step + at + std::ptrdiff_t{2} * column));
  };
  const bool is_table = has_table(format);
  const float scale = is_table ? get<float>(step + std::ptrdiff_t{4} * column) : half(0);
  const float minimum = is_table ? 0.0f : half(kMinimumsAt);
  const std::byte* const tiles = step + header_bytes(format);
  for (int k = 0; k < kStepDepth; ++k) {
    const Place place = place_of(format, column, k);
    const int bits = std::to_integer<int>(tiles[place.byte]) >> place.shift;
    const std::byte* const multiples =
        step + std::ptrdiff_t{k / kHalfDepth} * kPanelColumns + column;
    if (format == WeightFormat::kT4g32) {
      w[k] = scale * static_cast<float>(std::to_integer<int>(head[bits & 15]) - 128);
      continue;
    }
    const float own_scale = scale * static_cast<float>(get<std::int8_t>(multiples + kMultiplesAt));
    if (is_table) {
      w[k] = own_scale * static_cast<float>(std::to_integer<int>(head[bits & 15]) - 128);
      continue;
    }
    const float low =
        minimum * static_cast<float>(get<std::int8_t>(multiples + kMinimumMultiplesAt));
    w[k] = own_scale * static_cast<float>(bits & 3) + low;
  }
}

}  // namespace quire::kernels

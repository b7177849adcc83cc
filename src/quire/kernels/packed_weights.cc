#include "quire/kernels/packed_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "quire/base/check.h"
#include "quire/device/aligned_buffer.h"
#include "quire/device/arena.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/panel_bytes.h"
#include "quire/kernels/small_codes.h"
#include "quire/tensor/code_rows.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/float8.h"

namespace quire::kernels {
namespace {

constexpr int kScaleBytes = 64;  // 32 fp16
constexpr int kMinimumHeaderBytes = 2 * kScaleBytes;

static_assert(kMatmuls == kCpuWeightFormats);

// Returns where input k of a column lives, counted in elements from the column's first one.
// Layouts: see the header.
constexpr int f32_offset(int column, int k) { return k * kPanelColumns + column; }
constexpr int half_offset(int column, int k) {
  const int tile = column / kTileColumns;
  return ((tile * 16 + k / 2) * kTileColumns + column % kTileColumns) * 2 + k % 2;
}
constexpr int q8_offset(int column, int k) {
  const int tile = column / kTileColumns;
  return ((tile * 8 + k / 4) * kTileColumns + column % kTileColumns) * 4 + k % 4;
}
// Returns the offset of the byte of input k. Inputs 16..31 are in the high nibbles.
constexpr int q4_offset(int column, int k) {
  const int tile = column / kTileColumns;
  return ((tile * 4 + k % (kStepDepth / 2) / 4) * kTileColumns + column % kTileColumns) * 4 + k % 4;
}

// Rounds to the nearest integer, ties to even; |x| < 2^22.
int round_to_int(float x) {
  constexpr float kMagic = 0x1.8p23f;  // adding it leaves no bits behind the point
  return std::bit_cast<std::int32_t>(x + kMagic) - std::bit_cast<std::int32_t>(kMagic);
}

// Packs column `column` of a step from 32 plain weights.
void pack_q8(const float* w, int column, std::byte* step) {
  float peak = 0;
  for (int k = 0; k < kStepDepth; ++k) {
    peak = std::max(peak, std::fabs(w[k]));
  }
  put(step + std::ptrdiff_t{2} * column, tensor::float_to_fp16(peak / 127.0f));
  const float inverse = peak > 0 ? 127.0f / peak : 0.0f;
  for (int k = 0; k < kStepDepth; ++k) {
    const int code = std::clamp(round_to_int(w[k] * inverse), -127, 127);
    step[kScaleBytes + q8_offset(column, k)] = static_cast<std::byte>(code + 128);
  }
}

void pack_q4(const float* w, int column, std::byte* step) {
  float peak = 0;
  for (int k = 0; k < kStepDepth; ++k) {
    peak = std::fabs(w[k]) > std::fabs(peak) ? w[k] : peak;
  }
  put(step + std::ptrdiff_t{2} * column, tensor::float_to_fp16(peak / -8.0f));
  const float inverse = peak != 0 ? -8.0f / peak : 0.0f;
  const auto code = [&](int k) {
    return static_cast<unsigned>(std::clamp(round_to_int(w[k] * inverse), -8, 7) + 8);
  };
  for (int k = 0; k < kStepDepth / 2; ++k) {
    step[kScaleBytes + q4_offset(column, k)] = static_cast<std::byte>(code(k) | code(k + 16) << 4);
  }
}

// Packs one column with scale = range / 15 and minimum = the smallest weight.
void pack_q4m(const float* w, int column, std::byte* step) {
  float low = w[0];
  float high = w[0];
  for (int k = 1; k < kStepDepth; ++k) {
    low = std::min(low, w[k]);
    high = std::max(high, w[k]);
  }
  put(step + std::ptrdiff_t{2} * column, tensor::float_to_fp16((high - low) / 15.0f));
  put(step + kScaleBytes + std::ptrdiff_t{2} * column, tensor::float_to_fp16(low));
  const float inverse = high > low ? 15.0f / (high - low) : 0.0f;
  const auto code = [&](int k) {
    return static_cast<unsigned>(std::clamp(round_to_int((w[k] - low) * inverse), 0, 15));
  };
  for (int k = 0; k < kStepDepth / 2; ++k) {
    step[kMinimumHeaderBytes + q4_offset(column, k)] =
        static_cast<std::byte>(code(k) | code(k + 16) << 4);
  }
}

void pack_column(const KernelTable& table, WeightFormat format, const float* w, int column,
                 std::byte* step) {
  if (format == WeightFormat::kF32) {
    for (int k = 0; k < kStepDepth; ++k) {
      put(step + std::ptrdiff_t{4} * f32_offset(column, k), w[k]);
    }
  } else if (format == WeightFormat::kBf16) {
    std::uint16_t rounded[kStepDepth];
    table.round_bf16(w, kStepDepth, rounded);
    for (int k = 0; k < kStepDepth; ++k) {
      put(step + std::ptrdiff_t{2} * half_offset(column, k), rounded[k]);
    }
  } else if (format == WeightFormat::kF16) {
    for (int k = 0; k < kStepDepth; ++k) {
      put(step + std::ptrdiff_t{2} * half_offset(column, k), tensor::float_to_fp16(w[k]));
    }
  } else if (format == WeightFormat::kQ8g32) {
    pack_q8(w, column, step);
  } else if (format == WeightFormat::kQ4g32) {
    pack_q4(w, column, step);
  } else if (format == WeightFormat::kQ4m32) {
    pack_q4m(w, column, step);
  } else {
    pack_small_codes(format, w, column, step);
  }
}

// Writes column `column` of a step from the codes of its 32 weights.
void place_codes(WeightFormat format, const std::uint8_t* codes, int column, std::byte* step) {
  if (format == WeightFormat::kQ8g32) {
    for (int k = 0; k < kStepDepth; ++k) {
      step[kScaleBytes + q8_offset(column, k)] = static_cast<std::byte>(codes[k]);
    }
    return;
  }
  std::byte* const tiles =
      step + (format == WeightFormat::kQ4m32 ? kMinimumHeaderBytes : kScaleBytes);
  for (int k = 0; k < kStepDepth / 2; ++k) {
    tiles[q4_offset(column, k)] = static_cast<std::byte>(codes[k] | codes[k + 16] << 4);
  }
}

// Writes rows [0, rows) of a panel. The rest of the panel is zero already.
void place_panel(WeightFormat format, const tensor::CodeRows& from, std::int64_t rows,
                 std::int64_t depth, std::byte* to) {
  const std::int64_t steps = depth / kStepDepth;
  to += panel_head_bytes(format);
  for (std::int64_t s = 0; s < steps; ++s, to += step_bytes(format)) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto group = static_cast<std::size_t>(row * steps + s);
      const int column = static_cast<int>(row);
      if (format > WeightFormat::kQ4m32) {
        place_small_codes(format, from, group, column, to);
        continue;
      }
      place_codes(format, from.codes.data() + group * kStepDepth, column, to);
      put(to + std::ptrdiff_t{2} * column, from.scales[group]);
      if (format == WeightFormat::kQ4m32) {
        put(to + kScaleBytes + std::ptrdiff_t{2} * column, from.minimums[group]);
      }
    }
  }
}

// Memory for the codes of a panel's rows, reused.
class CodeBuffer {
 public:
  tensor::CodeRows room_for(std::int64_t rows, std::int64_t depth) {
    const auto values = static_cast<std::size_t>(rows * depth);
    const std::size_t groups = values / kStepDepth;
    codes_.resize(values);
    scales_.resize(groups);
    minimums_.resize(groups);
    wide_scales_.resize(groups);
    multiples_.resize(groups * 2);
    minimum_multiples_.resize(groups * 2);
    return {codes_, scales_, minimums_, wide_scales_, multiples_, minimum_multiples_};
  }

 private:
  std::vector<std::uint8_t> codes_;
  std::vector<std::uint16_t> scales_, minimums_;
  std::vector<float> wide_scales_;
  std::vector<std::int8_t> multiples_, minimum_multiples_;
};

// Rows [0, rows <= 32) of a panel, [rows, depth].
struct PlainPanel {
  std::span<const float> values;
  std::int64_t rows = 0;
  std::int64_t depth = 0;
};

// Writes every byte of a panel of fp8; weights outside `from` are zero.
void pack_f8_panel(const PlainPanel& from, std::byte* to) {
  std::byte* const steps = to + panel_head_bytes(WeightFormat::kF8);
  constexpr int kStepBytes = step_bytes(WeightFormat::kF8);
  std::memset(to, 0, static_cast<std::size_t>(steps - to));
  std::memset(steps, 0,
              static_cast<std::size_t>((from.depth + kStepDepth - 1) / kStepDepth * kStepBytes));
  for (int column = 0; column < from.rows; ++column) {
    const auto row = from.values.subspan(static_cast<std::size_t>(column * from.depth),
                                         static_cast<std::size_t>(from.depth));
    float peak = 0;
    for (const float value : row) {
      peak = std::max(peak, std::fabs(value));
    }
    const float scale = peak / tensor::kLargestE4m3;
    if (scale < std::numeric_limits<float>::min()) {
      continue;  // as good as zeros, and the inverse would not be finite
    }
    put(to + std::ptrdiff_t{4} * column, scale);
    for (std::int64_t k = 0; k < from.depth; ++k) {
      steps[k / kStepDepth * kStepBytes + q8_offset(column, static_cast<int>(k % kStepDepth))] =
          static_cast<std::byte>(tensor::float_to_e4m3(row[static_cast<std::size_t>(k)] / scale));
    }
  }
}

void unpack_f8_row(const std::byte* panel, int column, std::span<float> out) {
  const float scale = get<float>(panel + std::ptrdiff_t{4} * column);
  const std::byte* const steps = panel + panel_head_bytes(WeightFormat::kF8);
  for (std::size_t k = 0; k < out.size(); ++k) {
    const std::byte code =
        steps[static_cast<std::ptrdiff_t>(k / kStepDepth) * step_bytes(WeightFormat::kF8) +
              q8_offset(column, static_cast<int>(k % kStepDepth))];
    out[k] = scale * tensor::e4m3_to_float(std::to_integer<std::uint8_t>(code));
  }
}

// Writes every byte of the panel; weights outside `from` are zero.
void pack_panel(const KernelTable& table, WeightFormat format, const PlainPanel& from,
                std::byte* to) {
  if (format == WeightFormat::kF8) {
    return pack_f8_panel(from, to);
  }
  if (has_table(format)) {
    put_code_table(kE2m1Table, to);
  }
  to += panel_head_bytes(format);
  for (std::int64_t k = 0; k < from.depth; k += kStepDepth, to += step_bytes(format)) {
    const std::int64_t count = std::min<std::int64_t>(kStepDepth, from.depth - k);
    for (int column = 0; column < kPanelColumns; ++column) {
      const float* row = from.values.data() + column * from.depth + k;
      if (column < from.rows && count == kStepDepth) {
        pack_column(table, format, row, column, to);
        continue;
      }
      float padded[kStepDepth] = {};
      if (column < from.rows) {
        std::copy_n(row, count, padded);
      }
      pack_column(table, format, padded, column, to);
    }
  }
}

void unpack_f32(const std::byte* step, int column, float* w) {
  for (int k = 0; k < kStepDepth; ++k) {
    w[k] = get<float>(step + std::ptrdiff_t{4} * f32_offset(column, k));
  }
}

template <float (*kWiden)(std::uint16_t)>
void unpack_half(const std::byte* step, int column, float* w) {
  for (int k = 0; k < kStepDepth; ++k) {
    const std::byte* from = step + std::ptrdiff_t{2} * half_offset(column, k);
    w[k] = kWiden(get<std::uint16_t>(from));
  }
}

void unpack_q8(const std::byte* step, int column, float* w) {
  const float scale = tensor::fp16_to_float(get<std::uint16_t>(step + std::ptrdiff_t{2} * column));
  for (int k = 0; k < kStepDepth; ++k) {
    const int byte = std::to_integer<int>(step[kScaleBytes + q8_offset(column, k)]);
    w[k] = scale * static_cast<float>(byte - 128);
  }
}

void unpack_q4(const std::byte* step, int column, float* w) {
  const float scale = tensor::fp16_to_float(get<std::uint16_t>(step + std::ptrdiff_t{2} * column));
  for (int k = 0; k < kStepDepth; ++k) {
    const int byte = std::to_integer<int>(step[kScaleBytes + q4_offset(column, k)]);
    const int nibble = k < kStepDepth / 2 ? byte & 15 : byte >> 4;
    w[k] = scale * static_cast<float>(nibble - 8);
  }
}

void unpack_q4m(const std::byte* step, int column, float* w) {
  const auto half = [&](int at) {
    return tensor::fp16_to_float(get<std::uint16_t>(step + at + std::ptrdiff_t{2} * column));
  };
  const float scale = half(0);
  const float minimum = half(kScaleBytes);
  for (int k = 0; k < kStepDepth; ++k) {
    const int byte = std::to_integer<int>(step[kMinimumHeaderBytes + q4_offset(column, k)]);
    const int nibble = k < kStepDepth / 2 ? byte & 15 : byte >> 4;
    w[k] = scale * static_cast<float>(nibble) + minimum;
  }
}

// 32 inputs of one column of a step, by WeightFormat, but for those of small_codes.h and fp8.
constexpr void (*kUnpackColumn[])(const std::byte* step, int column, float* w) = {
    unpack_f32,
    unpack_half<tensor::bf16_to_float>,
    unpack_q8,
    unpack_q4,
    unpack_q4m,
    nullptr,
    nullptr,
    nullptr,
    unpack_half<tensor::fp16_to_float>};

}  // namespace

const char* format_name(WeightFormat format) {
  constexpr const char* kNames[] = {"float32", "bfloat16", "q8g32", "q4g32",   "q4m32",
                                    "t4g32",   "t4g16",    "q2m16", "float16", "fp8"};
  return kNames[static_cast<std::uint8_t>(format)];
}

std::optional<std::int64_t> packed_bytes(WeightFormat format, std::int64_t columns,
                                         std::int64_t depth) {
  if (std::min(columns, depth) < 1 || std::max(columns, depth) > kMaxPackedSize) {
    return std::nullopt;
  }
  const std::int64_t panels = (columns + kPanelColumns - 1) / kPanelColumns;
  const std::int64_t steps = (depth + kStepDepth - 1) / kStepDepth;
  return panels * (panel_head_bytes(format) + steps * step_bytes(format));  // below 2^63
}

void PackedWeights::allocate(WeightFormat format, std::int64_t columns, std::int64_t depth,
                             device::Arena* arena) {
  QUIRE_CHECK(columns > 0 && depth > 0, "a weight matrix has at least one row and column");
  format_ = format;
  columns_ = columns;
  depth_ = depth;
  device::Arena own(size_bytes());
  owned_ = (arena == nullptr ? own : *arena).allocate(size_bytes());
}

PackedWeights::PackedWeights(WeightFormat format, std::int64_t columns, std::int64_t depth) {
  allocate(format, columns, depth, nullptr);
  if (owned_ != nullptr) {
    std::memset(owned_.get(), 0, size_bytes());  // scale 0 makes every code a zero
  }
}

PackedWeights PackedWeights::pack(const KernelContext& context, WeightFormat format,
                                  std::int64_t columns, std::int64_t depth, const RowSource& source,
                                  device::Arena* arena) {
  PackedWeights packed;
  packed.allocate(format, columns, depth, arena);
  if (packed.data() == nullptr) {
    return packed;
  }
  std::vector<device::AlignedBuffer<float>> plain(
      static_cast<std::size_t>(context.pool->threads()));
  context.pool->run(static_cast<int>(packed.panels()), [&](int panel, int thread) {
    const std::int64_t first = std::int64_t{panel} * kPanelColumns;
    const std::int64_t rows = std::min<std::int64_t>(kPanelColumns, columns - first);
    auto& buffer = plain[static_cast<std::size_t>(thread)];
    buffer.require(static_cast<std::size_t>(kPanelColumns * depth));
    const std::span<float> values = buffer.span().first(static_cast<std::size_t>(rows * depth));
    source(first, rows, values);
    std::byte* to = packed.owned_.get() + packed.panel_bytes() * static_cast<std::size_t>(panel);
    pack_panel(*context.table, format, {values, rows, depth}, to);
  });
  return packed;
}

PackedWeights PackedWeights::pack_codes(const KernelContext& context, WeightFormat format,
                                        std::int64_t columns, std::int64_t depth,
                                        const CodeSource& source, device::Arena* arena) {
  QUIRE_CHECK(
      format >= WeightFormat::kQ8g32 && format <= WeightFormat::kQ2m16 && depth % kStepDepth == 0,
      "no rows of codes");
  PackedWeights packed;
  packed.allocate(format, columns, depth, arena);
  if (packed.data() == nullptr) {
    return packed;
  }
  std::vector<CodeBuffer> buffers(static_cast<std::size_t>(context.pool->threads()));
  context.pool->run(static_cast<int>(packed.panels()), [&](int panel, int thread) {
    const std::int64_t first = std::int64_t{panel} * kPanelColumns;
    const std::int64_t rows = std::min<std::int64_t>(kPanelColumns, columns - first);
    const tensor::CodeRows from = buffers[static_cast<std::size_t>(thread)].room_for(rows, depth);
    source.read(first, rows, from);
    std::byte* to = packed.owned_.get() + packed.panel_bytes() * static_cast<std::size_t>(panel);
    if (rows < kPanelColumns) {
      std::memset(to, 0, packed.panel_bytes());  // scale 0 makes every code a zero
    }
    if (has_table(format)) {
      put_code_table(source.table, to);
    }
    place_panel(format, from, rows, depth, to);
  });
  return packed;
}

PackedWeights PackedWeights::view(WeightFormat format, std::int64_t columns, std::int64_t depth,
                                  std::span<const std::byte> bytes) {
  constexpr std::uintptr_t kAlignment = 64;
  const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());  // NOLINT: alignment
  QUIRE_CHECK(
      packed_bytes(format, columns, depth) == std::ssize(bytes) && address % kAlignment == 0,
      "a view of a weight matrix has its size and alignment");
  PackedWeights packed;
  packed.format_ = format;
  packed.columns_ = columns;
  packed.depth_ = depth;
  packed.viewed_ = bytes.data();
  return packed;
}

PackedWeights PackedWeights::clone() const {
  PackedWeights copy;
  copy.allocate(format_, columns_, depth_, nullptr);
  if (copy.data() != nullptr) {
    std::memcpy(copy.owned_.get(), data(), size_bytes());
  }
  return copy;
}

void PackedWeights::unpack_row(std::int64_t column, std::span<float> out) const {
  QUIRE_CHECK(column >= 0 && column < columns_, "row outside the weight matrix");
  QUIRE_CHECK(static_cast<std::int64_t>(out.size()) >= depth_, "out is short");
  const int place = static_cast<int>(column % kPanelColumns);
  const std::byte* step = data() + panel_bytes() * static_cast<std::size_t>(column / kPanelColumns);
  if (format_ == WeightFormat::kF8) {
    return unpack_f8_row(step, place, out.first(static_cast<std::size_t>(depth_)));
  }
  const std::byte* const head = step;
  step += panel_head_bytes(format_);
  const auto unpack_column = [&](float* to) {
    const auto unpack = kUnpackColumn[static_cast<std::uint8_t>(format_)];
    unpack == nullptr ? unpack_small_codes(format_, head, step, place, to)
                      : unpack(step, place, to);
  };
  for (std::int64_t k = 0; k < depth_; k += kStepDepth, step += step_bytes(format_)) {
    if (depth_ - k >= kStepDepth) {
      unpack_column(out.data() + k);
      continue;
    }
    float last[kStepDepth];
    unpack_column(last);
    std::copy_n(last, depth_ - k, out.data() + k);
  }
}

}  // namespace quire::kernels

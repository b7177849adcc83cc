#include "quire/weights/quantised_tensor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/str.h"
#include "quire/tensor/code_rows.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/float8.h"
#include "quire/weights/encoding.h"
#include "quire/weights/quantisation.h"
#include "quire/weights/tensor_info.h"

namespace quire::weights {
namespace {

// A fused matrix has three tensors; one more panel may still be read from the matrix before.
constexpr std::size_t kKeptMatrices = 8;
constexpr int kWordBits = 32;

// The integers that symmetric codes of 4 bits name, and those of E2M1 times two.
constexpr tensor::CodeTable kSymmetric = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
constexpr tensor::CodeTable kE2m1 = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

constexpr std::array<float, 16> kE2m1Floats = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                                               4.0f,  6.0f,  -0.0f, -0.5f, -1.0f, -1.5f,
                                               -2.0f, -3.0f, -4.0f, -6.0f};

template <class T>
T load_at(const std::vector<std::byte>& bytes, std::int64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + static_cast<std::size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

std::vector<std::byte> whole(const StoredTensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes.size());
  read_bytes(tensor, 0, bytes);
  return bytes;
}

// Returns the bits [at * bits, (at + 1) * bits) of a word.
int field_of(std::uint32_t word, std::int64_t at, int bits) {
  return static_cast<int>(word >> (at * bits) & ((1U << bits) - 1U));
}

// AWQ packs eight outputs in the order 0, 2, 4, 6, 1, 3, 5, 7.
std::int64_t awq_place(std::int64_t output) {
  const std::int64_t at = output % 8;
  return at % 2 == 0 ? at / 2 : 4 + at / 2;
}

bool is_exact_in_fp16(float value) {
  return tensor::fp16_to_float(tensor::float_to_fp16(value)) == value;
}

// Returns the kind that holds a matrix exactly, but for scales that fp16 cannot.
CodeKind kind_of(const Quantisation& how, const QuantisedTensor::Parts& parts) {
  if (how.method == QuantMethod::kFp8 || parts.columns % tensor::kCodeGroup != 0 ||
      !parts.groups.empty() ||
      (parts.num_groups > 1 && parts.group_size % tensor::kCodeGroup != 0)) {
    return CodeKind::kNone;
  }
  if (how.method == QuantMethod::kMxfp4) {
    return CodeKind::kTable;
  }
  if (how.bits == 8 || !how.symmetric) {
    return CodeKind::kEight;
  }
  return parts.scales.type == "F16" ? CodeKind::kFour : CodeKind::kTable;
}

}  // namespace

std::shared_ptr<const LoadedParts> LoadedMatrices::parts_of(const QuantisedTensor& tensor) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(last_, &tensor, &Entry::first);
  if (found != last_.end()) {
    return found->second;
  }
  if (last_.size() == kKeptMatrices) {
    last_.pop_front();
  }
  return last_.emplace_back(&tensor, std::make_shared<const LoadedParts>(tensor.load())).second;
}

// One row: codes, and the scale and zero point of each group.
struct QuantisedTensor::Row {
  std::vector<std::uint8_t> codes;  // [columns]
  std::vector<float> scales;        // [groups]
  std::vector<int> zeros;           // [groups]
};

QuantisedTensor::QuantisedTensor(const Quantisation& how, Parts parts, LoadedMatrices& loaded)
    : how_(how), parts_(std::move(parts)), kind_(kind_of(how_, parts_)), loaded_(loaded) {}

const tensor::CodeTable* QuantisedTensor::table() const {
  if (kind_ != CodeKind::kTable) {
    return nullptr;
  }
  return how_.method == QuantMethod::kMxfp4 ? &kE2m1 : &kSymmetric;
}

std::string QuantisedTensor::rule() const {
  return base::str_cat(static_cast<int>(how_.method), " ", how_.bits, " ", parts_.group_size, " ",
                       parts_.block_rows, " ", how_.stored_zero_offset, " ",
                       static_cast<int>(kind_));
}

LoadedParts QuantisedTensor::load() const {
  LoadedParts parts{.scales = whole(parts_.scales), .zeros = whole(parts_.zeros)};
  if (loads_codes()) {
    parts.codes = whole(parts_.codes);
  }
  return parts;
}

float QuantisedTensor::scale_at(const LoadedParts& parts, std::int64_t index) const {
  if (parts_.scales.type == "F32") {
    return load_at<float>(parts.scales, index);
  }
  const auto half = load_at<std::uint16_t>(parts.scales, index);
  return parts_.scales.type == "F16" ? tensor::fp16_to_float(half) : tensor::bf16_to_float(half);
}

int QuantisedTensor::zero_at(const LoadedParts& parts, std::int64_t row, std::int64_t group) const {
  if (parts.zeros.empty()) {
    return 1 << (how_.bits - 1);
  }
  if (how_.method == QuantMethod::kInt8) {
    return load_at<std::int8_t>(parts.zeros, row) + 128;
  }
  const std::int64_t per_word = kWordBits / how_.bits;
  const std::int64_t word = row / per_word;
  if (how_.method == QuantMethod::kPacked) {
    return field_of(load_at<std::uint32_t>(parts.zeros, word * parts_.num_groups + group),
                    row % per_word, how_.bits);
  }
  const std::int64_t place = how_.method == QuantMethod::kAwq ? awq_place(row) : row % per_word;
  return field_of(load_at<std::uint32_t>(parts.zeros, group * (parts_.rows / per_word) + word),
                  place, how_.bits) +
         how_.stored_zero_offset;
}

// Sets the codes of a row.
void QuantisedTensor::read_codes_of(const LoadedParts& parts, std::int64_t row, Row& out) const {
  const std::int64_t per_word = kWordBits / how_.bits;
  const std::int64_t columns = parts_.columns;
  out.codes.resize(static_cast<std::size_t>(columns));
  if (how_.method == QuantMethod::kInt8) {
    read_bytes(parts_.codes, static_cast<std::size_t>(row * columns),
               std::as_writable_bytes(std::span(out.codes)));
    std::ranges::for_each(out.codes, [](std::uint8_t& code) { code ^= 0x80U; });
    return;
  }
  std::vector<std::byte> words;
  const std::int64_t width = (columns + per_word - 1) / per_word;
  if (how_.method == QuantMethod::kPacked) {
    words.resize(static_cast<std::size_t>(width) * 4);
    read_bytes(parts_.codes, static_cast<std::size_t>(row * width * 4), words);
  }
  for (std::int64_t i = 0; i < columns; ++i) {
    int code = 0;
    if (how_.method == QuantMethod::kAwq) {
      code = field_of(load_at<std::uint32_t>(parts.codes, i * (parts_.rows / 8) + row / 8),
                      awq_place(row), 4);
    } else if (how_.method == QuantMethod::kGptq) {
      code = field_of(load_at<std::uint32_t>(parts.codes, i / per_word * parts_.rows + row),
                      i % per_word, how_.bits);
    } else {
      code = field_of(load_at<std::uint32_t>(words, i / per_word), i % per_word, how_.bits);
    }
    out.codes[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(code);
  }
}

void QuantisedTensor::read_integers(const LoadedParts& parts, std::int64_t row, Row& out) const {
  read_codes_of(parts, row, out);
  const std::int64_t groups = parts_.num_groups;
  const bool by_group = loads_codes();  // scales [groups, rows]
  out.scales.resize(static_cast<std::size_t>(groups));
  out.zeros.resize(static_cast<std::size_t>(groups));
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::int64_t index = by_group ? group * parts_.rows + row : row * groups + group;
    out.scales[static_cast<std::size_t>(group)] = scale_at(parts, index);
    out.zeros[static_cast<std::size_t>(group)] = zero_at(parts, row, group);
  }
}

void QuantisedTensor::read_e4m3(const LoadedParts& parts, std::int64_t row,
                                std::span<float> out) const {
  std::vector<std::uint8_t> codes(out.size());
  read_bytes(parts_.codes, static_cast<std::size_t>(row * parts_.columns),
             std::as_writable_bytes(std::span(codes)));
  const std::int64_t first =
      parts_.block_rows == 0 ? 0 : row / parts_.block_rows * parts_.num_groups;
  const auto size = static_cast<std::size_t>(parts_.group_size);
  for (std::size_t begin = 0; begin < out.size(); begin += size) {
    const float scale = scale_at(parts, first + static_cast<std::int64_t>(begin / size));
    for (std::size_t i = begin; i < std::min(begin + size, out.size()); ++i) {
      out[i] = tensor::e4m3_to_float(codes[i]) * scale;
    }
  }
}

// Sets codes in order, and the exponents of groups of 32.
void QuantisedTensor::read_mxfp4(std::int64_t row, std::span<std::uint8_t> codes,
                                 std::span<std::uint8_t> exponents) const {
  std::vector<std::uint8_t> pairs(codes.size() / 2);
  read_bytes(parts_.codes, static_cast<std::size_t>(row) * pairs.size(),
             std::as_writable_bytes(std::span(pairs)));
  read_bytes(parts_.scales, static_cast<std::size_t>(row) * exponents.size(),
             std::as_writable_bytes(exponents));
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    codes[2 * i] = pairs[i] & 15U;
    codes[2 * i + 1] = pairs[i] >> 4U;
  }
}

void QuantisedTensor::read_rows(std::int64_t first_row, std::int64_t num_rows,
                                std::span<float> out) const {
  const auto columns = static_cast<std::size_t>(parts_.columns);
  if (how_.method == QuantMethod::kMxfp4) {
    std::vector<std::uint8_t> codes(columns), exponents(columns / 32);
    for (std::int64_t i = 0; i < num_rows; ++i) {
      read_mxfp4(first_row + i, codes, exponents);
      for (std::size_t k = 0; k < columns; ++k) {
        out[static_cast<std::size_t>(i) * columns + k] =
            std::ldexp(kE2m1Floats[codes[k]], exponents[k / 32] - 127);
      }
    }
    return;
  }
  const auto parts = loaded_.parts_of(*this);
  Row row;
  for (std::int64_t i = 0; i < num_rows; ++i) {
    const auto to = out.subspan(static_cast<std::size_t>(i) * columns, columns);
    if (how_.method == QuantMethod::kFp8) {
      read_e4m3(*parts, first_row + i, to);
      continue;
    }
    read_integers(*parts, first_row + i, row);
    for (std::size_t k = 0; k < columns; ++k) {
      const auto group =
          parts_.groups.empty()
              ? static_cast<std::size_t>(static_cast<std::int64_t>(k) / parts_.group_size)
              : static_cast<std::size_t>(parts_.groups[k]);
      to[k] = row.scales[group] * static_cast<float>(row.codes[k] - row.zeros[group]);
    }
  }
}

// Writes a row of integers in codes of `kind_`; `group` is the first of its groups of 32 in `out`.
void QuantisedTensor::put_row(const Row& row, std::span<std::uint8_t> codes, std::size_t group,
                              const tensor::CodeRows& out) const {
  constexpr std::size_t kGroup = tensor::kCodeGroup;
  for (std::size_t first = 0; first < codes.size(); first += kGroup, ++group) {
    const auto of = static_cast<std::size_t>(static_cast<std::int64_t>(first) / parts_.group_size);
    const float scale = row.scales[of];
    const int zero = row.zeros[of];
    const int offset = kind_ == CodeKind::kEight ? 128 - zero : 0;
    bool fits = kind_ == CodeKind::kEight || zero == 8;
    for (std::size_t k = first; k < first + kGroup; ++k) {
      const int code = row.codes[k] + offset;
      fits = fits && code >= 0 && code <= 255;
      codes[k] = static_cast<std::uint8_t>(code);
    }
    if (kind_ == CodeKind::kTable) {
      out.wide_scales[group] = scale;
    } else {
      out.scales[group] = tensor::float_to_fp16(scale);
      fits = fits && is_exact_in_fp16(scale);
    }
    if (!fits) {
      misfits_ = true;
    }
  }
}

void QuantisedTensor::read_codes(std::int64_t first_row, std::int64_t num_rows,
                                 const tensor::CodeRows& out) const {
  QUIRE_CHECK(kind_ != CodeKind::kNone, "a matrix without codes");
  const auto columns = static_cast<std::size_t>(parts_.columns);
  const std::size_t groups = columns / tensor::kCodeGroup;
  const bool is_mxfp4 = how_.method == QuantMethod::kMxfp4;
  const auto parts = is_mxfp4 ? nullptr : loaded_.parts_of(*this);
  std::vector<std::uint8_t> exponents(groups);
  Row row;
  for (std::size_t i = 0; std::cmp_less(i, num_rows); ++i) {
    const auto codes = out.codes.subspan(i * columns, columns);
    const std::int64_t at = first_row + static_cast<std::int64_t>(i);
    if (!is_mxfp4) {
      read_integers(*parts, at, row);
      put_row(row, codes, i * groups, out);
      continue;
    }
    read_mxfp4(at, codes, exponents);
    for (std::size_t group = 0; group < groups; ++group) {
      out.wide_scales[i * groups + group] = std::ldexp(1.0f, exponents[group] - 128);
    }
  }
}

}  // namespace quire::weights

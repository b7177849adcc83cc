#include "quire/kernels/kv_codes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include "quire/base/check.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/float8.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kInfinityBits = 0x7f800000;  // as bits, above them NaN
constexpr std::uint16_t kFp16Infinity = 0x7c00;
constexpr std::uint16_t kFp16Sign = 0x8000;
constexpr float kRoundingBias = 0x1.8p23f;  // x + this - this is x as an integer, ties to even
constexpr float kLargestInt4 = 15.0F;
constexpr std::size_t kMaxCodes = 256;
constexpr int kInt8PerWord = 4;

// Returns the smallest fp16 number that is not below x >= 0; an infinity if there is none.
std::uint16_t fp16_above(float x) {
  if (x <= 0) {
    return 0;  // also of -0
  }
  std::uint16_t bits = tensor::float_to_fp16(x);
  bits += tensor::fp16_to_float(bits) < x ? 1 : 0;
  return bits;
}

// Returns the largest fp16 number that is not above x; minus infinity if there is none.
std::uint16_t fp16_below(float x) {
  std::uint16_t bits = tensor::float_to_fp16(x);
  if (tensor::fp16_to_float(bits) > x) {
    bits += (bits & kFp16Sign) != 0 ? 1 : -1;
  }
  return bits == kFp16Sign ? 0 : bits;
}

bool is_finite_fp16(std::uint16_t bits) { return (bits & std::uint16_t{0x7fff}) < kFp16Infinity; }

// Returns x rounded to the nearest integer, ties to even. Precondition: |x| < 2^22.
std::int32_t nearest_integer(float x) {
  return static_cast<std::int32_t>((x + kRoundingBias) - kRoundingBias);
}

// The codes of K or V of one token in a head block. Code d lies in the word `step` bytes times
// d / per_word behind the first.
struct TokenCodes {
  std::byte* first;
  std::ptrdiff_t step;
  int per_word;  // codes of this token that share a word
  int pack;      // codes of a word
  int index;     // of the token's code in a word that it shares with other tokens

  [[nodiscard]] std::byte* word(int d) const { return first + d / per_word * step; }
  // Returns the first bit of a code in its word.
  [[nodiscard]] int bit(int d) const {
    return tensor::code_place(pack, per_word == 1 ? index : d % per_word) * (32 / pack);
  }
  [[nodiscard]] std::uint32_t at(int d) const {
    std::uint32_t bits = 0;
    std::memcpy(&bits, word(d), sizeof(bits));
    return bits >> bit(d) & ((1U << (32 / pack)) - 1);
  }
};

std::byte* block_of(const tensor::PagedKVView& view, int kv_head, int block) {
  return view.data + kv_head * view.head_stride + block * view.block_stride;
}

TokenCodes key_codes(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot) {
  const int pack = tensor::kv_pack(view.format, view.dtype);
  return {.first = block_of(view, kv_head, slot.block) + std::ptrdiff_t{kWordBytes} * slot.offset,
          .step = std::ptrdiff_t{kWordBytes} * view.stored_block_tokens(),
          .per_word = pack,
          .pack = pack,
          .index = 0};
}

TokenCodes value_codes(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot) {
  const int pack = tensor::kv_pack(view.format, view.dtype);
  return {.first = block_of(view, kv_head, slot.block) + view.v_offset +
                   std::ptrdiff_t{slot.offset / pack} * view.head_dim * kWordBytes,
          .step = kWordBytes,
          .per_word = 1,
          .pack = pack,
          .index = slot.offset % pack};
}

std::byte* scales_of(const tensor::PagedKVView& view, int kv_head, int block) {
  return block_of(view, kv_head, block) + view.scale_offset;
}

// Returns where the int8 scale of a token's K lies, or that of its V.
std::byte* int8_scale(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot,
                      bool is_value) {
  const std::ptrdiff_t index = slot.offset + (is_value ? view.stored_block_tokens() : 0);
  return scales_of(view, kv_head, slot.block) + 2 * index;
}

float fp16_at(const std::byte* at) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  return tensor::fp16_to_float(bits);
}

float fp32_at(const std::byte* at) {
  float value = 0;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// Sets out[d] to number(code d, d).
template <class Number>
void read_codes(const TokenCodes& codes, std::span<float> out, Number number) {
  for (int d = 0; d < std::ssize(out); ++d) {
    out[static_cast<std::size_t>(d)] = number(codes.at(d), d);
  }
}

void read_int8(const TokenCodes& codes, float scale, std::span<float> out) {
  read_codes(codes, out, [&](std::uint32_t code, int) {
    return static_cast<float>(static_cast<std::int8_t>(code)) * scale;
  });
}

void read_fp8(const TokenCodes& codes, float scale, std::span<float> out) {
  read_codes(codes, out, [&](std::uint32_t code, int) {
    return tensor::e4m3_to_float(static_cast<std::uint8_t>(code)) * scale;
  });
}

// Reads codes whose scale stands at scale(d), with the minimum `to_minimum` bytes behind it.
template <class ScaleAt>
void read_int4(const TokenCodes& codes, ScaleAt scale, std::ptrdiff_t to_minimum,
               std::span<float> out) {
  read_codes(codes, out, [&](std::uint32_t code, int d) {
    const std::byte* at = scale(d);
    return static_cast<float>(code) * fp16_at(at) + fp16_at(at + to_minimum);
  });
}

}  // namespace

std::uint32_t largest_bits(std::span<const float> x) {
  std::uint32_t largest = 0;
  for (const float value : x) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & 0x7fffffffU);
  }
  return largest;
}

bool encode_int8(std::span<const float> x, std::span<std::int8_t> codes, std::uint16_t& scale) {
  const std::uint32_t largest = largest_bits(x);
  scale = largest < kInfinityBits ? fp16_above(std::bit_cast<float>(largest) / 127.0F) : 0;
  if (scale == 0 || scale >= kFp16Infinity) {
    const bool held = scale == 0 && largest < kInfinityBits;
    scale = 0;
    std::ranges::fill(codes, std::int8_t{0});
    return held;
  }
  const float divisor = tensor::fp16_to_float(scale);
  for (std::size_t i = 0; i < x.size(); ++i) {
    codes[i] = static_cast<std::int8_t>(nearest_integer(x[i] / divisor));
  }
  return true;
}

bool encode_fp8(std::span<const float> x, std::span<std::uint8_t> codes, float& scale) {
  const std::uint32_t largest = largest_bits(x);
  scale = 0;
  std::ranges::fill(codes, std::uint8_t{0});
  if (largest >= kInfinityBits) {
    return false;
  }
  const float least = std::bit_cast<float>(largest) / tensor::kLargestE4m3;
  if (least < std::numeric_limits<float>::min()) {
    return true;
  }
  if (std::bit_cast<std::uint32_t>(least * tensor::kLargestE4m3) >= kInfinityBits) {
    return false;
  }
  scale = least;
  for (std::size_t i = 0; i < x.size(); ++i) {
    codes[i] = tensor::float_to_e4m3(x[i] / scale);
  }
  return true;
}

bool encode_int4(std::span<const float> x, std::span<std::uint8_t> codes, Int4Scale& scale) {
  scale = {};
  std::ranges::fill(codes, std::uint8_t{0});
  if (largest_bits(x) >= kInfinityBits) {
    return false;
  }
  const auto [least, largest] = std::ranges::minmax(x);
  const std::uint16_t minimum = fp16_below(least);
  if (!is_finite_fp16(minimum)) {
    return false;
  }
  const float from = tensor::fp16_to_float(minimum);
  const std::uint16_t step = fp16_above((largest - from) / kLargestInt4);
  if (!is_finite_fp16(step)) {
    return false;
  }
  scale = {step, minimum};
  const float divisor = tensor::fp16_to_float(step);
  for (std::size_t i = 0; step != 0 && i < x.size(); ++i) {
    codes[i] = static_cast<std::uint8_t>(nearest_integer((x[i] - from) / divisor));
  }
  return true;
}

bool store_int8(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot,
                std::span<const float> k, std::span<const float> v) {
  std::array<std::int8_t, kMaxCodes> codes;  // NOLINT: filled by the next line
  std::uint16_t scale = 0;
  const bool key = encode_int8(k, codes, scale);
  std::memcpy(int8_scale(view, kv_head, slot, false), &scale, sizeof(scale));
  const TokenCodes keys = key_codes(view, kv_head, slot);
  for (int d = 0; d < view.head_dim; d += kInt8PerWord) {
    const auto* of = codes.data() + d;
    const std::array<std::int8_t, kInt8PerWord> word = {of[0], of[2], of[1], of[3]};
    std::memcpy(keys.word(d), word.data(), kInt8PerWord);
  }
  const bool value = encode_int8(v, codes, scale);
  std::memcpy(int8_scale(view, kv_head, slot, true), &scale, sizeof(scale));
  const TokenCodes values = value_codes(view, kv_head, slot);
  std::byte* const first = values.first + tensor::int8_place(values.index);
  for (int d = 0; d < view.head_dim; ++d) {
    first[std::ptrdiff_t{kWordBytes} * d] = std::byte(codes[static_cast<std::size_t>(d)]);
  }
  return key && value;
}

void add_errors(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot,
                std::span<const float> k, std::span<const float> v, KVErrorSums& sums) {
  std::array<float, kMaxCodes> stored;  // NOLINT: filled by reading
  const auto add = [&](std::span<const float> x, double& error, double& whole) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double difference = double{stored[i]} - double{x[i]};
      error += difference * difference;
      whole += double{x[i]} * double{x[i]};
    }
  };
  read_coded_key(view, kv_head, slot, std::span(stored).first(k.size()));
  add(k, sums.key_error, sums.key_whole);
  read_coded_value(view, kv_head, slot, std::span(stored).first(v.size()));
  add(v, sums.value_error, sums.value_whole);
}

void read_coded_key(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot,
                    std::span<float> out) {
  const TokenCodes codes = key_codes(view, kv_head, slot);
  const std::byte* scales = scales_of(view, kv_head, slot.block);
  switch (view.format) {
    case tensor::KVFormat::kPlain:
      break;
    case tensor::KVFormat::kInt8:
      return read_int8(codes, fp16_at(int8_scale(view, kv_head, slot, false)), out);
    case tensor::KVFormat::kFp8:
      return read_fp8(codes, fp32_at(scales), out);
    case tensor::KVFormat::kInt4:
      scales += std::ptrdiff_t{8} * view.head_dim * (slot.offset / tensor::kInt4RunTokens);
      return read_int4(
          codes, [&](int d) { return scales + std::ptrdiff_t{2} * d; },
          std::ptrdiff_t{2} * view.head_dim, out);
  }
  QUIRE_CHECK(false, "plain KV has no codes");
}

void read_coded_value(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot,
                      std::span<float> out) {
  const TokenCodes codes = value_codes(view, kv_head, slot);
  const std::byte* scales = scales_of(view, kv_head, slot.block);
  switch (view.format) {
    case tensor::KVFormat::kPlain:
      break;
    case tensor::KVFormat::kInt8:
      return read_int8(codes, fp16_at(int8_scale(view, kv_head, slot, true)), out);
    case tensor::KVFormat::kFp8:
      return read_fp8(codes, fp32_at(scales + sizeof(float)), out);
    case tensor::KVFormat::kInt4: {
      constexpr std::ptrdiff_t kRunBytes = std::ptrdiff_t{2} * tensor::kInt4RunTokens;
      scales += std::ptrdiff_t{8} * view.head_dim * (slot.offset / tensor::kInt4RunTokens) +
                std::ptrdiff_t{4} * view.head_dim +
                std::ptrdiff_t{2} * (slot.offset % tensor::kInt4RunTokens);
      return read_int4(
          codes, [&](int d) { return scales + 2 * kRunBytes * (d / tensor::kInt4GroupChannels); },
          kRunBytes, out);
    }
  }
  QUIRE_CHECK(false, "plain KV has no codes");
}

bool codes_are_numbers(const tensor::KVGeometry& geometry, std::span<const std::byte> head_block) {
  const auto codes = head_block.first(static_cast<std::size_t>(geometry.scale_offset()));
  const auto scales = head_block.subspan(codes.size());
  if (geometry.format == tensor::KVFormat::kFp8) {
    constexpr std::byte kNaN{0x7f};  // and with its sign
    const auto is_nan = [](std::byte code) { return (code & kNaN) == kNaN; };
    const auto is_scale = [&](std::ptrdiff_t at) {
      const float scale = fp32_at(scales.data() + at);
      return scale == 0 || (scale >= std::numeric_limits<float>::min() &&
                            scale * tensor::kLargestE4m3 <= std::numeric_limits<float>::max());
    };
    return is_scale(0) && is_scale(sizeof(float)) && std::ranges::count_if(codes, is_nan) == 0;
  }
  QUIRE_CHECK(geometry.format == tensor::KVFormat::kInt4, "codes that are stored block by block");
  const std::ptrdiff_t dim = geometry.stored_head_dim(), group = tensor::kInt4RunTokens;
  // Scales of K [dim], minimums of K [dim], then as many of V by groups.
  const auto are_numbers = [](const std::byte* at, std::ptrdiff_t count) {
    bool good = true;
    for (std::ptrdiff_t i = 0; i < count; ++i) {
      Int4Scale group;
      std::memcpy(&group.scale, at + 2 * i, sizeof(group.scale));
      std::memcpy(&group.minimum, at + 2 * (count + i), sizeof(group.minimum));
      good = good && group.scale < kFp16Infinity && is_finite_fp16(group.minimum);
    }
    return good;
  };
  for (const std::byte* at = scales.data(); at != scales.data() + scales.size();) {
    if (!are_numbers(at, dim)) {
      return false;
    }
    const std::byte* const end = at + 8 * dim;
    for (at += 4 * dim; at != end; at += 4 * group) {
      if (!are_numbers(at, group)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace quire::kernels

// Code blocks of small integers, or of indices of a table of 16: Q2_K, Q3_K, IQ4, TQ and FP4.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "quire/tensor/code_rows.h"
#include "quire/weights/code_block_parts.h"
#include "quire/weights/code_block_reader.h"
#include "quire/weights/encoding.h"

namespace quire::weights {
namespace {

using tensor::CodeTable;

constexpr CodeTable kQ3Table = {-4, -3, -2, -1, 0, 1, 2, 3};
constexpr CodeTable kIq4Table = {-127, -104, -83, -65, -49, -35, -22, -10,
                                 1,    13,   25,  38,  53,  69,  89,  113};
// Twice the values of E2M1, whose -0 is 0.
constexpr CodeTable kE2m1Table = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Returns 2 bits of each of 32 values of a K block, whose halves have 32 bytes for four groups.
Codes k_crumbs(const std::byte* bytes, std::size_t group) {
  Codes codes = load<Codes>(bytes + group / 4 * kGroup);
  for (std::uint8_t& code : codes) {
    code = code >> (2 * (group % 4)) & 3U;
  }
  return codes;
}

// Reads block_q2_K: 16 bytes with a scale (low nibble) and a minimum each, 64 bytes of bit pairs,
// two fp16. The scales and minimums are of 16 values, and are multiplied by the fp16.
void codes_q2_k(const std::byte* block, const BlockCodes& out) {
  for (std::size_t half = 0; half < 2 * kSuperGroups; ++half) {
    const std::uint32_t both = byte_at(block, half);
    out.multiples[half] = static_cast<std::int8_t>(both & 15U);
    out.minimum_multiples[half] = static_cast<std::int8_t>(both >> 4U);
  }
  for (std::size_t group = 0; group < kSuperGroups; ++group) {
    out.scales[group] = load<std::uint16_t>(block + 80);
    out.minimums[group] = load<std::uint16_t>(block + 82) ^ 0x8000U;  // it is taken off
    std::ranges::copy(k_crumbs(block + 16, group), out.codes + group * kGroup);
  }
}

// Reads block_q3_K: 32 bytes of third bits, 64 bytes of bit pairs, 12 bytes of 6-bit scales, one
// fp16. Each byte of third bits has one bit for a group. A third bit that is 0 takes 4 off.
void codes_q3_k(const std::byte* block, const BlockCodes& out) {
  const std::byte* const packed = block + 96;
  for (std::size_t half = 0; half < 2 * kSuperGroups; ++half) {
    const std::uint32_t low = byte_at(packed, half % 8) >> (half / 8 * 4) & 15U;
    const std::uint32_t high = byte_at(packed, 8 + half % 4) >> (half / 4 * 2) & 3U;
    out.multiples[half] = static_cast<std::int8_t>(static_cast<int>(low | high << 4U) - 32);
  }
  const auto third = load<Codes>(block);
  for (std::size_t group = 0; group < kSuperGroups; ++group) {
    out.wide_scales[group] = half_at(block + 108);
    const Codes low = k_crumbs(block + 32, group);
    for (std::size_t i = 0; i < kGroup; ++i) {
      out.codes[group * kGroup + i] =
          static_cast<std::uint8_t>(low[i] | (third[i] >> group & 1U) << 2U);
    }
  }
}

// Reads block_iq4_nl: fp16 scale, nibbles.
void codes_iq4_nl(const std::byte* block, const BlockCodes& out) {
  *out.wide_scales = half_at(block);
  std::ranges::copy(split_nibbles(block + 2), out.codes);
}

// Reads block_iq4_xs: fp16 scale, a word with the upper 2 bits and 4 bytes with the lower 4 bits of
// 8 scales, nibbles.
void codes_iq4_xs(const std::byte* block, const BlockCodes& out) {
  const float scale = half_at(block);
  const auto high = std::uint32_t{load<std::uint16_t>(block + 2)};
  for (std::size_t group = 0; group < kSuperGroups; ++group) {
    const std::uint32_t low = byte_at(block + 4, group / 2) >> (group % 2 * 4) & 15U;
    const std::uint32_t own = low | (high >> (2 * group) & 3U) << 4U;
    out.wide_scales[group] = scale * static_cast<float>(static_cast<int>(own) - 32);
    std::ranges::copy(split_nibbles(block + 8 + group * kHalf), out.codes + group * kGroup);
  }
}

// Gives codes of ternary blocks, which have one scale.
void scale_ternary(const std::byte* scale, const BlockCodes& out) {
  std::fill_n(out.scales, kSuperGroups, load<std::uint16_t>(scale));
}
constexpr std::uint32_t kTernaryOffset = 7;  // from w + 1 to w + 8

// Gives the codes of `count` bytes that hold `digits` values of base 3 each, as fractions of 256.
// The first digits of all bytes come first.
std::uint8_t* spread_digits(const std::byte* bytes, std::size_t count, int digits,
                            std::uint8_t* codes) {
  std::uint32_t power = 1;
  for (int digit = 0; digit < digits; ++digit, power *= 3) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t rest = byte_at(bytes, i) * power & 255U;
      *codes++ = static_cast<std::uint8_t>((rest * 3 >> 8U) + kTernaryOffset);
    }
  }
  return codes;
}

// Reads block_tq1_0: 32 and 16 bytes of five values, 4 bytes of four, fp16 scale.
void codes_tq1_0(const std::byte* block, const BlockCodes& out) {
  std::uint8_t* codes = spread_digits(block, 32, 5, out.codes);
  codes = spread_digits(block + 32, 16, 5, codes);
  spread_digits(block + 48, 4, 4, codes);
  scale_ternary(block + 52, out);
}

// Reads block_tq2_0: 64 bytes of bit pairs, fp16 scale.
void codes_tq2_0(const std::byte* block, const BlockCodes& out) {
  for (std::size_t group = 0; group < kSuperGroups; ++group) {
    const Codes crumbs = k_crumbs(block, group);
    std::ranges::transform(crumbs, out.codes + group * kGroup, [](std::uint8_t crumb) {
      return static_cast<std::uint8_t>(crumb + kTernaryOffset);
    });
  }
  scale_ternary(block + 64, out);
}

// Reads block_q1_0 and block_q2_0: fp16 scale, values of `Bits` bits, the first of a byte in its
// lowest bits. A weight is value - 1 or, of one bit, 2 * value - 1.
template <std::size_t Bits, std::size_t Values>
void codes_in_order(const std::byte* block, const BlockCodes& out) {
  constexpr std::size_t kInByte = 8 / Bits;
  std::fill_n(out.scales, Values / kGroup, load<std::uint16_t>(block));
  for (std::size_t i = 0; i < Values; ++i) {
    const std::uint32_t value =
        byte_at(block + 2, i / kInByte) >> (i % kInByte * Bits) & ((1U << Bits) - 1);
    out.codes[i] = static_cast<std::uint8_t>((Bits == 1 ? 2 * value : value) + kTernaryOffset);
  }
}

// Reads block_mxfp4: a byte that is a power of two with bias 127 (E8M0), nibbles of E2M1. Half the
// power is taken, as the table has twice the values; two of these halves are subnormal.
void codes_mxfp4(const std::byte* block, const BlockCodes& out) {
  const std::uint32_t exponent = byte_at(block, 0);
  *out.wide_scales =
      std::bit_cast<float>(exponent < 2 ? 0x00200000U << exponent : (exponent - 1) << 23U);
  std::ranges::copy(split_nibbles(block + 1), out.codes);
}

// Decodes block_nvfp4: 4 scales, which are positive floats of 4 exponent and 3 mantissa bits, then
// 8 bytes of nibbles for 16 values each. The first 8 values are the low nibbles. Scale 0x7f, which
// would be NaN, is 0.
void decode_nvfp4(const std::byte* block, float* out) {
  constexpr std::size_t kPairs = kHalf / 2;
  for (std::size_t part = 0; part < 4; ++part) {
    const std::uint32_t code = byte_at(block, part);
    const auto mantissa = static_cast<float>((code & 7U) + ((code & 0x78U) != 0 ? 8U : 0U));
    const std::uint32_t exponent = std::max(code >> 3U & 15U, 1U);
    // 2^(exponent - 7 - 3) and half of that, for the table has twice the values.
    const float power = std::bit_cast<float>((exponent + (127 - 11)) << 23U);
    const float scale = code == 0x7fU ? 0.0f : mantissa * power;
    for (std::size_t i = 0; i < kPairs; ++i) {
      const std::uint32_t pair = byte_at(block + 4 + part * kPairs, i);
      out[part * kHalf + i] = scale * static_cast<float>(kE2m1Table[pair & 15U]);
      out[part * kHalf + kPairs + i] = scale * static_cast<float>(kE2m1Table[pair >> 4U]);
    }
  }
}

}  // namespace

const CodeBlockReader reader_of_q2_k = {
    decode_by_codes<CodeKind::kTwoMinimum, kSuperBlock, codes_q2_k>, codes_q2_k, nullptr};
const CodeBlockReader reader_of_q3_k = {
    decode_by_table<CodeKind::kTableHalves, kSuperBlock, kQ3Table, codes_q3_k>, codes_q3_k,
    &kQ3Table};
const CodeBlockReader reader_of_iq4_nl = {
    decode_by_table<CodeKind::kTable, kGroup, kIq4Table, codes_iq4_nl>, codes_iq4_nl, &kIq4Table};
const CodeBlockReader reader_of_iq4_xs = {
    decode_by_table<CodeKind::kTable, kSuperBlock, kIq4Table, codes_iq4_xs>, codes_iq4_xs,
    &kIq4Table};
const CodeBlockReader reader_of_tq10 = {decode_by_codes<CodeKind::kFour, kSuperBlock, codes_tq1_0>,
                                        codes_tq1_0, nullptr};
const CodeBlockReader reader_of_tq20 = {decode_by_codes<CodeKind::kFour, kSuperBlock, codes_tq2_0>,
                                        codes_tq2_0, nullptr};
const CodeBlockReader reader_of_mxfp4 = {
    decode_by_table<CodeKind::kTable, kGroup, kE2m1Table, codes_mxfp4>, codes_mxfp4, &kE2m1Table};
constexpr auto kCodesQ10 = codes_in_order<1, 128>;
constexpr auto kCodesQ20 = codes_in_order<2, 64>;
const CodeBlockReader reader_of_q10 = {decode_by_codes<CodeKind::kFour, 128, kCodesQ10>, kCodesQ10,
                                       nullptr};
const CodeBlockReader reader_of_q20 = {decode_by_codes<CodeKind::kFour, 64, kCodesQ20>, kCodesQ20,
                                       nullptr};
const CodeBlockReader reader_of_nvfp4 = {decode_nvfp4, nullptr, nullptr};

}  // namespace quire::weights

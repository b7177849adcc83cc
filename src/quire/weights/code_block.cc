#include "quire/weights/code_block.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "quire/tensor/dtype.h"
#include "quire/weights/code_block_parts.h"
#include "quire/weights/encoding.h"

namespace quire::weights {
namespace {

// Decoders copy a block before they turn it. With constant trip counts and no possible aliasing,
// compilers vectorise the loops for the baseline instruction set even at -O2.

// Splits codes with a fifth bit from a word of 32.
Codes split_fives(const std::byte* high, const std::byte* bytes) {
  const auto bits = load<std::uint32_t>(high);
  Codes codes = split_nibbles(bytes);
  for (std::uint32_t i = 0; i < kGroup; ++i) {
    codes[i] = static_cast<std::uint8_t>(codes[i] | (bits >> i & 1U) << 4U);
  }
  return codes;
}

void spread(float scale, const Codes& codes, int offset, float* out) {
  for (std::size_t i = 0; i < kGroup; ++i) {
    out[i] = scale * static_cast<float>(codes[i] - offset);
  }
}

void spread(float scale, float minimum, const Codes& codes, float* out) {
  for (std::size_t i = 0; i < kGroup; ++i) {
    out[i] = scale * static_cast<float>(codes[i]) + minimum;
  }
}

// Reads codes of block_q8_0: fp16 scale, 32 int8.
void codes_q8_0(const std::byte* block, const BlockCodes& out) {
  *out.scales = load<std::uint16_t>(block);
  const auto signed_codes = load<Codes>(block + 2);
  for (std::size_t i = 0; i < kGroup; ++i) {
    out.codes[i] = signed_codes[i] ^ 0x80U;
  }
}
void decode_q8_0(const std::byte* block, float* out) {
  const float scale = half_at(block);
  const auto codes = load<std::array<std::int8_t, kGroup>>(block + 2);
  for (std::size_t i = 0; i < kGroup; ++i) {
    out[i] = scale * static_cast<float>(codes[i]);
  }
}

// Reads codes of block_q4_0: fp16 scale, nibbles of w + 8.
void codes_q4_0(const std::byte* block, const BlockCodes& out) {
  *out.scales = load<std::uint16_t>(block);
  std::ranges::copy(split_nibbles(block + 2), out.codes);
}
void decode_q4_0(const std::byte* block, float* out) {
  spread(half_at(block), split_nibbles(block + 2), 8, out);
}

// Reads codes of block_q4_1: fp16 scale, fp16 minimum, nibbles.
void codes_q4_1(const std::byte* block, const BlockCodes& out) {
  *out.scales = load<std::uint16_t>(block);
  *out.minimums = load<std::uint16_t>(block + 2);
  std::ranges::copy(split_nibbles(block + 4), out.codes);
}
void decode_q4_1(const std::byte* block, float* out) {
  spread(half_at(block), half_at(block + 2), split_nibbles(block + 4), out);
}

// Reads codes of block_q5_0: fp16 scale, 32 fifth bits, nibbles; w + 16.
void codes_q5_0(const std::byte* block, const BlockCodes& out) {
  *out.scales = load<std::uint16_t>(block);
  const Codes fives = split_fives(block + 2, block + 6);
  for (std::size_t i = 0; i < kGroup; ++i) {
    out.codes[i] = static_cast<std::uint8_t>(fives[i] + (128 - 16));
  }
}
void decode_q5_0(const std::byte* block, float* out) {
  spread(half_at(block), split_fives(block + 2, block + 6), 16, out);
}

// Decodes block_q5_1: fp16 scale, fp16 minimum, 32 fifth bits, nibbles.
void decode_q5_1(const std::byte* block, float* out) {
  spread(half_at(block), half_at(block + 2), split_fives(block + 4, block + 8), out);
}

// The 6-bit scales and minimums of the 8 groups of block_q4_K and block_q5_K. They are packed into
// 12 bytes behind the two fp16 that they are multiplied by.
struct SuperScales {
  std::array<float, kSuperGroups> scale;
  std::array<float, kSuperGroups> minimum;
};
SuperScales super_scales(const std::byte* block) {
  const float scale = half_at(block);
  const float minimum = half_at(block + 2);
  const auto packed = load<std::array<std::uint8_t, 12>>(block + 4);
  SuperScales scales;
  for (std::size_t i = 0; i < kSuperGroups; ++i) {
    std::uint32_t of_scale = packed[i] & 63U;
    std::uint32_t of_minimum = packed[i + 4] & 63U;
    if (i >= 4) {
      of_scale = (packed[i + 4] & 15U) | static_cast<std::uint32_t>(packed[i - 4] >> 6U) << 4U;
      of_minimum = static_cast<std::uint32_t>(packed[i + 4] >> 4U) |
                   static_cast<std::uint32_t>(packed[i] >> 6U) << 4U;
    }
    scales.scale[i] = scale * static_cast<float>(of_scale);
    scales.minimum[i] = -(minimum * static_cast<float>(of_minimum));
  }
  return scales;
}

// Returns group `group` of a K block: 32 low nibbles, then the 32 high ones of the same bytes.
Codes k_nibbles(const std::byte* bytes, std::size_t group) {
  Codes codes = load<Codes>(bytes + group / 2 * kGroup);
  for (std::uint8_t& code : codes) {
    code = group % 2 == 0 ? code & 15U : code >> 4U;
  }
  return codes;
}

// Reads codes of block_q4_K: two fp16, 12 bytes of scales, 8 groups of nibbles.
void codes_q4_k(const std::byte* block, const BlockCodes& out) {
  const SuperScales super = super_scales(block);
  for (std::size_t group = 0; group < kSuperGroups; ++group) {
    out.scales[group] = tensor::float_to_fp16(super.scale[group]);
    out.minimums[group] = tensor::float_to_fp16(super.minimum[group]);
    std::ranges::copy(k_nibbles(block + 16, group), out.codes + group * kGroup);
  }
}
void decode_q4_k(const std::byte* block, float* out) {
  const SuperScales super = super_scales(block);
  for (std::size_t group = 0; group < kSuperGroups; ++group) {
    spread(super.scale[group], super.minimum[group], k_nibbles(block + 16, group),
           out + group * kGroup);
  }
}

// Decodes block_q5_K: as block_q4_K with 32 bytes of fifth bits, one bit of each for a group,
// before the nibbles.
void decode_q5_k(const std::byte* block, float* out) {
  const SuperScales super = super_scales(block);
  const auto high = load<Codes>(block + 16);
  for (std::size_t group = 0; group < kSuperGroups; ++group) {
    Codes codes = k_nibbles(block + 48, group);
    for (std::size_t i = 0; i < kGroup; ++i) {
      codes[i] = static_cast<std::uint8_t>(codes[i] | (high[i] >> group & 1U) << 4U);
    }
    spread(super.scale[group], super.minimum[group], codes, out + group * kGroup);
  }
}

// Decodes block_q6_K: 128 bytes of nibbles, 64 of bit pairs, 16 int8 scales, one fp16; w + 32. Each
// half of the block has 64 bytes of nibbles and 32 of bit pairs for its four groups.
void decode_q6_k(const std::byte* block, float* out) {
  const float super = half_at(block + 208);
  const auto scales = load<std::array<std::int8_t, 16>>(block + 192);
  for (std::size_t group = 0; group < kSuperGroups; ++group) {
    const std::size_t half = group / 4;
    const std::size_t part = group % 4;
    const auto low = load<Codes>(block + half * 64 + part % 2 * kGroup);
    const auto high = load<Codes>(block + 128 + half * kGroup);
    for (std::size_t i = 0; i < kGroup; ++i) {
      const auto nibble = static_cast<std::uint32_t>(part < 2 ? low[i] & 15U : low[i] >> 4U);
      const std::uint32_t code = nibble | (high[i] >> (2 * part) & 3U) << 4U;
      const float scale = super * static_cast<float>(scales[half * 8 + part * 2 + i / 16]);
      out[group * kGroup + i] = scale * (static_cast<float>(code) - 32.0f);
    }
  }
}

constexpr CodeBlockReader kReadQ80 = {decode_q8_0, codes_q8_0};
constexpr CodeBlockReader kReadQ40 = {decode_q4_0, codes_q4_0};
constexpr CodeBlockReader kReadQ41 = {decode_q4_1, codes_q4_1};
constexpr CodeBlockReader kReadQ50 = {decode_q5_0, codes_q5_0};
constexpr CodeBlockReader kReadQ51 = {decode_q5_1};
constexpr CodeBlockReader kReadQ4K = {decode_q4_k, codes_q4_k};
constexpr CodeBlockReader kReadQ5K = {decode_q5_k};
constexpr CodeBlockReader kReadQ6K = {decode_q6_k};

}  // namespace

const CodeBlockReader* code_block_reader(Encoding encoding) {
  static const std::array<const CodeBlockReader*, kEncodings> readers = {nullptr,
                                                                         nullptr,
                                                                         nullptr,
                                                                         &kReadQ80,
                                                                         &kReadQ40,
                                                                         &kReadQ41,
                                                                         &kReadQ50,
                                                                         &kReadQ51,
                                                                         &kReadQ4K,
                                                                         &kReadQ5K,
                                                                         &kReadQ6K,
                                                                         &reader_of_q2_k,
                                                                         &reader_of_q3_k,
                                                                         &reader_of_iq1_s,
                                                                         &reader_of_iq1_m,
                                                                         &reader_of_iq2_xxs,
                                                                         &reader_of_iq2_xs,
                                                                         &reader_of_iq2_s,
                                                                         &reader_of_iq3_xxs,
                                                                         &reader_of_iq3_s,
                                                                         &reader_of_iq4_nl,
                                                                         &reader_of_iq4_xs,
                                                                         &reader_of_tq10,
                                                                         &reader_of_tq20,
                                                                         &reader_of_mxfp4,
                                                                         &reader_of_nvfp4,
                                                                         &reader_of_q10,
                                                                         &reader_of_q20};
  return readers[static_cast<std::size_t>(encoding)];
}

}  // namespace quire::weights

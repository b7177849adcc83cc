// Code blocks of indices of code books: IQ1, IQ2 and IQ3. A value is a level of its group's entry
// with a sign; both together name one of at most 16 integers.
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "quire/tensor/code_rows.h"
#include "quire/weights/code_block_parts.h"
#include "quire/weights/code_block_reader.h"
#include "quire/weights/code_books.h"
#include "quire/weights/encoding.h"

namespace quire::weights {
namespace {

using tensor::CodeTable;

constexpr std::uint32_t kSign = 8;  // added to the code of a level
constexpr CodeTable kIq2Table = {8, 25, 43, 0, 0, 0, 0, 0, -8, -25, -43};
constexpr CodeTable kIq3XxsTable = {4,  12,  20,  28,  36,  44,  52,  62,
                                    -4, -12, -20, -28, -36, -44, -52, -62};
constexpr CodeTable kIq3STable = {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15};
// Eight times (level - 1 + 1/8) and, with the sign, (level - 1 - 1/8).
constexpr CodeTable kIq1Table = {-7, 1, 9, 0, 0, 0, 0, 0, -9, -1, 7};

// Gives the codes of eight values: levels of 2 bits, signs of one.
void put_eight(std::uint32_t levels, std::uint32_t signs, std::uint8_t* codes) {
  for (std::uint32_t i = 0; i < 8; ++i) {
    codes[i] = static_cast<std::uint8_t>((levels >> (2 * i) & 3U) | (signs >> i & 1U) * kSign);
  }
}

// Gives the codes of eight values of two entries: levels of 3 bits, signs of one.
void put_fours(std::uint32_t first, std::uint32_t second, std::uint32_t signs,
               std::uint8_t* codes) {
  const std::uint32_t levels = first | second << 12U;
  for (std::uint32_t i = 0; i < 8; ++i) {
    codes[i] = static_cast<std::uint8_t>((levels >> (3 * i) & 7U) | (signs >> i & 1U) * kSign);
  }
}

// Returns the signs of eight values, an even number of which are set, from the first seven.
std::uint32_t even_signs(std::uint32_t seven) {
  return seven | (static_cast<std::uint32_t>(std::popcount(seven)) & 1U) << 7U;
}

std::uint32_t nibble_at(const std::byte* bytes, std::size_t i) {
  return byte_at(bytes, i / 2) >> (i % 2 * 4) & 15U;
}

std::int8_t odd_multiple(std::uint32_t code) { return static_cast<std::int8_t>(2 * code + 1); }

// Reads block_iq2_xxs: fp16 scale, then for each group 4 indices and a word of four times 7 signs
// and a scale. That is (s + 1/2) / 4 times the first.
void codes_iq2_xxs(const std::byte* block, const BlockCodes& out) {
  const float eighth = half_at(block) * 0.125f;
  for (std::size_t group = 0; group < kSuperGroups; ++group) {
    const std::byte* const at = block + 2 + group * 8;
    const auto word = load<std::uint32_t>(at + 4);
    out.wide_scales[group] = eighth * static_cast<float>(odd_multiple(word >> 28U));
    for (std::size_t i = 0; i < 4; ++i) {
      put_eight(iq2_xxs_book[byte_at(at, i)], even_signs(word >> (7 * i) & 127U),
                out.codes + group * kGroup + i * 8);
    }
  }
}

// Gives the scales of blocks with a nibble for each half of a group.
void scale_halves(float scale, const std::byte* nibbles, const BlockCodes& out) {
  for (std::size_t group = 0; group < kSuperGroups; ++group) {
    out.wide_scales[group] = scale;
    out.multiples[2 * group] = odd_multiple(nibble_at(nibbles, 2 * group));
    out.multiples[2 * group + 1] = odd_multiple(nibble_at(nibbles, 2 * group + 1));
  }
}

// Reads block_iq2_xs: fp16 scale, 32 words of a 9-bit index and 7 signs, 16 nibbles of scales.
void codes_iq2_xs(const std::byte* block, const BlockCodes& out) {
  scale_halves(half_at(block) * 0.125f, block + 66, out);
  for (std::size_t i = 0; i < kSuperBlock / 8; ++i) {
    const auto word = std::uint32_t{load<std::uint16_t>(block + 2 + i * 2)};
    put_eight(iq2_xs_book[word & 511U], even_signs(word >> 9U), out.codes + i * 8);
  }
}

// Reads block_iq2_s: fp16 scale, 32 bytes of indices, 32 of signs, 8 with two more bits of four
// indices, 16 nibbles of scales.
void codes_iq2_s(const std::byte* block, const BlockCodes& out) {
  scale_halves(half_at(block) * 0.125f, block + 74, out);
  for (std::size_t i = 0; i < kSuperBlock / 8; ++i) {
    const std::uint32_t high = byte_at(block + 66, i / 4) >> (2 * (i % 4)) & 3U;
    put_eight(iq2_s_book[byte_at(block + 2, i) | high << 8U], byte_at(block + 34, i),
              out.codes + i * 8);
  }
}

// Reads block_iq3_xxs: fp16 scale, 64 indices of four values, then for each group a word of four
// times 7 signs and a scale. That is (s + 1/2) / 2 times the first.
void codes_iq3_xxs(const std::byte* block, const BlockCodes& out) {
  const float quarter = half_at(block) * 0.25f;
  for (std::size_t group = 0; group < kSuperGroups; ++group) {
    const auto word = load<std::uint32_t>(block + 66 + group * 4);
    out.wide_scales[group] = quarter * static_cast<float>(odd_multiple(word >> 28U));
    for (std::size_t i = 0; i < 4; ++i) {
      const std::byte* const at = block + 2 + group * 8 + i * 2;
      put_fours(iq3_xxs_book[byte_at(at, 0)], iq3_xxs_book[byte_at(at, 1)],
                even_signs(word >> (7 * i) & 127U), out.codes + group * kGroup + i * 8);
    }
  }
}

// Reads block_iq3_s: fp16 scale, 64 bytes of indices, 64 bits above them, 32 bytes of signs, a
// nibble of a scale for each group.
void codes_iq3_s(const std::byte* block, const BlockCodes& out) {
  const float scale = half_at(block);
  const auto index = [=](std::size_t i) {
    return byte_at(block + 2, i) | (byte_at(block + 66, i / 8) >> (i % 8) & 1U) << 8U;
  };
  for (std::size_t group = 0; group < kSuperGroups; ++group) {
    out.wide_scales[group] =
        scale * static_cast<float>(odd_multiple(nibble_at(block + 106, group)));
  }
  for (std::size_t i = 0; i < kSuperBlock / 8; ++i) {
    put_fours(iq3_s_book[index(2 * i)], iq3_s_book[index(2 * i + 1)], byte_at(block + 74, i),
              out.codes + i * 8);
  }
}

constexpr std::uint32_t kAllSigns = 255;

// Reads block_iq1_s: fp16 scale, 32 bytes of indices, a word for each group. That has four times 3
// more bits of an index, a scale of 3 bits, a sign.
void codes_iq1_s(const std::byte* block, const BlockCodes& out) {
  const float eighth = half_at(block) * 0.125f;
  for (std::size_t group = 0; group < kSuperGroups; ++group) {
    const auto word = std::uint32_t{load<std::uint16_t>(block + 34 + group * 2)};
    out.wide_scales[group] = eighth * static_cast<float>(odd_multiple(word >> 12U & 7U));
    for (std::size_t i = 0; i < 4; ++i) {
      const std::uint32_t low = byte_at(block + 2, group * 4 + i);
      put_eight(iq1_book[low | (word >> (3 * i) & 7U) << 8U], (word >> 15U) * kAllSigns,
                out.codes + group * kGroup + i * 8);
    }
  }
}

// Reads block_iq1_m: 32 bytes of indices, 32 nibbles of three more bits and a sign, 4 words with
// four scales of 3 bits each. The upper nibbles of the words together are an fp16 scale.
void codes_iq1_m(const std::byte* block, const BlockCodes& out) {
  std::uint32_t half = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    half |= std::uint32_t{load<std::uint16_t>(block + 48 + i * 2)} >> 12U << (4 * i);
  }
  const float eighth = half_to_float(static_cast<std::uint16_t>(half)) * 0.125f;
  for (std::size_t i = 0; i < 2 * kSuperGroups; ++i) {
    const auto word = std::uint32_t{load<std::uint16_t>(block + 48 + i / 4 * 2)};
    out.multiples[i] = odd_multiple(word >> (3 * (i % 4)) & 7U);
    out.wide_scales[i / 2] = eighth;
  }
  for (std::size_t i = 0; i < kSuperBlock / 8; ++i) {
    const std::uint32_t high = nibble_at(block + 32, i);
    put_eight(iq1_book[byte_at(block, i) | (high & 7U) << 8U], (high >> 3U) * kAllSigns,
              out.codes + i * 8);
  }
}

}  // namespace

const CodeBlockReader reader_of_iq1_s = {
    decode_by_table<CodeKind::kTable, kSuperBlock, kIq1Table, codes_iq1_s>, codes_iq1_s,
    &kIq1Table};
const CodeBlockReader reader_of_iq1_m = {
    decode_by_table<CodeKind::kTableHalves, kSuperBlock, kIq1Table, codes_iq1_m>, codes_iq1_m,
    &kIq1Table};
const CodeBlockReader reader_of_iq2_xxs = {
    decode_by_table<CodeKind::kTable, kSuperBlock, kIq2Table, codes_iq2_xxs>, codes_iq2_xxs,
    &kIq2Table};
const CodeBlockReader reader_of_iq2_xs = {
    decode_by_table<CodeKind::kTableHalves, kSuperBlock, kIq2Table, codes_iq2_xs>, codes_iq2_xs,
    &kIq2Table};
const CodeBlockReader reader_of_iq2_s = {
    decode_by_table<CodeKind::kTableHalves, kSuperBlock, kIq2Table, codes_iq2_s>, codes_iq2_s,
    &kIq2Table};
const CodeBlockReader reader_of_iq3_xxs = {
    decode_by_table<CodeKind::kTable, kSuperBlock, kIq3XxsTable, codes_iq3_xxs>, codes_iq3_xxs,
    &kIq3XxsTable};
const CodeBlockReader reader_of_iq3_s = {
    decode_by_table<CodeKind::kTable, kSuperBlock, kIq3STable, codes_iq3_s>, codes_iq3_s,
    &kIq3STable};

}  // namespace quire::weights

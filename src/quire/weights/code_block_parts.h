// Pieces that the readers of code blocks share.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "quire/tensor/code_rows.h"
#include "quire/weights/code_block_reader.h"
#include "quire/weights/encoding.h"

namespace quire::weights {

inline constexpr std::size_t kGroup = 32;
inline constexpr std::size_t kHalf = kGroup / 2;
inline constexpr std::size_t kSuperGroups = 8;  // groups of a K block
inline constexpr std::size_t kSuperBlock = kGroup * kSuperGroups;

using Nibbles = std::array<std::uint8_t, kHalf>;
using Codes = std::array<std::uint8_t, kGroup>;

inline float half_at(const std::byte* bytes) { return half_to_float(load<std::uint16_t>(bytes)); }

inline std::uint32_t byte_at(const std::byte* bytes, std::size_t i) {
  return std::to_integer<std::uint32_t>(bytes[i]);
}

// Returns the codes of 32 values: low nibbles are values 0..15, high ones 16..31.
inline Codes split_nibbles(const std::byte* bytes) {
  const auto pairs = load<Nibbles>(bytes);
  Codes codes;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    codes[i] = pairs[i] & 15U;
    codes[i + pairs.size()] = pairs[i] >> 4U;
  }
  return codes;
}

// Room for the codes and scales of one block.
template <std::size_t Values>
struct BlockRoom {
  std::array<std::uint8_t, Values> codes;
  std::array<std::uint16_t, Values / kGroup> scales, minimums;
  std::array<float, Values / kGroup> wide_scales;
  std::array<std::int8_t, Values / kHalf> multiples, minimum_multiples;

  BlockCodes out() {
    return {codes.data(),       scales.data(),    minimums.data(),
            wide_scales.data(), multiples.data(), minimum_multiples.data()};
  }
};

// Decodes a block by its codes. Each product and sum is ggml's, or is exact in both.
template <CodeKind Kind, std::size_t Values, auto Read>
void decode_by_codes(const std::byte* block, float* out) {
  BlockRoom<Values> room;
  Read(block, room.out());
  for (std::size_t i = 0; i < Values; ++i) {
    const std::size_t group = i / kGroup, half = i / kHalf;
    const float scale = half_to_float(room.scales[group]);
    if constexpr (Kind == CodeKind::kFour) {
      out[i] = scale * static_cast<float>(room.codes[i] - 8);
    } else {
      static_assert(Kind == CodeKind::kTwoMinimum);
      const float minimum = half_to_float(room.minimums[group]);
      out[i] =
          scale * static_cast<float>(room.multiples[half]) * static_cast<float>(room.codes[i]) +
          minimum * static_cast<float>(room.minimum_multiples[half]);
    }
  }
}

// Decodes a block whose codes name values of a table.
template <CodeKind Kind, std::size_t Values, const tensor::CodeTable& Table, auto Read>
void decode_by_table(const std::byte* block, float* out) {
  BlockRoom<Values> room;
  Read(block, room.out());
  for (std::size_t i = 0; i < Values; ++i) {
    float scale = room.wide_scales[i / kGroup];
    if constexpr (Kind == CodeKind::kTableHalves) {
      scale *= static_cast<float>(room.multiples[i / kHalf]);
    }
    out[i] = scale * static_cast<float>(Table[room.codes[i]]);
  }
}

// The readers of code_block_small.cc: blocks of small integers.
extern const CodeBlockReader reader_of_q2_k, reader_of_q3_k, reader_of_iq4_nl, reader_of_iq4_xs,
    reader_of_tq10, reader_of_tq20, reader_of_mxfp4, reader_of_nvfp4, reader_of_q10, reader_of_q20;
// The readers of code_block_grid.cc: blocks of indices of code books.
extern const CodeBlockReader reader_of_iq1_s, reader_of_iq1_m, reader_of_iq2_xxs, reader_of_iq2_xs,
    reader_of_iq2_s, reader_of_iq3_xxs, reader_of_iq3_s;

}  // namespace quire::weights

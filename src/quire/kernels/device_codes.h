// Quantised weights as a GPU reads them: the codes of packed_weights.h in the order in which the
// lanes of a warp multiply them. No CUDA, so that tests and kernels share every address.
//
//   tile   16 outputs; tiles follow each other
//   unit   128 inputs of a tile; the units of a tile follow each other, so a tile is one stream
//   group  32 inputs of a unit, which share a scale
//
// A unit holds vectors of 16 bytes: first codes, 32 vectors to a load of a warp, then heads, 8
// vectors each.
//   codes  lane (g, t) = (lane / 4, lane % 4) has rows g and g + 8, and of each group the inputs
//          8t to 8t + 7. In two bits a load covers four groups, in four bits two, in eight bits
//          one.
//   heads  scales, then minimums: vector g has the fp16 of row g in four groups, then of row g + 8.
//          Scales of tables are fp32: vector g has those of row g, in the next head of row g + 8.
//          Multiples of halves of groups follow: vector g has eight int8 of row g, then of g + 8.
//
// Outputs are padded to multiples of 16 and inputs to multiples of 128, with zeros. Units of e4m3
// have no heads: behind the last tile lies an fp32 scale for each output. A table lies there, too.
#pragma once

#include <cstdint>

namespace quire::kernels {

// Names how a code becomes a weight.
enum class CodeFormat : std::uint8_t {
  kQ8,         // scale * (code - 128), as q8g32
  kQ4,         // scale * (code - 8), as q4g32
  kQ4Minimum,  // scale * code + minimum, as q4m32
  kE4m3,       // scale of the output * code, an 8-bit float, as fp8
  kTable,      // scale * table[code], as t4g32
  // With a multiple m of the scale, and n of the minimum, for each half of a group:
  kTableHalves,  // scale * m * table[code], as t4g16
  kTwoMinimum,   // scale * m * code + minimum * n, as q2m16
};

inline constexpr int kTileOutputs = 16;
inline constexpr int kUnitInputs = 128;
inline constexpr int kGroupInputs = 32;
inline constexpr int kUnitGroups = kUnitInputs / kGroupInputs;
inline constexpr int kHalfInputs = 16;  // of half a group
inline constexpr int kLaneInputs = 8;   // of a group
inline constexpr int kHeadVectors = 8;  // of a unit's scales, or of its minimums
inline constexpr int kVectorBytes = 16;
inline constexpr int kVectorWords = 4;
inline constexpr int kWarpLanes = 32;

[[nodiscard]] constexpr int code_bits(CodeFormat format) {
  const bool is_byte = format == CodeFormat::kQ8 || format == CodeFormat::kE4m3;
  return is_byte ? 8 : format == CodeFormat::kTwoMinimum ? 2 : 4;
}
// Returns the value that is taken off a code.
[[nodiscard]] constexpr int code_offset(CodeFormat format) {
  return format == CodeFormat::kQ8 ? 128 : format == CodeFormat::kQ4 ? 8 : 0;
}
// Tells whether codes are places in a table of 16 bytes (value + 128). Scales are fp32 then.
[[nodiscard]] constexpr bool has_table(CodeFormat format) {
  return format == CodeFormat::kTable || format == CodeFormat::kTableHalves;
}
// Tells whether halves of groups have multiples of their scale.
[[nodiscard]] constexpr bool has_halves(CodeFormat format) {
  return format == CodeFormat::kTableHalves || format == CodeFormat::kTwoMinimum;
}
[[nodiscard]] constexpr bool has_minimum(CodeFormat format) {
  return format == CodeFormat::kQ4Minimum || format == CodeFormat::kTwoMinimum;
}
// Returns how many parts of a unit have a scale of their own: groups, or halves of them.
[[nodiscard]] constexpr int unit_steps(CodeFormat format) {
  return kUnitGroups * (has_halves(format) ? 2 : 1);
}
// Returns how many heads a unit has.
[[nodiscard]] constexpr int unit_heads(CodeFormat format) {
  if (format == CodeFormat::kE4m3) {
    return 0;
  }
  const int scales = has_table(format) ? 2 : 1, kinds = has_minimum(format) ? 2 : 1;
  return scales * kinds + (has_halves(format) ? kinds : 0);
}
// Returns the head in which multiples begin.
[[nodiscard]] constexpr int multiples_head(CodeFormat /*format*/) { return 2; }
// Returns how often a warp loads to have the codes of a unit.
[[nodiscard]] constexpr int unit_loads(CodeFormat format) { return code_bits(format) / 2; }
[[nodiscard]] constexpr int unit_vectors(CodeFormat format) {
  return unit_loads(format) * kWarpLanes + unit_heads(format) * kHeadVectors;
}
[[nodiscard]] constexpr std::int64_t tiles_of(std::int64_t outputs) {
  return (outputs + kTileOutputs - 1) / kTileOutputs;
}
[[nodiscard]] constexpr std::int64_t units_of(std::int64_t inputs) {
  return (inputs + kUnitInputs - 1) / kUnitInputs;
}
// Returns the bytes of all units, behind which the scales of e4m3 or a table lie.
[[nodiscard]] constexpr std::int64_t unit_bytes(CodeFormat format, std::int64_t outputs,
                                                std::int64_t inputs) {
  return tiles_of(outputs) * units_of(inputs) * unit_vectors(format) * kVectorBytes;
}
[[nodiscard]] constexpr std::int64_t device_code_bytes(CodeFormat format, std::int64_t outputs,
                                                       std::int64_t inputs) {
  const std::int64_t scales =
      format == CodeFormat::kE4m3 ? tiles_of(outputs) * kTileOutputs * 4 : 0;
  return unit_bytes(format, outputs, inputs) + scales + (has_table(format) ? kVectorBytes : 0);
}

// Every output sums its inputs in as many slices, whose sums are added in order, whatever kernel
// multiplies and however many rows there are. So a row has the same bits in every batch.
inline constexpr int kSlices = 8;
// Returns the first unit of a slice, and for kSlices the number of units.
[[nodiscard]] constexpr int slice_start(int units, int slice) { return units * slice / kSlices; }

// A matrix packed as packed_weights.h describes. Borrows its bytes.
struct PackedCodes {
  CodeFormat format = CodeFormat::kQ8;
  const std::uint8_t* bytes = nullptr;
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
};

// Returns the bytes of a panel before its steps, of a step before its codes, and of a step.
[[nodiscard]] constexpr int packed_panel_head(CodeFormat format) {
  return format == CodeFormat::kE4m3 ? 128 : has_table(format) ? 64 : 0;
}
[[nodiscard]] constexpr int packed_step_head(CodeFormat format) {
  const int kinds = has_minimum(format) ? 2 : 1;
  return format == CodeFormat::kE4m3
             ? 0
             : kinds * ((has_table(format) ? 128 : 64) + (has_halves(format) ? 64 : 0));
}
[[nodiscard]] constexpr int packed_step_bytes(CodeFormat format) {
  return packed_step_head(format) + 32 * kGroupInputs * code_bits(format) / 8;
}

// Returns the first byte of the panel that holds an output.
[[nodiscard]] constexpr const std::uint8_t* packed_panel(const PackedCodes& from,
                                                         std::int64_t output) {
  const std::int64_t steps = (from.inputs + kGroupInputs - 1) / kGroupInputs;
  return from.bytes +
         output / 32 * (packed_panel_head(from.format) + steps * packed_step_bytes(from.format));
}

[[nodiscard]] constexpr std::uint32_t word_of(const std::uint8_t* bytes) {
  std::uint32_t word = 0;
  for (int byte = 0; byte < 4; ++byte) {
    word |= static_cast<std::uint32_t>(bytes[byte]) << (byte * 8);
  }
  return word;
}
// Returns a word of the table.
[[nodiscard]] constexpr std::uint32_t packed_table(const PackedCodes& from, int word) {
  return word_of(from.bytes + word * 4);
}

// Returns the bits of the fp32 scale of an output of e4m3; 0 for padding.
[[nodiscard]] constexpr std::uint32_t packed_scale(const PackedCodes& from, std::int64_t output) {
  if (output >= from.outputs) {
    return 0;
  }
  return word_of(packed_panel(from, output) + output % 32 * 4);
}

// Returns the first byte of the step that holds a weight.
[[nodiscard]] constexpr const std::uint8_t* packed_step(const PackedCodes& from,
                                                        std::int64_t output, std::int64_t input) {
  return packed_panel(from, output) + packed_panel_head(from.format) +
         input / kGroupInputs * packed_step_bytes(from.format);
}

// Returns the bits of the fp32 scale of a weight whose code names a place in a table; 0 for
// padding.
[[nodiscard]] constexpr std::uint32_t packed_wide_scale(const PackedCodes& from,
                                                        std::int64_t output, std::int64_t input) {
  return output >= from.outputs || input >= from.inputs
             ? 0
             : word_of(packed_step(from, output, input) + output % 32 * 4);
}
// Returns the multiple of a weight's scale (kind 0) or minimum (kind 1), an int8; 0 for padding.
[[nodiscard]] constexpr std::uint32_t packed_multiple(const PackedCodes& from, int kind,
                                                      std::int64_t output, std::int64_t input) {
  return output >= from.outputs || input >= from.inputs
             ? 0
             : packed_step(from, output,
                           input)[128 + kind * 64 + input % kGroupInputs / 16 * 32 + output % 32];
}

// Returns a scale (head 0) or minimum (head 1) as the bits of an fp16; 0 for padding.
[[nodiscard]] constexpr std::uint32_t packed_head(const PackedCodes& from, int head,
                                                  std::int64_t output, std::int64_t input) {
  if (output >= from.outputs || input >= from.inputs) {
    return 0;
  }
  const std::uint8_t* const at =
      packed_step(from, output, input) + std::int64_t{head} * 64 + output % 32 * 2;
  return static_cast<std::uint32_t>(at[0]) | static_cast<std::uint32_t>(at[1]) << 8;
}

// Returns a code; the one that means 0 for padding.
[[nodiscard]] constexpr std::uint32_t packed_code(const PackedCodes& from, std::int64_t output,
                                                  std::int64_t input) {
  if (output >= from.outputs || input >= from.inputs) {
    return static_cast<std::uint32_t>(code_offset(from.format));
  }
  const std::uint8_t* const tiles =
      packed_step(from, output, input) + packed_step_head(from.format);
  const int tile = static_cast<int>(output % 32) / 16, column = static_cast<int>(output % 16);
  const int k = static_cast<int>(input % kGroupInputs);
  if (code_bits(from.format) == 8) {
    return tiles[((tile * 8 + k / 4) * 16 + column) * 4 + k % 4];
  }
  if (code_bits(from.format) == 2) {
    return tiles[((tile * 2 + k / 4 % 2) * 16 + column) * 4 + k % 4] >> (k / 8 * 2) & 3u;
  }
  const std::uint8_t pair = tiles[((tile * 4 + k % 16 / 4) * 16 + column) * 4 + k % 4];
  return k < 16 ? pair & 15u : pair >> 4u;
}

// Returns the position of one of eight nibbles, or of four bytes, in a word. Masks take neighbours
// out as pairs. Input 2p lies in the low half and input 2p + 1 in the high half, both behind 4p (or
// 8p) bits.
[[nodiscard]] constexpr int nibble_shift(int input) { return input / 2 * 4 + input % 2 * 16; }
[[nodiscard]] constexpr int byte_shift(int input) { return input / 2 * 8 + input % 2 * 16; }
// Returns the position of one of eight codes of two bits. Those of the next group lie eight bits
// further.
[[nodiscard]] constexpr int two_bits_shift(int input) { return input / 2 * 2 + input % 2 * 16; }
// Returns the position of one of eight places in a table. Four neighbours lie together, in the
// order 0, 2, 1, 3, so that the bytes that they name come out as byte_shift() says.
[[nodiscard]] constexpr int table_shift(int input) {
  return input / 4 * 16 + input % 2 * 8 + input % 4 / 2 * 4;
}

// Returns word `word` of vector `vector` of the unit at (tile, unit).
[[nodiscard]] constexpr std::uint32_t unit_word(const PackedCodes& from, std::int64_t tile,
                                                std::int64_t unit, std::int64_t vector,
                                                std::int64_t word) {
  const std::int64_t code_vectors = std::int64_t{unit_loads(from.format)} * kWarpLanes;
  const std::int64_t output = tile * kTileOutputs, input = unit * kUnitInputs;
  if (vector >= code_vectors) {
    const int head = static_cast<int>((vector - code_vectors) / kHeadVectors);
    const std::int64_t g = (vector - code_vectors) % kHeadVectors;
    if (has_halves(from.format) && head >= multiples_head(from.format)) {
      std::uint32_t bits = 0;
      for (int i = 0; i < 4; ++i) {
        bits |= packed_multiple(from, head - multiples_head(from.format), output + g + word / 2 * 8,
                                input + (word % 2 * 4 + i) * kHalfInputs)
                << (i * 8);
      }
      return bits;
    }
    if (has_table(from.format)) {
      return packed_wide_scale(from, output + g + head * 8, input + word * kGroupInputs);
    }
    const std::int64_t row = output + g + word / 2 * 8;
    const std::int64_t group = input + word % 2 * 2 * kGroupInputs;
    return packed_head(from, head, row, group) | packed_head(from, head, row, group + kGroupInputs)
                                                     << 16;
  }
  const std::int64_t load = vector / kWarpLanes, g = vector % kWarpLanes / 4, t = vector % 4;
  const std::int64_t row = output + g + word % 2 * 8;
  std::uint32_t bits = 0;
  if (code_bits(from.format) == 8) {  // four inputs of row g and of row g + 8, then the next four
    const std::int64_t first = input + load * kGroupInputs + t * kLaneInputs + word / 2 * 4;
    for (int i = 0; i < 4; ++i) {
      bits |= packed_code(from, row, first + i) << byte_shift(i);
    }
    return bits;
  }
  if (code_bits(from.format) == 2) {  // a word of each row in two groups
    const std::int64_t first = input + word / 2 * 2 * kGroupInputs + t * kLaneInputs;
    for (int i = 0; i < 2 * kLaneInputs; ++i) {
      bits |= packed_code(from, row, first + i / kLaneInputs * kGroupInputs + i % kLaneInputs)
              << (i / kLaneInputs * 8 + two_bits_shift(i % kLaneInputs));
    }
    return bits;
  }
  // A word of each row in each group.
  const std::int64_t first = input + (load * 2 + word / 2) * kGroupInputs + t * kLaneInputs;
  for (int i = 0; i < kLaneInputs; ++i) {
    bits |= packed_code(from, row, first + i)
            << (has_table(from.format) ? table_shift(i) : nibble_shift(i));
  }
  return bits;
}

// Where a weight lies in units: its word, counted from the first, and the bit at which it begins.
struct CodePlace {
  std::int64_t word = 0;
  int shift = 0;
};

// Returns the first vector of the unit that holds a weight.
[[nodiscard]] constexpr std::int64_t unit_start(CodeFormat format, std::int64_t units,
                                                std::int64_t output, std::int64_t input) {
  return (output / kTileOutputs * units + input / kUnitInputs) * unit_vectors(format);
}

[[nodiscard]] constexpr CodePlace code_place(CodeFormat format, std::int64_t units,
                                             std::int64_t output, std::int64_t input) {
  const std::int64_t row = output % kTileOutputs, k = input % kGroupInputs;
  const std::int64_t group = input % kUnitInputs / kGroupInputs;
  const std::int64_t lane = row % 8 * 4 + k / kLaneInputs;
  const int i = static_cast<int>(k % kLaneInputs);
  const std::int64_t start = unit_start(format, units, output, input);
  if (code_bits(format) == 8) {
    return {(start + group * kWarpLanes + lane) * kVectorWords + k % kLaneInputs / 4 * 2 + row / 8,
            byte_shift(i % 4)};
  }
  if (code_bits(format) == 2) {
    return {(start + lane) * kVectorWords + group / 2 * 2 + row / 8,
            static_cast<int>(group % 2 * 8) + two_bits_shift(i)};
  }
  return {(start + group / 2 * kWarpLanes + lane) * kVectorWords + group % 2 * 2 + row / 8,
          has_table(format) ? table_shift(i) : nibble_shift(i)};
}

// Returns the place of the scale (head 0) or minimum (head 1) of a weight; 16 bits.
[[nodiscard]] constexpr CodePlace head_place(CodeFormat format, int head, std::int64_t units,
                                             std::int64_t output, std::int64_t input) {
  const std::int64_t row = output % kTileOutputs;
  const std::int64_t group = input % kUnitInputs / kGroupInputs;
  const std::int64_t vector = unit_start(format, units, output, input) +
                              std::int64_t{unit_loads(format)} * kWarpLanes +
                              std::int64_t{head} * kHeadVectors + row % 8;
  return {vector * kVectorWords + row / 8 * 2 + group / 2, static_cast<int>(group % 2 * 16)};
}

// Returns the word of the fp32 scale of a weight whose code names a place in a table.
[[nodiscard]] constexpr std::int64_t wide_scale_place(CodeFormat format, std::int64_t units,
                                                      std::int64_t output, std::int64_t input) {
  const std::int64_t row = output % kTileOutputs;
  const std::int64_t vector = unit_start(format, units, output, input) +
                              std::int64_t{unit_loads(format)} * kWarpLanes +
                              row / 8 * kHeadVectors + row % 8;
  return vector * kVectorWords + input % kUnitInputs / kGroupInputs;
}
// Returns the place of the multiple of a weight's scale (kind 0) or minimum (kind 1); 8 bits.
[[nodiscard]] constexpr CodePlace multiple_place(CodeFormat format, int kind, std::int64_t units,
                                                 std::int64_t output, std::int64_t input) {
  const std::int64_t row = output % kTileOutputs, half = input % kUnitInputs / kHalfInputs;
  const std::int64_t vector = unit_start(format, units, output, input) +
                              std::int64_t{unit_loads(format)} * kWarpLanes +
                              std::int64_t{multiples_head(format) + kind} * kHeadVectors + row % 8;
  return {vector * kVectorWords + row / 8 * 2 + half / 4, static_cast<int>(half % 4 * 8)};
}

}  // namespace quire::kernels

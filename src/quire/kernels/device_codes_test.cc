// Quantised weights in a GPU's order. Oracle: PackedWeights::unpack_row.
#include "quire/kernels/device_codes.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_weights.h"
#include "quire/kernels/test_util.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/float8.h"

namespace quire::kernels {
namespace {

struct Size {
  std::int64_t outputs, inputs;
};
constexpr Size kSizes[] = {{1, 1}, {16, 128}, {33, 40}, {48, 384}, {70, 576}};

// Arranges them as the kernel on a GPU does.
std::vector<std::uint32_t> arrange(const PackedCodes& from) {
  std::vector<std::uint32_t> words;
  for (std::int64_t tile = 0; tile < tiles_of(from.outputs); ++tile) {
    for (std::int64_t unit = 0; unit < units_of(from.inputs); ++unit) {
      for (int vector = 0; vector < unit_vectors(from.format); ++vector) {
        for (int word = 0; word < kVectorWords; ++word) {
          words.push_back(unit_word(from, tile, unit, vector, word));
        }
      }
    }
  }
  if (from.format == CodeFormat::kE4m3) {
    for (std::int64_t output = 0; output < tiles_of(from.outputs) * kTileOutputs; ++output) {
      words.push_back(packed_scale(from, output));
    }
  }
  for (int word = 0; word < (has_table(from.format) ? kVectorWords : 0); ++word) {
    words.push_back(packed_table(from, word));
  }
  return words;
}

std::uint32_t bits_at(const std::vector<std::uint32_t>& words, const CodePlace& place, int bits) {
  return words.at(static_cast<std::size_t>(place.word)) >> place.shift & ((1u << bits) - 1);
}

float weight_at(const std::vector<std::uint32_t>& words, const PackedCodes& from,
                std::int64_t output, std::int64_t input) {
  const std::int64_t units = units_of(from.inputs);
  if (from.format == CodeFormat::kE4m3) {
    const std::uint32_t code = bits_at(words, code_place(from.format, units, output, input), 8);
    const auto scale =
        static_cast<std::size_t>(unit_bytes(from.format, from.outputs, from.inputs) / 4 + output);
    return std::bit_cast<float>(words.at(scale)) *
           tensor::e4m3_to_float(static_cast<std::uint8_t>(code));
  }
  const auto head = [&](int index) {
    const CodePlace place = head_place(from.format, index, units, output, input);
    return tensor::fp16_to_float(static_cast<std::uint16_t>(bits_at(words, place, 16)));
  };
  const auto multiple = [&](int kind) {
    const CodePlace place = multiple_place(from.format, kind, units, output, input);
    return has_halves(from.format)
               ? static_cast<float>(static_cast<std::int8_t>(bits_at(words, place, 8)))
               : 1.0f;
  };
  const std::uint32_t code =
      bits_at(words, code_place(from.format, units, output, input), code_bits(from.format));
  if (has_table(from.format)) {
    const auto table =
        static_cast<std::size_t>(unit_bytes(from.format, from.outputs, from.inputs) / 4);
    const int value = static_cast<int>(words.at(table + code / 4) >> (code % 4 * 8) & 0xffu) - 128;
    const auto scale =
        static_cast<std::size_t>(wide_scale_place(from.format, units, output, input));
    return std::bit_cast<float>(words.at(scale)) * multiple(0) * static_cast<float>(value);
  }
  const float product =
      head(0) * multiple(0) * static_cast<float>(static_cast<int>(code) - code_offset(from.format));
  return has_minimum(from.format) ? product + head(1) * multiple(1) : product;
}

class DeviceCodes : public ::testing::Test {
 protected:
  PackedWeights packed(WeightFormat format, const Size& size) {
    const auto values = test::random_floats(size.outputs, size.inputs, 1);
    return test::pack_plain(context_, format, values, size.outputs, size.inputs);
  }
  static PackedCodes codes_of(CodeFormat format, const PackedWeights& weights) {
    return {format, reinterpret_cast<const std::uint8_t*>(weights.data()), weights.columns(),
            weights.depth()};
  }

  device::ThreadPool pool_{1};
  KernelContext context_{&kernels_for(device::Isa::kPortable), &pool_};
};

TEST_F(DeviceCodes, HoldEveryWeightOfAPackedMatrixAndZerosAround) {
  for (const test::CodedKind& kind : test::kCodedKinds) {
    for (const Size& size : kSizes) {
      const PackedWeights weights = packed(kind.packed, size);
      const PackedCodes from = codes_of(kind.device, weights);
      const auto words = arrange(from);
      ASSERT_EQ(std::int64_t{4} * static_cast<std::int64_t>(words.size()),
                device_code_bytes(kind.device, size.outputs, size.inputs));
      std::vector<float> row(static_cast<std::size_t>(size.inputs));
      for (std::int64_t output = 0; output < tiles_of(size.outputs) * kTileOutputs; ++output) {
        if (output < size.outputs) {
          weights.unpack_row(output, row);
        }
        for (std::int64_t input = 0; input < units_of(size.inputs) * kUnitInputs; ++input) {
          const bool there = output < size.outputs && input < size.inputs;
          const bool has_group = input / kGroupInputs * kGroupInputs < size.inputs;
          if (!there && has_group && has_minimum(kind.device)) {
            continue;  // a minimum, multiplied with a zero
          }
          ASSERT_EQ(weight_at(words, from, output, input),
                    there ? row[static_cast<std::size_t>(input)] : 0.0f)
              << format_name(kind.packed) << ", output " << output << ", input " << input;
        }
      }
    }
  }
}

// Emulates what cuda/codes.cuh does with the registers of a lane: which weights the pairs of each
// product are.
TEST_F(DeviceCodes, GiveALaneThePairsThatItsProductsTake) {
  const Size size{32, 256};
  for (const test::CodedKind& kind : test::kCodedKinds) {
    const PackedWeights weights = packed(kind.packed, size);
    const PackedCodes from = codes_of(kind.device, weights);
    const auto words = arrange(from);
    const bool bytes = code_bits(kind.device) == 8;
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      for (int group = 0; group < kUnitGroups; ++group) {
        for (int product = 0; product < 2; ++product) {
          for (int reg = 0; reg < 4; ++reg) {
            const int half = reg % 2, pair = product * 2 + reg / 2;
            const bool twos = code_bits(kind.device) == 2;
            const int vector = bytes ? group : twos ? 0 : group / 2;
            const int word = bytes  ? product * 2 + half
                             : twos ? group / 2 * 2 + half
                                    : group % 2 * 2 + half;
            const std::uint32_t bits = words.at(
                static_cast<std::size_t>((vector * kWarpLanes + lane) * kVectorWords + word));
            const auto looked_up = [&](int first) {  // places of four neighbours as bytes
              std::uint32_t named = 0;
              for (int i = 0; i < 4; ++i) {
                named |= (bits >> (first * 4 + i * 4) & 15u) << (i * 8);
              }
              return named;
            };
            const std::uint32_t both = bytes  ? bits >> (reg / 2 * 8) & 0x00ff00ffu
                                       : twos ? bits >> (group % 2 * 8 + pair * 2) & 0x00030003u
                                       : has_table(kind.device)
                                           ? looked_up(product * 4) >> (reg / 2 * 8) & 0x00ff00ffu
                                           : bits >> (pair * 4) & 0x000f000fu;
            const std::int64_t output = lane / 4 + half * 8;
            const std::int64_t input = group * kGroupInputs + lane % 4 * kLaneInputs + pair * 2;
            ASSERT_EQ(both & 0xffffu, packed_code(from, output, input));
            ASSERT_EQ(both >> 16, packed_code(from, output, input + 1));
          }
        }
      }
    }
  }
}

TEST_F(DeviceCodes, CutAnyNumberOfUnitsIntoSlicesThatFollowEachOther) {
  for (const int units : {1, 5, 8, 32, 112}) {
    EXPECT_EQ(slice_start(units, 0), 0);
    EXPECT_EQ(slice_start(units, kSlices), units);
    for (int slice = 0; slice < kSlices; ++slice) {
      EXPECT_LE(slice_start(units, slice), slice_start(units, slice + 1));
      EXPECT_LE(slice_start(units, slice + 1) - slice_start(units, slice), units / kSlices + 1);
    }
  }
}

}  // namespace
}  // namespace quire::kernels

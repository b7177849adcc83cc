// Packed formats: what goes in comes out, padding is neutral, GGUF rules hold.
#include "quire/kernels/packed_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/reference.h"
#include "quire/kernels/test_util.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels {
namespace {

class PackedWeightsTest : public testing::Test {
 protected:
  device::ThreadPool pool_{2};
  KernelContext context_{&kernels_for(device::Isa::kPortable), &pool_};
};

TEST_F(PackedWeightsTest, Float32KeepsEveryBit) {
  const std::vector<float> w = test::random_floats(75, 100, 1);
  const PackedWeights packed = test::pack_plain(context_, WeightFormat::kF32, w, 75, 100);
  EXPECT_EQ(reference::unpack_weights(packed), w);
}

TEST_F(PackedWeightsTest, Bf16KeepsRepresentableValues) {
  std::vector<float> w = test::random_floats(48, 96, 1);
  for (float& v : w) {
    v = tensor::bf16_to_float(tensor::float_to_bf16(v));
  }
  const PackedWeights packed = test::pack_plain(context_, WeightFormat::kBf16, w, 48, 96);
  EXPECT_EQ(reference::unpack_weights(packed), w);
}

// No matrix product of the CPU takes it: it is packed for a GPU.
TEST_F(PackedWeightsTest, Fp16KeepsRepresentableValuesAndLiesAsBf16Does) {
  std::vector<float> w = test::random_floats(48, 75, 1);
  for (float& v : w) {
    v = tensor::fp16_to_float(tensor::float_to_fp16(v));
  }
  const PackedWeights half = test::pack_plain(context_, WeightFormat::kF16, w, 48, 75);
  const PackedWeights bf16 = test::pack_plain(context_, WeightFormat::kBf16, w, 48, 75);
  ASSERT_EQ(half.size_bytes(), bf16.size_bytes());
  std::vector<float> row(75);
  for (std::int64_t column = 0; column < 48; ++column) {
    half.unpack_row(column, row);
    EXPECT_TRUE(std::equal(row.begin(), row.end(), w.begin() + column * 75)) << column;
  }
  for (std::size_t i = 0; i < half.size_bytes(); i += 2) {
    std::uint16_t a = 0, b = 0;
    std::memcpy(&a, half.data() + i, 2);
    std::memcpy(&b, bf16.data() + i, 2);
    const float value = tensor::fp16_to_float(a);  // bf16 rounds it by 2^-8 of itself at most
    EXPECT_NEAR(tensor::bf16_to_float(b), value, std::fabs(value) / 255);
  }
}

// The header's picture, element by element.
TEST_F(PackedWeightsTest, StepsAreLaidOutAsTheHeaderSays) {
  std::vector<float> w(std::size_t{64} * 64);
  for (std::size_t i = 0; i < w.size(); ++i) {
    w[i] = static_cast<float>(static_cast<int>(i % 251) - 125);  // exact in bf16
  }
  const PackedWeights f32 = test::pack_plain(context_, WeightFormat::kF32, w, 64, 64);
  const PackedWeights bf16 = test::pack_plain(context_, WeightFormat::kBf16, w, 64, 64);
  for (std::size_t column = 0; column < 64; ++column) {
    for (std::size_t k = 0; k < 64; ++k) {
      const std::size_t step = column / 32 * 2 + k / 32;
      const std::size_t c = column % 32;
      const std::size_t i = k % 32;
      float plain = 0;
      std::memcpy(&plain, f32.data() + step * 4096 + (i * 32 + c) * 4, 4);
      EXPECT_EQ(plain, w[column * 64 + k]);
      const std::size_t element = c / 16 * 512 + i / 2 * 32 + c % 16 * 2 + i % 2;
      std::uint16_t half = 0;
      std::memcpy(&half, bf16.data() + step * 2048 + element * 2, 2);
      EXPECT_EQ(tensor::bf16_to_float(half), w[column * 64 + k]);
    }
  }
}

TEST_F(PackedWeightsTest, QuantisedErrorIsWithinHalfAStep) {
  const std::vector<float> w = test::random_floats(64, 64, 2);
  for (const auto& [format, levels] : {std::pair{WeightFormat::kQ8g32, 127.0f},
                                       {WeightFormat::kQ4g32, 8.0f},
                                       {WeightFormat::kQ4m32, 15.0f}}) {
    const std::vector<float> seen =
        reference::unpack_weights(test::pack_plain(context_, format, w, 64, 64));
    for (std::size_t g = 0; g < w.size(); g += 32) {
      float amax = 0;
      for (std::size_t k = 0; k < 32; ++k) {
        amax = std::max(amax, std::fabs(w[g + k]));
      }
      // fp16 scales add 127 / 2048 and 8 / 2048 of a step. q4 has no +8, so the far end may be a
      // whole step away. q4m32's steps are 1 / 15 of the range, at most twice amax.
      const float bound = amax / levels * (format == WeightFormat::kQ8g32 ? 0.57f : 1.01f);
      for (std::size_t k = 0; k < 32; ++k) {
        EXPECT_NEAR(seen[g + k], w[g + k], bound);
      }
    }
  }
}

// Blocks of a Q8_0 or Q4_0 file, expanded to fp32 by their reader, come back with the same values.
TEST_F(PackedWeightsTest, GgufBlocksMoveOverLosslessly) {
  for (const auto& [format, low, high] :
       {std::tuple{WeightFormat::kQ8g32, -127, 127}, std::tuple{WeightFormat::kQ4g32, -8, 7}}) {
    std::mt19937 random(3);
    std::uniform_int_distribution<int> code(low, high);
    std::vector<float> w(std::size_t{32} * 320);
    for (std::size_t g = 0; g < w.size(); g += 32) {
      const auto scale_bits = static_cast<std::uint16_t>(random() % 0x3000 + 0x0400);
      const float scale = tensor::fp16_to_float(scale_bits) * (random() % 2 == 0 ? 1.0f : -1.0f);
      const auto peak = static_cast<std::size_t>(random() % 32);
      for (std::size_t k = 0; k < 32; ++k) {
        const int value = k == peak ? low : code(random);
        w[g + k] =
            (format == WeightFormat::kQ8g32 ? std::fabs(scale) : scale) * static_cast<float>(value);
      }
    }
    EXPECT_EQ(reference::unpack_weights(test::pack_plain(context_, format, w, 32, 320)), w)
        << format_name(format);
  }
}

// Any code, scale and minimum that a file may hold comes out as the number that it stands for.
TEST_F(PackedWeightsTest, CodesMoveOverUnchanged) {
  constexpr std::size_t kColumns = 37, kDepth = 96, kGroups = kDepth / 32;
  std::mt19937 random(5);
  std::vector<std::uint8_t> codes(kColumns * kDepth);
  std::vector<std::uint16_t> scales(kColumns * kGroups), minimums(kColumns * kGroups);
  const auto any_half = [&] {
    return static_cast<std::uint16_t>(random() % 0x7000 | (random() % 2) << 15);
  };
  std::ranges::generate(scales, any_half);
  std::ranges::generate(minimums, any_half);
  const auto copy = [](const auto& from, std::size_t first, auto to) {
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(first), to.size(), to.begin());
  };
  for (const auto& [format, num_codes, offset] :
       {std::tuple{WeightFormat::kQ8g32, 256U, 128}, std::tuple{WeightFormat::kQ4g32, 16U, 8},
        std::tuple{WeightFormat::kQ4m32, 16U, 0}}) {
    const unsigned limit = num_codes;
    std::ranges::generate(codes, [&] { return static_cast<std::uint8_t>(random() % limit); });
    const auto source = [&](std::int64_t first, std::int64_t rows, const tensor::CodeRows& out) {
      ASSERT_EQ(out.codes.size(), static_cast<std::size_t>(rows) * kDepth);
      copy(codes, static_cast<std::size_t>(first) * kDepth, out.codes);
      copy(scales, static_cast<std::size_t>(first) * kGroups, out.scales);
      copy(minimums, static_cast<std::size_t>(first) * kGroups, out.minimums);
    };
    const PackedWeights packed =
        PackedWeights::pack_codes(context_, format, kColumns, kDepth, {source});
    std::vector<float> expected;
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const float scale = tensor::fp16_to_float(scales[i / 32]);
      const float minimum = offset == 0 ? tensor::fp16_to_float(minimums[i / 32]) : 0.0f;
      expected.push_back(scale * static_cast<float>(codes[i] - offset) + minimum);
    }
    EXPECT_EQ(reference::unpack_weights(packed), expected) << format_name(format);
  }
}

TEST_F(PackedWeightsTest, ShapesAreRoundedUpToPanelsAndSteps) {
  const std::vector<float> w = test::random_floats(5, 40, 3);
  const PackedWeights packed = test::pack_plain(context_, WeightFormat::kQ4g32, w, 5, 40);
  EXPECT_EQ(packed.panels(), 1);
  EXPECT_EQ(packed.steps(), 2);
  EXPECT_EQ(packed.size_bytes(), 2u * 576u);
  EXPECT_EQ(reference::unpack_weights(packed).size(), w.size());
}

// Every instruction set and number of threads writes the same bytes, padding included.
TEST_F(PackedWeightsTest, BytesDependOnTheWeightsOnly) {
  const std::vector<float> w = test::random_floats(75, 100, 4);
  for (const WeightFormat format : test::kFormats) {
    const PackedWeights expected = test::pack_plain(context_, format, w, 75, 100);
    for (const device::Isa isa : device::supported_isas()) {
      device::ThreadPool pool(3);
      const PackedWeights packed = test::pack_plain({&kernels_for(isa), &pool}, format, w, 75, 100);
      EXPECT_EQ(std::memcmp(packed.data(), expected.data(), expected.size_bytes()), 0)
          << format_name(format) << " " << device::isa_name(isa);
    }
  }
}

TEST_F(PackedWeightsTest, ASourceIsAskedForEveryRowOnce) {
  std::vector<std::atomic<int>> asked(100);
  const PackedWeights packed =
      PackedWeights::pack(context_, WeightFormat::kBf16, 100, 33,
                          [&](std::int64_t first, std::int64_t rows, std::span<float> out) {
                            EXPECT_EQ(out.size(), static_cast<std::size_t>(rows * 33));
                            std::fill(out.begin(), out.end(), 1.0f);
                            for (std::int64_t row = first; row < first + rows; ++row) {
                              asked[static_cast<std::size_t>(row)].fetch_add(1);
                            }
                          });
  for (const auto& count : asked) {
    EXPECT_EQ(count.load(), 1);
  }
  EXPECT_EQ(packed.columns(), 100);
}

TEST_F(PackedWeightsTest, ZeroWeightsAreZero) {
  for (const WeightFormat format : test::kFormats) {
    const PackedWeights zero(format, 33, 65);
    for (const float value : reference::unpack_weights(zero)) {
      ASSERT_EQ(value, 0.0f);
    }
  }
}

TEST_F(PackedWeightsTest, MemoryThatIsNotThereIsReportedNotUsed) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 28;
  EXPECT_EQ(PackedWeights(WeightFormat::kF32, kHuge, kHuge).data(), nullptr);
  const PackedWeights packed =
      PackedWeights::pack(context_, WeightFormat::kF32, kHuge, kHuge,
                          [](std::int64_t, std::int64_t, std::span<float>) { FAIL(); });
  EXPECT_EQ(packed.data(), nullptr);
}

TEST_F(PackedWeightsTest, AViewShowsWhatIsPackedAndACloneOutlivesIt) {
  const std::vector<float> w = test::random_floats(33, 40, 6);
  for (const WeightFormat format : test::kFormats) {
    PackedWeights clone;
    {
      const PackedWeights packed = test::pack_plain(context_, format, w, 33, 40);
      const PackedWeights view =
          PackedWeights::view(format, 33, 40, {packed.data(), packed.size_bytes()});
      EXPECT_EQ(view.data(), packed.data());
      EXPECT_EQ(reference::unpack_weights(view), reference::unpack_weights(packed));
      clone = view.clone();
      EXPECT_NE(clone.data(), view.data());
      EXPECT_EQ(std::memcmp(clone.data(), view.data(), view.size_bytes()), 0);
    }
    EXPECT_EQ(clone.columns(), 33);
    EXPECT_EQ(reference::unpack_weights(clone).size(), w.size());
  }
}

TEST_F(PackedWeightsTest, BytesAreThoseOfTheShapeAndOnlyOfOneThatCanBe) {
  EXPECT_EQ(packed_bytes(WeightFormat::kQ4g32, 5, 40), 2 * 576);
  EXPECT_EQ(packed_bytes(WeightFormat::kF32, kMaxPackedSize, kMaxPackedSize),
            std::int64_t{1} << 62);
  EXPECT_EQ(packed_bytes(WeightFormat::kF32, kMaxPackedSize + 1, 1), std::nullopt);
  EXPECT_EQ(packed_bytes(WeightFormat::kF32, 1, kMaxPackedSize + 1), std::nullopt);
  EXPECT_EQ(packed_bytes(WeightFormat::kF32, 0, 1), std::nullopt);
  EXPECT_EQ(packed_bytes(WeightFormat::kF32, 1, -1), std::nullopt);
}

TEST_F(PackedWeightsTest, NotANumberDoesNotBecomeANumberInFloats) {
  std::vector<float> w(1024, 1.0f);
  w[5] = std::numeric_limits<float>::quiet_NaN();
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    const std::vector<float> seen =
        reference::unpack_weights(test::pack_plain(context_, format, w, 32, 32));
    EXPECT_TRUE(std::isnan(seen[5]));
    EXPECT_EQ(seen[6], 1.0f);
  }
}

}  // namespace
}  // namespace quire::kernels

#include "quire/weights/tensor_info.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "quire/tensor/dtype.h"
#include "quire/weights/layout.h"
#include "quire/weights/test_files.h"

namespace quire::weights {
namespace {

using testing::decoded;
TensorInfo tensor_over(std::span<const std::byte> bytes, Encoding encoding,
                       std::vector<std::int64_t> shape) {
  return {.name = "t", .encoding = encoding, .shape = std::move(shape), .bytes = bytes};
}

TEST(TensorInfo, EncodingsNameTheirBlocks) {
  EXPECT_STREQ(encoding_name(Encoding::kBF16), "BF16");
  EXPECT_EQ(code_block_values(Encoding::kF16), 1);
  EXPECT_EQ(code_block_bytes(Encoding::kF16), 2);
  EXPECT_STREQ(encoding_name(Encoding::kQ4_1), "Q4_1");
  EXPECT_EQ(code_block_values(Encoding::kQ4_1), 32);
  EXPECT_EQ(code_block_bytes(Encoding::kQ4_1), 20);
}

TEST(TensorInfo, RowsAndColumnsOfEveryRank) {
  const TensorInfo scalar = tensor_over({}, Encoding::kF32, {});
  EXPECT_EQ(scalar.rows(), 1);
  EXPECT_EQ(scalar.columns(), 1);
  const TensorInfo vector = tensor_over({}, Encoding::kF32, {5});
  EXPECT_EQ(vector.rows(), 1);
  EXPECT_EQ(vector.columns(), 5);
  const TensorInfo cube = tensor_over({}, Encoding::kF32, {2, 3, 4});
  EXPECT_EQ(cube.rows(), 6);
  EXPECT_EQ(cube.columns(), 4);
  EXPECT_EQ(cube.num_values(), 24);
}

// Oracle: tensor::fp16_to_float, bit for bit, for all patterns: zeros, subnormals, infinities,
// NaNs.
TEST(TensorInfo, EveryHalfDecodesAsTheScalarConversionDoes) {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) {
    halves[i] = static_cast<std::uint16_t>(i);
  }
  const auto bytes = std::as_bytes(std::span(halves));
  const std::vector<float> f16 = decoded(tensor_over(bytes, Encoding::kF16, {256, 256}));
  const std::vector<float> bf16 = decoded(tensor_over(bytes, Encoding::kBF16, {65536}));
  for (std::size_t i = 0; i < halves.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(f16[i]),
              std::bit_cast<std::uint32_t>(tensor::fp16_to_float(halves[i])))
        << "half " << i;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(bf16[i]), static_cast<std::uint32_t>(i) << 16);
  }
}

TEST(TensorInfo, RowsOfAnyWidthAtUnalignedAddressesDecode) {
  for (const std::int64_t columns : {1, 2, 31, 32, 33, 64, 95}) {
    std::string storage = "x";  // one byte, so that what follows is unaligned
    for (std::int64_t i = 0; i < 3 * columns; ++i) {
      storage += testing::raw(tensor::float_to_bf16(static_cast<float>(i)));
    }
    const auto bytes = testing::bytes_of(storage).subspan(1);
    const TensorInfo tensor = tensor_over(bytes, Encoding::kBF16, {3, columns});
    std::vector<float> out(static_cast<std::size_t>(2 * columns));
    read_rows(tensor, 1, 2, out);
    for (std::int64_t i = 0; i < 2 * columns; ++i) {
      const auto value = static_cast<float>(columns + i);
      ASSERT_EQ(out[static_cast<std::size_t>(i)],
                tensor::bf16_to_float(tensor::float_to_bf16(value)));
    }
  }
}

// Worked by hand from ggml's block layouts; the golden files hold gguf-py's answers.
TEST(TensorInfo, QuantisedBlocksDecodeAsGgmlDefinesThem) {
  const std::string scale = testing::raw(tensor::float_to_fp16(0.5f));
  const std::string minimum = testing::raw(tensor::float_to_fp16(-2.0f));
  std::string eights = scale;
  std::string nibbles;
  for (int i = 0; i < 32; ++i) {
    eights += static_cast<char>(i - 16);
  }
  for (int i = 0; i < 16; ++i) {
    nibbles += static_cast<char>(i | ((15 - i) << 4));
  }
  const std::string fours = scale + nibbles;
  const std::string fours_and_minimum = scale + minimum + nibbles;
  const auto q8 = decoded(tensor_over(testing::bytes_of(eights), Encoding::kQ8_0, {32}));
  const auto q4 = decoded(tensor_over(testing::bytes_of(fours), Encoding::kQ4_0, {32}));
  const auto q41 =
      decoded(tensor_over(testing::bytes_of(fours_and_minimum), Encoding::kQ4_1, {32}));
  for (std::size_t i = 0; i < 32; ++i) {
    const auto low = static_cast<float>(i < 16 ? i : 31 - i);
    EXPECT_EQ(q8[i], 0.5f * (static_cast<float>(i) - 16));
    EXPECT_EQ(q4[i], 0.5f * (low - 8));
    EXPECT_EQ(q41[i], 0.5f * low - 2);
  }
}

// Returns a block of random bytes whose fp16 numbers are ordinary ones.
std::string random_block(Encoding encoding, std::mt19937& random) {
  std::string block(static_cast<std::size_t>(code_block_bytes(encoding)), '\0');
  std::ranges::generate(block, [&] { return static_cast<char>(random()); });
  for (const std::size_t at : {std::size_t{0}, std::size_t{2}}) {
    const auto half = tensor::float_to_fp16(1e-3f * static_cast<float>(random() % 1000 + 100));
    const bool has_minimum = code_kind(encoding) == CodeKind::kFourMinimum;
    if (at == 0 || has_minimum) {
      block.replace(at, 2, testing::raw(half));
    }
  }
  return block;
}

// Oracle: read_rows, which gguf-py's answers are golden for.
TEST(TensorInfo, CodesWithTheirScalesAreTheValues) {
  std::mt19937 random(11);
  for (const Encoding encoding :
       {Encoding::kQ8_0, Encoding::kQ4_0, Encoding::kQ4_1, Encoding::kQ5_0, Encoding::kQ4_K}) {
    const std::int64_t width = std::int64_t{code_block_values(encoding)} * 2;
    std::string bytes;
    for (int i = 0; i < 6; ++i) {
      bytes += random_block(encoding, random);
    }
    const TensorInfo tensor = tensor_over(testing::bytes_of(bytes), encoding, {3, width});
    const std::vector<float> values = decoded(tensor);
    const auto count = static_cast<std::size_t>(2 * width);
    std::vector<std::uint8_t> codes(count);
    std::vector<std::uint16_t> scales(count / 32), minimums(count / 32);
    read_codes(tensor, 1, 2, {codes, scales, minimums});
    const CodeKind kind = code_kind(encoding);
    const int offset = kind == CodeKind::kEight ? 128 : kind == CodeKind::kFour ? 8 : 0;
    for (std::size_t i = 0; i < count; ++i) {
      const float scale = tensor::fp16_to_float(scales[i / 32]);
      const float minimum = offset == 0 ? tensor::fp16_to_float(minimums[i / 32]) : 0.0f;
      const float product = scale * static_cast<float>(codes[i] - offset);
      // Q4_K: two roundings to fp16.
      const float bound =
          encoding == Encoding::kQ4_K ? (std::fabs(product) + std::fabs(minimum)) / 2048 : 0.0f;
      ASSERT_NEAR(product + minimum, values[static_cast<std::size_t>(width) + i], bound)
          << encoding_name(encoding) << " value " << i;
    }
  }
}

TEST(TensorInfo, EncodingsWithoutCodesSaySo) {
  for (const Encoding encoding : {Encoding::kF32, Encoding::kF16, Encoding::kBF16, Encoding::kQ5_1,
                                  Encoding::kQ5_K, Encoding::kQ6_K}) {
    EXPECT_EQ(code_kind(encoding), CodeKind::kNone) << encoding_name(encoding);
  }
}

TEST(TensorInfo, EmptyTensorsDecodeToNothing) {
  std::vector<float> behind = {1, 2, 3, 4};
  const std::span<float> nothing = std::span(behind).first(0);
  for (const Encoding encoding :
       {Encoding::kF32, Encoding::kF16, Encoding::kBF16, Encoding::kQ8_0}) {
    const TensorInfo no_rows = tensor_over({}, encoding, {0, 32});
    const TensorInfo no_columns = tensor_over({}, encoding, {4, 0});
    EXPECT_EQ(no_rows.rows(), 0);
    EXPECT_EQ(no_columns.columns(), 0);
    read_rows(no_rows, 0, 0, nothing);
    read_rows(no_columns, 0, 4, nothing);
    EXPECT_EQ(behind, (std::vector<float>{1, 2, 3, 4})) << encoding_name(encoding);
  }
}

TEST(TensorInfo, ThreadsDecodePartsOfOneTensorAtOnce) {
  constexpr std::int64_t kRows = 64;
  constexpr std::int64_t kColumns = 96;
  std::vector<float> values(kRows * kColumns);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i);
  }
  const TensorInfo tensor =
      tensor_over(std::as_bytes(std::span(values)), Encoding::kF32, {kRows, kColumns});
  std::vector<float> out(values.size());
  std::vector<std::thread> threads;
  for (std::int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::int64_t first = t * kRows / 4;
      const auto part = std::span(out).subspan(static_cast<std::size_t>(first * kColumns),
                                               static_cast<std::size_t>(kRows / 4 * kColumns));
      read_rows(tensor, first, kRows / 4, part);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(out, values);
}

TEST(TensorInfoDeathTest, RowsOutsideTheTensorAreABrokenInvariant) {
  const std::vector<float> values(8);
  const TensorInfo tensor = tensor_over(std::as_bytes(std::span(values)), Encoding::kF32, {2, 4});
  std::vector<float> out(8);
  EXPECT_DEATH(read_rows(tensor, 1, 2, out), "rows outside the tensor");
  EXPECT_DEATH(read_rows(tensor, 0, 1, out), "output size");
}

TEST(Layout, ProductsThatLeaveInt64AreNotProducts) {
  EXPECT_EQ(checked_product({}), 1);
  EXPECT_EQ(checked_product(std::vector<std::int64_t>{3, 0, 5}), 0);
  EXPECT_EQ(checked_product(std::vector<std::int64_t>{1LL << 32, 1LL << 31}), std::nullopt);
  EXPECT_EQ(checked_product(std::vector<std::int64_t>{1LL << 32, 1LL << 31, 0}), std::nullopt);
  EXPECT_EQ(checked_product(std::vector<std::int64_t>{2, -1}), std::nullopt);
}

}  // namespace
}  // namespace quire::weights

// Rotary tables against long double, rotation against the definition.
#include "quire/kernels/rotary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/test_util.h"

namespace quire::kernels {
namespace {

RotaryConfig llama(int rotary_dim, double base) {
  RotaryConfig config;
  for (int i = 0; i < rotary_dim / 2; ++i) {
    config.inverse_frequencies.push_back(std::pow(base, -2.0 * i / rotary_dim));
  }
  return config;
}

class RotaryTest : public testing::Test {
 protected:
  device::ThreadPool pool_{2};
  KernelContext context_{&kernels_for(device::Isa::kPortable), &pool_};
};

// One rounding to fp32 of an angle that is exact to double precision: 131071 radians * 2^-53 are
// 1.5e-11, invisible beside 2^-25.
TEST_F(RotaryTest, MatchesLongDoubleUpToPosition131072) {
  RotaryConfig config = llama(128, 500000.0);
  config.scale = 1.1;
  std::vector<std::int32_t> positions;
  for (std::int32_t p = 0; p <= 131072; p += p < 64 ? 1 : 509) {
    positions.push_back(p);
  }
  positions.push_back(131072);
  RotaryTable table;
  table.fill(context_, config, positions);
  ASSERT_EQ(table.half, 64);
  ASSERT_EQ(table.cos.size(), positions.size() * 64);
  for (std::size_t row = 0; row < positions.size(); ++row) {
    for (std::size_t i = 0; i < 64; ++i) {
      const long double angle =
          static_cast<long double>(positions[row]) * config.inverse_frequencies[i];
      const double cos = static_cast<double>(std::cos(angle) * 1.1L);
      const double sin = static_cast<double>(std::sin(angle) * 1.1L);
      ASSERT_NEAR(table.cos[row * 64 + i], cos, 0x1p-24) << positions[row] << " " << i;
      ASSERT_NEAR(table.sin[row * 64 + i], sin, 0x1p-24) << positions[row] << " " << i;
    }
  }
}

TEST_F(RotaryTest, RowsDoNotDependOnTheList) {
  const RotaryConfig config = llama(64, 10000.0);
  std::vector<std::int32_t> positions(2000);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    positions[i] = static_cast<std::int32_t>(i * 7919 % 32768);
  }
  RotaryTable all;
  all.fill(context_, config, positions);
  RotaryTable one;
  for (const std::size_t row : {std::size_t{0}, std::size_t{999}, std::size_t{1999}}) {
    one.fill(context_, config, std::span(positions).subspan(row, 1));
    EXPECT_TRUE(test::same_bits(one.cos, std::span(all.cos).subspan(row * 32, 32)));
    EXPECT_TRUE(test::same_bits(one.sin, std::span(all.sin).subspan(row * 32, 32)));
  }
}

TEST_F(RotaryTest, RotatesPairsHalfAHeadApartAndCopiesTheRest) {
  const RotaryConfig config = llama(20, 10000.0);  // partial rotary: 20 of 32
  const std::int32_t positions[] = {0, 5, 77};
  RotaryTable table;
  table.fill(context_, config, positions);
  const std::vector<float> head = test::random_floats(32, 1);
  for (std::int64_t row = 0; row < 3; ++row) {
    std::vector<float> out(32);
    rotate_head(context_, table, row, head, out);
    for (std::size_t i = 0; i < 10; ++i) {
      const double angle = positions[static_cast<std::size_t>(row)] * config.inverse_frequencies[i];
      EXPECT_NEAR(out[i], head[i] * std::cos(angle) - head[i + 10] * std::sin(angle), 1e-6);
      EXPECT_NEAR(out[i + 10], head[i + 10] * std::cos(angle) + head[i] * std::sin(angle), 1e-6);
    }
    for (std::size_t i = 20; i < 32; ++i) {
      EXPECT_EQ(out[i], head[i]);
    }
    std::vector<float> in_place = head;
    rotate_head(context_, table, row, in_place, in_place);
    EXPECT_TRUE(test::same_bits(in_place, out));
  }
}

TEST_F(RotaryTest, EveryInstructionSetGivesTheSameBits) {
  const std::int32_t positions[] = {4711};
  for (const int rotary_dim : {6, 32, 64, 80, 128}) {
    RotaryTable table;
    table.fill(context_, llama(rotary_dim, 10000.0), positions);
    const std::vector<float> head = test::random_floats(128, 3);
    std::vector<float> expected(128);
    rotate_head(context_, table, 0, head, expected);
    for (const device::Isa isa : device::supported_isas()) {
      std::vector<float> out(128);
      rotate_head({&kernels_for(isa), &pool_}, table, 0, head, out);
      EXPECT_TRUE(test::same_bits(out, expected)) << device::isa_name(isa) << " " << rotary_dim;
    }
  }
}

TEST_F(RotaryTest, PositionZeroAndNoFrequenciesChangeNothing) {
  const std::vector<float> head = test::random_floats(64, 2);
  std::vector<float> out(64);
  const std::int32_t zero[] = {0};
  RotaryTable table;
  table.fill(context_, llama(64, 10000.0), zero);
  rotate_head(context_, table, 0, head, out);
  EXPECT_EQ(out, head);
  table.fill(context_, RotaryConfig{}, zero);
  EXPECT_EQ(table.half, 0);
  rotate_head(context_, table, 0, head, out);
  EXPECT_EQ(out, head);
}

TEST_F(RotaryTest, NegativePositionsTurnBack) {
  const std::int32_t positions[] = {9, -9};
  RotaryTable table;
  table.fill(context_, llama(64, 10000.0), positions);
  for (std::size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(table.cos[i], table.cos[32 + i]);
    EXPECT_EQ(table.sin[i], -table.sin[32 + i]);
  }
}

}  // namespace
}  // namespace quire::kernels

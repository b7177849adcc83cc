#include "quire/sampling/philox.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

namespace quire::sampling {
namespace {

using Words = std::array<std::uint32_t, 4>;

// The known answers that Random123 publishes (kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, EqualsPublishedVectors) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32_10({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformsLieInTheHalfOpenUnitInterval) {
  double sum = 0;
  constexpr int kDraws = 100'000;
  for (int i = 0; i < kDraws; ++i) {
    const double u = uniform_at(7, static_cast<std::uint64_t>(i));
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
  }
  // The mean of so many has a standard deviation of 0.0009.
  EXPECT_NEAR(sum / kDraws, 0.5, 0.005);
}

TEST(Philox, UniformsDependOnAllBitsOfSeedAndCounter) {
  for (int bit = 0; bit < 64; ++bit) {
    EXPECT_NE(uniform_at(std::uint64_t{1} << bit, 5), uniform_at(0, 5)) << bit;
    EXPECT_NE(uniform_at(5, std::uint64_t{1} << bit), uniform_at(5, 0)) << bit;
  }
}

}  // namespace
}  // namespace quire::sampling

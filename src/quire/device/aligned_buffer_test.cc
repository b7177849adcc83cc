#include "quire/device/aligned_buffer.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

namespace quire::device {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Both sides of the border between the heap and mapped pages, and odd sizes.
TEST(AlignedBuffer, IsAlignedAndUsableToItsLastByte) {
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{63}, std::size_t{64}, std::size_t{4097}, kHugePage - 1,
        kHugePage, kHugePage + 1, (std::size_t{5} << 20) + 3}) {
    AlignedBuffer<unsigned char> buffer(size);
    ASSERT_EQ(buffer.size(), size);
    const std::size_t border = size < kHugePage ? 64 : kHugePage;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % border, 0u);
    buffer.data()[0] = 1;
    buffer.data()[size - 1] = 2;
    EXPECT_EQ(buffer.span().back(), 2);
  }
}

TEST(AlignedBuffer, EmptyHoldsNothing) {
  AlignedBuffer<float> empty;
  EXPECT_EQ(empty.data(), nullptr);
  EXPECT_EQ(AlignedBuffer<float>(0).size(), 0u);
}

TEST(AlignedBuffer, MovingHandsTheMemoryOver) {
  AlignedBuffer<int> first(100);
  int* data = first.data();
  data[99] = 7;
  AlignedBuffer<int> second(std::move(first));
  EXPECT_EQ(second.data(), data);
  AlignedBuffer<int> third;
  third = std::move(second);
  EXPECT_EQ(third.data()[99], 7);
}

TEST(AlignedBuffer, ReserveGrowsAndNeverShrinks) {
  AlignedBuffer<int> buffer(100);
  const int* before = buffer.data();
  buffer.reserve(50);
  EXPECT_EQ(buffer.data(), before);
  EXPECT_EQ(buffer.size(), 100u);
  buffer.reserve(1 << 20);
  EXPECT_EQ(buffer.size(), std::size_t{1} << 20);
}

TEST(AlignedBuffer, AnImpossibleSizeIsEmptyNotACrash) {
  const AlignedBuffer<std::byte> bytes(std::numeric_limits<std::size_t>::max() / 4);
  EXPECT_EQ(bytes.size(), 0u);
  EXPECT_EQ(bytes.data(), nullptr);
  // No room for the border of a huge page beside it.
  EXPECT_EQ(AlignedBuffer<std::byte>(std::numeric_limits<std::size_t>::max()).size(), 0u);
  // The size in bytes does not even fit a size_t.
  const AlignedBuffer<double> overflow(std::numeric_limits<std::size_t>::max() / 4);
  EXPECT_EQ(overflow.size(), 0u);
}

}  // namespace
}  // namespace quire::device

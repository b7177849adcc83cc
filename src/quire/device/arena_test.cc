#include "quire/device/arena.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

namespace quire::device {
namespace {

constexpr std::size_t kChunk = std::size_t{4} << 20;

TEST(Arena, BuffersLieSideBySideAlignedAndApart) {
  Arena arena(kChunk);
  std::vector<std::shared_ptr<std::byte>> buffers;
  const std::size_t sizes[] = {1, 64, 65, 4096, 1000000};
  for (const std::size_t size : sizes) {
    buffers.push_back(arena.allocate(size));
    ASSERT_NE(buffers.back(), nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffers.back().get()) % 64, 0u);
    std::memset(buffers.back().get(), static_cast<int>(buffers.size()), size);
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    EXPECT_EQ(buffers[i].get()[0], std::byte(i + 1));
    EXPECT_EQ(buffers[i].get()[sizes[i] - 1], std::byte(i + 1));
    if (i > 0) {
      EXPECT_EQ(buffers[i].get() - buffers[i - 1].get(),
                static_cast<std::ptrdiff_t>((sizes[i - 1] + 63) / 64 * 64));
    }
  }
}

TEST(Arena, WhatDoesNotFitTheRestOfAChunkBeginsAnotherAndMoreThanAChunkHasItsOwn) {
  Arena arena(kChunk);
  const auto first = arena.allocate(kChunk - 100);
  const auto second = arena.allocate(128);  // 64 are left
  const auto third = arena.allocate(3 * kChunk);
  ASSERT_NE(third, nullptr);
  EXPECT_NE(first.get() + kChunk, second.get() + 64);
  third.get()[3 * kChunk - 1] = std::byte{1};
  second.get()[127] = std::byte{1};
  first.get()[kChunk - 101] = std::byte{1};
}

TEST(Arena, ItsMemoryOutlivesItAndIsSharedByTheChunksBuffers) {
  std::shared_ptr<std::byte> kept;
  {
    Arena arena(kChunk);
    const auto dropped = arena.allocate(100);
    kept = arena.allocate(100);
    kept.get()[99] = std::byte{7};
    EXPECT_EQ(kept.use_count(), 3);  // and the arena's
  }
  EXPECT_EQ(kept.use_count(), 1);
  EXPECT_EQ(kept.get()[99], std::byte{7});
}

TEST(Arena, AnImpossibleSizeIsNullAndChangesNothing) {
  Arena arena(kChunk);
  const auto first = arena.allocate(64);
  EXPECT_EQ(arena.allocate(std::numeric_limits<std::size_t>::max() / 4), nullptr);
  EXPECT_EQ(arena.allocate(64).get(), first.get() + 64);
}

}  // namespace
}  // namespace quire::device

// Restore points in host memory. Oracle: bytes follow from the salt and the tokens before the end
// of a block, a tail or a state. So a test knows them without keeping them.
#include "quire/kv_store/host_points.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/test_length.h"
#include "quire/device/host_buffer.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv_store {
namespace {

using Tokens = std::vector<TokenId>;

constexpr std::int64_t kPointBlockBytes = 48, kPointStateBytes = 100;
constexpr std::int32_t kPointBlockTokens = 4;

std::vector<std::byte> point_bytes_behind(std::span<const TokenId> tokens, const std::string& salt,
                                          std::int64_t size) {
  std::seed_seq seed(tokens.begin(), tokens.end());
  std::vector<std::uint32_t> words(static_cast<std::size_t>(size));
  seed.generate(words.begin(), words.end());
  std::vector<std::byte> bytes;
  for (const std::uint32_t word : words) {
    bytes.push_back(static_cast<std::byte>((word + salt.size()) % 256));
  }
  return bytes;
}

class PointsInHostMemory : public testing::Test {
 protected:
  // Keeps a point, and counts the blocks that are read.
  bool keep(HostPoints& points, const Tokens& tokens, const std::string& salt = "") {
    const auto write = [&](std::size_t end, std::int64_t size, std::span<std::byte> to) {
      if (fails_) {
        return Status(ErrorCode::kDevice, "the device is gone");
      }
      EXPECT_EQ(std::ssize(to), size);
      std::ranges::copy(point_bytes_behind(std::span(tokens).first(end), salt, size), to.begin());
      return Status();
    };
    return points.keep(
        tokens, salt,
        {.read_block =
             [&](std::size_t block, std::span<std::byte> to) {
               ++num_read_;
               return write((block + 1) * kPointBlockTokens, kPointBlockBytes, to);
             },
         .read_tail =
             [&](std::span<std::byte> to) { return write(tokens.size(), kPointBlockBytes, to); },
         .read_state =
             [&](std::span<std::byte> to) { return write(tokens.size(), kPointStateBytes, to); }});
  }

  static HostPoints::Sizes sizes(std::int64_t budget) {
    return {.budget_bytes = budget,
            .block_bytes = kPointBlockBytes,
            .state_bytes = kPointStateBytes,
            .block_tokens = kPointBlockTokens};
  }

  static device::HostBuffer allocate(std::size_t bytes) { return device::HostBuffer(bytes); }

  // Opens the longest point behind some of the tokens and compares its bytes. Returns its length.
  static std::int32_t read(HostPoints& points, const Tokens& tokens, const std::string& salt = "") {
    const std::optional<HostPoints::Reader> point = points.open(tokens, salt);
    if (!point) {
      return 0;
    }
    const auto all = std::span(tokens).first(static_cast<std::size_t>(point->num_tokens()));
    const auto expect = [&](std::span<const std::byte> bytes, std::size_t end) {
      EXPECT_TRUE(std::ranges::equal(bytes, point_bytes_behind(all.first(std::min(end, all.size())),
                                                               salt, std::ssize(bytes))));
    };
    const auto blocks = point->blocks();
    EXPECT_EQ(blocks.size(), (all.size() + kPointBlockTokens - 1) / kPointBlockTokens);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_EQ(std::ssize(blocks[i]), kPointBlockBytes);
      expect(blocks[i], (i + 1) * kPointBlockTokens);
    }
    EXPECT_EQ(std::ssize(point->state()), kPointStateBytes);
    expect(point->state(), all.size());
    return point->num_tokens();
  }

  static void expect_right(const HostPoints& points) {
    EXPECT_TRUE(points.check().ok()) << points.check().error().message;
  }

  int num_read_ = 0;
  bool fails_ = false;
};

TEST_F(PointsInHostMemory, ComeBackByteForByteBehindTheLongestTokensThatAreAlike) {
  HostPoints points(sizes(10'000), allocate);
  EXPECT_EQ(points.find(Tokens{1, 2, 3}, ""), 0);
  for (const Tokens& tokens : {Tokens{1, 2, 3}, Tokens{1, 2, 3, 4, 5, 6, 7, 8},
                               Tokens{1, 2, 3, 4, 5, 6, 7, 8, 9}, Tokens{1, 2, 3, 4, 5, 0}}) {
    ASSERT_TRUE(keep(points, tokens));
    EXPECT_EQ(read(points, tokens), std::ssize(tokens));
  }
  EXPECT_EQ(read(points, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), 9);
  EXPECT_EQ(read(points, {1, 2, 3, 4, 5, 6, 7, 8, 0, 10}), 8);
  EXPECT_EQ(read(points, {1, 2, 3, 4, 5, 6, 7}), 3);
  EXPECT_EQ(read(points, {1, 2, 3, 4, 5, 0, 7}), 6);
  EXPECT_EQ(read(points, {1, 2}), 0);
  EXPECT_EQ(read(points, {2, 2, 3, 4}), 0);
  expect_right(points);
  points.clear();
  EXPECT_EQ(points.bytes(), 0);
  EXPECT_EQ(points.find(Tokens{1, 2, 3}, ""), 0);
}

TEST_F(PointsInHostMemory, ShareTheBlocksThatTheirHistoriesHaveInCommon) {
  HostPoints points(sizes(10'000), allocate);
  ASSERT_TRUE(keep(points, {1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(points.bytes(), 2 * kPointBlockBytes + kPointStateBytes);
  ASSERT_TRUE(keep(points, {1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(points.bytes(), 3 * kPointBlockBytes + 2 * kPointStateBytes) << "a tail of its own";
  ASSERT_TRUE(keep(points, {1, 2, 3, 4}));
  EXPECT_EQ(points.bytes(), 3 * kPointBlockBytes + 3 * kPointStateBytes);
  EXPECT_EQ(num_read_, 2);
  ASSERT_TRUE(keep(points, {1, 2, 3, 4})) << "it is there";
  EXPECT_EQ(points.num_points(), 3);
  EXPECT_EQ(points.num_kept(), 3);
  expect_right(points);
}

TEST_F(PointsInHostMemory, OfTwoSaltsNeverMeet) {
  HostPoints points(sizes(10'000), allocate);
  ASSERT_TRUE(keep(points, {1, 2, 3, 4, 5}, "one"));
  EXPECT_EQ(points.find(Tokens{1, 2, 3, 4, 5}, ""), 0);
  EXPECT_EQ(points.find(Tokens{1, 2, 3, 4, 5}, "two"), 0);
  ASSERT_TRUE(keep(points, {1, 2, 3, 4, 5}, "second"));
  EXPECT_EQ(read(points, {1, 2, 3, 4, 5}, "one"), 5);
  EXPECT_EQ(read(points, {1, 2, 3, 4, 5}, "second"), 5);
  EXPECT_EQ(num_read_, 2) << "nothing is shared";
}

TEST_F(PointsInHostMemory, GiveWayWhereAHitSavesTheFewestTokensForItsBytes) {
  // Room for a long history with two points, and a short one.
  HostPoints points(sizes(4 * kPointBlockBytes + 3 * kPointStateBytes + kPointBlockBytes),
                    allocate);
  const Tokens half = {1, 2, 3, 4, 5, 6, 7, 8};
  Tokens all = half;
  for (TokenId i = 9; i < 17; ++i) {
    all.push_back(i);
  }
  ASSERT_TRUE(keep(points, half));
  ASSERT_TRUE(keep(points, all));
  ASSERT_TRUE(keep(points, {30}));
  EXPECT_EQ(points.num_points(), 3);
  ASSERT_TRUE(keep(points, {40, 41}));
  EXPECT_EQ(points.find(Tokens{30}, ""), 0) << "one token was worth least";
  EXPECT_EQ(read(points, all), 16);
  EXPECT_EQ(read(points, half), 8);
  EXPECT_EQ(points.num_evictions(), 1);
  expect_right(points);
}

TEST_F(PointsInHostMemory, StayWhileTheyAreRead) {
  HostPoints points(sizes(kPointBlockBytes + kPointStateBytes), allocate);
  ASSERT_TRUE(keep(points, {1, 2}));
  {
    const auto reader = points.open(Tokens{1, 2}, "");
    ASSERT_TRUE(reader);
    EXPECT_FALSE(keep(points, {3, 4})) << "there is no room beside it";
    EXPECT_EQ(points.find(Tokens{1, 2}, ""), 2);
    expect_right(points);
  }
  EXPECT_TRUE(keep(points, {3, 4}));
  EXPECT_EQ(points.find(Tokens{1, 2}, ""), 0);
}

TEST_F(PointsInHostMemory, ThatCannotBeReadOrHeldLeaveNothingBehind) {
  bool refuses = false;
  HostPoints points(sizes(1'000), [&](std::size_t bytes) {
    return refuses ? device::HostBuffer() : device::HostBuffer(bytes);
  });
  ASSERT_TRUE(keep(points, {1, 2, 3, 4, 5}));
  const std::int64_t bytes = points.bytes();
  fails_ = true;
  EXPECT_FALSE(keep(points, {1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_FALSE(keep(points, {1, 2}, "other"));
  fails_ = false;
  refuses = true;
  EXPECT_FALSE(keep(points, {1, 2, 3, 4, 5, 6, 7, 8, 9}));
  refuses = false;
  EXPECT_FALSE(keep(points, Tokens(80, 1))) << "it takes more than the budget";
  EXPECT_EQ(points.num_points(), 1) << "nothing gave way to it";
  EXPECT_EQ(points.bytes(), bytes);
  expect_right(points);
}

// Oracle: a map of what was kept. A point may be gone, and one that is found is the longest.
TEST_F(PointsInHostMemory, KeepTheBudgetInRandomOperations) {
  std::mt19937 random(7);
  for (const std::int64_t budget : {0, 90, 148, 400, 1'500, 6'000}) {
    HostPoints points(sizes(budget), allocate);
    std::map<std::pair<std::string, Tokens>, bool> kept;
    std::int64_t found = 0;
    for (int i = 0; i < base::test_length(20'000, 2'000); ++i) {
      Tokens tokens;
      const std::size_t length = 1 + random() % 20;
      while (tokens.size() < length) {
        tokens.push_back(random() % 8 == 0 ? 2 : 1);
      }
      const std::string salt = random() % 3 == 0 ? "salt" : "";
      if (random() % 2 == 0) {
        const bool done = keep(points, tokens, salt);
        EXPECT_EQ(done, points.find(tokens, salt) == std::ssize(tokens));
        kept[{salt, tokens}] = true;
      } else {
        const std::int32_t there = read(points, tokens, salt);
        tokens.resize(static_cast<std::size_t>(there));
        EXPECT_TRUE(there == 0 || kept.contains({salt, tokens}));
        found += there > 0 ? 1 : 0;
      }
      if (random() % 500 == 0) {
        points.clear();
        EXPECT_EQ(points.bytes(), 0);
      }
      EXPECT_LE(points.bytes(), budget);
      if (i % 16 == 0) {
        expect_right(points);
      }
    }
    EXPECT_EQ(found > 0, budget >= kPointBlockBytes + kPointStateBytes) << budget;
  }
}

}  // namespace
}  // namespace quire::kv_store

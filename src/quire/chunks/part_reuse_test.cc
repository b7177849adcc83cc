#include "quire/chunks/part_reuse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace quire::chunks {
namespace {

using testing::ElementsAre;
using testing::Pair;

TEST(PartReuse, SourcesSayWhatWasThereAndWhatWasComputed) {
  const std::vector<PartReuse> parts = {
      {.name = "a", .reused = 8},
      {.name = "b", .reused = 16, .computed = 4, .from_prefix_cache = true},
      {.name = "c", .computed = 5}};
  EXPECT_EQ(reused_tokens(parts), 24);
  EXPECT_THAT(sources_of(parts, 0), ElementsAre(Pair("chunk a", 8), Pair("computed b", 4),
                                                Pair("prefix_cache", 16), Pair("computed c", 5)));
}

TEST(PartReuse, WhatIsComputedAgainIsNotReused) {
  std::vector<PartReuse> parts = {{.name = "a", .reused = 8}, {.name = "b", .reused = 6}};
  take_off(std::vector<std::int64_t>{0, 6}, parts);
  EXPECT_EQ(reused_tokens(parts), 8);
  EXPECT_THAT(sources_of(parts, 6), ElementsAre(Pair("chunk a", 8), Pair("computed again", 6)));
}

TEST(PartReuse, WhatIsComputedTwiceComesOffWhatIsReusedElsewhere) {
  std::vector<PartReuse> parts = {
      {.name = "a", .reused = 8}, {.name = "b", .computed = 20}, {.name = "c", .reused = 10}};
  take_off(std::vector<std::int64_t>{0, 6, 7}, parts);
  EXPECT_THAT(sources_of(parts, 13),
              ElementsAre(Pair("chunk a", 5), Pair("computed b", 20), Pair("computed again", 13)));
  take_off(std::vector<std::int64_t>{0, 20, 0}, parts);
  EXPECT_EQ(reused_tokens(parts), 0) << "and no more than there is";
}

}  // namespace
}  // namespace quire::chunks

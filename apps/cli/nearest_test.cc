#include "nearest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace quire::cli {
namespace {

const std::vector<std::string> kNames = {"--temperature", "--top-p", "--top-k", "--max-tokens",
                                         "--min-tokens",  "--seed",  "--store", "--stop"};

TEST(Nearest, AWordWithALetterOutAddedChangedOrSwappedIsTheOneMeant) {
  EXPECT_EQ(nearest("--temprature", kNames), "--temperature");
  EXPECT_EQ(nearest("--max-tokenss", kNames), "--max-tokens");
  EXPECT_EQ(nearest("--sead", kNames), "--seed");
  EXPECT_EQ(nearest("--stroe", kNames), "--store");
  EXPECT_EQ(nearest("-seed", kNames), "--seed");
}

TEST(Nearest, TheBeginningOfAWordStandsForIt) {
  EXPECT_EQ(nearest("--temp", kNames), "--temperature");
  EXPECT_EQ(nearest("--max", kNames), "--max-tokens");
}

TEST(Nearest, OfTwoThatAreNearTheNearerOneIsMeant) {
  EXPECT_EQ(nearest("--top-pp", kNames), "--top-p");
  EXPECT_EQ(nearest("--mim-tokens", kNames), "--min-tokens");
}

TEST(Nearest, AWordLikeNoneHasNone) {
  EXPECT_EQ(nearest("--frobnicate", kNames), "");
  EXPECT_EQ(nearest("--x", kNames), "");
  EXPECT_EQ(nearest("-", kNames), "");
  EXPECT_EQ(nearest("--seed", {}), "");
}

}  // namespace
}  // namespace quire::cli

#include "quire/sampling/stop_checker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace quire::sampling {
namespace {

// Is the oracle: the whole text up to the first place where any stop string begins.
std::string cut_whole(const std::string& text, const std::vector<std::string>& stops) {
  std::size_t first = text.size();
  for (const auto& stop : stops) {
    first = std::min(first, text.find(stop));
  }
  return text.substr(0, first);
}

// Returns the text that a checker passes on when `text` arrives in the pieces that the bits of
// `cuts` make.
std::string cut_in_pieces(const std::string& text, const std::vector<std::string>& stops,
                          unsigned cuts) {
  StopChecker checker(stops);
  std::string out;
  std::size_t begin = 0;
  for (std::size_t end = 1; end <= text.size(); ++end) {
    if (end < text.size() && ((cuts >> (end - 1)) & 1U) == 0) {
      continue;
    }
    const auto piece = checker.push(std::string_view(text).substr(begin, end - begin));
    out += piece.text;
    begin = end;
    if (piece.stopped) {
      return out;
    }
  }
  return out.append(checker.flush());
}

TEST(StopChecker, PassesEverythingOnWithoutStops) {
  StopChecker checker({});
  EXPECT_EQ(checker.push("abc").text, "abc");
  EXPECT_EQ(checker.flush(), "");
}

TEST(StopChecker, HoldsBackOnlyWhatMayBeginAStop) {
  StopChecker checker({"STOP"});
  EXPECT_EQ(checker.push("helloST").text, "hello");
  EXPECT_EQ(checker.push("").text, "");
  EXPECT_EQ(checker.push("x").text, "STx");
  EXPECT_EQ(checker.push("S").text, "");
  const auto piece = checker.push("TOP and more");
  EXPECT_EQ(piece.text, "");
  EXPECT_TRUE(piece.stopped);
  EXPECT_EQ(checker.push("ignored").text, "");
  EXPECT_EQ(checker.flush(), "");
}

TEST(StopChecker, FlushGivesWhatWasHeldBackAndStartsAfresh) {
  StopChecker checker({"\n\n"});
  EXPECT_EQ(checker.push("a\n").text, "a");
  EXPECT_EQ(checker.flush(), "\n");
  EXPECT_EQ(checker.push("\nb").text, "\nb");
}

TEST(StopChecker, AMatchWaitsForOneThatBeganBefore) {
  StopChecker checker({"b", "abc"});
  EXPECT_EQ(checker.push("xab").text, "x");
  const auto stopped = checker.push("c");
  EXPECT_TRUE(stopped.stopped);
  EXPECT_EQ(stopped.text, "");

  StopChecker other({"b", "abc"});
  EXPECT_EQ(other.push("xab").text, "x");
  const auto earlier = other.push("d");
  EXPECT_TRUE(earlier.stopped);
  EXPECT_EQ(earlier.text, "a");

  StopChecker unfinished({"b", "abc"});
  EXPECT_EQ(unfinished.push("xab").text, "x");
  EXPECT_EQ(unfinished.flush(), "a");
}

TEST(StopChecker, SaysWhichStopBeganFirst) {
  const std::vector<std::string> stops = {"cd", "bcx", "bc", "zz"};
  StopChecker checker(stops);
  EXPECT_FALSE(checker.push("ab").stopped);
  const auto piece = checker.push("c");
  ASSERT_TRUE(piece.stopped);
  EXPECT_EQ(stops[piece.stop], "bc");
}

TEST(StopChecker, AStopCountsOnlyWhereItEndsInTextThatCounts) {
  StopChecker checker({"aba"});
  EXPECT_EQ(checker.push("xabay", false).text, "xabay");
  EXPECT_EQ(checker.push("zaba", false).text, "zab");  // the last a may begin one that counts
  const auto begun_before = checker.push("ba");
  EXPECT_TRUE(begun_before.stopped);
  EXPECT_EQ(begun_before.text, "");
}

TEST(StopChecker, EverySplitOfEveryShortTextEqualsTheWholeText) {
  const std::vector<std::vector<std::string>> stop_lists = {
      {"a"},         {"ab"},       {"aab"},        {"aba"},
      {"abab", "b"}, {"aa", "ba"}, {"abba", "bb"}, {"aabaa", "aba"}};
  constexpr unsigned kLength = 7;
  for (const auto& stops : stop_lists) {
    for (unsigned bits = 0; bits < (1U << kLength); ++bits) {
      std::string text;
      for (unsigned i = 0; i < kLength; ++i) {
        text.push_back(((bits >> i) & 1U) != 0 ? 'b' : 'a');
      }
      const std::string expected = cut_whole(text, stops);
      for (unsigned cuts = 0; cuts < (1U << (kLength - 1)); ++cuts) {
        ASSERT_EQ(cut_in_pieces(text, stops, cuts), expected) << text << " " << stops[0] << cuts;
      }
    }
  }
}

TEST(StopChecker, RandomLongTextsEqualTheWholeText) {
  std::mt19937 random(20240726);
  const auto random_text = [&](std::size_t size) {
    std::string out(size, 'a');
    for (auto& c : out) {
      c = static_cast<char>('a' + (random() % 3));
    }
    return out;
  };
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> stops(1 + (random() % 4));
    for (auto& stop : stops) {
      stop = random_text(1 + (random() % 12));
    }
    const std::string text = random_text(200);
    StopChecker checker(stops);
    std::string out;
    bool stopped = false;
    for (std::size_t at = 0; at < text.size() && !stopped;) {
      const std::size_t size = random() % 9;
      const auto piece = checker.push(std::string_view(text).substr(at, size));
      out += piece.text;
      stopped = piece.stopped;
      at += size;
    }
    out += checker.flush();
    ASSERT_EQ(out, cut_whole(text, stops));
  }
}

}  // namespace
}  // namespace quire::sampling

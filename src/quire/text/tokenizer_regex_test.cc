#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "quire/base/work_meter.h"
#include "quire/result.h"
#include "quire/text/pattern.h"
#include "quire/text/regex.h"
#include "quire/text/work_limits.h"

namespace quire::text {
namespace {

// Returns the matches until the meter fails, if it does.
std::vector<std::string> matches(const std::string& pattern, const std::string& text,
                                 base::WorkMeter& meter) {
  auto regex = Regex::compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.error().message;
  std::vector<std::string> found;
  Matcher matcher(regex.value(), meter);
  for_each_match(matcher, text, [&](std::size_t begin, std::size_t end) {
    found.push_back(text.substr(begin, end - begin));
    return true;
  });
  return found;
}

std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  base::WorkMeter meter(kWorkOfCall);
  auto found = matches(pattern, text, meter);
  EXPECT_FALSE(meter.failed()) << pattern;
  return found;
}

using Strings = std::vector<std::string>;

// The expectations are Oniguruma's, taken through tokenizers.Regex 0.23.3.
TEST(Regex, SpaceIsWhiteSpaceOfUnicode) {
  EXPECT_EQ(matches(R"(\s)", "a\u00a0b\u3000c\u180ed\u0085"),
            (Strings{"\u00a0", "\u3000", "\u0085"}));
  EXPECT_EQ(matches(R"([^\s])", " \u2028x"), (Strings{"x"}));
}

TEST(Regex, WordHasMarksAndAloneTheSixLatinFractions) {
  EXPECT_EQ(matches(R"(\w+)", "e\u0301_\u00b2\u24b6 \u2460"), (Strings{"e\u0301_\u00b2\u24b6"}));
  EXPECT_EQ(matches(R"(\bn)", "\u00b2n n"), (Strings{"n"}));
  EXPECT_EQ(matches(R"([\w']+)", "it's e\u0301\u00bd"), (Strings{"it's", "e\u0301"}));
  EXPECT_EQ(matches(R"([^\w\s])", "a \u00bd"), (Strings{"\u00bd"}));
}

TEST(Regex, PosixClassesAreThoseOfUnicode) {
  EXPECT_EQ(matches("[[:alpha:]]+", "a\u0345\u2160 \u0301"), (Strings{"a\u0345\u2160"}));
  EXPECT_EQ(matches("[[:^alpha:]]+", "a1\u0345"), (Strings{"1"}));
  EXPECT_EQ(matches("[[:punct:]]+", "a$\u00a2\u20ac!b"), (Strings{"$\u00a2\u20ac!"}));
  EXPECT_EQ(matches("[[:space:]]", "\u180e\u00a0"), (Strings{"\u00a0"}));
  EXPECT_EQ(matches("[[:word:]]+", "e\u0301_1\u00bd"), (Strings{"e\u0301_1"}));
  EXPECT_EQ(matches("[[:alnum:]]+", "a1\u0345\u0301"), (Strings{"a1\u0345"}));
}

TEST(Regex, HexDigitsAreNotHorizontalSpace) {
  EXPECT_EQ(matches(R"(\h+)", "fg \tA9"), (Strings{"f", "A9"}));
}

TEST(Regex, LineAnchorsMatchAtEveryLine) {
  EXPECT_EQ(matches("^a$", "a\na\nb"), (Strings{"a", "a"}));
}

TEST(Regex, OptionMLetsTheDotMatchNewlines) {
  EXPECT_EQ(matches("a.b", "a\nb"), Strings{});
  EXPECT_EQ(matches("(?m:a.b)", "a\nb"), (Strings{"a\nb"}));
}

TEST(Regex, PlusAfterABraceQuantifierRepeatsIt) {
  EXPECT_EQ(matches(R"(\p{N}{1,3}+)", "1234567"), (Strings{"1234567"}));
  EXPECT_EQ(matches(R"(\p{N}{1,3})", "1234567"), (Strings{"123", "456", "7"}));
  EXPECT_EQ(matches("(?:ab){2}+", "ababab ababababab"), (Strings{"abab", "abababab"}));
  EXPECT_EQ(matches("a{,2}b", "aaab"), (Strings{"aab"}));
}

TEST(Regex, NestedClassesAreUnions) {
  EXPECT_EQ(matches("[^(x|[.,])]+", "a.b(c"), (Strings{"a", "b", "c"}));
  EXPECT_EQ(matches("[[:alpha:]1]+", "a1-\u00e9"), (Strings{"a1", "\u00e9"}));
}

TEST(Regex, NegatedPropertiesHaveTwoSpellings) {
  EXPECT_EQ(matches(R"(\p{^L})", "a1"), (Strings{"1"}));
  EXPECT_EQ(matches(R"(\P{^L})", "a1"), (Strings{"a"}));
}

TEST(Regex, CaselessMatchingIsThatOfUnicode) {
  EXPECT_EQ(matches("(?i:'s|'re)", "'S 'Re '\u017f"), (Strings{"'S", "'Re", "'\u017f"}));
}

TEST(Regex, EmptyMatchesAdvanceByOneCharacter) {
  EXPECT_EQ(matches("(?=\u00e9)", "\u00e9\u00e9").size(), 2U);
  EXPECT_EQ(matches("x*", "xx\u00e9").size(), 2U);  // "xx", and empty at the end
}

TEST(Regex, RefusesWhatHasNoCounterpartByName) {
  for (const char* pattern :
       {"[a&&b]", R"([\W])", "[a[^b]]", R"((?<name>a))", "(*FAIL)", R"(\K)", R"(\1)", R"(\pL)"}) {
    const auto regex = Regex::compile(pattern);
    ASSERT_FALSE(regex.ok()) << pattern;
    EXPECT_EQ(regex.error().code, ErrorCode::kUnsupported) << pattern;
  }
  for (const char* pattern : {"(", "[a", "a{2,1}", "*", R"(\p{NoSuchProperty})"}) {
    const auto regex = Regex::compile(pattern);
    ASSERT_FALSE(regex.ok()) << pattern;
    EXPECT_EQ(regex.error().code, ErrorCode::kInvalidArgument) << pattern;
  }
  EXPECT_FALSE(Regex::compile(std::string(200, '(')).ok());
  EXPECT_FALSE(Regex::compile(std::string(70000, 'a')).ok());
}

TEST(Regex, CatastrophicPatternsAreRefused) {
  for (const char* pattern : {"(a+)+[xy]", "(?:a|a)*[xy]", "(a*)*[xy]", "(?:a?){60}a{60}[xy]"}) {
    base::WorkMeter meter({.steps = 1'000'000, .bytes = 0});
    matches(pattern, std::string(2000, 'a'), meter);
    ASSERT_TRUE(meter.failed()) << pattern;
    EXPECT_EQ(meter.status().error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(meter.status().error().message, testing::HasSubstr("more than 1000000 steps"));
  }
}

TEST(Regex, QuadraticPatternsAreRefusedForAWholeTextNotForEachMatch) {
  // Each start runs over the rest of the text: 44 kB of it, as many times.
  const std::string text(44'000, 'a');
  base::WorkMeter meter({.steps = 20'000'000, .bytes = 0});
  matches("a*[xy]|a*[vw]", text, meter);
  EXPECT_TRUE(meter.failed());
}

TEST(Regex, LongHonestMatchesAreFoundWhole) {
  for (const std::size_t size : {255U, 256U, 257U, 1'000U, 200'000U}) {
    const std::string word(size, 'a');
    const std::string spaces(size, ' ');
    EXPECT_EQ(matches("a+|\\s+(?!\\S)|\\s+", word + spaces + "a"),
              (Strings{word, spaces.substr(1), " ", "a"}))
        << size;
    EXPECT_EQ(matches("b", word + "b" + word + "b"), (Strings{"b", "b"})) << size;
    EXPECT_EQ(matches("(?<=a)b$", word + "b\n" + word + "bb"), (Strings{"b"})) << size;
  }
}

TEST(Regex, WorkIsOfTheOrderOfTheText) {
  const auto steps_for = [](std::size_t size) {
    std::string text;
    for (std::size_t i = 0; i < size; ++i) {
      text += i % 7 == 0 ? "  the \n" : i % 3 == 0 ? " 4711" : " quick\u00e9";
    }
    base::WorkMeter meter(kWorkOfCall);
    matches("'s|'t| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", text, meter);
    matches("\\p{N}{1,3}", text, meter);
    return meter.steps_used();
  };
  EXPECT_LT(steps_for(4'000), 5 * steps_for(1'000));
}

TEST(Regex, AnInterruptEndsASearchWithinAHundredMilliseconds) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  Clock::time_point asked;
  base::WorkMeter meter({.steps = std::int64_t{1} << 60, .bytes = 0}, [&] {
    asked = Clock::now();
    return asked - start > std::chrono::milliseconds(50);
  });
  matches("(a+)+[xy]|a*[vw]", std::string(44'000, 'a'), meter);
  EXPECT_EQ(meter.status().error().code, ErrorCode::kCancelled);
  EXPECT_LT(Clock::now() - asked, std::chrono::milliseconds(100));
}

TEST(Regex, DeepBacktrackingDoesNotOverflowTheStack) {
  const std::string text(30000, 'a');
  EXPECT_EQ(matches("(?:a|b)+", text).size(), 1U);
}

TEST(Pattern, ReplacesLiteralsAndRegexes) {
  base::WorkMeter meter(kWorkOfCall);
  EXPECT_EQ(Pattern::literal("aa").replace_all("aaaab", "x", meter), "xxb");
  EXPECT_EQ(Pattern::literal("").replace_all("ab", "x", meter), "ab");
  EXPECT_EQ(Pattern::regex(Regex::compile(" +").value()).replace_all("a  b ", "$0", meter),
            "a$0b$0");
}

}  // namespace
}  // namespace quire::text

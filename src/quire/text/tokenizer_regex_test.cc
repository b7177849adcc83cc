#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "quire/text/pattern.h"
#include "quire/text/regex.h"

namespace quire::text {
namespace {

std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  auto regex = Regex::compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.error().message;
  std::vector<std::string> found;
  Matcher matcher(regex.value());
  for_each_match(matcher, text, [&](std::size_t begin, std::size_t end) {
    found.push_back(text.substr(begin, end - begin));
  });
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

TEST(Regex, CatastrophicPatternsEnd) {
  const std::string text(2000, 'a');
  EXPECT_EQ(matches("(a+)+$b", text), Strings{});
  EXPECT_EQ(matches("(?:a|a)*c", std::string(40, 'a')), Strings{});
}

TEST(Regex, DeepBacktrackingDoesNotOverflowTheStack) {
  const std::string text(30000, 'a');
  EXPECT_EQ(matches("(?:a|b)+", text).size(), 1U);
}

TEST(Pattern, ReplacesLiteralsAndRegexes) {
  EXPECT_EQ(Pattern::literal("aa").replace_all("aaaab", "x"), "xxb");
  EXPECT_EQ(Pattern::literal("").replace_all("ab", "x"), "ab");
  EXPECT_EQ(Pattern::regex(Regex::compile(" +").value()).replace_all("a  b ", "$0"), "a$0b$0");
}

}  // namespace
}  // namespace quire::text

#include "quire/base/str.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace quire::base {
namespace {

TEST(StrCat, JoinsThePrintedForms) {
  EXPECT_EQ(str_cat("needs ", 3, " of ", std::int64_t{1} << 40, " blocks", '.'),
            "needs 3 of 1099511627776 blocks.");
}

TEST(Quoted, EscapesControlsQuotesAndBackslashes) {
  EXPECT_EQ(quoted("plain text"), "\"plain text\"");
  EXPECT_EQ(quoted("a\"b\\c\n\x7f"), R"("a\"b\\c\x0a\x7f")");
  EXPECT_EQ(quoted(std::string_view("\0", 1)), R"("\x00")");
  EXPECT_EQ(quoted(""), "\"\"");
}

TEST(Quoted, IsCutAfterMaxBytes) {
  EXPECT_EQ(quoted("abcdef", 6), "\"abcdef\"");
  EXPECT_EQ(quoted("abcdef", 5), "\"abcde...\"");
  EXPECT_EQ(quoted("abcdef", 0), "\"...\"");
}

TEST(Quoted, IsNeverCutInsideACharacter) {
  EXPECT_EQ(quoted("ab\u00e9", 4), "\"ab\u00e9\"");
  EXPECT_EQ(quoted("ab\u00e9", 3), "\"ab...\"");
  EXPECT_EQ(quoted("\U0001f600x", 3), "\"...\"");
}

TEST(Quoted, ShowsUtf8AndEscapesWhatIsNot) {
  EXPECT_EQ(quoted("gr\u00fc\u00df \u20ac \U0001f600"), "\"gr\u00fc\u00df \u20ac \U0001f600\"");
  EXPECT_EQ(quoted("\xff"
                   "a"),
            R"("\xffa")");
  EXPECT_EQ(quoted("\xc3"), R"("\xc3")") << "cut off";
  EXPECT_EQ(quoted("\xc0\xaf"), R"("\xc0\xaf")") << "overlong";
  EXPECT_EQ(quoted("\xe0\x80\xaf"), R"("\xe0\x80\xaf")") << "overlong";
  EXPECT_EQ(quoted("\xed\xa0\x80"), R"("\xed\xa0\x80")") << "surrogate";
  EXPECT_EQ(quoted("\xf4\x90\x80\x80"), R"("\xf4\x90\x80\x80")") << "above U+10FFFF";
}

TEST(FormatBytes, PicksTheUnit) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(20447232), "19.5 MiB");
  EXPECT_EQ(format_bytes(std::int64_t{3} << 30), "3.0 GiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<std::int64_t>::max()), "8388608.0 TiB");
}

TEST(FormatBytes, NeverShows1024OfAUnit) {
  EXPECT_EQ(format_bytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(format_bytes((1 << 20) - 100), "1023.9 KiB");
}

}  // namespace
}  // namespace quire::base

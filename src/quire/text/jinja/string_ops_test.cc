#include "quire/text/jinja/string_ops.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <string>
#include <string_view>

#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/unicode.h"

namespace quire::text::jinja {
namespace {

TEST(StringOps, SearchesEqualTheLibraryForShortAndLongPatterns) {
  std::mt19937 random(8);
  Meter meter{Limits{}};
  const auto text_of = [&](std::size_t size) {
    std::string out(size, 'a');
    for (auto& c : out) {
      c = random() % 40 == 0 ? 'b' : 'a';
    }
    return out;
  };
  for (int round = 0; round < 2000; ++round) {
    const std::string text = text_of(random() % 400);
    const std::string pattern = text_of(random() % 80);
    const std::size_t at = random() % (text.size() + 1);
    EXPECT_EQ(find_bytes(meter, text, pattern, at), text.find(pattern, at));
    const std::size_t expected =
        pattern.size() > at ? std::string::npos : text.rfind(pattern, at - pattern.size());
    EXPECT_EQ(rfind_bytes(meter, text, pattern, at), expected);
  }
  EXPECT_FALSE(meter.failed());
}

TEST(StringOps, HostilePatternsTakeLinearTime) {
  Meter meter{Limits{}};
  const std::string text(4'000'000, 'a');
  const std::string pattern = std::string(2'000'000, 'a') + "b";
  EXPECT_EQ(find_bytes(meter, text, pattern, 0), std::string::npos);
  EXPECT_EQ(rfind_bytes(meter, text, "b" + std::string(2'000'000, 'a'), text.size()),
            std::string::npos);
}

// The sets behind them are compared with Python's through snippets.py; here the borders.
TEST(Unicode, PropertiesAreThoseOfPython) {
  EXPECT_TRUE(is_space(0x1c) && is_space(0x3000) && !is_space(0x200b));
  EXPECT_TRUE(is_line_break(0x85) && is_line_break(0x2028) && !is_line_break('\t'));
  EXPECT_TRUE(is_digit(0xb2) && !is_decimal(0xb2) && is_decimal(0x663));
  EXPECT_TRUE(is_upper(0x2160) && is_lower(0xaa) && is_cased(0x1c5) && !is_upper(0x1c5));
  EXPECT_TRUE(is_printable(' ') && !is_printable(0xa0) && !is_printable(0xad));
}

}  // namespace
}  // namespace quire::text::jinja

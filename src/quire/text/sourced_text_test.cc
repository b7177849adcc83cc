#include "quire/text/sourced_text.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "quire/text/render_meter.h"
#include "quire/text/unicode.h"

namespace quire::text {
namespace {

// Oracle: one source per byte.
struct Plain {
  std::string bytes;
  std::vector<std::int32_t> sources;
};

void expect_same(const Text& text, const Plain& plain) {
  ASSERT_EQ(text.view(), plain.bytes);
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.ranges().size(); ++i) {
    const SourceRange& range = text.ranges()[i];
    ASSERT_LT(begin, range.end);
    ASSERT_TRUE(i == 0 || text.ranges()[i - 1].source != range.source);
    for (; begin < range.end; ++begin) {
      ASSERT_EQ(plain.sources[begin], range.source);
      ASSERT_EQ(text.source_at(begin), range.source);
    }
  }
  ASSERT_EQ(begin, plain.bytes.size());
}

TEST(Text, RandomAppendsAndSlicesEqualOneSourcePerByte) {
  std::mt19937 random(3);
  Meter meter{Limits{}};
  TextPtr text = make_text(&meter, "", kFromTemplate);
  Plain plain;
  for (int round = 0; round < 2000; ++round) {
    TextBuilder out(&meter);
    Plain next;
    for (unsigned i = 0; i < 1 + (random() % 3); ++i) {
      const auto source = static_cast<std::int32_t>(random() % 4) - 2;
      const std::string bytes(random() % 5, static_cast<char>('a' + (random() % 26)));
      out.append(bytes, source);
      next.bytes += bytes;
      next.sources.insert(next.sources.end(), bytes.size(), source);
      const std::size_t begin = random() % (plain.bytes.size() + 1);
      const std::size_t end = begin + (random() % (plain.bytes.size() - begin + 1));
      out.append(*text, begin, end);
      next.bytes += plain.bytes.substr(begin, end - begin);
      next.sources.insert(next.sources.end(),
                          plain.sources.begin() + static_cast<std::ptrdiff_t>(begin),
                          plain.sources.begin() + static_cast<std::ptrdiff_t>(end));
    }
    text = std::move(out).build();
    plain = std::move(next);
    expect_same(*text, plain);
  }
}

TEST(Text, CountsAndFindsCodePoints) {
  const TextPtr text = make_text(nullptr, "aé日🙂b", kFromTemplate);
  EXPECT_EQ(text->length(), 5);
  const std::size_t expected[] = {0, 1, 3, 6, 10, 11, 11};
  for (std::size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(text->byte_offset(i), expected[i]);
  }
}

TEST(Text, MemoryIsGivenBackAndTheLimitIsSticky) {
  Meter meter{Limits{.memory_bytes = 10'000}};
  for (int i = 0; i < 1000; ++i) {
    static_cast<void>(make_text(&meter, std::string(5000, 'x'), 0));
    ASSERT_FALSE(meter.failed());
  }
  const TextPtr kept = make_text(&meter, std::string(8000, 'x'), 0);
  const TextPtr too_much = make_text(&meter, std::string(8000, 'y'), 0);
  EXPECT_EQ(too_much->size_bytes(), 0);
  EXPECT_TRUE(meter.failed());
}

TEST(Text, SearchesEqualTheLibraryForShortAndLongPatterns) {
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
  }
  EXPECT_FALSE(meter.failed());
}

TEST(Text, HostilePatternsTakeLinearTime) {
  Meter meter{Limits{}};
  const std::string text(4'000'000, 'a');
  const std::string pattern = std::string(2'000'000, 'a') + "b" + std::string(1'000'000, 'a');
  EXPECT_EQ(find_bytes(meter, text, pattern, 0), std::string::npos);
}

// The sets behind them are compared with Python's through snippets.py; here the borders.
TEST(Unicode, PropertiesAreThoseOfPython) {
  EXPECT_TRUE(is_python_space(0x1c) && is_python_space(0x3000) && !is_python_space(0x200b));
  EXPECT_TRUE(is_python_line_break(0x85) && is_python_line_break(0x2028));
  EXPECT_FALSE(is_python_line_break('\t'));
  EXPECT_TRUE(is_cased(0x2160) && is_cased(0x1c5) && !is_cased('1'));
  EXPECT_TRUE(is_python_printable(' ') && !is_python_printable(0xa0) && !is_python_printable(0xad));
}

// Expected: str.upper() and str.title() of Python 3.11, of letters whose mapping is longer.
TEST(Unicode, LongCaseMappingsAreThoseOfPython) {
  const auto mapped = [](void (*append)(std::string&, char32_t), char32_t c) {
    std::string out;
    append(out, c);
    return out;
  };
  EXPECT_EQ(mapped(append_upper, 0xdf), "SS");
  EXPECT_EQ(mapped(append_title, 0xdf), "Ss");
  EXPECT_EQ(mapped(append_upper, 0x149), "\u02bcN");
  EXPECT_EQ(mapped(append_title, 0x149), "\u02bcN");
  EXPECT_EQ(mapped(append_upper, 0x1fb4), "\u0386\u0399");
  EXPECT_EQ(mapped(append_title, 0x1fb4), "\u0386\u0345");
  EXPECT_EQ(mapped(append_title, 0x1f80), "\u1f88");
  EXPECT_EQ(mapped(append_upper, 0xfb03), "FFI");
  EXPECT_EQ(mapped(append_title, 0xfb03), "Ffi");
}

}  // namespace
}  // namespace quire::text

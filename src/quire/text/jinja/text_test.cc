#include "quire/text/jinja/text.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "quire/text/jinja/meter.h"

namespace quire::text::jinja {
namespace {

// Oracle: one source per byte.
struct Plain {
  std::string bytes;
  std::vector<std::int32_t> sources;
};

void expect_same(const Text& text, const Plain& plain) {
  ASSERT_EQ(text.view(), plain.bytes);
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.runs().size(); ++i) {
    const Run& run = text.runs()[i];
    ASSERT_LT(begin, run.end);
    ASSERT_TRUE(i == 0 || text.runs()[i - 1].source != run.source);
    for (; begin < run.end; ++begin) {
      ASSERT_EQ(plain.sources[begin], run.source);
      ASSERT_EQ(text.source_at(begin), run.source);
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

}  // namespace
}  // namespace quire::text::jinja

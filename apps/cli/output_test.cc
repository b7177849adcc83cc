#include "output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>

#include "quire/output.h"

namespace quire::cli {
namespace {

namespace json = boost::json;

TEST(Output, ListingNestsObjectsAndJoinsFlatLists) {
  const json::value value = json::parse(
      R"({"name": "x", "isa": {"chosen": "avx2", "all": ["avx2", "portable"]}, "gigabytes": 1.5,
          "devices": [{"id": 0}, {"id": 1}], "unsupported": [], "tied": true, "note": null})");
  EXPECT_EQ(format_listing(value),
            "name: x\n"
            "isa:\n"
            "  chosen: avx2\n"
            "  all: avx2, portable\n"
            "gigabytes: 1.5\n"
            "devices:\n"
            "  -\n"
            "    id: 0\n"
            "  -\n"
            "    id: 1\n"
            "unsupported: none\n"
            "tied: true\n"
            "note: null\n");
}

GenerationOutput sample() {
  GenerationOutput output;
  output.usage = {.prompt_tokens = 40, .cached_tokens = 32, .completion_tokens = 2};
  output.timing = {.queue_seconds = 0.001, .first_token_seconds = 0.02, .total_seconds = 0.5};
  return output;
}

TEST(Output, SummaryNamesTokensAndMilliseconds) {
  EXPECT_EQ(summary(sample()),
            "prompt 40 tokens (32 reused), 2 generated, first token 20 ms, total 500 ms");
}

TEST(Output, SummaryOfWhatWasStoppedBeforeItsFirstTokenNamesNoTimeOfOne) {
  GenerationOutput output = sample();
  output.usage.completion_tokens = 0;
  EXPECT_EQ(summary(output),
            "prompt 40 tokens (32 reused), ended before the first token, after 500 ms");
}

TEST(Output, BytesAreShownInTheLargestUnitThatFits) {
  EXPECT_EQ(in_units(0), "0 bytes");
  EXPECT_EQ(in_units(1023), "1023 bytes");
  EXPECT_EQ(in_units(1536), "1.5 KiB");
  EXPECT_EQ(in_units(12862464), "12.3 MiB");
  EXPECT_EQ(in_units(3.0 * 1024 * 1024 * 1024), "3.0 GiB");
}

TEST(Table, ColumnsAreAsWideAsTheirWidestCellInCharacters) {
  EXPECT_THAT(format_table({{"id", "text"}, {"äöü", "x"}, {"1", ""}}),
              testing::ElementsAre("id   text", "äöü  x", "1"));
  EXPECT_TRUE(format_table({}).empty());
}

TEST(Preview, IsOneLineCutBetweenCharacters) {
  EXPECT_EQ(preview("two\nlines"), "two lines");
  const std::string cut = preview(std::string(59, 'x') + "äy");
  EXPECT_EQ(cut, std::string(59, 'x') + "...");
  EXPECT_EQ(preview("twelve letters and more", 12), "twelve lette...");
  EXPECT_EQ(preview("twelve", 12), "twelve");
}

// Oracle: each text, parsed again, is the value.
TEST(JsonText, HasNumbersAsPeopleWriteThem) {
  const boost::json::value value = {{"share", 0.0},
                                    {"seconds", 2.56128e-4},
                                    {"ratio", 1.0},
                                    {"count", 3},
                                    {"none", nullptr},
                                    {"list", {0.5, "x\n"}},
                                    {"empty", boost::json::array()},
                                    {"inner", boost::json::object()}};
  EXPECT_EQ(json_text(value),
            R"({"share":0.0,"seconds":0.000256128,"ratio":1.0,"count":3,"none":null,)"
            R"("list":[0.5,"x\n"],"empty":[],"inner":{}})");
  EXPECT_EQ(boost::json::parse(json_text(value)), value);
  EXPECT_EQ(json_text(1e-7), "1e-07");
}

}  // namespace
}  // namespace quire::cli

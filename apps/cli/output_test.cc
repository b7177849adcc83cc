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
  output.text = "a \"b\"\n";
  output.token_ids = {5, 6};
  output.finish_reason = FinishReason::kLength;
  output.usage = {.prompt_tokens = 40, .cached_tokens = 32, .completion_tokens = 2};
  output.reuse.sources = {{"prefix_cache", 32}};
  output.timing = {.queue_seconds = 0.001, .first_token_seconds = 0.02, .total_seconds = 0.5};
  return output;
}

TEST(Output, JsonHoldsTextIdsUsageReuseAndTiming) {
  const json::object object = to_json(sample());
  EXPECT_EQ(object.at("text"), "a \"b\"\n");
  EXPECT_EQ(object.at("token_ids"), json::parse("[5, 6]"));
  EXPECT_EQ(object.at("finish_reason"), "length");
  EXPECT_EQ(object.at("usage"), json::parse(R"({"prompt_tokens": 40, "cached_tokens": 32,
                                                "completion_tokens": 2})"));
  EXPECT_EQ(object.at("reuse"), json::parse(R"({"grade": "exact", "recompute_share": 0.0,
                                                "sources": [["prefix_cache", 32]]})"));
  EXPECT_EQ(object.at("timing").at("total_seconds"), 0.5);
  EXPECT_FALSE(object.contains("logprobs"));
}

TEST(Output, JsonHoldsLogprobsWhenTheyWereAskedFor) {
  GenerationOutput output = sample();
  output.logprobs = {{{5, -0.25F}, {9, -2.0F}}, {{6, -0.5F}}};
  EXPECT_EQ(to_json(output).at("logprobs"),
            json::parse(R"([{"5": -0.25, "9": -2.0}, {"6": -0.5}])"));
}

TEST(Output, SummaryNamesTokensAndMilliseconds) {
  EXPECT_EQ(summary(sample()),
            "prompt 40 tokens (32 reused), 2 generated, first token 20 ms, total 500 ms");
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
}

}  // namespace
}  // namespace quire::cli

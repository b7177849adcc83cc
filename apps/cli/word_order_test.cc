#include "word_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace quire::cli {
namespace {

using testing::ElementsAre;

// A program with `chunk add` and `run`, whose options stand where those of quire stand.
class WordOrderTest : public testing::Test {
 protected:
  WordOrderTest() {
    chunk_->add_option("--store", store_);
    CLI::App* const add = chunk_->add_subcommand("add");
    add->add_option("--type", type_);
    add->add_flag("--no-anchor", no_anchor_);
    app_.add_subcommand("run")->add_flag("--verbose", verbose_);
  }
  [[nodiscard]] std::vector<std::string> ordered(const std::vector<std::string>& words) const {
    return in_order(app_, words);
  }

 private:
  std::string store_, type_;
  bool no_anchor_ = false, verbose_ = false;
  CLI::App app_{"a program"};
  CLI::App* const chunk_ = app_.add_subcommand("chunk");
};

TEST_F(WordOrderTest, OptionsGoBehindTheCommandThatHasThem) {
  EXPECT_THAT(ordered({"--type", "query", "chunk", "add", "M"}),
              ElementsAre("chunk", "add", "--type", "query", "M"));
  EXPECT_THAT(ordered({"chunk", "--no-anchor", "add", "M"}),
              ElementsAre("chunk", "add", "--no-anchor", "M"));
  EXPECT_THAT(ordered({"--verbose", "run", "M"}), ElementsAre("run", "--verbose", "M"));
  EXPECT_THAT(ordered({"--type=query", "chunk", "add"}),
              ElementsAre("chunk", "add", "--type=query"));
}

TEST_F(WordOrderTest, AValueIsNoCommandThoughItIsSpelledAsOne) {
  EXPECT_THAT(ordered({"--store", "run", "chunk", "add", "M"}),
              ElementsAre("chunk", "add", "--store", "run", "M"));
  EXPECT_THAT(ordered({"chunk", "--store", "add", "add"}),
              ElementsAre("chunk", "--store", "add", "add"));
}

TEST_F(WordOrderTest, WhatStandsBehindItsCommandStays) {
  EXPECT_THAT(ordered({"chunk", "add", "M", "--type", "query", "run", "--verbose"}),
              ElementsAre("chunk", "add", "M", "--type", "query", "run", "--verbose"));
  EXPECT_THAT(ordered({}), ElementsAre());
}

TEST_F(WordOrderTest, FromAnUnknownWordOnAllStays) {
  EXPECT_THAT(ordered({"--typ", "query", "chunk", "add"}),
              ElementsAre("--typ", "query", "chunk", "add"));
  EXPECT_THAT(ordered({"rum", "--verbose"}), ElementsAre("rum", "--verbose"));
  EXPECT_THAT(ordered({"--", "--verbose", "run"}), ElementsAre("--", "--verbose", "run"));
  EXPECT_THAT(ordered({"-n", "--verbose", "run"}), ElementsAre("-n", "--verbose", "run"));
  EXPECT_THAT(ordered({"--type"}), ElementsAre("--type"));
}

}  // namespace
}  // namespace quire::cli

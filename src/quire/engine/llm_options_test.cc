#include "quire/engine/llm_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "quire/drafter.h"
#include "quire/options.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

class NoDrafter final : public Drafter {
 public:
  std::vector<TokenId> propose(std::span<const TokenId> /*tokens*/,
                               std::int32_t /*most*/) override {
    return {};
  }
};

TEST(LLMOptions, TheDtypeIsLeftToTheModelOnEveryDevice) {
  EXPECT_EQ(to_engine_options({}).model.dtype, "auto");
  EXPECT_EQ(to_engine_options({.device = "cuda"}).model.dtype, "auto");
  EXPECT_EQ(to_engine_options({.device = "cuda:1"}).model.dtype, "auto");
  EXPECT_EQ(to_engine_options({.device = "cuda", .dtype = "float32"}).model.dtype, "float32");
}

TEST(LLMOptions, WhatOfSpeculationNeedsACpuIsRefusedByNameOnAGpu) {
  LLMOptions options{.device = "cuda"};
  options.speculate = R"({"method": "draft", "model": "m"})";
  const Status draft = check_options(options);
  EXPECT_EQ(draft.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(draft.error().message, testing::HasSubstr("\"draft\" computes on the CPU alone"));
  options.speculate = R"({"method": "custom", "width": 2})";
  options.drafter = std::make_shared<NoDrafter>();
  const Status width = check_options(options);
  EXPECT_EQ(width.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(width.error().message, testing::HasSubstr("\"width\" above 1"));
  options.speculate = R"({"method": "custom", "width": 1})";
  EXPECT_TRUE(check_options(options).ok());
  options.device = "cpu";
  options.speculate = R"({"method": "custom", "width": 2})";
  EXPECT_TRUE(check_options(options).ok());
}

}  // namespace
}  // namespace quire::engine

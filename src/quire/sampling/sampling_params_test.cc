#include "quire/sampling/sampling_params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "quire/result.h"
#include "quire/sampling.h"

namespace quire::sampling {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinite = std::numeric_limits<double>::infinity();

struct BadCase {
  std::string mentions;  // the field
  std::function<void(SamplingParams&)> spoil;
};

TEST(SamplingParams, DefaultsAndExtremesAreValid) {
  EXPECT_TRUE(check_params({}).ok());
  SamplingParams params;
  params.temperature = 0;
  params.top_p = 1e-9;
  params.top_k = 1'000'000;
  params.min_p = 1;
  params.max_tokens = 0;
  params.logprobs = 0;
  params.stop = {"a"};
  params.stop_token_ids = {0, 5, 5};
  params.logit_bias = {{3, -100.0}, {4, 1e30}};
  EXPECT_TRUE(check_params(params).ok());
}

TEST(SamplingParams, EveryBadFieldIsRefusedByName) {
  const std::vector<BadCase> cases = {
      {"temperature", [](auto& p) { p.temperature = -0.1; }},
      {"temperature", [](auto& p) { p.temperature = kNan; }},
      {"temperature", [](auto& p) { p.temperature = kInfinite; }},
      {"top_p", [](auto& p) { p.top_p = 0; }},
      {"top_p", [](auto& p) { p.top_p = 1.01; }},
      {"top_p", [](auto& p) { p.top_p = kNan; }},
      {"top_k", [](auto& p) { p.top_k = -1; }},
      {"min_p", [](auto& p) { p.min_p = -0.1; }},
      {"min_p", [](auto& p) { p.min_p = kNan; }},
      {"min_p", [](auto& p) { p.min_p = 1.5; }},
      {"repetition_penalty", [](auto& p) { p.repetition_penalty = 0; }},
      {"repetition_penalty", [](auto& p) { p.repetition_penalty = kInfinite; }},
      {"repetition_penalty", [](auto& p) { p.repetition_penalty = kNan; }},
      {"presence_penalty", [](auto& p) { p.presence_penalty = kNan; }},
      {"frequency_penalty", [](auto& p) { p.frequency_penalty = -kInfinite; }},
      {"max_tokens", [](auto& p) { p.max_tokens = -1; }},
      {"min_tokens", [](auto& p) { p.min_tokens = -1; }},
      {"max_tokens, which is 256", [](auto& p) { p.min_tokens = 257; }},
      {"logprobs", [](auto& p) { p.logprobs = -1; }},
      {"logprobs", [](auto& p) { p.logprobs = 100'000; }},
      {"stop has 65", [](auto& p) { p.stop.assign(65, "x"); }},
      {"stop", [](auto& p) { p.stop = {"a", ""}; }},
      {"stop", [](auto& p) { p.stop = {std::string(5000, 'x')}; }},
      {"stop_token_ids", [](auto& p) { p.stop_token_ids = {1, -2}; }},
      {"stop_token_ids", [](auto& p) { p.stop_token_ids.assign(70'000, 1); }},
      {"logit_bias", [](auto& p) { p.logit_bias = {{-1, 1.0}}; }},
      {"token 7", [](auto& p) { p.logit_bias = {{7, kNan}}; }},
      {"token 7", [](auto& p) { p.logit_bias = {{7, kInfinite}}; }},
      {"token 9 more than once", [](auto& p) { p.logit_bias = {{9, 1.0}, {8, 1.0}, {9, 2.0}}; }},
      {"logit_bias", [](auto& p) { p.logit_bias.assign(70'000, {1, 1.0}); }},
  };
  for (const auto& bad : cases) {
    SamplingParams params;
    bad.spoil(params);
    const Status status = check_params(params);
    ASSERT_FALSE(status.ok()) << bad.mentions;
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.error().message, testing::HasSubstr(bad.mentions));
  }
}

}  // namespace
}  // namespace quire::sampling

#include <gtest/gtest.h>

#include <string>

#include "testing/api_fixture.h"

namespace quire::server {
namespace {

using Completions = NullApiTest;
using DemoCompletions = DemoApiTest;

TEST_F(Completions, AnswersWithTextUsageAndQuire) {
  const auto answer = client_.post("/v1/completions", {{"prompt", "Ada"}, {"max_tokens", 3}});
  ASSERT_EQ(answer->status(), 200) << answer->response->body;
  const json::value body = body_of(*answer);
  EXPECT_EQ(body.at("object"), "text_completion");
  EXPECT_EQ(body.at("choices").at(0).at("text"), " 0 1 2");
  EXPECT_EQ(body.at("choices").at(0).at("finish_reason"), "length");
  EXPECT_EQ(body.at("usage").at("completion_tokens"), 3);
  EXPECT_EQ(body.at("quire").at("grade"), "exact");
}

TEST_F(Completions, StreamsTheTextAndEndsWithDone) {
  const auto answer =
      client_.post("/v1/completions", {{"prompt", "Ada"}, {"max_tokens", 3}, {"stream", true}});
  const auto events = events_of(*answer);
  ASSERT_EQ(events.size(), 5U);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(events[0].at("choices").at(0).at("text"), " 0");
}

TEST_F(Completions, UnknownFieldsAreRefusedByName) {
  const auto answer = client_.post("/v1/completions", {{"prompt", "a"}, {"promt", 1}});
  EXPECT_EQ(answer->status(), 400);
  EXPECT_EQ(code_of(*answer), "unknown_parameter");
  EXPECT_EQ(param_of(*answer), "promt");
}

TEST_F(DemoCompletions, TheSecondRequestFindsThePromptCached) {
  const json::value request = {
      {"prompt", std::string(400, 'a')}, {"max_tokens", 2}, {"temperature", 0}};
  const json::value first = body_of(*client_.post("/v1/completions", request));
  const json::value second = body_of(*client_.post("/v1/completions", request));
  EXPECT_EQ(first.at("choices").at(0).at("text"), second.at("choices").at(0).at("text"));
  EXPECT_GT(second.at("quire").at("cached_tokens").to_number<int>(), 0);
}

}  // namespace
}  // namespace quire::server

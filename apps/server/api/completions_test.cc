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

TEST_F(DemoCompletions, EchoedPromptsHaveTheLogprobsOfTheirTokens) {
  // The prompt has several slices, and a part of it is cached.
  const std::string prompt = "Ada keeps a goose." + std::string(700, 'a');
  const json::value first = body_of(*client_.post("/v1/completions", {{"prompt", prompt},
                                                                      {"max_tokens", 4},
                                                                      {"temperature", 0},
                                                                      {"logprobs", 2},
                                                                      {"return_token_ids", true}}));
  const json::value& said = first.at("choices").at(0);
  json::array ids = said.at("prompt_token_ids").as_array();
  const std::size_t length = ids.size();
  ASSERT_GT(length, 300U);
  const json::array& generated = said.at("token_ids").as_array();
  ids.insert(ids.end(), generated.begin(), generated.end());
  json::value request{{"prompt", ids}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 2}};
  const auto answer = client_.post("/v1/completions", request);
  ASSERT_EQ(answer->status(), 200) << answer->response->body;
  const json::value echoed = body_of(*answer).at("choices").at(0).at("logprobs");
  ASSERT_EQ(echoed.at("tokens").as_array().size(), ids.size());
  EXPECT_TRUE(echoed.at("token_logprobs").at(0).is_null());
  EXPECT_TRUE(echoed.at("top_logprobs").at(0).is_null());
  for (std::size_t i = 1; i < ids.size(); ++i) {
    EXPECT_LE(echoed.at("token_logprobs").at(i).as_double(), 0);
    EXPECT_GE(echoed.at("top_logprobs").at(i).as_object().size(), 1U);
  }
  for (std::size_t i = 0; i < generated.size(); ++i) {
    EXPECT_EQ(echoed.at("tokens").at(length + i), said.at("logprobs").at("tokens").at(i));
    EXPECT_NEAR(echoed.at("token_logprobs").at(length + i).as_double(),
                said.at("logprobs").at("token_logprobs").at(i).as_double(), 1e-3);
  }
  request.as_object()["stream"] = true;
  request.as_object()["max_tokens"] = 1;
  const auto events = events_of(*client_.post("/v1/completions", request));
  EXPECT_EQ(events.at(0).at("choices").at(0).at("logprobs"), echoed);
  EXPECT_EQ(events.at(1).at("choices").at(0).at("logprobs").at("tokens").as_array().size(), 1U);
}

}  // namespace
}  // namespace quire::server

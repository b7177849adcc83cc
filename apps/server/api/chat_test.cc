#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "testing/api_fixture.h"

namespace quire::server {
namespace {

using Chats = NullApiTest;
using DemoChats = DemoApiTest;

json::object chat_body(const std::string& text) {
  return {{"messages", json::array{json::object{{"role", "user"}, {"content", text}}}}};
}
json::object with(json::object body, const char* name, const json::value& value) {
  body[name] = value;
  return body;
}

TEST_F(Chats, TheAnswerHasEveryMemberOfTheSchema) {
  const auto answer = client_.post("/v1/chat/completions", with(chat_body("hi"), "max_tokens", 2));
  ASSERT_EQ(answer->status(), 200) << answer->response->body;
  const json::value body = body_of(*answer);
  EXPECT_TRUE(body.at("id").as_string().starts_with("chatcmpl-"));
  EXPECT_EQ(body.at("object"), "chat.completion");
  EXPECT_EQ(body.at("model"), "cardfile");
  EXPECT_TRUE(body.at("system_fingerprint").as_string().starts_with("bq-"));
  EXPECT_EQ(body.at("service_tier"), "default");
  const json::value& choice = body.at("choices").at(0);
  EXPECT_EQ(choice.at("message").at("role"), "assistant");
  EXPECT_EQ(choice.at("message").at("content"), " 0 1");
  EXPECT_TRUE(choice.at("message").at("refusal").is_null());
  EXPECT_TRUE(choice.at("logprobs").is_null());
  EXPECT_EQ(choice.at("finish_reason"), "length");
  EXPECT_TRUE(choice.at("stop_reason").is_null());
  const json::value& usage = body.at("usage");
  EXPECT_EQ(usage.at("total_tokens").to_number<int>(),
            usage.at("prompt_tokens").to_number<int>() + 2);
  EXPECT_EQ(usage.at("prompt_tokens_details").at("cached_tokens"), 0);
  EXPECT_EQ(usage.at("completion_tokens_details").at("reasoning_tokens"), 0);
  EXPECT_TRUE(body.as_object().contains("timings"));
  EXPECT_EQ(answer->header("x-quire-grade"), "exact");
  EXPECT_EQ(answer->header("x-quire-cached-tokens"), "0");
}

TEST_F(Chats, StreamsBeginWithTheRoleAndEndWithDone) {
  json::object body = with(chat_body("hi"), "max_tokens", 2);
  body["stream"] = true;
  const auto answer = client_.post("/v1/chat/completions", body);
  EXPECT_EQ(answer->head->head.content_type, "text/event-stream");
  EXPECT_EQ(answer->header("x-accel-buffering"), "no");
  const auto events = events_of(*answer);
  ASSERT_EQ(events.size(), 5U);
  EXPECT_EQ(events[0].at("choices").at(0).at("delta"),
            json::value({{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(events[1].at("choices").at(0).at("delta").at("content"), " 0");
  EXPECT_EQ(events[3].at("choices").at(0).at("delta"), json::value(json::object()));
  EXPECT_EQ(events[3].at("choices").at(0).at("finish_reason"), "length");
  EXPECT_TRUE(events[3].as_object().contains("quire"));
  EXPECT_FALSE(events[3].as_object().contains("usage"));
  EXPECT_EQ(events[4], "[DONE]");
  EXPECT_EQ(events[0].at("id"), events[3].at("id"));
}

TEST_F(Chats, IncludeUsageAddsAChunkWithoutChoices) {
  json::object body = with(chat_body("hi"), "max_tokens", 2);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}, {"include_obfuscation", false}};
  const auto answer = client_.post("/v1/chat/completions", body);
  const auto events = events_of(*answer);
  ASSERT_EQ(events.size(), 6U);
  EXPECT_TRUE(events[0].at("usage").is_null());
  EXPECT_FALSE(events[3].as_object().contains("quire"));
  EXPECT_TRUE(events[4].at("choices").as_array().empty());
  EXPECT_EQ(events[4].at("usage").at("completion_tokens"), 2);
  EXPECT_TRUE(events[4].as_object().contains("quire"));
  EXPECT_EQ(answer->header("x-quire-ignored"), "stream_options.include_obfuscation");
}

TEST_F(Chats, WhatIsRefusedIsNamed) {
  struct Case {
    const char* field;
    const char* value;
    const char* code;
    const char* param;
  };
  const Case cases[] = {
      {"tools", R"([{"type":"function"}])", "missing_required_parameter", "tools[0].function"},
      {"tools", R"([{"type":"function","function":{"name":"f"}}])", "tools_unsupported", "tools"},
      {"tools", R"([{"type":"function","function":{"name":"f","strict":true}}])",
       "unsupported_parameter", "tools[0].function.strict"},
      {"tool_choice", "\"required\"", "unsupported_parameter", "tool_choice"},
      {"tool_choice", R"({"type":"function","function":{"name":"f"}})", "unsupported_parameter",
       "tool_choice"},
      {"tool_choice", "\"some\"", "invalid_value", "tool_choice"},
      {"parallel_tool_calls", "false", "unsupported_parameter", "parallel_tool_calls"},
      {"audio", "{}", "unsupported_parameter", "audio"},
      {"modalities", R"(["audio"])", "unsupported_parameter", "modalities"},
      {"cache_prompt", "false", "unsupported_parameter", "cache_prompt"},
      {"temperature", "3", "invalid_value", "temperature"},
      {"temperature", "\"1\"", "invalid_value", "temperature"},
      {"top_p", "0", "invalid_value", "top_p"},
      {"max_tokens", "0", "invalid_value", "max_tokens"},
      {"max_tokens", "3.5", "invalid_value", "max_tokens"},
      {"n", "17", "invalid_value", "n"},
      {"stream", "1", "invalid_value", "stream"},
      {"stream_options", R"({"include_usage":true})", "invalid_value", "stream_options"},
      {"top_logprobs", "2", "invalid_value", "top_logprobs"},
      {"logit_bias", R"({"x":1})", "invalid_value", "logit_bias.x"},
      {"logit_bias", R"({"5":101})", "invalid_value", "logit_bias.5"},
      {"stop", R"(["a",""])", "invalid_value", "stop[1]"},
      {"seed", "\"1\"", "invalid_value", "seed"},
      {"response_format", R"({"type":"json_object"})", "unsupported_parameter",
       "response_format.type"},
      {"chat_template_kwargs", R"({"messages":1})", "invalid_value",
       "chat_template_kwargs.messages"},
      {"quire", R"({"mode":"blend"})", "invalid_value", "quire.mode"},
      {"quire", R"({"deadline_ms":0})", "invalid_value", "quire.deadline_ms"},
      {"quire", R"({"what":0})", "unknown_parameter", "quire.what"},
      {"cache_salt", "\"\"", "invalid_value", "cache_salt"},
      {"model", "\"other\"", "model_not_found", "model"},
  };
  for (const Case& c : cases) {
    const auto answer =
        client_.post("/v1/chat/completions", with(chat_body("hi"), c.field, json::parse(c.value)));
    EXPECT_EQ(code_of(*answer), c.code) << c.field << ": " << c.value;
    EXPECT_EQ(param_of(*answer), c.param) << c.field << ": " << c.value;
  }
  EXPECT_EQ(engine_.started, 0);
}

TEST_F(Chats, FieldsWithoutEffectAreNamedInAHeader) {
  json::object body = with(chat_body("hi"), "user", "ada");
  body["metadata"] = {{"a", "b"}};
  body["max_tokens"] = 1;
  body["temperature"] = nullptr;
  body["cache_prompt"] = true;
  const auto answer = client_.post("/v1/chat/completions", body);
  EXPECT_EQ(answer->status(), 200);
  EXPECT_EQ(answer->header("x-quire-ignored"), "user,metadata,cache_prompt");
}

TEST_F(Chats, MessagesAreCheckedOneByOne) {
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "messages"},
      {R"([{"content":"a"}])", "messages[0].role"},
      {R"([{"role":"king","content":"a"}])", "messages[0].role"},
      {R"([{"role":"user"}])", "messages[0].content"},
      {R"([{"role":"user","content":null}])", "messages[0].content"},
      {R"([{"role":"user","content":[]}])", "messages[0].content"},
      {R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])",
       "messages[0].content[0].type"},
      {R"([{"role":"user","content":[{"type":"text","text":5}]}])", "messages[0].content[0].text"},
      {R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},)"
       R"({"role":"assistant","content":"c"}])",
       "messages[2].role"},
      {R"([{"role":"user","content":"a"},{"role":"tool","content":"b","tool_call_id":"x"}])",
       "messages[1].tool_call_id"},
      {R"([{"role":"user","content":"a","age":5}])", "messages[0].age"},
      {R"(["a"])", "messages[0]"},
  };
  for (const auto& [messages, param] : cases) {
    json::object body;
    body["messages"] = json::parse(messages);
    const auto answer = client_.post("/v1/chat/completions", body);
    EXPECT_EQ(answer->status(), 400) << messages;
    EXPECT_EQ(param_of(*answer), param) << messages;
  }
}

TEST_F(Chats, TemplatesErrorsKeepTheirText) {
  json::object body;
  body["messages"] =
      json::parse(R"([{"role":"user","content":"a"},{"role":"system","content":"b"}])");
  const auto answer = client_.post("/v1/chat/completions", body);
  EXPECT_EQ(answer->status(), 400);
  EXPECT_EQ(code_of(*answer), "template_error");
  EXPECT_NE(answer->response->body.find("a system message must come first"), std::string::npos);
}

TEST_F(Chats, ChoicesUseSeedsOneByOneAndCountThePromptOnce) {
  json::object body = with(chat_body("hi"), "n", 3);
  body["max_tokens"] = 2;
  body["seed"] = -1;
  const json::value answer = body_of(*client_.post("/v1/chat/completions", body));
  ASSERT_EQ(engine_.requests.size(), 3U);
  EXPECT_EQ(*engine_.requests[0].sampling.seed, ~std::uint64_t{0});
  EXPECT_EQ(*engine_.requests[1].sampling.seed, 0U);
  EXPECT_EQ(*engine_.requests[2].sampling.seed, 1U);
  EXPECT_EQ(answer.at("choices").as_array().size(), 3U);
  EXPECT_EQ(answer.at("choices").at(2).at("index"), 2);
  const auto prompt = std::get<std::vector<TokenId>>(engine_.requests[0].prompt).size();
  EXPECT_EQ(answer.at("usage").at("prompt_tokens").to_number<std::size_t>(), prompt);
  EXPECT_EQ(answer.at("usage").at("completion_tokens"), 6);
}

TEST_F(Chats, OtherChoicesStartOnceTheFirstTokenIsThere) {
  const auto answer =
      client_.begin("POST", "/v1/chat/completions", json::serialize(with(chat_body("hi"), "n", 3)));
  loop_.run();
  EXPECT_EQ(engine_.started, 1);
  loop_.advance(std::chrono::milliseconds(1));
  EXPECT_EQ(engine_.started, 3);
  answer->leave();
  loop_.run();
  EXPECT_EQ(engine_.running, 0);
}

TEST_F(Chats, LogprobsHaveBytesAndLikeliestTokens) {
  json::object body = with(chat_body("hi"), "logprobs", true);
  body["top_logprobs"] = 1;
  body["max_tokens"] = 2;
  const json::value answer = body_of(*client_.post("/v1/chat/completions", body));
  const json::value& content = answer.at("choices").at(0).at("logprobs").at("content");
  ASSERT_EQ(content.as_array().size(), 2U);
  EXPECT_EQ(content.at(0).at("logprob"), -0.5);
  EXPECT_EQ(content.at(0).at("top_logprobs").as_array().size(), 1U);
  EXPECT_FALSE(content.at(0).at("bytes").as_array().empty());
  EXPECT_TRUE(answer.at("choices").at(0).at("logprobs").at("refusal").is_null());
}

TEST_F(DemoChats, StreamAndBodyAgreeOnTextAndUsage) {
  json::object body = chat_body("Where does Ada live?");
  body["temperature"] = 0;
  body["max_tokens"] = 12;
  const json::value whole = body_of(*client_.post("/v1/chat/completions", body));
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const auto events = events_of(*client_.post("/v1/chat/completions", body));
  std::string text;
  for (const json::value& event : events) {
    if (event.is_object() && !event.at("choices").as_array().empty()) {
      if (const auto* const content =
              event.at("choices").at(0).at("delta").as_object().if_contains("content")) {
        text += content->as_string().c_str();
      }
    }
  }
  EXPECT_EQ(text, whole.at("choices").at(0).at("message").at("content").as_string().c_str());
  const json::value& last = events[events.size() - 2];
  EXPECT_EQ(last.at("usage").at("prompt_tokens"), whole.at("usage").at("prompt_tokens"));
  EXPECT_EQ(last.at("usage").at("completion_tokens"), whole.at("usage").at("completion_tokens"));
}

TEST_F(DemoChats, TextOfAMessageNeverBecomesASpecialToken) {
  const json::value plain =
      body_of(*client_.post("/v1/chat/completions/render", chat_body("<eos><bos>")));
  std::size_t ends = 0;
  for (const json::value& id : plain.at("token_ids").as_array()) {
    ends += id == 2 ? 1 : 0;
  }
  EXPECT_EQ(ends, 0U);
}

TEST_F(DemoChats, StopStringsAndStopIdsAreNamedAsTheReason) {
  json::object body = chat_body("Where does Ada live?");
  body["temperature"] = 0;
  body["max_tokens"] = 8;
  body["ignore_eos"] = true;
  body["return_token_ids"] = true;
  const json::value free = body_of(*client_.post("/v1/chat/completions", body));
  const json::value& choice = free.at("choices").at(0);
  const std::string text = choice.at("message").at("content").as_string().c_str();
  ASSERT_GE(text.size(), 4U);
  body["stop"] = text.substr(2, 2);
  const json::value stopped = body_of(*client_.post("/v1/chat/completions", body));
  EXPECT_EQ(stopped.at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_EQ(stopped.at("choices").at(0).at("stop_reason").as_string(), text.substr(2, 2));
  body.erase("stop");
  body["stop_token_ids"] = json::array{choice.at("token_ids").at(1)};
  const json::value by_id = body_of(*client_.post("/v1/chat/completions", body));
  EXPECT_EQ(by_id.at("choices").at(0).at("stop_reason"), choice.at("token_ids").at(1));
}

TEST_F(DemoChats, ContinuingTheLastMessageDropsWhatTheTemplatePutsBehindIt) {
  json::object body;
  body["messages"] = json::parse(
      R"([{"role":"user","content":"Where?"},{"role":"assistant","content":"Foxley is"}])");
  body["continue_final_message"] = true;
  const json::value going = body_of(*client_.post("/v1/chat/completions/render", body));
  body.erase("continue_final_message");
  body["add_generation_prompt"] = false;
  const json::value ended = body_of(*client_.post("/v1/chat/completions/render", body));
  json::array ids = ended.at("token_ids").as_array();
  EXPECT_EQ(ids.back(), 2);
  ids.pop_back();
  EXPECT_EQ(going.at("token_ids"), json::value(ids));
}

TEST_F(DemoChats, ExplainAddsPartsToTheAnswer) {
  json::object body = chat_body(std::string(300, 'b'));
  body["max_tokens"] = 1;
  client_.headers = {{"x-quire-explain", "1"}};
  const json::value answer = body_of(*client_.post("/v1/chat/completions", body));
  const json::value& parts = answer.at("quire").at("parts");
  ASSERT_FALSE(parts.as_array().empty());
  EXPECT_TRUE(parts.at(0).as_object().contains("reason"));
}

}  // namespace
}  // namespace quire::server

// Thinking and tool calls of chats. The engine says what a test has written; the template marks it
// as Qwen3's does.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "quire/tokenizer.h"
#include "testing/api_fixture.h"

namespace quire::server {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTemplate =
    "{%- for tool in tools or [] -%}{{- tool | tojson -}}{%- endfor -%}"
    "{%- for message in messages -%}"
    "{{- '<q> ' + (message['content'] or '') | string -}}"
    "{%- for call in message['tool_calls'] or [] -%}"
    "{{- '<tool_call>' + call['function']['name'] + '</tool_call>' -}}{%- endfor -%}{%- endfor -%}"
    "{{- '<a>' -}}{%- if enable_thinking -%}{{- '<think>\\n' -}}{%- endif -%}"
    "{#- </think> -#}";

// Returns the demo model's tokenizer with another chat template.
Tokenizer marked_tokenizer() {
  const fs::path folder = fs::path(testing::TempDir()) / "quire_marked_tokenizer";
  fs::create_directories(folder);
  for (const char* name : {"config.json", "tokenizer.json", "special_tokens_map.json"}) {
    fs::copy_file(fs::path(model_path()) / name, folder / name,
                  fs::copy_options::overwrite_existing);
  }
  std::stringstream text;
  text << std::ifstream(fs::path(model_path()) / "tokenizer_config.json").rdbuf();
  json::value config = json::parse(text.str());
  config.as_object()["chat_template"] = kTemplate;
  std::ofstream(folder / "tokenizer_config.json") << json::serialize(config);
  return Tokenizer::open(folder.string()).value();
}

class ChatAnswers : public testing::Test {
 protected:
  ChatAnswers()
      : config_(test_config()),
        tokenizer_(marked_tokenizer()),
        engine_(loop_, tokenizer_),
        api_(config_, loop_),
        client_(loop_, api_) {
    client_.moves_time = true;
    api_.set_engine(engine_);
    body_["messages"] = json::array{json::object{{"role", "user"}, {"content", "hi"}}};
  }

  void says(const std::string& text) { engine_.script = tokenizer_.encode(text, false).value(); }
  json::value asked() { return body_of(*client_.post("/v1/chat/completions", body_)); }
  // Returns the choices of the chunks of a stream, without "[DONE]".
  std::vector<json::object> streamed() {
    body_["stream"] = true;
    std::vector<json::object> choices;
    for (const json::value& event : events_of(*client_.post("/v1/chat/completions", body_))) {
      if (event.is_object() && !event.at("choices").as_array().empty()) {
        choices.push_back(event.at("choices").at(0).as_object());
      }
    }
    return choices;
  }
  void give_tools() {
    body_["tools"] = json::parse(
        R"([{"type":"function","function":{"name":"now","parameters":{"type":"object"}}}])");
  }

  std::shared_ptr<Config> config_;
  ManualLoop loop_;
  Tokenizer tokenizer_;
  NullEngine engine_;
  Api api_;
  ApiDriver client_;
  json::object body_;
};

const char* const kThought = "<think>\nTwo and\ntwo.\n</think>\n\nFour.";
const char* const kCalls =
    "So.\n<tool_call>\n{\"name\": \"now\", \"arguments\": {\"zone\": \"UTC\"}}\n</tool_call>\n"
    "<tool_call>{\"name\":\"now\"}</tool_call>";

TEST_F(ChatAnswers, ThinkingIsApartFromTheContent) {
  says(kThought);
  const json::value body = asked();
  const json::value& choice = body.at("choices").at(0);
  EXPECT_EQ(choice.at("message").at("content"), "Four.");
  EXPECT_EQ(choice.at("message").at("reasoning_content"), "Two and\ntwo.");
  EXPECT_FALSE(choice.at("message").as_object().contains("tool_calls"));
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  const json::value& usage = body.at("usage");
  const auto reasoning =
      usage.at("completion_tokens_details").at("reasoning_tokens").to_number<int>();
  EXPECT_GT(reasoning, 4);
  EXPECT_LT(reasoning, usage.at("completion_tokens").to_number<int>());
}

TEST_F(ChatAnswers, StreamsJoinToTheSameMessage) {
  says(kThought);
  std::string thinking;
  std::string content;
  for (const json::object& choice : streamed()) {
    const json::object& delta = choice.at("delta").as_object();
    if (const auto* const piece = delta.if_contains("reasoning_content")) {
      thinking += piece->as_string().c_str();
      EXPECT_EQ(content, "");
    }
    if (const auto* const piece = delta.if_contains("content")) {
      content += piece->as_string().c_str();
    }
  }
  EXPECT_EQ(thinking, "Two and\ntwo.");
  EXPECT_EQ(content, "Four.");
}

TEST_F(ChatAnswers, UsageOfAStreamCountsThinkingAsThatOfABodyDoes) {
  says(kThought);
  const json::value body = asked();
  body_["stream"] = true;
  body_["stream_options"] = {{"include_usage", true}};
  const auto events = events_of(*client_.post("/v1/chat/completions", body_));
  EXPECT_EQ(events.at(events.size() - 2).at("usage").at("completion_tokens_details"),
            body.at("usage").at("completion_tokens_details"));
}

TEST_F(ChatAnswers, ATemplateThatOpensThinkingBeginsInsideOfIt) {
  says("Two.\n</think>\nFour.");
  body_["chat_template_kwargs"] = {{"enable_thinking", true}};
  const json::value message = asked().at("choices").at(0).at("message");
  EXPECT_EQ(message.at("reasoning_content"), "Two.");
  EXPECT_EQ(message.at("content"), "Four.");
}

TEST_F(ChatAnswers, EachChoiceIsSplitByItself) {
  says(kThought);
  body_["n"] = 2;
  const json::value body = asked();
  for (const json::value& choice : body.at("choices").as_array()) {
    EXPECT_EQ(choice.at("message").at("content"), "Four.");
    EXPECT_EQ(choice.at("message").at("reasoning_content"), "Two and\ntwo.");
  }
}

TEST_F(ChatAnswers, CallsOfToolsAreMembersOfTheMessage) {
  says(kCalls);
  give_tools();
  const json::value choice = asked().at("choices").at(0);
  EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
  EXPECT_EQ(choice.at("message").at("content"), "So.");
  const json::array& calls = choice.at("message").at("tool_calls").as_array();
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[0].at("type"), "function");
  EXPECT_TRUE(calls[0].at("id").as_string().starts_with("call_"));
  EXPECT_EQ(calls[0].at("function").at("name"), "now");
  EXPECT_EQ(calls[0].at("function").at("arguments"), R"({"zone":"UTC"})");
  EXPECT_EQ(calls[1].at("function").at("arguments"), "{}");
  EXPECT_NE(calls[0].at("id"), calls[1].at("id"));
}

TEST_F(ChatAnswers, ACallWithoutTextHasNoContent) {
  says(R"(<tool_call>{"name":"now"}</tool_call>)");
  give_tools();
  EXPECT_TRUE(asked().at("choices").at(0).at("message").at("content").is_null());
}

TEST_F(ChatAnswers, StreamedCallsBeginWithTheirNamesAndGoOnWithTheirArguments) {
  says(kCalls);
  give_tools();
  std::vector<json::object> parts;
  const auto choices = streamed();
  for (const json::object& choice : choices) {
    if (const auto* const calls = choice.at("delta").as_object().if_contains("tool_calls")) {
      parts.push_back(calls->at(0).as_object());
    }
  }
  ASSERT_EQ(parts.size(), 4U);
  EXPECT_EQ(parts[0].at("index"), 0);
  EXPECT_EQ(parts[0].at("function"), json::value({{"name", "now"}, {"arguments", ""}}));
  EXPECT_TRUE(parts[0].contains("id"));
  EXPECT_EQ(parts[1],
            (json::object{{"function", {{"arguments", R"({"zone":"UTC"})"}}}, {"index", 0}}));
  EXPECT_EQ(parts[2].at("index"), 1);
  EXPECT_EQ(parts[3].at("index"), 1);
  EXPECT_EQ(choices.back().at("finish_reason"), "tool_calls");
}

TEST_F(ChatAnswers, WithoutToolsCallsStayText) {
  says(kCalls);
  for (const bool chooses_none : {false, true}) {
    if (chooses_none) {
      give_tools();
      body_["tool_choice"] = "none";
    }
    const json::value choice = asked().at("choices").at(0);
    EXPECT_EQ(choice.at("message").at("content"), kCalls);
    EXPECT_FALSE(choice.at("message").as_object().contains("tool_calls"));
    EXPECT_EQ(choice.at("finish_reason"), "stop");
  }
}

TEST_F(ChatAnswers, ToolsReachTheTemplateUnlessNoneIsChosen) {
  says("Hi.");
  give_tools();
  const auto prompt = [&] {
    static_cast<void>(asked());
    return tokenizer_.decode(std::get<std::vector<TokenId>>(engine_.requests.back().prompt), false)
        .value();
  };
  EXPECT_NE(prompt().find("\"now\""), std::string::npos);
  body_["tool_choice"] = "none";
  EXPECT_EQ(prompt().find("\"now\""), std::string::npos);
}

TEST_F(ChatAnswers, AMessageOfAnAnswerMayBeSentBack) {
  says(std::string("<think>Hm.</think>") + kCalls);
  give_tools();
  json::value message = asked().at("choices").at(0).at("message");
  const json::value id = message.at("tool_calls").at(0).at("id");
  body_["messages"].as_array().push_back(message);
  body_["messages"].as_array().push_back(
      json::object{{"role", "tool"}, {"tool_call_id", id}, {"content", "noon"}});
  const auto answer = client_.post("/v1/chat/completions", body_);
  EXPECT_EQ(answer->status(), 200) << answer->response->body;
  EXPECT_EQ(answer->header("x-quire-ignored"), "messages[1].reasoning_content");
}

TEST_F(ChatAnswers, LogprobsAndIdsShowEveryTokenOfTheAnswer) {
  says(kThought);
  body_["return_token_ids"] = true;
  body_["logprobs"] = true;
  std::size_t ids = 0;
  std::size_t entries = 0;
  for (const json::object& choice : streamed()) {
    if (const auto* const list = choice.if_contains("token_ids")) {
      ids += list->as_array().size();
      entries += choice.at("logprobs").at("content").as_array().size();
    }
  }
  EXPECT_EQ(ids, engine_.script.size());
  EXPECT_EQ(entries, engine_.script.size());
}

}  // namespace
}  // namespace quire::server

#include <gtest/gtest.h>

#include <boost/pfr.hpp>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/chat.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/stats.h"
#include "quire/tokenizer.h"

namespace quire {
namespace {

const std::vector<ChatMessage>& messages() {
  static const std::vector<ChatMessage> kMessages = {
      {.role = "system", .content = "You know \"tides\"."},
      {.role = "user", .content = "When is high\nwater?"}};
  return kMessages;
}

constexpr const char* kMessagesJson =
    R"([{"role":"system","content":"You know \"tides\"."},{"role":"user","content":"When is high\nwater?"}])";

TEST(ChatMessages, JsonHasRoleAndContentAndWhatIsGiven) {
  EXPECT_EQ(to_json(messages()).value(), kMessagesJson);
  EXPECT_EQ(to_json(std::vector<ChatMessage>()).value(), "[]");
  const std::vector<ChatMessage> tools = {
      {.role = "assistant",
       .tool_calls = {{.id = "c1", .name = "tide", .arguments_json = R"({"day": 3})"}}},
      {.role = "tool", .content = "6:12", .name = "tide", .tool_call_id = "c1"}};
  EXPECT_EQ(to_json(tools).value(),
            R"([{"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"function",)"
            R"("function":{"name":"tide","arguments":{"day":3}}}]},)"
            R"({"role":"tool","content":"6:12","name":"tide","tool_call_id":"c1"}])");
}

TEST(ChatMessages, TextThatIsNoUtf8IsRepaired) {
  const std::vector<ChatMessage> bad = {{.role = "user", .content = "a\xFF"}};
  EXPECT_EQ(to_json(bad).value(), "[{\"role\":\"user\",\"content\":\"a\xEF\xBF\xBD\"}]");
}

TEST(ChatMessages, ArgumentsThatAreNoObjectAreRefused) {
  for (const char* arguments : {"{", "[1]", ""}) {
    const std::vector<ChatMessage> bad = {
        {.role = "assistant", .tool_calls = {{.name = "tide", .arguments_json = arguments}}}};
    EXPECT_EQ(to_json(bad).error().code, ErrorCode::kInvalidArgument) << arguments;
  }
}

TEST(ChatMessages, GiveThePromptsOfTheirJson) {
  const LLM llm = open_demo();
  const Tokenizer tokenizer = llm.tokenizer().value();
  EXPECT_EQ(tokenizer.apply_chat_template(messages()).value(),
            tokenizer.apply_chat_template(kMessagesJson).value());
  EXPECT_EQ(tokenizer.render_chat_template(messages(), false).value(),
            tokenizer.render_chat_template(kMessagesJson, false).value());
}

TEST(ChatMessages, GiveTheAnswersOfTheirJson) {
  LLM llm = open_demo();
  const SamplingParams params = {.temperature = 0, .max_tokens = 4};
  const GenerationOutput expected = llm.chat(kMessagesJson, params).value();
  EXPECT_EQ(llm.chat(messages(), params)->token_ids, expected.token_ids);
  Stream stream = llm.stream_chat(messages(), params).value();
  while (!stream.finished()) {
    ASSERT_TRUE(stream.next().ok());
  }
  EXPECT_EQ(stream.output().token_ids, expected.token_ids);
}

TEST(EngineStats, PairsAreTheFieldsInTheirOrder) {
  LLM llm = open_demo();
  ASSERT_TRUE(llm.chat(messages(), {.temperature = 0, .max_tokens = 2}).ok());
  const EngineStats stats = llm.engine_stats().value();
  std::vector<double> fields;
  boost::pfr::for_each_field(stats,
                             [&](auto value) { fields.push_back(static_cast<double>(value)); });
  std::vector<double> pairs;
  for (const auto& [name, value] : llm.stats().value()) {
    pairs.push_back(value);
  }
  EXPECT_EQ(pairs, fields);
  EXPECT_EQ(stats.blocks_total, stats.blocks_free + stats.blocks_cached + stats.blocks_in_use);
  EXPECT_EQ(stats.bytes_in_use, stats.blocks_in_use * stats.block_bytes);
  EXPECT_EQ(stats.requests_finished, 1);
  EXPECT_EQ(stat(llm, "requests_finished"), 1);
}

TEST(EngineStats, JsonHasTheNamesOfThePairs) {
  const std::string json = to_json(EngineStats{.blocks_total = 3, .step_seconds = 0.5}).value();
  EXPECT_TRUE(json.starts_with(R"({"blocks_total":3,"blocks_free":0,)")) << json;
  EXPECT_NE(json.find(R"("step_seconds":0.5,)"), std::string::npos) << json;
}

}  // namespace
}  // namespace quire

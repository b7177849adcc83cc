// Parts of the answers of chats: of whole outputs, of streams, and of ids and text that a program
// has.
#include "quire/answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <string>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/chat.h"
#include "quire/fields.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/tokenizer.h"
#include "quire/types.h"

namespace quire {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kQuestion = R"([{"role": "user", "content": "Where does Ada live?"}])";
constexpr const char* kTools = R"([{"type": "function", "function": {"name": "now"}}])";
// Opens thinking, which the demo model never closes. Marks calls as Qwen3 does.
constexpr const char* kOpened =
    "{{ '<bos><q> ' + messages[0]['content'] }}{% if tools %}{% endif %}{{ '<a><think>' }}"
    "{# </think><tool_call> #}";

TEST(AnswerParts, OfATemplateWithoutMarksAreTheWholeText) {
  LLM llm = open_demo();
  const GenerationOutput output = must(llm.chat(kQuestion, greedy(16)));
  ASSERT_TRUE(output.answer);
  EXPECT_EQ(output.answer->content, output.text);
  EXPECT_EQ(output.answer->thinking, "");
  EXPECT_TRUE(output.answer->tool_calls.empty());
  EXPECT_EQ(output.answer->thinking_tokens, 0);
}

TEST(AnswerParts, AreNotThereForPlainPrompts) {
  LLM llm = open_demo();
  const GenerationOutput output = must(llm.generate("Ada lives", greedy(4)));
  EXPECT_FALSE(output.answer);
  EXPECT_THAT(must(to_json(output)), Not(HasSubstr("thinking")));
}

TEST(AnswerParts, BeginInsideOfThinkingThatTheTemplateHasOpened) {
  LLM llm = open_demo({.chat_template = kOpened});
  const GenerationOutput output = must(llm.chat(kQuestion, greedy(8)));
  ASSERT_TRUE(output.answer);
  ASSERT_FALSE(output.text.empty());
  EXPECT_EQ(output.answer->content, "");
  EXPECT_THAT(output.text, HasSubstr(output.answer->thinking));
  EXPECT_EQ(output.answer->thinking_tokens, std::ssize(output.token_ids));
  EXPECT_THAT(must(to_json(output)), HasSubstr(R"("thinking":")"));
}

TEST(AnswerParts, OfAStreamJoinToThoseOfTheWhole) {
  LLM llm = open_demo({.chat_template = kOpened});
  const GenerationOutput whole = must(llm.chat(kQuestion, greedy(12)));
  Stream stream = must(llm.stream_chat(kQuestion, greedy(12)));
  std::string thinking;
  while (auto delta = must(stream.next())) {
    ASSERT_TRUE(delta->answer);
    thinking += delta->answer->thinking;
    EXPECT_EQ(delta->answer->content, "");
  }
  EXPECT_EQ(thinking, whole.answer->thinking);
  EXPECT_EQ(stream.output().answer->thinking, thinking);
  EXPECT_EQ(stream.output().answer->thinking_tokens, whole.answer->thinking_tokens);
}

TEST(AnswerParts, AreThereWithoutDeltasAndForEachChoice) {
  LLM llm = open_demo({.chat_template = kOpened});
  Stream stream = must(llm.stream_chat(kQuestion, greedy(8), "{}", {.deltas = false}));
  EXPECT_FALSE(must(stream.next()));
  EXPECT_NE(stream.output().answer->thinking, "");
  SamplingParams params = greedy(8);
  params.n = 2;
  const GenerationOutput output = must(llm.chat(kQuestion, params));
  ASSERT_EQ(output.outputs.size(), 2U);
  for (const GenerationOutput& choice : output.outputs) {
    EXPECT_EQ(choice.answer->thinking, output.answer->thinking);
  }
}

TEST(AnswerParts, OfIdsAndTextThatAProgramHas) {
  const LLM llm = open_demo({.chat_template = kOpened});
  const Tokenizer tokenizer = must(llm.tokenizer());
  const std::string text =
      "Hm.</think>\n<tool_call>{\"name\": \"now\", \"arguments\": {\"deep\": [1]}}</tool_call>";
  const std::vector<TokenId> ids = must(tokenizer.encode(text, false));
  GenerationOutput output{.text = text, .token_ids = ids};
  output.prompt_token_ids = must(tokenizer.apply_chat_template(kQuestion));
  ASSERT_TRUE(split_answer(tokenizer, kTools, output).ok());
  EXPECT_EQ(output.answer->thinking, "Hm.");
  EXPECT_EQ(output.answer->content, "");
  ASSERT_EQ(output.answer->tool_calls.size(), 1U);
  EXPECT_EQ(output.answer->tool_calls[0].name, "now");
  EXPECT_EQ(output.answer->tool_calls[0].arguments_json, R"({"deep":[1]})");
  EXPECT_THAT(must(to_json(output)), HasSubstr(R"("name":"now","arguments":{"deep":[1]}})"));
}

TEST(AnswerParts, ToolsThatAreNoListAreRefused) {
  const LLM llm = open_demo({.chat_template = kOpened});
  const Tokenizer tokenizer = must(llm.tokenizer());
  const auto refused = tokenizer.answer_parser({}, R"({"name": "now"})");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message, HasSubstr("tools must be a list"));
  EXPECT_TRUE(tokenizer.answer_parser({}, "null").ok());
}

}  // namespace
}  // namespace quire

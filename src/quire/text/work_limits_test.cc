// Files that make little text into endless work are refused, and work ends when its caller says so.
#include "quire/text/work_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/base/work_meter.h"
#include "quire/result.h"
#include "quire/text/chat_template.h"
#include "quire/text/detokenizer.h"
#include "quire/text/tokenizer.h"
#include "quire/types.h"

namespace quire::text {
namespace {

using base::str_cat;
using testing::HasSubstr;

constexpr base::WorkLimits kSmall = {.steps = 4'000'000,
                                     .bytes = 1 << 20};  // so that tests are short

// Returns a tokenizer.json of the letters a to d with these sections.
Result<Tokenizer> with(const std::string& sections) {
  return Tokenizer::from_json(
      str_cat(R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"c":2,"d":3},"merges":[]},)", sections,
              "}"),
      "");
}

// Returns `section` with `one` in a Sequence `count` times.
std::string chain(const char* section, const char* members, const std::string& one, int count) {
  std::string list;
  for (int i = 0; i < count; ++i) {
    list += str_cat(i == 0 ? "" : ",", one);
  }
  return str_cat("\"", section, R"(":{"type":"Sequence",")", members, R"(":[)", list, "]}");
}

void expect_refused(const Status& status, const char* reason) {
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.error().message, HasSubstr(reason));
  EXPECT_THAT(status.error().message, HasSubstr("shorten the text"));
}

Status encoded(const Result<Tokenizer>& tokenizer, std::string_view text) {
  EXPECT_TRUE(tokenizer.ok());
  base::WorkMeter meter(kSmall);
  const auto ids = tokenizer->encode(text, {.meter = &meter});
  return ids.ok() ? Status() : Status(ids.error());
}

TEST(WorkLimits, ChainsOfNormalizersThatDoubleATextAreRefused) {
  const std::string literal = R"({"type":"Replace","pattern":{"String":"a"},"content":"aa"})";
  expect_refused(encoded(with(chain("normalizer", "normalizers", literal, 60)), "a"),
                 "writes more than");
  const char* const kRegexes[] = {
      R"({"type":"Replace","pattern":{"Regex":"a"},"content":"aa"})",
      R"json({"type":"Replace","pattern":{"Regex":"(?=a)"},"content":"a"})json"};
  for (const char* one : kRegexes) {
    expect_refused(encoded(with(chain("normalizer", "normalizers", one, 60)), "a"), "more than");
  }
  const std::string prefix(60'000, 'b');
  expect_refused(
      encoded(with(chain("normalizer", "normalizers",
                         str_cat(R"({"type":"Prepend","prepend":")", prefix, "\"}"), 2'000)),
              "a"),
      "writes more than");
}

TEST(WorkLimits, TheSameChainsAreRefusedWhereAddedTokensAreNormalized) {
  const auto made = with(
      str_cat(chain("normalizer", "normalizers",
                    R"({"type":"Replace","pattern":{"String":"a"},"content":"aa"})", 60),
              R"(,"added_tokens":[{"id":4,"content":"a!","normalized":true,"special":false}])"));
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().message, HasSubstr("writes more than"));
}

TEST(WorkLimits, TemplatesOfPostProcessorsThatRepeatAPromptAreRefused) {
  const std::string twice =
      R"({"type":"TemplateProcessing","single":[{"Sequence":{"id":"A","type_id":0}},)"
      R"({"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{}})";
  expect_refused(encoded(with(chain("post_processor", "processors", twice, 60)), "a"),
                 "writes more than");
}

TEST(WorkLimits, ChainsOfDecodersThatDoubleATokenAreRefusedAlsoWhenStreamed) {
  const std::string twice = R"({"type":"Replace","pattern":{"String":"a"},"content":"aa"})";
  for (const std::string& before : {std::string(), std::string(R"({"type":"Fuse"},)")}) {
    const auto made =
        with(chain("decoder", "decoders", twice, 60)
                 .insert(sizeof(R"("decoder":{"type":"Sequence","decoders":[)") - 1, before));
    ASSERT_TRUE(made.ok()) << made.error().message;
    base::WorkMeter meter(kSmall);
    const auto text = made->decode(std::vector<TokenId>{0}, true, &meter);
    expect_refused(text.ok() ? Status() : Status(text.error()), "writes more than");
    Detokenizer stream(*made);
    std::string streamed(stream.push(0));
    streamed += stream.flush();
    EXPECT_LT(streamed.size(), 100U << 20);
    expect_refused(stream.status(), "writes more than");
  }
}

TEST(WorkLimits, RegexesThatSearchForeverAreRefusedAndNeverGiveOtherIds) {
  for (const char* pattern : {"(a+)+[xy]", "a*[xy]|a*[vw]"}) {
    const auto made = with(str_cat(R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":")",
                                   pattern, R"("},"behavior":"Isolated"})"));
    const Status status = encoded(made, std::string(44'000, 'a'));
    ASSERT_FALSE(status.ok()) << pattern;
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.error().message, HasSubstr("steps"));
  }
}

TEST(WorkLimits, AnInterruptEndsEveryPartOfTheWorkSoon) {
  const auto slow_split = with(
      R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"(a+)+[xy]"},"behavior":"Isolated"})");
  const auto doubling =
      with(chain("normalizer", "normalizers",
                 R"({"type":"Replace","pattern":{"Regex":"a"},"content":"aa"})", 60));
  using Clock = std::chrono::steady_clock;
  for (const Result<Tokenizer>* made : {&slow_split, &doubling}) {
    const auto start = Clock::now();
    base::WorkMeter meter({.steps = std::int64_t{1} << 60, .bytes = std::int64_t{1} << 32},
                          [&] { return Clock::now() - start > std::chrono::milliseconds(30); });
    const auto ids = (*made)->encode(std::string(44'000, 'a'), {.meter = &meter});
    ASSERT_FALSE(ids.ok());
    EXPECT_EQ(ids.error().code, ErrorCode::kCancelled);
    EXPECT_LT(Clock::now() - start, std::chrono::milliseconds(30 + 100));
  }
}

TEST(WorkLimits, ATemplateIsInterruptedAndSharesTheMeter) {
  const auto chat = ChatTemplate::parse("{% for i in range(100000) %}{{ i }}{% endfor %}");
  const base::Json variables = base::Json::object({{"messages", base::Json::array()}});
  base::WorkMeter meter({.steps = 50'000, .bytes = 1 << 20});
  const auto refused = chat->render(variables, {.meter = &meter});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("more than 50000 steps"));
  bool asked = false;
  base::WorkMeter other(kWorkOfCall, [&] { return asked = true; });
  const auto forever = ChatTemplate::parse(
      "{% for i in range(2000) %}{% for j in range(10000) %}{% endfor %}{% endfor %}");
  const auto ended = forever->render(variables, {.meter = &other});
  ASSERT_FALSE(ended.ok());
  EXPECT_TRUE(asked);
  EXPECT_EQ(ended.error().code, ErrorCode::kCancelled);
}

TEST(WorkLimits, StepsAreOfTheOrderOfTheMessages) {
  const auto chat = ChatTemplate::parse(
      "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}");
  const auto tokenizer =
      with(R"("added_tokens":[{"id":4,"content":"<user>","normalized":false,"special":true},)"
           R"({"id":5,"content":"<b>","normalized":true,"special":true}])");
  const auto steps_for = [&](int count) {
    base::Json messages = base::Json::array();
    for (int i = 0; i < count; ++i) {
      messages.push(base::Json::object({{"role", "user"}, {"content", "ab<b>cd"}}));
    }
    base::WorkMeter meter(kWorkOfCall);
    const auto prompt =
        chat->render(base::Json::object({{"messages", std::move(messages)}}), {.meter = &meter});
    EXPECT_EQ(encode_prompt(*tokenizer, *prompt, &meter)->size(),
              static_cast<std::size_t>(6 * count));
    return meter.steps_used();
  };
  EXPECT_LT(steps_for(8'000), 5 * steps_for(2'000));
}

TEST(WorkLimits, StepsAreOfTheOrderOfTheSpecialTokens) {
  const auto steps_for = [](int count) {
    std::string added, text;
    for (int i = 0; i < count; ++i) {
      const std::string name = str_cat("<", 100'000 + i, ">");
      added += str_cat(i == 0 ? "" : ",", R"({"id":)", 4 + i, R"(,"content":")", name,
                       R"(","normalized":)", i % 2 == 0 ? "true" : "false", R"(,"special":true})");
      text += name + "ab";
    }
    const auto tokenizer = with(str_cat(R"("added_tokens":[)", added, "]"));
    EXPECT_TRUE(tokenizer.ok());
    base::WorkMeter meter(kWorkOfCall);
    EXPECT_EQ(tokenizer->encode(text, {.meter = &meter})->size(),
              static_cast<std::size_t>(3 * count));
    return meter.steps_used();
  };
  EXPECT_LT(steps_for(4'000), 5 * steps_for(1'000));
}

TEST(WorkLimits, AMegabyteOfTextTakesASmallPartOfTheLimits) {
  const auto tokenizer = with(R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false})");
  std::string text;
  while (text.size() < 1'000'000) {
    text += "a bad cab, a dab ";
  }
  base::WorkMeter meter(kWorkOfCall);
  EXPECT_TRUE(tokenizer->encode(text, {.meter = &meter}).ok());
  EXPECT_LT(meter.steps_used(), kWorkOfCall.steps / 5);
}

}  // namespace
}  // namespace quire::text

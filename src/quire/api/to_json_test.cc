#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "quire/context_types.h"
#include "quire/fields.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/types.h"

namespace quire {
namespace {

using testing::HasSubstr;

constexpr const char* kDefaults =
    R"({"temperature":1.0,"top_p":1.0,"top_k":0,"min_p":0.0,"repetition_penalty":1.0,)"
    R"("presence_penalty":0.0,"frequency_penalty":0.0,"max_tokens":256,"min_tokens":0,)"
    R"("stop":[],"stop_token_ids":[],"ignore_eos":false,"logit_bias":{},"n":1})";

SamplingParams unusual() {
  return {.temperature = 0.7,
          .top_p = 0.9,
          .top_k = 40,
          .min_p = 1e-5,
          .repetition_penalty = 1.1,
          .presence_penalty = -0.5,
          .frequency_penalty = 0.25,
          .max_tokens = 9,
          .min_tokens = 2,
          .stop = {"\"END\"\n", "\x01\\"},
          .stop_token_ids = {2, 7},
          .ignore_eos = true,
          .seed = std::numeric_limits<std::uint64_t>::max(),
          .logprobs = 3,
          .logit_bias = {{400, -100.0}, {6, 2.5}},
          .n = 2};
}

TEST(ToJson, SamplingHasEachFieldInTheOrderOfTheStruct) {
  EXPECT_EQ(to_json(SamplingParams()).value(), kDefaults);
  EXPECT_EQ(to_json(unusual()).value(),
            R"({"temperature":0.7,"top_p":0.9,"top_k":40,"min_p":1e-05,"repetition_penalty":1.1,)"
            R"("presence_penalty":-0.5,"frequency_penalty":0.25,"max_tokens":9,"min_tokens":2,)"
            R"("stop":["\"END\"\n","\u0001\\"],"stop_token_ids":[2,7],"ignore_eos":true,)"
            R"("seed":18446744073709551615,"logprobs":3,"logit_bias":{"400":-100.0,"6":2.5},)"
            R"("n":2})");
}

TEST(ToJson, SamplingThatIsReadAgainIsTheSame) {
  for (const SamplingParams& params : {SamplingParams(), unusual()}) {
    const auto again = sampling_from_json(to_json(params).value());
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(to_json(again.value()).value(), to_json(params).value());
  }
}

TEST(ToJson, SamplingIsReadAsPeopleWriteIt) {
  const auto params = sampling_from_json(
      R"({"stop": "END", "max_tokens": 3.0, "temperature": 0, "seed": null, "top_p": 1e0})");
  ASSERT_TRUE(params.ok()) << params.error().message;
  EXPECT_EQ(params->stop, std::vector<std::string>{"END"});
  EXPECT_EQ(params->max_tokens, 3);
  EXPECT_EQ(params->temperature, 0);
  EXPECT_FALSE(params->seed);
}

TEST(ToJson, SamplingThatAContextHasSavedBeforeIsRead) {
  const auto params = sampling_from_json(
      R"({"temperature":1.5,"top_p":1.0,"top_k":0,"min_p":0.0,"repetition_penalty":1.0,)"
      R"("presence_penalty":0.5,"frequency_penalty":0.0,"max_tokens":24,"min_tokens":12,)"
      R"("stop":["a"],"stop_token_ids":[300],"ignore_eos":true,"logit_bias":{"400":-100.0},)"
      R"("seed":12345678901234567890,"logprobs":2})");
  ASSERT_TRUE(params.ok()) << params.error().message;
  EXPECT_EQ(params->temperature, 1.5);
  EXPECT_EQ(params->presence_penalty, 0.5);
  EXPECT_EQ(params->seed, 12345678901234567890U);
  EXPECT_EQ(params->logprobs, 2);
  EXPECT_EQ(params->logit_bias, (std::vector<std::pair<TokenId, double>>{{400, -100.0}}));
}

TEST(ToJson, SamplingThatIsNoneIsRefusedByName) {
  const std::pair<const char*, const char*> wrong[] = {
      {"5", "must be an object"},
      {"{", "not valid JSON"},
      {R"({"max_token": 3})", "unknown sampling parameter \"max_token\"; there are temperature, "},
      {R"({"top_k": "many"})", "\"top_k\" cannot be "},
      {R"({"top_k": 1.5})", "\"top_k\" cannot be "},
      {R"({"top_k": 4294967296})", "\"top_k\" cannot be "},
      {R"({"seed": -1})", "\"seed\" cannot be "},
      {R"({"ignore_eos": 1})", "\"ignore_eos\" cannot be "},
      {R"({"temperature": "0"})", "\"temperature\" cannot be "},
      {R"({"stop": [5]})", "\"stop\" cannot be "},
      {R"({"stop_token_ids": 5})", "\"stop_token_ids\" cannot be "},
      {R"({"logit_bias": {"x": 1}})", "\"logit_bias\" cannot be "},
      {R"({"logit_bias": {"1x": 1}})", "\"logit_bias\" cannot be "},
      {R"({"logit_bias": [1]})", "\"logit_bias\" cannot be "},
      {R"({"top_p": 2})", "top_p"}};
  for (const auto& [json, said] : wrong) {
    const auto params = sampling_from_json(json);
    ASSERT_FALSE(params.ok()) << json;
    EXPECT_EQ(params.error().code, ErrorCode::kInvalidArgument) << json;
    EXPECT_THAT(params.error().message, HasSubstr(said)) << json;
  }
}

GenerationOutput answer() {
  GenerationOutput output;
  output.request_id = {7};
  output.text = "a \"b\"\n\xff";
  output.token_ids = {5, 6};
  output.prompt_token_ids = {1};
  output.finish_reason = FinishReason::kLength;
  output.usage = {.prompt_tokens = 40, .cached_tokens = 32, .completion_tokens = 2};
  output.reuse.sources = {{"prefix_cache", 32}};
  output.timing = {.queue_seconds = 0.001, .first_token_seconds = 0.02, .total_seconds = 0.5};
  return output;
}

TEST(ToJson, OutputHasTextIdsUsageReuseAndTiming) {
  EXPECT_EQ(
      to_json(answer()).value(),
      R"({"request_id":7,"text":"a \"b\"\n)"
      "\xef\xbf\xbd"
      R"(","token_ids":[5,6],"prompt_token_ids":[1],"finish_reason":"length",)"
      R"("usage":{"prompt_tokens":40,"cached_tokens":32,"completion_tokens":2,"drafted_tokens":0,)"
      R"("accepted_tokens":0},)"
      R"("reuse":{"grade":"exact","sources":[["prefix_cache",32]],"recompute_share":0.0},)"
      R"("timing":{"queue_seconds":0.001,"first_token_seconds":0.02,"total_seconds":0.5}})");
}

TEST(ToJson, WhatEndedAnOutputIsAWordAnIdOrAStopString) {
  using Kind = StoppedBy::Kind;
  GenerationOutput output = answer();
  const std::pair<StoppedBy, const char*> ends[] = {
      {{.kind = Kind::kEos, .id = 2}, R"("stopped_by":"eos","usage")"},
      {{.kind = Kind::kLength}, R"("stopped_by":"length","usage")"},
      {{.kind = Kind::kStopId, .id = 7}, R"("stopped_by":7,"usage")"},
      {{.kind = Kind::kStopString, .text = "\"END\""}, R"("stopped_by":"\"END\"","usage")"}};
  for (const auto& [by, json] : ends) {
    output.stopped_by = by;
    EXPECT_THAT(to_json(output).value(), HasSubstr(json));
  }
}

TEST(ToJson, PartsAndChoicesAreThereWhenTheyWereAskedFor) {
  GenerationOutput output = answer();
  const std::string one = to_json(output).value();
  output.outputs = {answer(), answer()};
  EXPECT_THAT(to_json(output).value(), HasSubstr(R"(,"outputs":[)" + one + "," + one + "]}"));
  output.parts = {{.tokens = 32, .hit = true, .reason = "hit"}};
  EXPECT_THAT(to_json(output).value(), HasSubstr(R"("parts":)" + to_json(output.parts).value()));
}

TEST(ToJson, PartsOfAnOutputAreAsInTheWhole) {
  const GenerationOutput output = answer();
  EXPECT_THAT(to_json(output).value(), HasSubstr("\"usage\":" + to_json(output.usage).value()));
  EXPECT_THAT(to_json(output).value(), HasSubstr("\"reuse\":" + to_json(output.reuse).value()));
  EXPECT_THAT(to_json(output).value(), HasSubstr("\"timing\":" + to_json(output.timing).value()));
}

TEST(ToJson, LogprobsAreThereWhenTheyWereAskedFor) {
  GenerationOutput output = answer();
  output.logprobs = {{{5, -0.25F}, {9, -std::numeric_limits<float>::infinity()}}, {{6, -0.5F}}};
  EXPECT_THAT(
      to_json(output).value(),
      HasSubstr(R"("logprobs":[{"5":-0.25,"9":-1.7976931348623157e+308},{"6":-0.5}],"timing")"));
}

TEST(ToJson, AnswerIsAnOutputWithTheIdsOfItsItems) {
  const std::string json =
      to_json(ContextAnswer{.output = answer(), .user_id = "", .output_id = "b2"}).value();
  const std::string output = to_json(answer()).value();
  EXPECT_EQ(json, output.substr(0, output.size() - 1) + R"(,"user_id":"","output_id":"b2"})");
}

TEST(ToJson, DeltaHasAReasonWhenItIsTheLast) {
  Delta delta{.text = "x", .token_ids = {5}};
  EXPECT_EQ(to_json(delta).value(), R"({"text":"x","token_ids":[5]})");
  delta.finished = true;
  EXPECT_EQ(to_json(delta).value(), R"({"text":"x","token_ids":[5],"finish_reason":"stop"})");
}

TEST(ToJson, PartsOfAPromptAreAList) {
  const std::vector<ReusePart> parts = {
      {.position = 0, .tokens = 32, .hit = true, .reason = "hit"},
      {.chunk_type = "context", .chunk_id = "a1", .position = 32, .tokens = 8, .reason = "never"},
      {.chunk_type = "query", .chunk_id = "b2", .reason = "hit", .kv_dtype = "int8"}};
  EXPECT_EQ(
      to_json(parts).value(),
      R"([{"chunk_type":"","chunk_id":"","position":0,"tokens":32,"hit":true,"reason":"hit"},)"
      R"({"chunk_type":"context","chunk_id":"a1","position":32,"tokens":8,"hit":false,)"
      R"("reason":"never"},)"
      R"({"chunk_type":"query","chunk_id":"b2","position":0,"tokens":0,"hit":false,)"
      R"("reason":"hit","kv_dtype":"int8"}])");
}

}  // namespace
}  // namespace quire

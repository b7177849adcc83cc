// Members of an output beside its text: what ended it, parts of its prompt, and further choices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/types.h"

namespace quire {
namespace {

using testing::HasSubstr;

constexpr const char* kQuestion = R"([{"role": "user", "content": "Where does Ada live?"}])";

void expect_equal(const std::vector<ReusePart>& parts, const std::vector<ReusePart>& expected) {
  ASSERT_EQ(parts.size(), expected.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(parts[i].chunk_type, expected[i].chunk_type) << i;
    EXPECT_EQ(parts[i].chunk_id, expected[i].chunk_id) << i;
    EXPECT_EQ(parts[i].position, expected[i].position) << i;
    EXPECT_EQ(parts[i].tokens, expected[i].tokens) << i;
    EXPECT_EQ(parts[i].hit, expected[i].hit) << i;
    EXPECT_EQ(parts[i].reason, expected[i].reason) << i;
  }
}

TEST(StoppedBy, SaysEosStopIdStopStringAndLength) {
  LLM llm = open_demo();
  const GenerationOutput whole = must(llm.chat(kQuestion, greedy(40)));
  ASSERT_EQ(whole.finish_reason, FinishReason::kStop);
  EXPECT_EQ(whole.stopped_by.kind, StoppedBy::Kind::kEos);
  EXPECT_EQ(whole.stopped_by.id, whole.token_ids.back());
  ASSERT_GE(whole.token_ids.size(), 3U);

  const GenerationOutput cut = must(llm.chat(kQuestion, greedy(2)));
  EXPECT_EQ(cut.stopped_by.kind, StoppedBy::Kind::kLength);

  SamplingParams params = greedy(40);
  params.stop_token_ids = {whole.token_ids[1]};
  const GenerationOutput by_id = must(llm.chat(kQuestion, params));
  EXPECT_EQ(by_id.stopped_by.kind, StoppedBy::Kind::kStopId);
  EXPECT_EQ(by_id.stopped_by.id, whole.token_ids[1]);

  params = greedy(40);
  params.stop = {"never said", whole.text.substr(1, 3)};
  const GenerationOutput by_text = must(llm.chat(kQuestion, params));
  EXPECT_EQ(by_text.stopped_by.kind, StoppedBy::Kind::kStopString);
  EXPECT_EQ(by_text.stopped_by.text, params.stop[1]);
}

TEST(StoppedBy, AnEndTokenThatIsAskedForIsAStopId) {
  LLM llm = open_demo();
  const GenerationOutput whole = must(llm.chat(kQuestion, greedy(40)));
  SamplingParams params = greedy(40);
  params.stop_token_ids = {whole.token_ids.back()};
  const GenerationOutput by_id = must(llm.chat(kQuestion, params));
  EXPECT_EQ(by_id.stopped_by.kind, StoppedBy::Kind::kStopId);
}

TEST(StoppedBy, NothingEndsWhatWasAborted) {
  LLM llm = open_demo();
  Stream stream = must(llm.stream(some_ids(20, 1), greedy_to_length(200)));
  ASSERT_TRUE(stream.next().ok());
  ASSERT_TRUE(must(llm.abort(stream.request_id())));
  while (must(stream.next()).has_value()) {
  }
  EXPECT_EQ(stream.output().stopped_by.kind, StoppedBy::Kind::kNothing);
}

TEST(StoppedBy, NoTokensAreALength) {
  LLM llm = open_demo();
  EXPECT_EQ(must(llm.generate(some_ids(20, 1), greedy(0))).stopped_by.kind,
            StoppedBy::Kind::kLength);
}

TEST(Parts, AreThoseThatExplainGaveBefore) {
  LLM llm = open_demo();
  const Ids prompt = some_ids(150, 3);
  for (const std::string salt : {"", "", "ada", "ada"}) {
    const RequestOptions options{.salt = salt, .explain = true};
    const auto expected = must(llm.explain(prompt, options));
    const GenerationOutput output = must(llm.generate(prompt, greedy(2), options));
    expect_equal(output.parts, expected);
    EXPECT_EQ(output.usage.cached_tokens, expected.front().hit ? expected.front().tokens : 0);
  }
}

TEST(Parts, AreThereOnlyWhereTheyWereAskedFor) {
  LLM llm = open_demo();
  EXPECT_TRUE(must(llm.generate(some_ids(50, 3), greedy(1))).parts.empty());
  Stream stream = must(llm.stream(some_ids(50, 3), greedy(1), {.explain = true}));
  while (must(stream.next()).has_value()) {
  }
  EXPECT_FALSE(stream.output().parts.empty());
}

TEST(Parts, OfACompositionAreThoseThatExplainGaveBefore) {
  ChunkedLLM llm = open_chunked();
  const auto add = [&](const char* text, ChunkType type, const char* salt) {
    return must(llm.register_chunk({.content = text, .type = type, .options = {.salt = salt}}));
  };
  for (const char* salt : {"", "ada"}) {
    CompositionSpec spec{.salt = salt};
    spec.system_chunk_id = add("Answer from the cards.", ChunkType::kSystemPrompt, salt);
    spec.context_chunk_ids = {add("Ada lives in Foxley.", ChunkType::kContext, salt),
                              add("Lars trades in lanterns.", ChunkType::kContext, salt)};
    spec.query_chunk_id = add("Where does Ada live?", ChunkType::kQuery, salt);
    for (const ReuseMode mode :
         {ReuseMode::kAnchored, ReuseMode::kIndependent, ReuseMode::kExact, ReuseMode::kBlend}) {
      spec.mode = mode;
      for (int round = 0; round < 2; ++round) {
        const auto expected = must(llm.explain(spec));
        const GenerationOutput output =
            must(llm.generate_from_chunks(spec, greedy(2), {}, {.explain = true}));
        expect_equal(output.parts, expected);
      }
    }
  }
}

TEST(Choices, ShareOnePrefillAndCountThePromptOnce) {
  LLM llm = open_demo();
  const Ids prompt = some_ids(320, 5);
  const double before = stat(llm, "tokens_computed");
  SamplingParams params{.temperature = 1.0, .max_tokens = 6, .ignore_eos = true, .seed = 11};
  params.n = 4;
  const GenerationOutput output = must(llm.generate(prompt, params));
  ASSERT_EQ(output.outputs.size(), 4U);
  EXPECT_EQ(output.usage.prompt_tokens, 320);
  EXPECT_EQ(output.usage.cached_tokens, 0);
  EXPECT_EQ(output.token_ids, output.outputs.front().token_ids);
  EXPECT_LT(stat(llm, "tokens_computed") - before, 320 + 4 * (32 + 6));
  for (std::int32_t i = 0; i < 4; ++i) {
    SamplingParams one = params;
    one.n = 1;
    one.seed = 11 + static_cast<std::uint64_t>(i);
    EXPECT_EQ(must(llm.generate(prompt, one)).token_ids,
              output.outputs[static_cast<std::size_t>(i)].token_ids)
        << i;
  }
}

TEST(Choices, DifferWithoutASeed) {
  LLM llm = open_demo();
  SamplingParams params{.temperature = 1.5, .max_tokens = 12, .ignore_eos = true, .n = 3};
  const GenerationOutput output = must(llm.generate(some_ids(40, 5), params));
  ASSERT_EQ(output.outputs.size(), 3U);
  EXPECT_NE(output.outputs[0].token_ids, output.outputs[1].token_ids);
  EXPECT_NE(output.outputs[1].token_ids, output.outputs[2].token_ids);
}

TEST(Choices, OfABatchStayWithTheirPrompts) {
  LLM llm = open_demo();
  const std::vector<Prompt> prompts = {some_ids(40, 1), some_ids(40, 2)};
  SamplingParams several = greedy_to_length(4);
  several.n = 2;
  const std::vector<SamplingParams> params = {greedy_to_length(4), several};
  const auto outputs = must(llm.generate_batch(prompts, params));
  ASSERT_EQ(outputs.size(), 2U);
  EXPECT_TRUE(outputs[0].outputs.empty());
  ASSERT_EQ(outputs[1].outputs.size(), 2U);
  EXPECT_EQ(outputs[1].outputs[1].token_ids, outputs[1].token_ids);  // greedy
  EXPECT_EQ(outputs[1].outputs[1].prompt_token_ids, outputs[1].prompt_token_ids);
}

TEST(Choices, OfACompositionEqualSingleRuns) {
  ChunkedLLM llm = open_chunked();
  const ChunkedPrompt prompt{.system = "Answer from the cards.",
                             .contexts = {"Ada lives in Foxley."},
                             .query = "Where does Ada live?"};
  SamplingParams params{.temperature = 1.0, .max_tokens = 6, .seed = 3, .n = 3};
  const RegisteredGeneration several = must(llm.generate(prompt, {}, params));
  ASSERT_EQ(several.output.outputs.size(), 3U);
  const CompositionSpec spec{.system_chunk_id = several.system_id,
                             .context_chunk_ids = several.context_ids,
                             .query_chunk_id = several.query_id};
  params.n = 1;
  params.seed = 5;
  EXPECT_EQ(must(llm.generate_from_chunks(spec, params)).token_ids,
            several.output.outputs[2].token_ids);
}

TEST(Choices, AreRefusedByNameWhereOneOutputComes) {
  LLM llm = open_demo();
  SamplingParams params = greedy(2);
  params.n = 2;
  const auto stream = llm.stream(some_ids(10, 1), params);
  ASSERT_FALSE(stream.ok());
  EXPECT_EQ(stream.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(stream.error().message, HasSubstr("n is 2"));
  for (const std::int32_t n : {0, -1, 17}) {
    params.n = n;
    const auto refused = llm.generate(some_ids(10, 1), params);
    ASSERT_FALSE(refused.ok()) << n;
    EXPECT_THAT(refused.error().message, HasSubstr("n must be in [1, 16]"));
  }
}

}  // namespace
}  // namespace quire

// The public LLM on the demo model. Oracles: the model's golden file (made with transformers) and
// the rules of include/quire/*.h.
#include "quire/llm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <string>

#include "quire/api/test_support.h"
#include "quire/chunks.h"

namespace quire {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

struct Golden {
  std::vector<TokenId> prompt;
  std::vector<TokenId> greedy;
};

std::vector<TokenId> ids_of(const boost::json::value& list) {
  std::vector<TokenId> ids;
  for (const auto& id : list.as_array()) {
    ids.push_back(static_cast<TokenId>(id.as_int64()));
  }
  return ids;
}

std::vector<Golden> read_goldens(std::size_t count) {
  std::ifstream in(kModel + "/golden.jsonl");
  std::vector<Golden> goldens;
  for (std::string line; goldens.size() < count && std::getline(in, line);) {
    const auto parsed = boost::json::parse(line);
    const auto& object = parsed.as_object();
    Golden golden{.greedy = ids_of(object.at("greedy"))};
    for (const auto& piece : object.at("pieces").as_array()) {
      const auto ids = ids_of(piece);
      golden.prompt.insert(golden.prompt.end(), ids.begin(), ids.end());
    }
    goldens.push_back(std::move(golden));
  }
  return goldens;
}

TEST(LLM, AnswersOfTheDemoModelEqualItsGoldenFile) {
  LLM llm = open_demo();
  std::vector<Prompt> prompts;
  const auto goldens = read_goldens(40);
  ASSERT_EQ(goldens.size(), 40u);
  for (const Golden& golden : goldens) {
    prompts.emplace_back(golden.prompt);
  }
  const SamplingParams params = greedy(64);
  const auto outputs = llm.generate_batch(prompts, {&params, 1});
  ASSERT_TRUE(outputs.ok()) << outputs.error().message;
  for (std::size_t i = 0; i < goldens.size(); ++i) {
    EXPECT_EQ(outputs.value()[i].token_ids, goldens[i].greedy) << "prompt " << i;
    EXPECT_EQ(outputs.value()[i].finish_reason, FinishReason::kStop);
  }
}

TEST(LLM, WarmForwardEqualsColdBitForBitAndReusesEveryWholeBlock) {
  for (const std::int32_t block_tokens : {1, 5, 16, 32}) {
    LLM llm = open_demo({.block_tokens = block_tokens});
    const auto ids = some_ids(100, 7);
    const auto cold = llm.forward(ids, ForwardReuse::kNone).value();
    ASSERT_EQ(cold.rows, 100);
    ASSERT_EQ(cold.cached_tokens, 0);
    ASSERT_TRUE(llm.clear_prefix_cache().ok());
    const std::vector<TokenId> prefix(ids.begin(), ids.begin() + 61);
    ASSERT_EQ(llm.forward(prefix).value().cached_tokens, 0);
    const auto warm = llm.forward(ids).value();
    EXPECT_GE(warm.cached_tokens, 61 / block_tokens * block_tokens);
    EXPECT_EQ(warm.rows, 100 - warm.cached_tokens);
    const std::vector<float> tail(cold.logits.end() - std::ssize(warm.logits), cold.logits.end());
    EXPECT_EQ(warm.logits, tail) << "block_tokens " << block_tokens;
  }
}

TEST(LLM, DescribesEveryStatistic) {
  std::ifstream in(std::string(QUIRE_SOURCE_DIR) + "/docs/performance.md");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const LLM llm = open_demo();
  for (const auto& [name, value] : llm.stats().value()) {
    EXPECT_THAT(text, HasSubstr("`" + name + "`"));
  }
}

TEST(LLM, ExplainsWhatOfAPromptIsCachedAndWhyNotMore) {
  LLM llm = open_demo({.block_tokens = 16, .kv_budget_bytes = std::int64_t{4} << 20});
  const auto ids = some_ids(50, 11);
  const auto parts_of = [&](const std::vector<TokenId>& prompt) {
    auto parts = llm.explain(prompt);
    EXPECT_TRUE(parts.ok());
    return std::move(parts).value();
  };
  EXPECT_EQ(parts_of(ids).at(0).reason, "never seen");
  ASSERT_TRUE(llm.forward(ids).ok());
  const auto before = llm.stats().value();
  auto parts = parts_of(ids);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_TRUE(parts[0].hit);
  EXPECT_EQ(parts[0].tokens, 48);
  EXPECT_EQ(parts[1].position, 48);
  EXPECT_EQ(parts[1].tokens, 2);
  EXPECT_EQ(parts_of({ids[0], ids[1]}).at(0).reason,
            "less than a block is left, and the last token is always computed");
  auto other = ids;
  other[20] = other[20] == 300 ? 301 : 300;
  parts = parts_of(other);
  EXPECT_EQ(parts[0].tokens, 16);
  EXPECT_EQ(parts[1].reason, "differs from what is cached at token 20");
  EXPECT_EQ(llm.stats().value(), before);  // nothing has changed
  EXPECT_EQ(llm.forward(ids).value().cached_tokens, 48);
}

TEST(LLM, ExplainsWhetherWhatWasCachedMadeRoomOrWasCleared) {
  LLM llm = open_demo({.block_tokens = 16, .kv_budget_bytes = std::int64_t{4} << 20});
  const auto first = some_ids(50, 11);
  const auto reason_of = [&](const std::vector<TokenId>& prompt) {
    const auto parts = llm.explain(prompt);
    EXPECT_TRUE(parts.ok());
    return parts.value().back().reason;
  };
  ASSERT_TRUE(llm.forward(first).ok());
  std::uint32_t seed = 100;
  for (; stat(llm, "evictions") == 0; ++seed) {
    ASSERT_TRUE(llm.forward(some_ids(200, seed)).ok());
  }
  EXPECT_THAT(reason_of(first), StartsWith("evicted to make room"));
  const auto last = some_ids(200, seed - 1);
  EXPECT_EQ(llm.explain(last).value().front().tokens, 192);
  ASSERT_TRUE(llm.clear_prefix_cache().ok());
  EXPECT_THAT(reason_of(last), StartsWith("the cache was cleared"));
  EXPECT_THAT(reason_of(first), StartsWith("evicted to make room"));  // before that, and still so
}

TEST(LLM, LastRowAloneEqualsTheLastOfAllRows) {
  LLM llm = open_demo();
  const auto ids = some_ids(77, 3);
  const auto all = llm.forward(ids, ForwardReuse::kNone).value();
  const auto last = llm.forward(ids, ForwardReuse::kNone, ForwardRows::kLast).value();
  ASSERT_EQ(last.rows, 1);
  EXPECT_EQ(last.logits, std::vector<float>(all.logits.end() - all.vocab_size, all.logits.end()));
}

TEST(LLM, SplitPrefillAndBatchMixDoNotChangeOneBit) {
  LLM whole = open_demo();
  LLM split = open_demo({.max_batch_tokens = 13});
  const auto ids = some_ids(150, 11);
  EXPECT_EQ(whole.forward(ids, ForwardReuse::kNone).value().logits,
            split.forward(ids, ForwardReuse::kNone).value().logits);
  std::vector<Prompt> prompts;
  for (std::uint32_t i = 0; i < 12; ++i) {
    prompts.emplace_back(some_ids(20 + 17 * i, i));
  }
  const SamplingParams params{.temperature = 0, .max_tokens = 12, .ignore_eos = true};
  const auto together = split.generate_batch(prompts, {&params, 1}).value();
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(whole.generate(prompts[i], params)->token_ids, together[i].token_ids);
  }
}

TEST(LLM, SeededSamplingGivesTheSameIdsAloneAndInABatch) {
  LLM llm = open_demo();
  std::vector<Prompt> prompts;
  std::vector<SamplingParams> params;
  for (std::uint32_t i = 0; i < 6; ++i) {
    prompts.emplace_back(some_ids(40, i));
    params.push_back({.temperature = 1.3, .top_p = 0.95, .max_tokens = 20, .seed = 100 + i});
  }
  const auto together = llm.generate_batch(prompts, params).value();
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(llm.generate(prompts[i], params[i])->token_ids, together[i].token_ids);
  }
  const SamplingParams unseeded{.temperature = 1.5, .max_tokens = 24, .ignore_eos = true};
  EXPECT_NE(llm.generate(prompts[0], unseeded)->token_ids,
            llm.generate(prompts[0], unseeded)->token_ids);
}

TEST(LLM, OnlyWhatChoosesAtRandomWithoutASeedDrawsOne) {
  ChunkedLLM untouched = ChunkedLLM::open(kModel, here({})).value();
  ChunkedLLM busy = ChunkedLLM::open(kModel, here({})).value();
  ASSERT_TRUE(busy.register_chunk({.content = some_ids(9, 1), .type = ChunkType::kContext}).ok());
  ASSERT_TRUE(busy.llm().forward(some_ids(9, 2)).ok());
  ASSERT_TRUE(busy.llm().generate(some_ids(9, 3), {.max_tokens = 0}).ok());
  ASSERT_TRUE(busy.llm().generate(some_ids(9, 3), greedy(4)).ok());
  ASSERT_TRUE(busy.llm().generate(some_ids(9, 3), {.max_tokens = 4, .seed = 3}).ok());
  const std::vector<Prompt> too_much = {some_ids(9, 3), std::vector<TokenId>(100'000, 5)};
  const SamplingParams unseeded{.temperature = 1.5, .max_tokens = 24, .ignore_eos = true};
  ASSERT_FALSE(busy.llm().generate_batch(too_much, {&unseeded, 1}).ok());
  EXPECT_EQ(untouched.llm().generate(some_ids(9, 4), unseeded)->token_ids,
            busy.llm().generate(some_ids(9, 4), unseeded)->token_ids);
}

TEST(LLM, StreamedPiecesJoinedEqualTheWholeOutput) {
  LLM llm = open_demo();
  const auto golden = read_goldens(1).front();
  const auto whole = llm.generate(golden.prompt, greedy(64)).value();
  auto stream = llm.stream(golden.prompt, greedy(64));
  ASSERT_TRUE(stream.ok());
  std::string text;
  std::vector<TokenId> ids;
  bool finished = false;
  while (true) {
    const auto delta = stream->next().value();
    if (!delta) {
      break;
    }
    EXPECT_FALSE(finished);
    text += delta->text;
    ids.insert(ids.end(), delta->token_ids.begin(), delta->token_ids.end());
    finished = delta->finished;
  }
  EXPECT_TRUE(finished);
  EXPECT_EQ(text, whole.text);
  EXPECT_EQ(ids, whole.token_ids);
  EXPECT_EQ(stream->output().text, whole.text);
  EXPECT_EQ(stream->output().usage.completion_tokens, std::ssize(ids));
}

TEST(LLM, ADroppedStreamFreesItsBlocksAtOnce) {
  LLM llm = open_demo({.prefix_cache = false});
  {
    auto stream =
        llm.stream(some_ids(200, 1), {.temperature = 0, .max_tokens = 1000, .ignore_eos = true});
    ASSERT_TRUE(stream->next().ok());
    EXPECT_GT(stat(llm, "blocks_in_use"), 0);
  }
  EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
  EXPECT_EQ(stat(llm, "blocks_free"), stat(llm, "blocks_total"));
}

TEST(LLM, AbortEndsARequestOnceAndUnknownOnesAreFalse) {
  LLM llm = open_demo();
  auto stream =
      llm.stream(some_ids(30, 1), {.temperature = 0, .max_tokens = 1500, .ignore_eos = true});
  EXPECT_TRUE(llm.abort(stream->request_id()).value());
  EXPECT_FALSE(llm.abort(stream->request_id()).value());
  EXPECT_FALSE(llm.abort(RequestId{999}).value());
  FinishReason reason = FinishReason::kStop;
  while (const auto delta = stream->next().value()) {
    reason = delta->finish_reason;
  }
  EXPECT_EQ(reason, FinishReason::kCancelled);
}

TEST(LLM, ShortageOfBlocksChangesNoOutput) {
  LLM roomy = open_demo();
  // 24 blocks of 16 tokens for six requests that want 9 to 12 blocks each at their end.
  LLM tight = open_demo({.block_tokens = 16, .kv_budget_bytes = 24 * 16 * 4096});
  std::vector<Prompt> prompts;
  for (std::uint32_t i = 0; i < 6; ++i) {
    prompts.emplace_back(some_ids(60 + 9 * i, 40 + i));
  }
  const SamplingParams params{.temperature = 0, .max_tokens = 80, .ignore_eos = true};
  const auto expected = roomy.generate_batch(prompts, {&params, 1}).value();
  const auto outputs = tight.generate_batch(prompts, {&params, 1});
  ASSERT_TRUE(outputs.ok()) << outputs.error().message;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(outputs.value()[i].token_ids, expected[i].token_ids);
  }
  EXPECT_GT(stat(tight, "preemptions"), 0);
  EXPECT_EQ(stat(tight, "blocks_in_use"), 0);
}

TEST(LLM, RepeatedPromptIsReportedAsReused) {
  LLM llm = open_demo();
  const auto ids = some_ids(100, 5);
  EXPECT_EQ(llm.generate(ids, greedy(1))->usage.cached_tokens, 0);
  const auto again = llm.generate(ids, greedy(1)).value();
  EXPECT_EQ(again.usage.cached_tokens, 96);
  EXPECT_EQ(again.reuse.grade, ReuseGrade::kExact);
  ASSERT_EQ(again.reuse.sources.size(), 1u);
  EXPECT_EQ(again.reuse.sources[0].first, "prefix_cache");
  EXPECT_EQ(again.reuse.sources[0].second, 96);
}

TEST(LLM, StopsAtIdsStringsAndLengthAsAsked) {
  LLM llm = open_demo();
  const auto golden = read_goldens(1).front();  // answers "a satchel."
  const auto whole = llm.generate(golden.prompt, greedy(64)).value();
  ASSERT_GE(whole.token_ids.size(), 3u);
  EXPECT_TRUE(llm.generate(golden.prompt, greedy(0))->token_ids.empty());
  const auto cut = llm.generate(golden.prompt, greedy(1)).value();
  EXPECT_EQ(cut.finish_reason, FinishReason::kLength);
  EXPECT_EQ(cut.token_ids.size(), 1u);
  SamplingParams by_id = greedy(64);
  by_id.stop_token_ids = {whole.token_ids[1]};
  const auto stopped = llm.generate(golden.prompt, by_id).value();
  EXPECT_EQ(stopped.finish_reason, FinishReason::kStop);
  EXPECT_EQ(stopped.token_ids,
            std::vector<TokenId>(whole.token_ids.begin(), whole.token_ids.begin() + 2));
  SamplingParams by_text = greedy(64);
  by_text.stop = {whole.text.substr(3, 3)};
  const auto before = llm.generate(golden.prompt, by_text).value();
  EXPECT_EQ(before.finish_reason, FinishReason::kStop);
  EXPECT_EQ(before.text, whole.text.substr(0, whole.text.find(by_text.stop[0])));
}

// Tries each stop text of a few bytes with each number of tokens. The output ends before the first
// place where the stop text ends behind the text of those tokens.
TEST(LLM, StopTextsWithinTheFirstTokensDoNotEndTheOutput) {
  LLM llm = open_demo();
  const Tokenizer tokenizer = llm.tokenizer().value();
  const std::vector<TokenId> prompt = read_goldens(1).front().prompt;
  SamplingParams params = greedy(6);
  params.ignore_eos = true;
  const GenerationOutput whole = llm.generate(prompt, params).value();
  ASSERT_EQ(whole.token_ids.size(), 6U);
  for (params.min_tokens = 0; params.min_tokens <= params.max_tokens; ++params.min_tokens) {
    const auto first =
        std::span(whole.token_ids).first(static_cast<std::size_t>(params.min_tokens));
    const std::size_t unsearched = tokenizer.decode(first).value().size();
    for (std::size_t at = 0; at + 3 <= whole.text.size(); ++at) {
      const std::string stop = whole.text.substr(at, 3);
      params.stop = {stop};
      std::size_t begin = whole.text.find(stop);
      while (begin != std::string::npos && begin + stop.size() <= unsearched) {
        begin = whole.text.find(stop, begin + 1);
      }
      const GenerationOutput cut = llm.generate(prompt, params).value();
      ASSERT_EQ(cut.text, whole.text.substr(0, begin)) << params.min_tokens << ' ' << stop;
      EXPECT_GE(std::ssize(cut.token_ids), params.min_tokens);
    }
  }
}

TEST(LLM, LogprobsAreThoseOfTheForwardLogits) {
  LLM llm = open_demo();
  const auto golden = read_goldens(1).front();
  SamplingParams params = greedy(1);
  params.logprobs = 3;
  const auto output = llm.generate(golden.prompt, params).value();
  ASSERT_EQ(output.logprobs.size(), 1u);
  ASSERT_EQ(output.logprobs[0].size(), 3u);
  const auto last = llm.forward(golden.prompt, ForwardReuse::kExact, ForwardRows::kLast).value();
  double sum = 0;
  for (const float logit : last.logits) {
    sum += std::exp(static_cast<double>(logit));
  }
  for (const auto& [id, logprob] : output.logprobs[0]) {
    EXPECT_NEAR(logprob, last.logits[static_cast<std::size_t>(id)] - std::log(sum), 1e-4);
  }
}

TEST(LLM, RefusalsNameTheThingAndLeaveTheEngineUsable) {
  LLM llm = open_demo({.kv_budget_bytes = 8 * 32 * 4096});
  const auto expect_error = [&](const Prompt& prompt, const SamplingParams& params, ErrorCode code,
                                const char* text) {
    const auto output = llm.generate(prompt, params);
    ASSERT_FALSE(output.ok()) << text;
    EXPECT_EQ(output.error().code, code) << output.error().message;
    EXPECT_THAT(output.error().message, HasSubstr(text));
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_error(std::vector<TokenId>{}, {}, ErrorCode::kInvalidArgument, "empty");
  expect_error(std::vector<TokenId>{5, 2048}, {}, ErrorCode::kInvalidArgument, "2048");
  expect_error(std::vector<TokenId>{-1}, {}, ErrorCode::kInvalidArgument, "-1");
  expect_error(some_ids(4, 1), {.temperature = nan}, ErrorCode::kInvalidArgument, "temperature");
  expect_error(some_ids(4, 1), {.top_p = 0}, ErrorCode::kInvalidArgument, "top_p");
  expect_error(some_ids(4, 1), {.logit_bias = {{4000, 1.0}}}, ErrorCode::kInvalidArgument, "4000");
  expect_error(some_ids(250, 1), greedy(100), ErrorCode::kOverflow, "11");
  expect_error(some_ids(2049, 1), greedy(1), ErrorCode::kOverflow, "2049");
  EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
  EXPECT_TRUE(llm.generate(some_ids(4, 1), greedy(4)).ok());
}

TEST(LLM, OneBadPromptOfABatchStartsNothing) {
  LLM llm = open_demo();
  const std::vector<Prompt> prompts = {some_ids(8, 1), std::vector<TokenId>{9999}};
  const SamplingParams params = greedy(4);
  EXPECT_FALSE(llm.generate_batch(prompts, {&params, 1}).ok());
  EXPECT_EQ(stat(llm, "tokens_computed"), 0);
}

TEST(LLM, ARequestThatFailsLateEndsTheOthersOfItsBatch) {
  LLM llm = open_demo({.prefix_cache = false});
  const std::vector<Prompt> prompts = {some_ids(8, 1), some_ids(8, 2)};
  std::vector<SamplingParams> params(2, {.max_tokens = 1900, .ignore_eos = true});
  for (TokenId id = 0; id < 2048; ++id) {
    params[1].logit_bias.emplace_back(id, -1e300);  // forbids every token
  }
  const auto outputs = llm.generate_batch(prompts, params);
  ASSERT_FALSE(outputs.ok());
  EXPECT_EQ(outputs.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(stat(llm, "requests_running"), 0);
  EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
  EXPECT_LT(stat(llm, "tokens_generated"), 1900);
}

TEST(LLM, OptionsOutOfRangeAreRefusedByName) {
  const auto message = [](const LLMOptions& options) {
    const auto llm = LLM::open(kModel, options);
    return llm.ok() ? std::string("accepted") : llm.error().message;
  };
  EXPECT_THAT(message({.device = "tpu"}), HasSubstr("device"));
  EXPECT_EQ(LLM::open(kModel, {.device = "cudax"}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(LLM::open(kModel, {.device = "cuda:99"}).error().code, ErrorCode::kDevice);
  if (!on_gpu()) {
    EXPECT_EQ(LLM::open(kModel, {.device = "cuda"}).error().code, ErrorCode::kDevice);
  }
  EXPECT_THAT(message({.dtype = "int3"}), HasSubstr("dtype"));
  EXPECT_THAT(message({.kv_dtype = "int3"}), HasSubstr("kv_dtype"));
  EXPECT_EQ(message({.quantize = "q5"}),
            "quantize must be one of \"auto\", \"q8g32\", \"q4g32\", \"fp8\", not \"q5\"");
  EXPECT_THAT(message({.block_tokens = 0}), HasSubstr("block_tokens"));
  EXPECT_THAT(message({.kv_budget_bytes = 1000}), HasSubstr("kv_budget"));
  EXPECT_EQ(LLM::open("no/such/model").error().code, ErrorCode::kIo);
}

TEST(LLM, Float16IsForAGpu) {
  if (on_gpu()) {
    EXPECT_TRUE(LLM::open(kModel, here({.dtype = "float16"})).ok());
    return;
  }
  for (const LLMOptions& options :
       {LLMOptions{.dtype = "float16"}, LLMOptions{.kv_dtype = "float16"}}) {
    const auto llm = LLM::open(kModel, options);
    ASSERT_FALSE(llm.ok());
    EXPECT_EQ(llm.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(llm.error().message, HasSubstr("dtype \"float16\" needs a GPU"));
  }
}

TEST(LLM, AfterCloseEveryCallSaysSo) {
  LLM llm = open_demo();
  auto stream = llm.stream(some_ids(8, 2), {.max_tokens = 1500, .ignore_eos = true});
  llm.close();
  llm.close();
  Error ended;
  while (true) {
    auto delta = stream->next();
    if (!delta.ok()) {
      ended = delta.error();
      break;
    }
    ASSERT_TRUE(delta.value().has_value());
  }
  EXPECT_EQ(ended.code, ErrorCode::kClosed);
  EXPECT_EQ(llm.generate(some_ids(4, 1)).error().code, ErrorCode::kClosed);
  EXPECT_EQ(llm.stats().error().code, ErrorCode::kClosed);
  EXPECT_THAT(llm.forward(some_ids(4, 1)).error().message, HasSubstr("closed"));
}

TEST(LLM, AnInterruptedCallFreesItsBlocks) {
  LLM llm = open_demo({.prefix_cache = false});
  const std::vector<Prompt> prompts = {some_ids(20, 1), some_ids(30, 2)};
  const SamplingParams params{.max_tokens = 1500, .ignore_eos = true};
  const auto outputs = llm.generate_batch(prompts, {&params, 1}, [] { return true; });
  ASSERT_FALSE(outputs.ok());
  EXPECT_EQ(outputs.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
}

TEST(LLM, PresetsComputeOnRandomWeightsWithoutATokenizer) {
  const auto refused = LLM::open("preset:no-such-shape");
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("no-such-shape"));
}

TEST(ParseBytes, ReadsSizesAndRefusesSlips) {
  EXPECT_EQ(parse_bytes("1GiB").value(), 1073741824);
  EXPECT_EQ(parse_bytes("512 MiB").value(), 536870912);
  EXPECT_EQ(parse_bytes("64KB").value(), 64000);
  EXPECT_EQ(parse_bytes("123").value(), 123);
  EXPECT_EQ(parse_bytes("2G").value(), 2147483648);
  EXPECT_EQ(parse_bytes("2gb").value(), 2000000000);
  EXPECT_EQ(parse_bytes("1.5m").value(), 1572864);
  for (const char* slip : {"", "GiB", "-1GiB", "1XB", "1e30GiB", "nan", "12 34"}) {
    EXPECT_FALSE(parse_bytes(slip).ok()) << slip;
  }
}

}  // namespace
}  // namespace quire

// Contexts on the demo model. Oracles: golden.jsonl (pieces of prompts, right answers), plain
// prompts of the same ids, and contexts that never had what was switched off.
#include "quire/context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/base/json.h"
#include "quire/fields.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/tokenizer.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::vector<std::string> kCards = {
    "The owner of the red boat is Ada.", "The captain of the blue boat is Bo and he likes tea.",
    "The owner of the green boat is Cleo, who lives in the north."};

// Returns the ids of an active context.
Ids active_ids(const ContextManager& context) {
  Ids ids;
  for (const ContextItem& item : context.items().value()) {
    if (item.active) {
      ids.insert(ids.end(), item.token_ids.begin(), item.token_ids.end());
    }
  }
  return ids;
}

// Items keep KV that prompts of such a model free.
TEST(Context, ItemsOfAModelWhoseLayersAllHaveAWindowWorkInEveryMode) {
  LLM llm =
      LLM::open(source_path("tests/golden/model/mistral_window"), here({.threads = 1})).value();
  for (const ReuseMode mode : {ReuseMode::kExact, ReuseMode::kAnchored}) {
    ContextManager context = ContextManager::open(llm, {.mode = mode}).value();
    ASSERT_TRUE(context.add(small_ids(60, 20)).ok());
    ASSERT_TRUE(context.add(small_ids(50, 21)).ok());
    const Ids prompt = active_ids(context);
    const double computed = stat(llm, "tokens_computed");
    const auto out = context.infer(std::nullopt, {.temperature = 0, .max_tokens = 6});
    ASSERT_TRUE(out.ok()) << out.error().message;
    EXPECT_LT(stat(llm, "tokens_computed") - computed, mode == ReuseMode::kExact ? 120 : 40);
    const auto want = llm.generate(prompt, {.temperature = 0, .max_tokens = 6})->token_ids;
    EXPECT_EQ(out->output.token_ids, want) << reuse_mode_name(mode);
  }
}

TEST(Context, WhatIsSwitchedOffHasNoInfluenceAndComputesNothing) {
  LLM llm = open_demo();
  ContextManager context = ContextManager::open(llm).value();
  ContextManager without = ContextManager::open(llm).value();
  for (const std::string& card : kCards) {
    ASSERT_TRUE(context.add(card).ok());
  }
  ASSERT_TRUE(without.add(kCards[0]).ok());
  ASSERT_TRUE(without.add(kCards[2]).ok());
  const std::string middle = context.items().value()[1].id;
  const double computed = stat(llm, "tokens_computed");
  ASSERT_TRUE(context.deactivate(middle).ok());
  ASSERT_TRUE(context.activate(middle.substr(0, 8)).ok());
  ASSERT_TRUE(context.deactivate(middle).ok());
  EXPECT_EQ(stat(llm, "tokens_computed"), computed);
  const auto answer = context.infer("Who owns the green boat?", greedy(8)).value();
  EXPECT_EQ(answer.output.token_ids,
            without.infer("Who owns the green boat?", greedy(8)).value().output.token_ids);
  EXPECT_EQ(active_ids(context), active_ids(without));
}

TEST(Context, OfModeExactAnswersAsAPlainPromptOfTheSameIds) {
  LLM llm = open_demo();
  ContextManager context = ContextManager::open(llm, {.mode = ReuseMode::kExact}).value();
  for (const std::string& card : kCards) {
    ASSERT_TRUE(context.add(card).ok());
  }
  for (int round = 0; round < 3; ++round) {
    const auto answer = context.infer("Who owns the green boat?", greedy(6)).value();
    const Ids& prompt = answer.output.prompt_token_ids;
    EXPECT_EQ(answer.output.reuse.grade, ReuseGrade::kExact);
    EXPECT_EQ(llm.forward(prompt, ForwardReuse::kNone, ForwardRows::kLast).value().rows, 1);
    EXPECT_EQ(answer.output.token_ids, llm.generate(prompt, greedy(6)).value().token_ids);
    Ids all = prompt;
    all.insert(all.end(), answer.output.token_ids.begin(), answer.output.token_ids.end());
    EXPECT_EQ(active_ids(context), all);
    ASSERT_TRUE(
        context.deactivate(context.items().value()[static_cast<std::size_t>(round)].id).ok());
  }
}

// A model without a chat template, so that nothing stands between an answer and what goes on there.
TEST(Context, OfModeExactSamplesBehindAnAnswerAsAPlainPromptDoes) {
  LLM llm = LLM::open(source_path("tests/golden/model/llama_gqa"), here({.threads = 2})).value();
  ContextManager context = ContextManager::open(llm, {.mode = ReuseMode::kExact}).value();
  ASSERT_TRUE(context.add(Ids{20, 31, 42, 53}).ok());
  const SamplingParams params{
      .presence_penalty = 0.5, .max_tokens = 4, .ignore_eos = true, .seed = 7};
  for (int round = 0; round < 4; ++round) {
    const auto answer = context.infer(std::nullopt, params).value();
    EXPECT_EQ(answer.output.token_ids,
              llm.generate(answer.output.prompt_token_ids, params).value().token_ids)
        << round;
  }
}

TEST(Context, TurnsAndOutputsBecomeItemsWithParentsAndSampling) {
  LLM llm = open_demo();
  ContextManager context = ContextManager::open(llm).value();
  const std::string card = context.add(kCards[0], {.name = "red", .tags = {"boats"}}).value();
  const auto first = context.infer("Who owns the red boat?", greedy(5)).value();
  const double computed = stat(llm, "tokens_computed");
  const auto second = context.infer("And who else?", greedy(5)).value();
  const ContextItem user = context.show(first.user_id).value();
  const ContextItem output = context.show(first.output_id).value();
  EXPECT_THAT(user.parents, ElementsAre(card));
  EXPECT_THAT(output.parents, ElementsAre(card, first.user_id));
  EXPECT_EQ(output.text, first.output.text);
  EXPECT_THAT(output.sampling_json, HasSubstr("\"max_tokens\":5"));
  EXPECT_EQ(context.show("red").value().id, card);
  EXPECT_THAT(context.show(second.user_id).value().parents,
              ElementsAre(card, first.user_id, first.output_id));
  // Nothing of what was there is computed again: the new turn, one token for each hold, the output.
  const auto fresh = context.show(second.user_id).value().token_ids.size() +
                     context.show(second.output_id).value().token_ids.size();
  EXPECT_LE(stat(llm, "tokens_computed") - computed, fresh + 2);
  EXPECT_EQ(first.output.reuse.grade, ReuseGrade::kEqualMath) << "each has seen all before it";
}

TEST(Context, WhatIsSaidOfAnAnswerMakesItAgain) {
  LLM llm = open_demo();
  ContextManager context = ContextManager::open(llm, {.mode = ReuseMode::kExact}).value();
  ASSERT_TRUE(context.add(kCards[0]).ok());
  const SamplingParams given{.temperature = 1.5,
                             .presence_penalty = 0.5,
                             .max_tokens = 24,
                             .min_tokens = 12,
                             .stop = {"a", "the"},
                             .stop_token_ids = {300},
                             .ignore_eos = true,
                             .logit_bias = {{400, -100.0}, {401, 2.5}}};
  const auto answer = context.infer("Who owns the red boat?", given).value();
  const SamplingParams said =
      sampling_from_json(context.show(answer.output_id).value().sampling_json).value();
  EXPECT_EQ(said.min_tokens, 12);
  EXPECT_EQ(said.stop, given.stop);
  EXPECT_EQ(said.stop_token_ids, given.stop_token_ids);
  EXPECT_TRUE(said.ignore_eos);
  EXPECT_EQ(said.logit_bias, given.logit_bias);
  const GenerationOutput again = llm.generate(answer.output.prompt_token_ids, said).value();
  EXPECT_EQ(again.token_ids, answer.output.token_ids);
  EXPECT_EQ(again.text, answer.output.text);
}

TEST(Context, BlocksGoOnWithoutATemplateAndGoStaleWithTheContext) {
  LLM llm = open_demo();
  ContextManager context = ContextManager::open(llm).value();
  ASSERT_TRUE(context.add(kCards[0]).ok());
  ASSERT_TRUE(context.infer("Who owns the red boat?", greedy(3)).ok());
  const BlockList conversation = context.conversation_blocks().value();
  const BlockList all = context.active_blocks().value();
  EXPECT_EQ(all.num_tokens(), std::ssize(active_ids(context)));
  EXPECT_LT(conversation.num_tokens(), all.num_tokens());
  EXPECT_EQ(llm.infer_from_blocks(all, {}, greedy(4)).value().prompt_token_ids,
            active_ids(context));
  ASSERT_TRUE(context.deactivate(context.items().value()[0].id).ok());
  const auto stale = llm.infer_from_blocks(all, {});
  EXPECT_EQ(stale.error().code, ErrorCode::kInvalidComposition);
  EXPECT_THAT(stale.error().message, HasSubstr("stale"));
}

TEST(Context, UnloadedItemsFreeTheirBlocksAndComeBackWithTheirBits) {
  LLM llm = open_demo();
  ContextManager context = ContextManager::open(llm).value();
  for (const std::string& card : kCards) {
    ASSERT_TRUE(context.add(card).ok());
  }
  SamplingParams logged = greedy(4);
  logged.logprobs = 3;
  const auto ask = [&] {
    const auto answer = context.infer("Who owns the green boat?", logged).value();
    EXPECT_TRUE(context.erase(answer.user_id).ok());
    EXPECT_TRUE(context.erase(answer.output_id).ok());
    return answer.output.logprobs;
  };
  const auto before = ask();
  const double in_use = stat(llm, "blocks_in_use");
  const std::string id = context.items().value()[1].id;
  const std::int64_t bytes = context.show(id).value().memory_bytes;
  ASSERT_TRUE(context.unload(id).ok());
  EXPECT_EQ(context.show(id).value().tier, Tier::kHost);
  EXPECT_LT(stat(llm, "blocks_in_use"), in_use);
  EXPECT_EQ(context.stats().value().host_bytes, bytes);
  const double computed = stat(llm, "tokens_computed");
  ASSERT_TRUE(context.restore(id).ok());
  EXPECT_EQ(stat(llm, "tokens_computed"), computed);
  EXPECT_EQ(stat(llm, "blocks_in_use"), in_use);
  EXPECT_EQ(ask(), before);
  ASSERT_TRUE(context.unload(id).ok());
  EXPECT_EQ(ask(), before) << "fetched when it was needed";
  ASSERT_TRUE(context.unload(id, true).ok());
  EXPECT_EQ(context.show(id).value().tier, Tier::kNone);
  EXPECT_EQ(ask(), before) << "computed again";
}

TEST(Context, SavedItemsAreThereForTheNextProcess) {
  const TemporaryFolder folder;
  const ContextOptions options{.store = folder.path() / "store"};
  std::vector<std::string> ids;
  std::vector<TokenLogprobs> before;
  SamplingParams logged = greedy(6);
  logged.logprobs = 3;
  {
    LLM llm = open_demo();
    ContextManager context = ContextManager::open(llm, options).value();
    ids.push_back(context.add(kCards[0], {.name = "red", .tags = {"boats"}}).value());
    const auto turn = context.infer("Who owns the red boat?", greedy(4)).value();
    ids.push_back(turn.user_id);
    ids.push_back(turn.output_id);
    for (const std::string& id : ids) {
      ASSERT_TRUE(context.save(id).ok());
      EXPECT_TRUE(context.show(id).value().saved);
    }
    before = context.infer("And what else?", logged).value().output.logprobs;
  }
  LLM llm = open_demo();
  ContextManager context = ContextManager::open(llm, options).value();
  EXPECT_THAT(context.items().value(), IsEmpty());
  for (const std::string& id : ids) {
    const Status restored = context.restore(id);
    ASSERT_TRUE(restored.ok()) << restored.error().message;
  }
  EXPECT_EQ(stat(llm, "tokens_computed"), 0);
  EXPECT_THAT(context.show("red").value().tags, ElementsAre("boats"));
  EXPECT_EQ(context.infer("And what else?", logged).value().output.logprobs, before);
  EXPECT_EQ(context.restore("no such").error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(context.erase("red", true).ok());
  ContextManager other = ContextManager::open(llm, options).value();
  EXPECT_EQ(other.restore(ids[0]).error().code, ErrorCode::kNotFound);
}

TEST(Context, AnItemThatWasRenamedIsTheOneThatWasSaved) {
  const TemporaryFolder folder;
  LLM llm = open_demo();
  ContextManager context = ContextManager::open(llm, {.store = folder.path() / "store"}).value();
  const std::string id = context.add(kCards[0], {.name = "red"}).value();
  ASSERT_TRUE(context.save(id).ok());
  ASSERT_EQ(context.add(kCards[0], {.name = "scarlet"}).value(), id);
  EXPECT_EQ(context.show("scarlet").value().id, id);
  EXPECT_TRUE(context.restore("red").ok());
  EXPECT_EQ(context.items().value().size(), 1);
}

TEST(Context, DamagedKvIsAMissNeverAWrongToken) {
  const TemporaryFolder folder;
  const ContextOptions options{.store = folder.path() / "store"};
  LLM llm = open_demo();
  ContextManager context = ContextManager::open(llm, options).value();
  const std::string id = context.add(kCards[1]).value();
  ASSERT_TRUE(context.save(id).ok());
  const auto answer = context.infer("Who is the captain?", greedy(5)).value().output.token_ids;
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (file.path().extension() == ".qkv") {
      std::fstream damaged(file.path(), std::ios::in | std::ios::out | std::ios::binary);
      damaged.seekp(static_cast<std::streamoff>(file.file_size()) - 700);
      damaged.put('x').put('y').put('z');
    }
  }
  ContextManager again = ContextManager::open(llm, options).value();
  ASSERT_TRUE(again.restore(id).ok());
  EXPECT_FALSE(again.show(id).value().saved);
  ASSERT_TRUE(again.activate(id).ok());
  EXPECT_EQ(again.infer("Who is the captain?", greedy(5)).value().output.token_ids, answer);
}

TEST(Context, PopulatingInModeExactCountsTheTokensOfThisContextAlone) {
  LLM llm = open_demo();
  ContextManager context = ContextManager::open(llm, {.mode = ReuseMode::kExact}).value();
  ASSERT_TRUE(context.add(some_ids(300, 1)).ok());
  Stream other = llm.stream(some_ids(5, 2), greedy_to_length(1500)).value();
  ASSERT_TRUE(other.next().ok());  // a token in each step from now on
  EXPECT_EQ(context.populate().value(), 299) << "the last one is computed with what follows it";
  EXPECT_EQ(context.stats().value().tokens_computed, 299);
  EXPECT_EQ(context.populate().value(), 0);
  ASSERT_TRUE(context.add(some_ids(40, 3)).ok());
  EXPECT_EQ(context.active_blocks().value().num_tokens(), 340);
  EXPECT_EQ(context.stats().value().tokens_computed, 339);
  EXPECT_EQ(stat(llm, "requests_running"), 1) << "the other one has been at work all the time";
}

TEST(Context, ClearingMakesHandlesStaleAndLeavesAContextThatWorks) {
  LLM llm = open_demo();
  ContextManager context = ContextManager::open(llm).value();
  ASSERT_TRUE(context.add(kCards[0]).ok());
  const BlockList before = context.active_blocks().value();
  ASSERT_TRUE(llm.sequence(before, {}).ok());
  EXPECT_EQ(context.clear(), 1);
  EXPECT_EQ(llm.sequence(before, {}).error().code, ErrorCode::kInvalidComposition);
  EXPECT_EQ(context.active_blocks().value().num_tokens(), 0);
  EXPECT_TRUE(llm.sequence(context.active_blocks().value(), some_ids(3, 1)).ok());
  ASSERT_TRUE(context.add(kCards[1]).ok());
  EXPECT_TRUE(llm.sequence(context.active_blocks().value(), {}).ok());
}

TEST(Context, ComposedItemsHaveSeenEachOther) {
  LLM llm = open_demo();
  ContextManager context = ContextManager::open(llm).value();
  std::vector<std::string> ids;
  for (const std::string& card : kCards) {
    ids.push_back(context.add(card).value());
  }
  const std::string all = context.compose(ids, "all").value();
  EXPECT_EQ(context.show("all").value().id, all);
  EXPECT_EQ(context.stats().value().active_items, 1);
  EXPECT_EQ(context.infer("Who?", greedy(2)).value().output.reuse.grade, ReuseGrade::kEqualMath);
  EXPECT_FALSE(context.compose({}).ok());
}

TEST(Context, RefusalsNameTheThingAndChangeNothing) {
  LLM llm = open_demo();
  EXPECT_THAT(ContextManager::open(llm, {.mode = ReuseMode::kBlend}).error().message,
              HasSubstr("'blend'"));
  ContextManager context = ContextManager::open(llm).value();
  EXPECT_EQ(context.show("abcdef").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(context.activate("").error().code, ErrorCode::kNotFound);
  const std::string id = context.add(kCards[0], {.name = "red"}).value();
  EXPECT_EQ(context.add(kCards[0]).value(), id) << "an equal item is the same";
  EXPECT_THAT(context.add(kCards[1], {.name = "red"}).error().message, HasSubstr("'red'"));
  for (const std::string& name : {std::string("red\x1b[2J"), std::string(2000, 'r')}) {
    EXPECT_THAT(context.add(kCards[1], {.name = name}).error().message, HasSubstr("one line"));
  }
  EXPECT_THAT(context.save(id).error().message, HasSubstr("store"));
  EXPECT_THAT(context.add("").error().message, HasSubstr("empty"));
  EXPECT_THAT(context.infer("Who?", {.top_p = 2}).error().message, HasSubstr("top_p"));
  EXPECT_EQ(context.items().value().size(), 1);
  const SamplingParams endless{.temperature = 0, .max_tokens = 1500, .ignore_eos = true};
  EXPECT_EQ(context.infer("Who?", endless, [] { return true; }).error().code,
            ErrorCode::kCancelled);
  EXPECT_EQ(context.items().value().size(), 1);
  ContextManager exact = ContextManager::open(llm, {.mode = ReuseMode::kExact}).value();
  const std::string other = exact.add(kCards[0]).value();
  EXPECT_THAT(exact.unload(other).error().message, HasSubstr("'exact'"));
  const double in_use = stat(llm, "blocks_in_use");
  EXPECT_EQ(context.clear(), 1);
  EXPECT_LT(stat(llm, "blocks_in_use"), in_use);
  EXPECT_TRUE(context.check_open().ok());
  llm.close();
  EXPECT_EQ(context.check_open().error().code, ErrorCode::kClosed);
  EXPECT_EQ(context.add(kCards[0]).error().code, ErrorCode::kClosed);
}

TEST(Context, AnswersEndWhereTheModelsContextEnds) {
  LLM llm = open_demo();
  ContextManager context = ContextManager::open(llm).value();
  ASSERT_TRUE(context.add(Ids(2020, 100)).ok());
  SamplingParams endless = greedy(500);
  endless.ignore_eos = true;
  const auto answer = context.infer("Who?", endless);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_LE(std::ssize(active_ids(context)), 2048);
  EXPECT_EQ(context.infer("Who?", endless).error().code, ErrorCode::kOverflow);
  EXPECT_EQ(context.items().value().size(), 3);
}

TEST(Context, AnAnswerComesPieceByPieceAndOnce) {
  LLM llm = open_demo();
  for (const ReuseMode mode : {ReuseMode::kAnchored, ReuseMode::kExact}) {
    ContextManager context = ContextManager::open(llm, {.mode = mode}).value();
    ASSERT_TRUE(context.add(kCards[0]).ok());
    std::vector<std::string> pieces;
    const ContextManager::Follow follow{.on_text =
                                            [&](std::string_view piece) {
                                              pieces.emplace_back(piece);
                                              return Status();
                                            },
                                        .stop = {}};
    SamplingParams params = greedy(40);
    params.ignore_eos = true;
    const auto answer = context.infer("Who owns the red boat?", params, {}, follow).value();
    EXPECT_GT(pieces.size(), 3);
    EXPECT_EQ(std::accumulate(pieces.begin(), pieces.end(), std::string()), answer.output.text);
    EXPECT_EQ(context.show(answer.output_id).value().text, answer.output.text);
  }
}

TEST(Context, AStoppedAnswerIsKeptAsFarAsItIsAndTheConversationGoesOnBehindIt) {
  LLM llm = open_demo();
  for (const ReuseMode mode : {ReuseMode::kAnchored, ReuseMode::kExact}) {
    ContextManager context = ContextManager::open(llm, {.mode = mode}).value();
    ASSERT_TRUE(context.add(kCards[0]).ok());
    SamplingParams endless = greedy(1500);
    endless.ignore_eos = true;
    std::string text;
    const ContextManager::Follow follow{.on_text =
                                            [&](std::string_view piece) {
                                              text += piece;
                                              return Status();
                                            },
                                        .stop = [&] { return text.size() > 20; }};
    const auto first = context.infer("Who owns the red boat?", endless, {}, follow).value();
    EXPECT_EQ(first.output.finish_reason, FinishReason::kCancelled);
    EXPECT_LT(std::ssize(first.output.token_ids), 1500);
    EXPECT_EQ(first.output.text, text);
    EXPECT_EQ(context.show(first.output_id).value().text, text);
    const Ids kept = active_ids(context);
    EXPECT_TRUE(std::ranges::equal(std::span(kept).last(first.output.token_ids.size()),
                                   first.output.token_ids));
    const auto second = context.infer("And who else?", greedy(6)).value();
    const Ids& prompt = second.output.prompt_token_ids;
    ASSERT_GT(prompt.size(), kept.size());
    EXPECT_TRUE(std::ranges::equal(std::span(prompt).first(kept.size()), kept));
    EXPECT_EQ(second.output.token_ids, llm.generate(prompt, greedy(6)).value().token_ids);
  }
}

TEST(Context, AnAnswerThatNobodyTakesOrThatHasNotBegunLeavesNothing) {
  LLM llm = open_demo();
  for (const ReuseMode mode : {ReuseMode::kAnchored, ReuseMode::kExact}) {
    ContextManager context = ContextManager::open(llm, {.mode = mode}).value();
    ASSERT_TRUE(context.add(kCards[0]).ok());
    const ContextManager::Follow refuses{
        .on_text = [](std::string_view) { return Status(ErrorCode::kIo, "the reader has gone"); },
        .stop = {}};
    EXPECT_EQ(context.infer("Who?", greedy(6), {}, refuses).error().code, ErrorCode::kIo);
    const SamplingParams endless{.temperature = 0, .max_tokens = 1500, .ignore_eos = true};
    const auto interrupted = context.infer("Who?", endless, [] { return true; });
    EXPECT_EQ(interrupted.error().code, ErrorCode::kCancelled);
    EXPECT_EQ(context.items().value().size(), 1);
    EXPECT_TRUE(context.infer("Who?", greedy(6)).ok());
  }
  EXPECT_EQ(stat(llm, "requests_running"), 0);
}

TEST(Context, TextIsHandedOutOnceThoughRoomIsMadeInTheMidstOfIt) {
  LLM llm =
      LLM::open(kModel, here({.kv_budget_bytes = 1 << 20, .threads = 2, .prefix_cache = false}))
          .value();
  ContextManager context = ContextManager::open(llm).value();
  const auto blocks = static_cast<std::size_t>(stat(llm, "blocks_total"));
  for (std::size_t i = 0; i + 3 < blocks; ++i) {
    const auto id = context.add(Ids(20, static_cast<TokenId>(100 + i))).value();
    ASSERT_TRUE(context.deactivate(id).ok());
  }
  ASSERT_TRUE(context.add(kCards[0]).ok());
  std::string text;
  const ContextManager::Follow follow{.on_text =
                                          [&](std::string_view piece) {
                                            text += piece;
                                            return Status();
                                          },
                                      .stop = {}};
  SamplingParams params{.max_tokens = 60};  // at random, without a seed
  params.ignore_eos = true;
  const auto answer = context.infer("Who owns the red boat?", params, {}, follow);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(text, answer->output.text);
  EXPECT_EQ(context.items().value().front().tier, Tier::kHost);
  EXPECT_GT(stat(llm, "tokens_generated"), 60) << "there was room enough from the start";
}

TEST(Context, WhatFollowsAnAnswerIsRefusedByTheContextAndDoesNotWaitForItself) {
  LLM llm = open_demo();
  ContextManager context = ContextManager::open(llm).value();
  const std::string card = context.add(kCards[0]).value();
  int pieces = 0;
  const ContextManager::Follow follow{.on_text =
                                          [&](std::string_view) {
                                            ++pieces;
                                            EXPECT_EQ(context.deactivate(card).error().code,
                                                      ErrorCode::kInvalidArgument);
                                            EXPECT_FALSE(context.infer("And?", greedy(1)).ok());
                                            EXPECT_FALSE(context.check_open().ok());
                                            EXPECT_EQ(context.items().value().front().id, card);
                                            EXPECT_GT(context.stats().value().items, 0);
                                            EXPECT_EQ(context.clear(), 0);
                                            return Status();
                                          },
                                      .stop = {}};
  ASSERT_TRUE(context.infer("Who owns the red boat?", greedy(3), {}, follow).ok());
  EXPECT_GT(pieces, 0);
  EXPECT_TRUE(context.deactivate(card).ok());
}

TEST(Context, WhatFollowsAnAnswerMayThrowAndTheContextGoesOn) {
  LLM llm = open_demo();
  ContextManager context = ContextManager::open(llm).value();
  const std::string card = context.add(kCards[0]).value();
  const ContextManager::Follow follow{
      .on_text = [](std::string_view) -> Status { throw std::runtime_error("gone"); }, .stop = {}};
  EXPECT_THROW((void)context.infer("Who owns the red boat?", greedy(3), {}, follow),
               std::runtime_error);
  EXPECT_EQ(context.items().value().size(), 1u);
  EXPECT_TRUE(context.infer("Who owns the red boat?", greedy(3)).ok());
}

TEST(Context, WithoutASystemItemTheFirstTurnBeginsWithBos) {
  LLM llm = open_demo();
  const TokenId bos = llm.tokenizer().value().bos_token_id().value();
  for (const ReuseMode mode : {ReuseMode::kAnchored, ReuseMode::kExact}) {
    ContextManager context = ContextManager::open(llm, {.mode = mode}).value();
    ASSERT_TRUE(context.infer("Who lives here?", greedy(3)).ok());
    ASSERT_TRUE(context.infer("And who else?", greedy(3)).ok());
    const Ids ids = active_ids(context);
    EXPECT_EQ(ids.front(), bos);
    EXPECT_EQ(std::ranges::count(ids, bos), 1);
    ContextManager silent = ContextManager::open(llm, {.mode = mode}).value();
    const auto spoken = silent.infer(std::nullopt, greedy(3)).value();
    EXPECT_EQ(spoken.output.prompt_token_ids.front(), bos);
    ContextManager with_system = ContextManager::open(llm, {.mode = mode}).value();
    ASSERT_TRUE(
        with_system.add("Answer.", {.name = "", .tags = {}, .kind = ItemKind::kSystem}).ok());
    ASSERT_TRUE(with_system.infer("Who lives here?", greedy(3)).ok());
    EXPECT_EQ(std::ranges::count(active_ids(with_system), bos), 1);
  }
}

// The chat template is the oracle: turn by turn the same ids as of the whole conversation at once.
TEST(Context, OfModeExactHasThePromptsOfTheChatTemplateTurnByTurn) {
  LLM llm = open_demo();
  const Tokenizer tokenizer = llm.tokenizer().value();
  const std::string system = "You are the keeper of a card file. Answer from the cards.";
  for (const std::int32_t max_tokens : {8, 1}) {  // ends with the model's own end, and without
    ContextManager context = ContextManager::open(llm, {.mode = ReuseMode::kExact}).value();
    ASSERT_TRUE(context.add(system, {.name = "", .tags = {}, .kind = ItemKind::kSystem}).ok());
    ASSERT_TRUE(context.add("Card 7. Ada trades in apples.").ok());
    const auto message = [](std::string_view role, const std::string& content) {
      return base::Json::object({{"role", role}, {"content", content}});
    };
    base::Json messages = base::Json::array(message("system", system),
                                            message("context", "Card 7. Ada trades in apples."));
    for (const std::string question : {"What does Ada trade in?", "And who else?", "Why?"}) {
      messages.push(message("user", question));
      const auto answer = context.infer(question, greedy(max_tokens)).value();
      EXPECT_EQ(answer.output.prompt_token_ids,
                tokenizer.apply_chat_template(base::write_json(messages)).value());
      messages.push(message("assistant", answer.output.text));
    }
  }
}

TEST(Context, InactiveItemsMakeRoomLeastRecentlyUsedFirst) {
  LLM llm =
      LLM::open(kModel, here({.kv_budget_bytes = 1 << 20, .threads = 2, .prefix_cache = false}))
          .value();
  ContextManager context = ContextManager::open(llm).value();
  const auto blocks = static_cast<std::size_t>(stat(llm, "blocks_total"));
  ASSERT_GE(blocks, 6);
  for (std::size_t i = 0; i < blocks + 3; ++i) {
    Ids ids(20, static_cast<TokenId>(100 + i));
    const auto id = context.add(ids);
    ASSERT_TRUE(id.ok()) << id.error().message;
    ASSERT_TRUE(context.deactivate(*id).ok());
  }
  const auto items = context.items().value();
  EXPECT_EQ(items.front().tier, Tier::kHost);
  EXPECT_EQ(items.back().tier, Tier::kDevice);
}

// The item that is computed needs its parent beside it, so moving that one away makes no room.
TEST(Context, AnInactiveParentForWhichThereIsNoRoomIsARefusalAndNotMovedForEver) {
  LLM llm =
      LLM::open(kModel, here({.kv_budget_bytes = 1 << 20, .threads = 2, .prefix_cache = false}))
          .value();
  ContextManager context = ContextManager::open(llm).value();
  const auto blocks = static_cast<std::size_t>(stat(llm, "blocks_total"));
  ASSERT_GE(blocks, 6);
  const auto system =
      context.add(some_ids(40, 1), {.name = "system", .tags = {}, .kind = ItemKind::kSystem});
  ASSERT_TRUE(system.ok());
  const std::string child = context.add(some_ids(40, 2)).value();
  ASSERT_TRUE(context.deactivate("system").ok());
  ASSERT_TRUE(context.unload(child, true).ok());
  Sequence others = llm.sequence(some_ids(32 * (blocks - 3) + 1, 3)).value();
  const Status refused = context.restore(child);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBlocks) << refused.error().message;
  others.close();
  EXPECT_TRUE(context.restore(child).ok());
}

}  // namespace
}  // namespace quire

// Direct inference on the demo model. Oracles: plain prompts of the same ids, every bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
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
#include "quire/sequence.h"
#include "quire/types.h"

namespace quire {
namespace {

using testing::HasSubstr;

TEST(DirectInference, GoesOnBehindASequenceWithAndWithoutNewTokens) {
  LLM llm = open_demo();
  const Ids ids = some_ids(70, 20), more = some_ids(6, 21);
  Sequence sequence = llm.sequence(ids).value();
  const BlockList blocks = sequence.blocks().value();
  EXPECT_EQ(blocks.num_tokens(), 70);
  EXPECT_EQ(blocks.block_ids().size(), 3);
  const double in_use = stat(llm, "blocks_in_use");
  const GenerationOutput gone_on = llm.infer_from_blocks(blocks, {}, greedy_to_length(8)).value();
  EXPECT_EQ(gone_on.token_ids, llm.generate(ids, greedy_to_length(8)).value().token_ids);
  EXPECT_EQ(gone_on.usage.cached_tokens, 69);
  EXPECT_EQ(gone_on.reuse.grade, ReuseGrade::kExact);
  const GenerationOutput added = llm.infer_from_blocks(blocks, more, greedy_to_length(8)).value();
  EXPECT_EQ(added.token_ids,
            llm.generate(joined(ids, more), greedy_to_length(8)).value().token_ids);
  EXPECT_EQ(added.prompt_token_ids, joined(ids, more));
  EXPECT_EQ(stat(llm, "blocks_in_use"), in_use);
  EXPECT_EQ(sequence.tokens(), ids);
  const BlockList part = blocks.first(50).value();
  EXPECT_EQ(llm.infer_from_blocks(part, more, greedy_to_length(8)).value().token_ids,
            llm.generate(joined(Ids(ids.begin(), ids.begin() + 50), more), greedy_to_length(8))
                .value()
                .token_ids);
  EXPECT_THAT(blocks.first(71).error().message, HasSubstr("hold 70"));
}

TEST(DirectInference, FromNothingIsAnOrdinaryPrompt) {
  LLM llm = open_demo();
  const Ids ids = some_ids(20, 22);
  EXPECT_EQ(llm.infer_from_blocks({}, ids, greedy_to_length(5)).value().token_ids,
            llm.generate(ids, greedy_to_length(5)).value().token_ids);
  EXPECT_THAT(llm.infer_from_blocks({}, {}).error().message, HasSubstr("empty"));
}

TEST(DirectInference, HandlesGoStaleLoudly) {
  ChunkedLLM llm = open_chunked();
  Sequence sequence = llm.llm().sequence(some_ids(40, 23)).value();
  const BlockList blocks = sequence.blocks().value();
  ASSERT_TRUE(sequence.append(Ids{30}).ok());
  const auto stale = llm.llm().infer_from_blocks(blocks, {});
  EXPECT_EQ(stale.error().code, ErrorCode::kInvalidComposition);
  EXPECT_THAT(stale.error().message, HasSubstr("stale"));
  const std::string chunk = llm.register_chunk({.content = some_ids(40, 24)}).value();
  const BlockList of_chunk = llm.chunk_blocks(chunk).value();
  EXPECT_TRUE(llm.llm().infer_from_blocks(of_chunk, {}, greedy_to_length(1)).ok());
  ASSERT_TRUE(llm.delete_chunk(chunk).value());
  ASSERT_TRUE(llm.register_chunk({.content = some_ids(40, 24)}).ok());
  EXPECT_THAT(llm.llm().infer_from_blocks(of_chunk, {}).error().message, HasSubstr("stale"));
}

TEST(DirectInference, BlocksOfAnotherModelAreRefused) {
  ChunkedLLM llm = open_chunked();
  LLM other = open_demo();
  const Sequence sequence = llm.llm().sequence(some_ids(40, 23)).value();
  const BlockList chunk =
      llm.chunk_blocks(llm.register_chunk({.content = some_ids(40, 24)}).value()).value();
  for (const BlockList& blocks : {sequence.blocks().value(), chunk}) {
    const auto refused = other.infer_from_blocks(blocks, {});
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidComposition);
    EXPECT_THAT(refused.error().message, HasSubstr("another LLM"));
  }
}

TEST(DirectInference, PlainBlockIdsAreTakenWhereTheyMeanOneThing) {
  ChunkedLLM llm = open_chunked();
  const Ids a = some_ids(40, 25), b = some_ids(70, 26), more = some_ids(4, 27);
  const BlockList first = llm.chunk_blocks(llm.register_chunk({.content = a}).value()).value();
  const BlockList second = llm.chunk_blocks(llm.register_chunk({.content = b}).value()).value();
  const BlockList both = BlockList::join(std::vector{first, second}).value();
  const BlockList found = llm.llm().find_blocks(both.block_ids(), 110).value();
  EXPECT_EQ(llm.llm().infer_from_blocks(found, more, greedy_to_length(6)).value().token_ids,
            llm.llm().infer_from_blocks(both, more, greedy_to_length(6)).value().token_ids);
  EXPECT_EQ(llm.llm().find_blocks(both.block_ids(), 105).value().num_tokens(), 105);
  const auto wrong_count = llm.llm().find_blocks(both.block_ids(), 70);
  EXPECT_THAT(wrong_count.error().message, HasSubstr("not those of any"));
  EXPECT_EQ(llm.llm().find_blocks(std::vector<std::int32_t>{7000}, 3).error().code,
            ErrorCode::kInvalidComposition);
}

// Sequences of one prompt have the same blocks: of twelve there are twenty to the twelfth lists.
TEST(DirectInference, PlainBlockIdsOfManyEqualSequencesAreTakenAtOnce) {
  ChunkedLLM llm = open_chunked();
  Ids prompt = some_ids(33, 28);
  std::vector<Sequence> equal;
  for (int i = 0; i < 20; ++i) {
    equal.push_back(llm.llm().sequence(prompt).value());
  }
  const std::vector<std::int32_t> ids(12, equal.front().blocks().value().block_ids().front());
  const BlockList found = llm.llm().find_blocks(ids, std::int64_t{12} * 33).value();
  EXPECT_EQ(found.num_tokens(), 12 * 33);
  EXPECT_THAT(llm.llm().find_blocks(ids, std::int64_t{13} * 33).error().message,
              HasSubstr("not those of any"));
  prompt.back() += 1;  // its last token has no KV yet
  const Sequence other = llm.llm().sequence(prompt).value();
  EXPECT_THAT(llm.llm().find_blocks(ids, std::int64_t{12} * 33).error().message,
              HasSubstr("several things"));
}

// Each run has another place in each list, and both are in the same steps.
TEST(DirectInference, ListsThatShareRunsInOtherPlacesRunTogether) {
  ChunkedLLM llm = open_chunked();
  std::vector<BlockList> chunks;
  for (const std::uint32_t seed : {70, 71, 72}) {
    const auto id = llm.register_chunk({.content = some_ids(20, seed)});
    chunks.push_back(llm.chunk_blocks(id.value()).value());
  }
  const auto list = [&](std::size_t first, std::size_t second) {
    return BlockList::join(std::vector{chunks[first], chunks[second]}).value();
  };
  const auto places = std::vector<std::pair<std::size_t, std::size_t>>{{0, 1}, {1, 2}, {2, 0}};
  std::vector<Stream> streams;
  for (const auto& [first, second] : places) {
    streams.push_back(
        llm.llm()
            .infer_from_blocks_stream(list(first, second), Ids{50}, greedy_to_length(60))
            .value());
  }
  for (std::size_t i = 0; i < places.size(); ++i) {
    while (streams[i].next().value().has_value()) {
    }
    EXPECT_EQ(streams[i].output().token_ids,
              llm.llm()
                  .infer_from_blocks(list(places[i].first, places[i].second), Ids{50},
                                     greedy_to_length(60))
                  .value()
                  .token_ids);
  }
}

// Any list of handles: the tokens one after the other, whole or in part, states and chunks.
TEST(DirectInference, ListsOfManyKindsAreTheirTokensInOrder) {
  ChunkedLLM llm = open_chunked();
  const Ids a = some_ids(40, 30), b = some_ids(33, 31);
  const BlockList chunk = llm.chunk_blocks(llm.register_chunk({.content = a}).value()).value();
  Sequence sequence = llm.llm().sequence(b).value();
  const BlockList state = sequence.blocks().value();
  const BlockList list = BlockList::join(std::vector{state, chunk.first(35).value(),
                                                     state.first(32).value(), chunk, state})
                             .value();
  const GenerationOutput output =
      llm.llm().infer_from_blocks(list, {}, greedy_to_length(4)).value();
  Ids expected = joined(b, Ids(a.begin(), a.begin() + 35));
  expected = joined(joined(joined(expected, Ids(b.begin(), b.begin() + 32)), a), b);
  EXPECT_EQ(output.prompt_token_ids, expected);
  EXPECT_EQ(output.reuse.grade, ReuseGrade::kApproximate);
}

// Ending the request is a letter to the engine, and its last state goes with another one.
TEST(DirectInference, WhoIsInterruptedSeesItsBlocksFree) {
  LLM llm = LLM::open(kModel, here({.threads = 2, .prefix_cache = false})).value();
  for (int round = 0; round < 20; ++round) {
    const double before = stat(llm, "tokens_generated");
    const auto output =
        llm.infer_from_blocks(BlockList(), some_ids(40, 7), greedy_to_length(1900),
                              [&] { return stat(llm, "tokens_generated") > before; });
    ASSERT_FALSE(output.ok());
    EXPECT_EQ(output.error().code, ErrorCode::kCancelled);
    EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
  }
}

}  // namespace
}  // namespace quire

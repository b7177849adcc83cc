// Calls on chunks that are refused: they use, compute and evict nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/sequence.h"

namespace quire {
namespace {

using testing::HasSubstr;

// State that a failed call may not have changed.
struct Held {
  std::vector<std::string> chunks;
  double blocks_in_use = 0;
  std::int64_t hits = 0, misses = 0, evictions = 0, bytes = 0;
  bool operator==(const Held&) const = default;
};

Held held(ChunkedLLM& llm) {
  const ChunkStats stats = must(llm.chunk_stats());
  while (stat(llm, "requests_running") > 0) {
    std::this_thread::yield();
  }
  Held held{.blocks_in_use = stat(llm, "blocks_in_use"),
            .hits = stats.cache_hits,
            .misses = stats.cache_misses,
            .evictions = stats.evictions,
            .bytes = stats.memory_used_bytes};
  for (const ChunkInfo& chunk : must(llm.list_chunks())) {
    held.chunks.push_back(chunk.chunk_id + " " + std::to_string(chunk.access_count) + " " +
                          std::to_string(chunk.num_variants) + chunk.metadata_json);
  }
  return held;
}

TEST(Chunks, AGenerationThatIsRefusedUsesComputesAndEvictsNothing) {
  ChunkedLLM llm = ChunkedLLM::open(kModel, here({.threads = 2}), {.max_chunks = 3}).value();
  ChunkedPrompt prompt{.system = Prompt(some_ids(20, 1)),
                       .contexts = {Prompt(some_ids(30, 3))},
                       .query = Prompt(some_ids(7, 2))};
  ASSERT_TRUE(llm.generate(prompt, {}, {.max_tokens = 2}).ok());
  const Held before = held(llm);
  prompt.contexts.front() = Prompt(some_ids(31, 4));
  const auto refused = [&](const CompositionSpec& how, const SamplingParams& params) {
    EXPECT_FALSE(llm.generate(prompt, how, params).ok());
    EXPECT_EQ(held(llm), before);
  };
  refused({.mode = ReuseMode::kExact, .positions = Positions::kParallel}, {});
  refused({.mode = ReuseMode::kIndependent, .positions = Positions::kFixed, .fixed = {0, 20}}, {});
  refused({.mode = ReuseMode::kBlend, .blend = {.share = 2}}, {});
  refused({.mode = ReuseMode::kBlend,
           .blend = {.selector = Selector::kExplicit, .tokens = {20 + 31 + 7}}},
          {});
  for (const std::vector<std::int32_t>& starts :
       std::vector<std::vector<std::int32_t>>{{0, 20, 5000}, {0, 5000, 60}, {5000, 20, 60}}) {
    refused({.mode = ReuseMode::kIndependent, .positions = Positions::kFixed, .fixed = starts}, {});
  }
  refused({.positions = Positions::kFixed, .fixed = {30, 0, 60}, .computed_in_place = true}, {});
  refused({}, {.stop_token_ids = {1 << 20}});
  prompt.contexts.emplace_back(Ids{1 << 20});
  refused({}, {});
  prompt.contexts.back() = Prompt(some_ids(2000, 5));
  refused({}, {});
}

TEST(Chunks, ACompositionThatCanNeverFitComputesAndEvictsNothing) {
  // 24 blocks, of which chunks hold 12: a system chunk of 6 and a context of 4.
  ChunkedLLM llm =
      open_chunked({}, {.block_tokens = 8, .kv_budget_bytes = std::int64_t{24} * 8 * 4096});
  ASSERT_EQ(stat(llm, "blocks_free"), 24);
  const Ids system = some_ids(48, 1);
  CompositionSpec spec;
  spec.system_chunk_id =
      must(llm.register_chunk({.content = system, .type = ChunkType::kSystemPrompt}));
  spec.context_chunk_ids = {must(llm.register_chunk({.content = some_ids(32, 2)}))};
  spec.query_chunk_id =
      must(llm.register_chunk({.content = some_ids(8, 3), .type = ChunkType::kQuery}));
  spec.mode = ReuseMode::kIndependent;  // other KV of the context than there is
  const Held before = held(llm);
  const auto refused = llm.generate_from_chunks(spec, greedy(200));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOverflow);
  EXPECT_EQ(refused.error().free_bytes, 24 * stat(llm, "block_bytes"));
  EXPECT_EQ(held(llm), before);
}

// Registers a composition of other KV than there is: a system chunk of two blocks and two contexts
// of three.
CompositionSpec register_apart(ChunkedLLM& llm) {
  CompositionSpec spec{.mode = ReuseMode::kIndependent};
  spec.system_chunk_id =
      must(llm.register_chunk({.content = some_ids(16, 1), .type = ChunkType::kSystemPrompt}));
  for (const std::uint32_t seed : {2, 3}) {
    spec.context_chunk_ids.push_back(must(llm.register_chunk({.content = some_ids(24, seed)})));
  }
  spec.query_chunk_id =
      must(llm.register_chunk({.content = some_ids(8, 4), .type = ChunkType::kQuery}));
  return spec;
}

TEST(Chunks, ARegistrationOfSeveralThatDoNotAllFitComputesAndEvictsNothing) {
  // Chunks may hold 12 blocks; four are pinned, and five may go.
  ChunkedLLM llm =
      open_chunked({}, {.block_tokens = 8, .kv_budget_bytes = std::int64_t{24} * 8 * 4096});
  ASSERT_TRUE(llm.register_chunk({.content = some_ids(32, 1), .options = {.pinned = true}}).ok());
  const ChunkContent known{.content = some_ids(16, 2)};
  for (const ChunkContent& chunk : {known, {.content = some_ids(24, 3)}}) {
    ASSERT_TRUE(llm.register_chunk(chunk).ok());
  }
  const Held before = held(llm);
  const auto refused = [&](const std::vector<ChunkContent>& chunks, ErrorCode code, int blocks) {
    const auto ids = llm.register_chunks(chunks);
    ASSERT_FALSE(ids.ok());
    EXPECT_EQ(ids.error().code, code) << ids.error().message;
    EXPECT_EQ(ids.error().needed_bytes, blocks * stat(llm, "block_bytes"));
    EXPECT_EQ(held(llm), before);
  };
  const ChunkContent four{.content = some_ids(32, 4)};
  const ChunkContent five{.content = some_ids(40, 5)};
  refused({four, five}, ErrorCode::kOutOfBlocks, 9);
  refused({four, known, {.content = some_ids(24, 6)}}, ErrorCode::kOutOfBlocks, 7);
  refused({four, five, {.content = some_ids(32, 7)}}, ErrorCode::kOverflow, 13);
  EXPECT_TRUE(llm.register_chunks(std::vector{four, known, four}).ok());
}

TEST(Chunks, AGenerationOfMoreThanChunksMayHoldComputesAndEvictsNothing) {
  ChunkedLLM llm =
      open_chunked({}, {.block_tokens = 8, .kv_budget_bytes = std::int64_t{24} * 8 * 4096});
  const Prompt system(some_ids(16, 1));
  ASSERT_TRUE(llm.register_chunk({.content = system, .type = ChunkType::kSystemPrompt}).ok());
  ASSERT_TRUE(llm.register_chunk({.content = some_ids(72, 2)}).ok());
  const Held before = held(llm);
  ChunkedPrompt prompt{.system = system,
                       .contexts = {Prompt(some_ids(40, 3)), Prompt(some_ids(48, 4))},
                       .query = Prompt(some_ids(7, 5))};
  const auto refused = llm.generate(prompt, {}, greedy(1));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOverflow);
  EXPECT_EQ(refused.error().needed_bytes, 13 * stat(llm, "block_bytes"));
  EXPECT_EQ(held(llm), before);
  prompt.contexts.back() = prompt.contexts.front();
  EXPECT_TRUE(llm.generate(prompt, {}, greedy(1)).ok()) << "one chunk twice";
}

TEST(Chunks, ACompositionOfWhichAPartHasNoRoomComputesAndEvictsNothing) {
  // Chunks may hold 12 blocks: the other context, which may go, does not make enough room for two.
  ChunkedLLM llm =
      open_chunked({}, {.block_tokens = 8, .kv_budget_bytes = std::int64_t{24} * 8 * 4096});
  CompositionSpec spec = register_apart(llm);
  ASSERT_TRUE(llm.register_chunk({.content = some_ids(8, 5), .options = {.anchor = ""}}).ok());
  const Held before = held(llm);
  const auto refused = llm.generate_from_chunks(spec, greedy(1));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBlocks);
  EXPECT_EQ(refused.error().needed_bytes, 6 * stat(llm, "block_bytes"));
  EXPECT_EQ(held(llm), before);
  spec.context_chunk_ids.pop_back();
  EXPECT_TRUE(llm.generate_from_chunks(spec, greedy(1)).ok());
}

TEST(Chunks, ACompositionOfWhichAPartCannotBeComputedLeavesNothingOfTheOthers) {
  for (const bool bos_sink : {false, true}) {
    ChunkedLLM llm = open_chunked(
        {.chunk_memory_ratio = 1},
        {.block_tokens = 8, .kv_budget_bytes = std::int64_t{24} * 8 * 4096, .prefix_cache = false});
    CompositionSpec spec = register_apart(llm);
    spec.bos_sink = bos_sink;
    const Held without = held(llm);
    {
      const Sequence other = must(llm.llm().sequence(some_ids(12 * 8, 6)));
      const auto refused = llm.generate_from_chunks(spec, greedy(1));
      ASSERT_FALSE(refused.ok());
      EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBlocks);
    }
    EXPECT_EQ(held(llm), without);
    EXPECT_TRUE(llm.generate_from_chunks(spec, greedy(1)).ok());
  }
}

TEST(Chunks, ARegistrationOfSeveralOfWhichOneIsRefusedChangesNothingOfTheOthers) {
  // Chunks may hold 12 blocks; five are pinned, and up to five may go.
  ChunkedLLM llm =
      open_chunked({}, {.block_tokens = 8, .kv_budget_bytes = std::int64_t{24} * 8 * 4096});
  const ChunkContent known{.content = "Card 7.", .options = {.metadata_json = R"({"card": 7})"}};
  ChunkContent again = known;
  again.options.metadata_json = R"({"card": 8})";
  ASSERT_TRUE(llm.register_chunk(known).ok());
  ASSERT_TRUE(llm.register_chunk({.content = some_ids(40, 1), .options = {.pinned = true}}).ok());
  ASSERT_TRUE(llm.register_chunk({.content = some_ids(32, 2)}).ok());
  const Held before = held(llm);
  const double computed = stat(llm, "tokens_computed");
  const auto refused = [&](const std::vector<ChunkContent>& chunks, ErrorCode code) {
    const auto ids = llm.register_chunks(chunks);
    ASSERT_FALSE(ids.ok());
    EXPECT_EQ(ids.error().code, code) << ids.error().message;
    EXPECT_EQ(held(llm), before);
    EXPECT_EQ(stat(llm, "tokens_computed"), computed);
  };
  const ChunkContent system{.content = some_ids(16, 3), .type = ChunkType::kSystemPrompt};
  const ChunkContent card{.content = some_ids(24, 4)};
  refused({again, {.content = some_ids(64, 5)}}, ErrorCode::kOutOfBlocks);
  refused({again, system, {.content = some_ids(56, 6)}}, ErrorCode::kOutOfBlocks);
  refused({again, card, system, {.content = std::string(5000, 'x')}}, ErrorCode::kOverflow);
  refused({card, system, {.content = "Card 9.", .options = {.anchor = std::string(64, 'a')}}},
          ErrorCode::kNotFound);
  EXPECT_TRUE(llm.register_chunks(std::vector{again, system, card}).ok());
}

TEST(Chunks, AGenerationThatFindsNoRoomNowUsesComputesAndEvictsNothing) {
  ChunkedLLM llm =
      open_chunked({}, {.block_tokens = 8, .kv_budget_bytes = std::int64_t{24} * 8 * 4096});
  const Prompt system(some_ids(16, 1));
  const ChunkContent pinned{.content = some_ids(48, 2), .options = {.pinned = true}};
  ASSERT_TRUE(llm.register_chunk({.content = system, .type = ChunkType::kSystemPrompt}).ok());
  ASSERT_TRUE(llm.register_chunks(std::vector{pinned, {.content = some_ids(24, 3)}}).ok());
  const Held before = held(llm);
  ChunkedPrompt prompt{.contexts = {Prompt(some_ids(40, 4))}, .query = Prompt(some_ids(7, 5))};
  for (const Prompt& other : {system, Prompt(some_ids(17, 6))}) {
    prompt.system = other;
    const auto refused = llm.generate(prompt, {}, greedy(1));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBlocks);
    EXPECT_EQ(held(llm), before);
  }
  prompt.contexts.front() = Prompt(some_ids(24, 7));
  EXPECT_TRUE(llm.generate(prompt, {}, greedy(1)).ok());
}

TEST(Chunks, MoreThanMaxChunksNeverFitAndThoseThatArePinnedAreInTheWay) {
  ChunkedLLM llm = open_chunked({.max_chunks = 3});
  const auto some = [](std::uint32_t seed, bool pinned = false) {
    return ChunkContent{.content = some_ids(9, seed), .options = {.pinned = pinned}};
  };
  ASSERT_TRUE(llm.register_chunks(std::vector{some(1, true), some(2), some(3)}).ok());
  const Held before = held(llm);
  const auto refused = [&](const Error& error, ErrorCode code, const char* says) {
    EXPECT_EQ(error.code, code);
    EXPECT_THAT(error.message, HasSubstr(says));
    EXPECT_EQ(held(llm), before);
  };
  ChunkedPrompt prompt{.system = Prompt(some_ids(20, 4)),
                       .contexts = {Prompt(some_ids(30, 5)), Prompt(some_ids(31, 6))},
                       .query = Prompt(some_ids(7, 7))};
  const char* never = "4 chunks at a time, there may be 3";
  refused(llm.generate(prompt, {}, greedy(1)).error(), ErrorCode::kOverflow, never);
  const std::vector four{some(11), some(12), some(13), some(14)};
  refused(llm.register_chunks(four).error(), ErrorCode::kOverflow, never);
  const char* now = "there are 3 of 3; the others are pinned or in use";
  prompt.contexts.pop_back();
  refused(llm.generate(prompt, {}, greedy(1)).error(), ErrorCode::kOutOfBlocks, now);
  refused(llm.register_chunks(std::span(four).first(3)).error(), ErrorCode::kOutOfBlocks, now);
  EXPECT_TRUE(llm.register_chunks(std::span(four).first(2)).ok());
}

TEST(Chunks, APromptThatFindsNoRoomBesideThemLearnsHowMuchItNeeds) {
  ChunkedLLM llm =
      open_chunked({.chunk_memory_ratio = 1},
                   {.block_tokens = 8, .kv_budget_bytes = std::int64_t{24} * 8 * 4096});
  ASSERT_TRUE(llm.register_chunk({.content = some_ids(160, 1)}).ok());
  const auto refused = llm.llm().generate(some_ids(48, 2), greedy(1));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBlocks);
  EXPECT_EQ(refused.error().needed_bytes, 6 * stat(llm, "block_bytes"));
  EXPECT_LT(refused.error().free_bytes, refused.error().needed_bytes);
}

}  // namespace
}  // namespace quire

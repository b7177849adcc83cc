// Chunks that go leave nothing of theirs, and all that is somebody else's. Oracle: the blocks,
// counts and chunks of the moment before.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/sequence.h"

namespace quire {
namespace {

// Returns all that a call may leave behind.
auto left(ChunkedLLM& llm) {
  const ChunkStats stats = must(llm.chunk_stats());
  std::vector<std::pair<std::string, std::int64_t>> chunks;
  for (const ChunkInfo& chunk : must(llm.list_chunks())) {
    chunks.emplace_back(chunk.chunk_id, chunk.num_variants);
  }
  return std::tuple(stat(llm, "blocks_free"), stat(llm, "blocks_cached"),
                    stat(llm, "blocks_in_use"), stats.memory_used_bytes, stats.cache_hits,
                    stats.cache_misses, chunks);
}

ChunkContent chunk_of(ChunkType type, std::uint32_t seed, std::size_t size = 43) {
  ChunkContent chunk{.content = some_ids(size, seed), .type = type};
  if (type == ChunkType::kContext) {
    chunk.options.anchor = "";
  }
  return chunk;
}

const SamplingParams kTwo{.temperature = 0, .max_tokens = 2, .ignore_eos = true};

ChunkedPrompt some_prompt(std::uint32_t seed = 1) {
  return {.system = Prompt(some_ids(43, seed)),
          .contexts = {Prompt(some_ids(50, seed + 1)), Prompt(some_ids(21, seed + 2))},
          .query = Prompt(some_ids(19, seed + 3))};
}

TEST(LeavingChunks, ADeletedClearedOrUnusedChunkLeavesNoBlockInThePrefixCache) {
  ChunkedLLM llm = open_chunked({}, {.block_tokens = 8});
  const auto before = left(llm);
  for (const ChunkType type : {ChunkType::kSystemPrompt, ChunkType::kContext, ChunkType::kQuery}) {
    const std::string id = must(llm.register_chunk(chunk_of(type, 5)));
    EXPECT_TRUE(must(llm.delete_chunk(id)));
    EXPECT_EQ(stat(llm, "blocks_free"), std::get<0>(before));
    must(llm.register_chunk(chunk_of(type, 5)));
    EXPECT_EQ(must(llm.clear_chunks()), 1);
    EXPECT_EQ(stat(llm, "blocks_free"), std::get<0>(before));
    must(llm.register_chunk(chunk_of(type, 5)));
    EXPECT_EQ(must(llm.evict_unused_chunks(0)), 1);
    EXPECT_EQ(stat(llm, "blocks_free"), std::get<0>(before));
  }
}

TEST(LeavingChunks, WhatPromptsHaveCachedBeforeOrBehindAChunkStays) {
  ChunkedLLM llm = open_chunked({}, {.block_tokens = 8});
  const Ids system = some_ids(48, 1);
  must(llm.llm().generate(system, kTwo));
  const double cached = stat(llm, "blocks_cached");
  const ChunkContent longer{.content = joined(system, some_ids(30, 2)),
                            .type = ChunkType::kSystemPrompt};
  const std::string id = must(llm.register_chunk(longer));
  EXPECT_TRUE(must(llm.delete_chunk(id)));
  EXPECT_EQ(stat(llm, "blocks_cached"), cached);
  must(llm.register_chunk(longer));
  const Ids behind = joined(std::get<Ids>(longer.content), some_ids(40, 3));
  must(llm.llm().generate(behind, kTwo));
  must(llm.clear_chunks());
  EXPECT_EQ(must(llm.llm().generate(behind, kTwo)).usage.cached_tokens, 112);  // of 118
}

TEST(LeavingChunks, AGenerationThatPersistsNothingLeavesNothingInAnyMode) {
  ChunkedLLM llm = open_chunked({}, {.block_tokens = 8});
  const auto before = left(llm);
  for (const ReuseMode mode :
       {ReuseMode::kAnchored, ReuseMode::kIndependent, ReuseMode::kExact, ReuseMode::kBlend}) {
    const CompositionSpec how{.mode = mode, .blend = {.share = 0.5}};
    must(llm.generate(some_prompt(), how, kTwo, false));
    EXPECT_EQ(left(llm), before) << "mode " << static_cast<int>(mode);
  }
}

TEST(LeavingChunks, ItLeavesNoKvOfChunksThatWereThereEither) {
  ChunkedLLM llm = open_chunked({}, {.block_tokens = 8});
  const ChunkedPrompt prompt = some_prompt();
  const std::string system =
      must(llm.register_chunk({.content = *prompt.system, .type = ChunkType::kSystemPrompt}));
  for (const char* anchor : {"", system.c_str()}) {
    for (const Prompt& context : prompt.contexts) {
      must(llm.register_chunk({.content = context, .options = {.anchor = anchor}}));
    }
  }
  const auto before = left(llm);
  const CompositionSpec in_place{.mode = ReuseMode::kAnchored, .computed_in_place = true};
  const CompositionSpec behind_bos{.mode = ReuseMode::kIndependent, .bos_sink = true};
  for (const CompositionSpec& how : {in_place, behind_bos}) {
    must(llm.generate(prompt, how, kTwo, false));
    EXPECT_EQ(left(llm), before);
  }
}

TEST(LeavingChunks, TheBosTokenThatNothingStandsBehindGoesWithTheLastChunk) {
  ChunkedLLM llm = open_chunked({}, {.block_tokens = 8});
  const double before = stat(llm, "blocks_free");
  const CompositionSpec how{.mode = ReuseMode::kIndependent, .bos_sink = true};
  must(llm.generate(some_prompt(), how, kTwo));
  must(llm.clear_chunks());
  EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
  EXPECT_EQ(stat(llm, "blocks_free"), before);
}

TEST(LeavingChunks, AGenerationInAFullRegistryEvictsNoneOfItsOwn) {
  for (const bool persists : {true, false}) {
    ChunkedLLM llm = open_chunked({.max_chunks = 4}, {.block_tokens = 8});
    const ChunkedPrompt prompt = some_prompt();
    const std::string system = must(llm.register_chunk({.content = *prompt.system,
                                                        .type = ChunkType::kSystemPrompt,
                                                        .options = {.priority = -1}}));
    for (std::uint32_t seed = 20; seed < 23; ++seed) {
      must(llm.register_chunk(chunk_of(ChunkType::kContext, seed)));
    }
    EXPECT_EQ(must(llm.generate(prompt, {}, kTwo, persists)).system_id, system);
    EXPECT_TRUE(llm.get_chunk(system).ok());
  }
}

TEST(LeavingChunksThreads, GenerationsOfEqualTextsThatPersistNothingServeEachOther) {
  ChunkedLLM llm = open_chunked({}, {.block_tokens = 8});
  const auto before = left(llm);
  const Ids expected = must(llm.generate(some_prompt(), {}, kTwo, false)).output.token_ids;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 12; ++i) {
        const auto generated = llm.generate(some_prompt(), {}, kTwo, false);
        ASSERT_TRUE(generated.ok()) << generated.error().message;
        EXPECT_EQ(generated->output.token_ids, expected);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(left(llm), before);
}

TEST(LeavingChunksThreads, WhatSomebodyElsePinsOrRegistersMeanwhileStays) {
  ChunkedLLM llm = open_chunked({}, {.block_tokens = 8});
  std::thread generating([&] {
    const SamplingParams many{.temperature = 0, .max_tokens = 150, .ignore_eos = true};
    EXPECT_TRUE(llm.generate(some_prompt(), {}, many, false).ok());
  });
  std::vector<ChunkInfo> chunks;
  while (chunks.size() < 4) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    chunks = must(llm.list_chunks());
  }
  const std::string pinned = chunks[1].chunk_id;
  must(llm.update_chunk(pinned, {.pinned = true}));
  const std::string registered = must(
      llm.register_chunk({.content = *some_prompt().system, .type = ChunkType::kSystemPrompt}));
  EXPECT_EQ(registered, chunks[0].chunk_id);
  generating.join();
  EXPECT_EQ(must(llm.list_chunks()).size(), 2u);
  EXPECT_TRUE(llm.get_chunk(pinned).ok());
  EXPECT_TRUE(llm.get_chunk(registered).ok());
}

// Ten blocks, of which a sequence holds `held`, and two chunks of one block each.
struct TightPool {
  explicit TightPool(std::size_t held)
      : llm(must(ChunkedLLM::open(
            kModel, here({.block_tokens = 8, .kv_budget_bytes = 10 * 8 * 4096, .threads = 2})))),
        first(must(llm.register_chunk(chunk_of(ChunkType::kContext, 1, 8)))),
        second(must(llm.register_chunk(chunk_of(ChunkType::kContext, 2, 8)))),
        sequence(must(llm.llm().sequence(some_ids(held * 8, 3)))) {}

  ChunkedLLM llm;
  std::string first, second;
  Sequence sequence;
};

// The context has to wait: a sequence holds its blocks, and an endless answer keeps the engine at
// work. Meanwhile all is tried that removes chunks which nobody uses.
TEST(LeavingChunksThreads, TheDefaultAnchorOfATenantStaysUntilItsContextIsRegistered) {
  constexpr std::int64_t kBlock = 8, kBlocks = 400, kBytesOfToken = 4096;
  ChunkedLLM llm =
      open_chunked({.max_chunks = 2, .chunk_memory_ratio = 1},
                   {.block_tokens = kBlock, .kv_budget_bytes = kBlocks * kBlock * kBytesOfToken});
  for (const std::string salt : {"", "ada"}) {
    SCOPED_TRACE(salt);
    const auto chunk = [&](ChunkType type, std::size_t size, std::uint32_t seed) {
      ChunkContent content{.content = some_ids(size, seed), .type = type};
      content.options.salt = salt;
      return content;
    };
    const std::string anchor = must(llm.register_chunk(chunk(ChunkType::kSystemPrompt, 16, 1)));
    std::optional<Sequence> holder = must(llm.llm().sequence(some_ids(210 * kBlock, 2)));
    Stream busy = must(llm.llm().stream(some_ids(4, 3), greedy_to_length(1400)));
    int looks = 0;
    const auto meanwhile = [&] {
      if (++looks == 1) {
        EXPECT_EQ(must(llm.list_chunks({}, "{}", salt)).size(), 1U) << "it is not registered yet";
        EXPECT_EQ(must(llm.evict_unused_chunks(0, salt)), 0);
        EXPECT_EQ(must(llm.clear_chunks({}, salt)), 0);
        const auto beside = llm.register_chunk(chunk(ChunkType::kQuery, 4, 4));
        EXPECT_FALSE(beside.ok()) << "the anchor has made room for it";
        holder.reset();
      }
      return false;
    };
    const std::string context =
        must(llm.register_chunk(chunk(ChunkType::kContext, 190 * kBlock, 5), meanwhile));
    busy.close();
    EXPECT_GT(looks, 0);
    EXPECT_EQ(must(llm.get_chunk(context, salt)).anchor, anchor);
    EXPECT_EQ(must(llm.get_chunk(anchor, salt)).chunk_id, anchor);
    EXPECT_EQ(must(llm.evict_unused_chunks(0, salt)), 2) << "nothing keeps it any longer";
  }
}

TEST(LeavingChunks, ARegistrationEvictsAllThatThePoolLacksForItOrNothing) {
  TightPool fits(6);
  must(fits.llm.register_chunk(chunk_of(ChunkType::kContext, 4, 32)));
  EXPECT_EQ(must(fits.llm.list_chunks()).size(), 1u);
  TightPool lacks(7);
  const auto before = left(lacks.llm);
  const auto refused = lacks.llm.register_chunk(chunk_of(ChunkType::kContext, 4, 32));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBlocks);
  EXPECT_EQ(refused.error().needed_bytes, 4 * 8 * 4096);
  EXPECT_EQ(left(lacks.llm), before);
  lacks.sequence = must(lacks.llm.llm().sequence(some_ids(8, 3)));
  must(lacks.llm.register_chunk(chunk_of(ChunkType::kContext, 4, 32)));
}

TEST(LeavingChunks, ACompositionThatThePoolHasNoRoomForComputesAndCountsNothing) {
  TightPool pool(6);
  const std::string query = must(pool.llm.register_chunk(chunk_of(ChunkType::kQuery, 5, 24)));
  CompositionSpec spec{.context_chunk_ids = {pool.first, pool.second},
                       .query_chunk_id = query,
                       .mode = ReuseMode::kIndependent};
  spec.without_system = true;
  const auto before = left(pool.llm);
  const auto uses = [&] { return must(pool.llm.get_chunk(pool.first)).access_count; };
  for (const bool bos : {false, true}) {
    spec.bos_sink = bos;
    const auto refused = pool.llm.generate_from_chunks(spec, kTwo);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBlocks);
    EXPECT_EQ(left(pool.llm), before) << "bos " << bos;
    EXPECT_EQ(uses(), 0);
  }
}

TEST(LeavingChunksThreads, AChunkMayGoWhileACompositionWaitsForItsSavedKv) {
  const TemporaryFolder folder;
  ChunkedLLM llm = open_chunked({.store = folder.path().string()}, {.block_tokens = 8});
  for (int turn = 0; turn < 16; ++turn) {
    const std::vector<std::string> ids = must(llm.register_chunks(std::vector<ChunkContent>{
        chunk_of(ChunkType::kSystemPrompt, 1), chunk_of(ChunkType::kContext, 2, 400),
        chunk_of(ChunkType::kQuery, 3)}));
    must(llm.evict_unused_chunks(0));  // from memory; they are in the store
    std::thread deleting([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(turn * 250));
      EXPECT_TRUE(llm.delete_chunk(ids[static_cast<std::size_t>(turn % 3)]).ok());
    });
    CompositionSpec spec{.system_chunk_id = ids[0],
                         .context_chunk_ids = {ids[1]},
                         .query_chunk_id = ids[2],
                         .mode = ReuseMode::kIndependent};
    const auto output = llm.generate_from_chunks(spec, kTwo);
    EXPECT_TRUE(output.ok() || output.error().code == ErrorCode::kNotFound)
        << output.error().message;
    deleting.join();
  }
}

}  // namespace
}  // namespace quire

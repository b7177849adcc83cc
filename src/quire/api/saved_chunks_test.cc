// Chunks that outlive their process, on the demo model. Oracle: the process that registered them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/saved_chunks_scene.h"
#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/sequence.h"
#include "quire/store.h"

namespace quire {
namespace {

using testing::AllOf;
using testing::Gt;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Lt;
using testing::SizeIs;
using testing::StartsWith;
using testing::UnorderedElementsAre;

TEST_F(SavedChunks, ARestartFindsItsChunksAndComputesTheQueryAlone) {
  const auto [spec, before] = process_before();
  ChunkedLLM llm = open();
  EXPECT_EQ(llm.list_chunks().value().size(), 4);
  EXPECT_EQ(llm.list_chunks(ChunkType::kContext, R"({"source": "test"})").value().size(), 2);
  EXPECT_THAT(llm.list_chunks({}, R"({"source": "else"})").value(), IsEmpty());
  const ChunkInfo card = llm.get_chunk(spec.context_chunk_ids[0]).value();
  EXPECT_EQ(card.token_ids, some_ids(45, 2));
  EXPECT_EQ(card.num_variants, 0) << "reading fetches nothing";
  EXPECT_EQ(answer(llm, spec), before);
  EXPECT_EQ(stat(llm, "tokens_computed"), 7 + 11);
  EXPECT_EQ(llm.list_chunks().value().size(), 4);
}

TEST_F(SavedChunks, ARestartListsItsChunksWithoutReadingAnyObject) {
  const auto [spec, before] = process_before();
  const auto expect_listed = [&, &card = spec.context_chunk_ids[0]] {
    const ChunkedLLM llm = open();
    EXPECT_THAT(llm.list_chunks().value(), SizeIs(4));
    EXPECT_THAT(llm.list_chunks(ChunkType::kContext, R"({"source": "test"})").value(), SizeIs(2));
    EXPECT_EQ(llm.get_chunk(card).value().token_ids, some_ids(45, 2));
  };
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder_)) {
    if (file.path().extension() == ".qkv") {
      std::filesystem::resize_file(file.path(), 0);
    }
  }
  expect_listed();
  std::filesystem::remove_all(folder_ / "store" / "objects");
  expect_listed();
}

TEST_F(SavedChunks, WhereComputingIsFasterThanReadingItIsComputedAndExplainSaysSo) {
  const auto [spec, before] = process_before();
  ChunkedLLM llm = open();
  make_computing_faster(llm);
  const auto parts = llm.explain(spec).value();
  EXPECT_TRUE(parts[0].hit) << "a system chunk is read";
  EXPECT_THAT(parts[1].reason,
              StartsWith("on disk, but computing is faster here: 1000 us a token"));
  const double computed = stat(llm, "tokens_computed");
  EXPECT_EQ(answer(llm, spec), before);
  EXPECT_GT(stat(llm, "tokens_computed"), computed + 45);
  EXPECT_TRUE(llm.explain(spec).value()[1].hit);
}

// Ways to compose in which contexts need other KV than what they were registered with.
std::vector<CompositionSpec> other_ways(const CompositionSpec& spec, const std::string& system) {
  std::vector<CompositionSpec> ways(4, spec);
  ways[0].system_chunk_id = system;
  ways[1].computed_in_place = true;
  ways[2].mode = ReuseMode::kIndependent;
  ways[3].mode = ReuseMode::kIndependent;
  ways[3].bos_sink = true;
  return ways;
}

TEST_F(SavedChunks, KvOfEveryWayToComposeIsFoundByTheNextProcess) {
  std::vector<CompositionSpec> ways;
  std::vector<Ids> before;
  {
    ChunkedLLM llm = open();
    const CompositionSpec spec = register_all(llm);
    const std::string system =
        llm.register_chunk({.content = some_ids(24, 8), .type = ChunkType::kSystemPrompt}).value();
    ways = other_ways(spec, system);
    for (const CompositionSpec& way : ways) {
      before.push_back(answer(llm, way));
    }
  }
  for (std::size_t i = 0; i < ways.size(); ++i) {
    ChunkedLLM llm = open();
    const auto parts = llm.explain(ways[i]).value();
    EXPECT_TRUE(std::ranges::all_of(std::span(parts).first(parts.size() - 1), &ReusePart::hit))
        << i;
    EXPECT_EQ(answer(llm, ways[i]), before[i]) << i;
    EXPECT_EQ(stat(llm, "tokens_computed"), kOwnTokens) << i;
    EXPECT_EQ(llm.chunk_stats().value().cache_misses, 0) << i;
  }
}

// Not those of other KV of it, which is there alone.
TEST_F(SavedChunks, TheBlocksOfAChunkAreThoseThatItIsRegisteredWith) {
  const auto [way, before] = process_before(true);
  ChunkedLLM llm = open();
  make_computing_faster(llm);
  EXPECT_EQ(answer(llm, way), before);
  const std::string& second = way.context_chunk_ids[1];
  EXPECT_EQ(llm.get_chunk(second).value().num_variants, 1);
  EXPECT_EQ(llm.chunk_blocks(second).error().code, ErrorCode::kInvalidComposition);
  EXPECT_EQ(llm.chunk_blocks(way.context_chunk_ids[0]).value().num_tokens(), 45);
}

TEST_F(SavedChunks, SavedKvIsReadOnceForABatch) {
  const CompositionSpec way = process_before(true).first;
  ChunkedLLM llm = open();
  const std::vector<CompositionSpec> twice = {way, way};
  const SamplingParams params{.temperature = 0, .max_tokens = 1};
  ASSERT_TRUE(llm.batch_generate_from_chunks(twice, {&params, 1}).ok());
  std::int64_t bytes = 0;
  for (const ChunkInfo& chunk : llm.list_chunks().value()) {
    bytes += chunk.memory_bytes;
  }
  EXPECT_EQ(llm.chunk_stats().value().memory_used_bytes, bytes);
  EXPECT_EQ(stat(llm, "bytes_in_use"), bytes);
}

TEST_F(SavedChunks, DamagedKvOfAnotherAnchorIsComputedAndSavedAgain) {
  const auto [way, before] = process_before(true);
  damage_objects();
  for (const bool damaged : {true, false}) {
    ChunkedLLM llm = open();
    (void)register_all(llm);  // what a system chunk lacks is computed when it is registered
    const double computed = stat(llm, "tokens_computed");
    EXPECT_EQ(answer(llm, way), before);
    EXPECT_EQ(stat(llm, "tokens_computed") - computed > kOwnTokens, damaged);
  }
}

TEST_F(SavedChunks, DeletingAChunkDeletesAllItsKv) {
  ChunkedLLM llm = open();
  CompositionSpec way = register_all(llm);
  way.computed_in_place = true;
  answer(llm, way);
  ASSERT_TRUE(llm.flush_store().ok());
  ASSERT_EQ(num_objects(), 3 + 1) << "the first context stands where it was registered";
  for (const std::string& id : way.context_chunk_ids) {
    ASSERT_TRUE(llm.delete_chunk(id, true).value());
  }
  EXPECT_EQ(num_objects(), 1);
}

TEST_F(SavedChunks, RegisteringAgainOrUpdatingKeepsTheOtherKv) {
  const CompositionSpec way = process_before(true).first;
  {
    ChunkedLLM llm = open();
    ASSERT_TRUE(llm.update_chunk(way.context_chunk_ids[1], {.priority = 3}).ok());
  }
  ChunkedLLM llm = open();
  (void)register_all(llm);
  answer(llm, way);
  EXPECT_EQ(stat(llm, "tokens_computed"), kOwnTokens);
}

TEST_F(SavedChunks, WhatRegisteringAgainSaysOfAChunkIsSaved) {
  for (const bool write_through : {true, false}) {
    const std::string store = folder_ / (write_through ? "through" : "behind");
    std::string id;
    {
      auto llm = ChunkedLLM::open(kModel, here({.threads = 2}),
                                  {.store = store, .write_through = write_through})
                     .value();
      const auto again = [&](ChunkOptions options) {
        return llm.register_chunk({.content = some_ids(20, 1), .options = std::move(options)})
            .value();
      };
      id = again({.metadata_json = R"({"a": 1})"});
      EXPECT_EQ(again({.metadata_json = R"({"b": 2})", .ttl_seconds = 600, .pinned = true}), id);
      EXPECT_EQ(again({}), id);
      ASSERT_TRUE(llm.flush_store().ok());
      EXPECT_TRUE(Store::open(store)->find(id)->pinned);
      EXPECT_NE(Store::open(store)->find(id)->expires_at, "");
    }
    auto llm = ChunkedLLM::open(kModel, here({.threads = 2}), {.store = store}).value();
    const ChunkInfo saved = llm.get_chunk(id).value();
    EXPECT_EQ(saved.metadata_json, R"({"a":1,"b":2})");
    EXPECT_EQ(saved.ttl_seconds, 600);
    EXPECT_TRUE(saved.pinned);
  }
}

using Counts = std::pair<std::int64_t, std::int64_t>;  // hits, misses

Counts looked_up(ChunkedLLM& llm) {
  const ChunkStats stats = llm.chunk_stats().value();
  return {stats.cache_hits, stats.cache_misses};
}

TEST_F(SavedChunks, AHitIsAPrefillAvoidedAndAMissOneDone) {
  CompositionSpec spec;
  {
    ChunkedLLM llm = open();
    spec = register_all(llm);
    EXPECT_EQ(looked_up(llm), Counts(0, 3));
    answer(llm, spec);
    EXPECT_EQ(looked_up(llm), Counts(3, 3));
    spec.computed_in_place = true;  // the second context stands elsewhere
    answer(llm, spec);
    EXPECT_EQ(looked_up(llm), Counts(5, 4));
    answer(llm, spec);
    EXPECT_EQ(looked_up(llm), Counts(8, 4));
  }
  ChunkedLLM registering = open();
  (void)register_all(registering);
  EXPECT_EQ(looked_up(registering), Counts(3, 0));
  ChunkedLLM composing = open();
  answer(composing, spec);
  EXPECT_EQ(looked_up(composing), Counts(3, 0));
  EXPECT_TRUE(composing.chunk_blocks(spec.context_chunk_ids[0]).ok());
  EXPECT_EQ(looked_up(composing), Counts(3, 0));
  ChunkedLLM computing = open();
  make_computing_faster(computing);
  answer(computing, spec);
  EXPECT_EQ(looked_up(computing), Counts(1, 2)) << "a system chunk is always read";
}

TEST_F(SavedChunks, WhatFailsIsNeitherHitNorMiss) {
  ChunkedLLM llm = open_small();
  std::optional<Sequence> other = llm.llm().sequence(some_ids(std::size_t{16} * 32, 77)).value();
  const ChunkContent large{.content = some_ids(33, 3), .options = {.anchor = ""}};
  EXPECT_EQ(llm.register_chunk(large).error().code, ErrorCode::kOutOfBlocks);
  EXPECT_EQ(looked_up(llm), Counts(0, 0));
  other.reset();
  EXPECT_TRUE(llm.register_chunk(large).ok());
  EXPECT_EQ(looked_up(llm), Counts(0, 1));
}

TEST_F(SavedChunks, WhatDoesNotFitNowIsNoMissAndFoundLater) {
  const auto [spec, before] = process_before();
  ChunkedLLM llm = open_small();
  std::optional<Sequence> other = llm.llm().sequence(some_ids(std::size_t{15} * 32, 77)).value();
  const auto refused = llm.generate_from_chunks(spec);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBlocks);
  EXPECT_EQ(llm.chunk_blocks(spec.context_chunk_ids[0]).error().code, ErrorCode::kOutOfBlocks);
  EXPECT_EQ(llm.chunk_stats().value().total_chunks, 1) << "the system chunk's block is the last";
  other.reset();
  const double computed = stat(llm, "tokens_computed");
  EXPECT_EQ(answer(llm, spec), before);
  EXPECT_EQ(stat(llm, "tokens_computed"), computed + kOwnTokens);
  EXPECT_EQ(looked_up(llm), Counts(3, 0));
}

// A saved chunk counts as there, since a run reads it.
TEST_F(SavedChunks, PreviewingAndExplainingReadNothingAndNeedNoBlock) {
  for (const bool in_place : {false, true}) {
    const auto [spec, before] = process_before(in_place);
    ChunkedLLM llm = open_small();
    std::optional<Sequence> other = llm.llm().sequence(some_ids(std::size_t{15} * 32, 77)).value();
    const double in_use = stat(llm, "blocks_in_use");
    const CompositionInfo info = llm.preview_composition(spec).value();
    EXPECT_EQ(info.tokens_reused, 20 + 45 + 33);
    EXPECT_EQ(info.new_blocks, info.num_blocks);
    EXPECT_EQ(llm.compose(spec)->info().tokens_reused, info.tokens_reused);
    const auto parts = llm.explain(spec).value();
    EXPECT_EQ(std::ranges::count(parts, true, &ReusePart::hit), 3);
    EXPECT_EQ(stat(llm, "blocks_in_use"), in_use);
    EXPECT_EQ(llm.chunk_stats().value().total_chunks, 0);
    EXPECT_EQ(llm.generate_from_chunks(spec).error().code, ErrorCode::kOutOfBlocks);
    other.reset();
    const auto output = llm.generate_from_chunks(spec, {.temperature = 0, .max_tokens = 1});
    ASSERT_TRUE(output.ok()) << output.error().message;
    EXPECT_EQ(output->usage.cached_tokens, info.tokens_reused);
    EXPECT_EQ(output->token_ids.front(), before.front());
  }
}

TEST_F(SavedChunks, APreviewTakesNoTurnOfWhatIsReadNowAndThen) {
  const auto [spec, before] = process_before();
  ChunkedLLM llm = open();
  make_computing_faster(llm);
  for (int i = 0; i < 20; ++i) {
    const CompositionInfo info = llm.preview_composition(spec).value();
    EXPECT_EQ(info.tokens_reused, 20) << "the system chunk";
    EXPECT_THAT(info.segments[2].why_not, StartsWith("on disk, but computing is faster"));
  }
  EXPECT_EQ(answer(llm, spec), before);
  EXPECT_EQ(stat(llm, "tokens_computed"), 45 + 33 + kOwnTokens);
}

TEST_F(SavedChunks, APreviewKnowsTheChunksThatARunWouldNotFind) {
  const CompositionSpec spec = process_before().first;
  ASSERT_TRUE(open().delete_chunk(spec.system_chunk_id).value());
  ChunkedLLM llm = open();
  CompositionSpec alone = spec;
  alone.system_chunk_id.clear();
  alone.without_system = true;
  for (const CompositionSpec& lost : {spec, alone}) {
    EXPECT_EQ(llm.preview_composition(lost).error().code, ErrorCode::kNotFound);
    EXPECT_EQ(llm.generate_from_chunks(lost).error().code, ErrorCode::kNotFound);
  }
}

TEST_F(SavedChunks, DamagedKvIsComputedAgainAndNeverAWrongToken) {
  const auto [spec, before] = process_before();
  damage_objects();
  ChunkedLLM llm = open();
  const auto lost = llm.generate_from_chunks(spec);
  EXPECT_EQ(lost.error().code, ErrorCode::kNotFound) << "its system chunk has no KV";
  EXPECT_EQ(register_all(llm).query_chunk_id, spec.query_chunk_id);
  EXPECT_EQ(answer(llm, spec), before);
  EXPECT_GT(stat(llm, "tokens_computed"), 20 + 45 + 33);
}

// A preview reads no KV and so does not see the damage; what it says holds again once a run has.
TEST_F(SavedChunks, APreviewOfDamagedKvIsWhatTheNextRunDoes) {
  const auto [spec, before] = process_before();
  damage_objects(spec.context_chunk_ids[0]);
  ChunkedLLM llm = open();
  const CompositionInfo unread = llm.preview_composition(spec).value();
  EXPECT_EQ(unread.tokens_reused, 20 + 45 + 33);
  const SamplingParams greedy{.temperature = 0, .max_tokens = 1};
  const auto first = llm.generate_from_chunks(spec, greedy);
  EXPECT_EQ(first->usage.cached_tokens, 20 + 33) << "the run says what it has computed";
  EXPECT_EQ(first->token_ids.front(), before.front());
  const CompositionInfo read = llm.preview_composition(spec).value();
  EXPECT_EQ(llm.generate_from_chunks(spec, greedy)->usage.cached_tokens, read.tokens_reused);
  EXPECT_EQ(answer(llm, spec), before);
}

TEST_F(SavedChunks, WrittenBehindAChunkIsThereAfterFlushingAndAfterClosing) {
  const auto open_behind = [&] {
    return ChunkedLLM::open(kModel, here({.threads = 2}),
                            {.store = folder_ / "store", .write_through = false})
        .value();
  };
  CompositionSpec spec;
  Ids before;
  {
    ChunkedLLM llm = open_behind();
    spec = register_all(llm);
    ASSERT_TRUE(llm.flush_store().ok());
    EXPECT_EQ(open().list_chunks().value().size(), 4);
    before = answer(llm, spec);
    ASSERT_TRUE(llm.register_chunk({.content = some_ids(30, 9)}).ok());
  }
  ChunkedLLM llm = open();
  EXPECT_EQ(llm.list_chunks().value().size(), 5);
  EXPECT_EQ(answer(llm, spec), before);
  EXPECT_EQ(stat(llm, "tokens_computed"), 7 + 11);
}

TEST_F(SavedChunks, WrittenBehindWhatIsDeletedAtOnceStaysDeleted) {
  {
    ChunkedLLM llm = ChunkedLLM::open(kModel, here({.threads = 2}),
                                      {.store = folder_ / "store", .write_through = false})
                         .value();
    const CompositionSpec spec = register_all(llm);
    EXPECT_TRUE(llm.delete_chunk(spec.query_chunk_id).value());
    EXPECT_EQ(llm.clear_chunks(ChunkType::kContext).value(), 2);
  }
  EXPECT_EQ(open().list_chunks().value().size(), 1);
}

class CompressedChunks : public SavedChunks,
                         public testing::WithParamInterface<Compression::Codec> {};

TEST_P(CompressedChunks, AreSmallerAndTheSameToTheBit) {
  const auto bytes_in = [](const std::filesystem::path& folder) {
    std::uintmax_t bytes = 0;
    for (const auto& file : std::filesystem::recursive_directory_iterator(folder)) {
      bytes += file.path().extension() == ".qkv" ? file.file_size() : 0;
    }
    return bytes;
  };
  const auto [spec, before] = process_before();
  const std::filesystem::path small = folder_ / "small";
  const auto open_small = [&] {
    return ChunkedLLM::open(kModel, here({.threads = 2}),
                            {.store = small, .compress_store = GetParam()})
        .value();
  };
  {
    ChunkedLLM llm = open_small();
    (void)register_all(llm);
  }
  EXPECT_LT(bytes_in(small), bytes_in(folder_ / "store"));
  const auto ratios = [](const std::filesystem::path& folder) {
    std::vector<double> ratios;
    for (const StoreEntry& entry : Store::open(folder)->list().value()) {
      ratios.push_back(entry.ratio);
    }
    return ratios;
  };
  EXPECT_THAT(ratios(folder_ / "store"), UnorderedElementsAre(1.0, 1.0, 1.0, 0.0)) << "query: none";
  const auto compressed = AllOf(Gt(0.3), Lt(0.95));
  EXPECT_THAT(ratios(small), UnorderedElementsAre(compressed, compressed, compressed, 0.0));
  ChunkedLLM llm = open_small();
  EXPECT_EQ(answer(llm, spec), before);
  EXPECT_EQ(stat(llm, "tokens_computed"), 7 + 11);
}

INSTANTIATE_TEST_SUITE_P(Codecs, CompressedChunks,
                         testing::Values(Compression::kZstd, Compression::kLz4));

TEST_F(SavedChunks, AFolderThatIsNoStoreIsRefused) {
  std::ofstream(folder_ / "store") << "a file";
  const auto llm = ChunkedLLM::open(kModel, here({.threads = 2}), {.store = folder_ / "store"});
  EXPECT_FALSE(llm.ok());
  EXPECT_THAT(llm.error().message, HasSubstr("store"));
}

}  // namespace
}  // namespace quire

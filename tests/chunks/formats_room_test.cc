// Who waits and who gives way when chunks in other formats than the pool's want blocks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "formats_scene.h"
#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/sampling.h"

namespace quire {
namespace {

using testing::HasSubstr;

constexpr std::int32_t kBlocks = 48;

ChunkedLLM open_small(const ChunkCacheOptions& chunks = {.chunk_memory_ratio = 1}) {
  ChunkedLLM probe = open_chunked("bfloat16");
  const auto block = static_cast<std::int64_t>(stat(probe, "block_bytes"));
  return ChunkedLLM::open(
             kModel, {.kv_dtype = "bfloat16", .kv_budget_bytes = kBlocks * block, .threads = 2},
             chunks)
      .value();
}

constexpr std::int32_t kAnswer = 300;  // tokens, which take longer than a caller is polled

// A request that holds most blocks for a while. It has begun.
Stream long_request(ChunkedLLM& llm, std::size_t tokens = 1000) {
  const SamplingParams params{.temperature = 0, .max_tokens = kAnswer, .ignore_eos = true};
  Stream stream = must(llm.llm().stream(some_ids(tokens, 50), params));
  EXPECT_TRUE(must(stream.next()).has_value());
  return stream;
}

// Returns how many tokens came, up to the end.
std::size_t rest_of(Stream& stream) {
  std::size_t tokens = 0;
  for (auto delta = must(stream.next()); delta; delta = must(stream.next())) {
    tokens += delta->token_ids.size();
  }
  return tokens;
}

TEST(FormatsRoom, RegisteringWaitsForRequestsAndEvictsNoChunkMeanwhile) {
  ChunkedLLM llm = open_small();
  const std::string other = must_register(llm, content_of(some_ids(30, 1), ChunkType::kContext));
  Stream stream = long_request(llm);
  const std::string id =
      must_register(llm, content_of(some_ids(1200, 2), ChunkType::kContext, "int8"));
  EXPECT_EQ(stat(llm, "requests_running"), 0) << "it has waited";
  EXPECT_EQ(llm.get_chunk(id)->kv_dtype, "int8");
  EXPECT_GE(rest_of(stream), static_cast<std::size_t>(kAnswer - 1))
      << "the request has lost nothing";
  EXPECT_EQ(stat(llm, "preemptions"), 0);
  EXPECT_EQ(llm.chunk_stats()->evictions, 0);
  EXPECT_TRUE(llm.get_chunk(other).ok());
}

TEST(FormatsRoom, WithoutARequestChunksThatNobodyNeedsGiveWay) {
  ChunkedLLM llm = open_small();
  const std::string first = must_register(llm, content_of(some_ids(700, 1), ChunkType::kContext));
  must_register(llm, content_of(some_ids(400, 2), ChunkType::kContext));
  must_register(llm, content_of(some_ids(1200, 3), ChunkType::kContext, "int8"));
  EXPECT_GT(llm.chunk_stats()->evictions, 0);
  EXPECT_EQ(llm.get_chunk(first).error().code, ErrorCode::kNotFound);
}

TEST(FormatsRoom, AWaitIsInterruptedAndAChunkThatNeverFitsDoesNotWait) {
  ChunkedLLM llm = open_small({.chunk_memory_ratio = 0.5});
  Stream stream = long_request(llm);
  const auto never = llm.register_chunk(content_of(some_ids(2000, 2), ChunkType::kContext, "int8"));
  ASSERT_FALSE(never.ok());
  EXPECT_EQ(never.error().code, ErrorCode::kOverflow);
  const auto stopped = llm.register_chunk(
      content_of(some_ids(1200, 2), ChunkType::kContext, "int8"), [] { return true; });
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(stat(llm, "requests_running"), 1);
  EXPECT_GE(rest_of(stream), static_cast<std::size_t>(kAnswer - 1));
  EXPECT_TRUE(llm.list_chunks()->empty());
  EXPECT_EQ(stat(llm, "bytes_in_use"), 0);
}

TEST(FormatsRoom, AnAbortedRequestLetsTheChunkInAndNothingIsEvicted) {
  ChunkedLLM llm = open_small();
  {
    Stream stream = long_request(llm);
  }
  must_register(llm, content_of(some_ids(1200, 2), ChunkType::kContext, "int8"));
  EXPECT_EQ(llm.chunk_stats()->evictions, 0);
}

// A pinned sequence is no request: nobody would ever wake who waits for it.
TEST(FormatsRoom, BlocksThatNoRequestHoldsAreAnErrorAtOnce) {
  ChunkedLLM llm = open_small();
  const Sequence sequence = must(llm.llm().sequence(some_ids(1000, 50)));
  const auto refused =
      llm.register_chunk(content_of(some_ids(1200, 2), ChunkType::kContext, "int8"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBlocks);
  EXPECT_THAT(refused.error().message, HasSubstr("no room"));
  EXPECT_TRUE(llm.list_chunks()->empty());
}

TEST(FormatsRoom, ComposingWaitsForBlocksOfKVThatIsMissing) {
  ChunkedLLM llm = open_small();
  CompositionSpec spec{.without_system = true, .mode = ReuseMode::kIndependent};
  spec.context_chunk_ids = {
      must_register(llm, content_of(some_ids(850, 2), ChunkType::kContext, "int8"))};
  spec.query_chunk_id = must_register(llm, content_of(some_ids(9, 4), ChunkType::kQuery));
  spec.bos_sink = true;
  Stream stream = long_request(llm, 600);
  EXPECT_FALSE(logits(llm, spec).empty());
  EXPECT_EQ(stat(llm, "requests_running"), 0) << "it has waited";
  EXPECT_GE(rest_of(stream), static_cast<std::size_t>(kAnswer - 1));
  EXPECT_EQ(llm.chunk_stats()->evictions, 0);
}

TEST(FormatsRoom, ANarrowedChunkTakesThePlaceOfTheWideOneInAFullRegistry) {
  ChunkedLLM llm = open_small({.max_chunks = 2, .chunk_memory_ratio = 1});
  const std::string first = must_register(llm, content_of(some_ids(70, 1), ChunkType::kContext));
  const std::string second = must_register(llm, content_of(some_ids(70, 2), ChunkType::kContext));
  EXPECT_TRUE(llm.update_chunk(first, {.kv_dtype = "int8"}).ok());
  EXPECT_TRUE(llm.update_chunk(second, {.kv_dtype = "int8"}).ok());
  EXPECT_EQ(llm.chunk_stats()->total_chunks, 2);
  EXPECT_EQ(llm.chunk_stats()->evictions, 0);
}

TEST(FormatsRoom, NarrowingMakesOtherChunksGoWhereThePoolIsFull) {
  ChunkedLLM llm = open_small();
  const std::string old = must_register(llm, content_of(some_ids(750, 1), ChunkType::kContext));
  const std::string kept = must_register(llm, content_of(some_ids(700, 2), ChunkType::kContext));
  const ChunkInfo narrowed = must(llm.update_chunk(kept, {.kv_dtype = "int8"}));
  EXPECT_EQ(narrowed.kv_dtype, "int8");
  EXPECT_EQ(llm.get_chunk(old).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace quire

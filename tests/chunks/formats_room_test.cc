// Who waits and who gives way when chunks in other formats than the pool's want blocks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "formats_scene.h"
#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/sampling.h"
#include "quire/types.h"
#include "tiny_checkpoint.h"

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

// Returns seeded ids that tiny checkpoints have, and no secret ones.
Ids plain_ids(std::size_t count, std::uint32_t seed) {
  Ids ids = small_ids(count, seed);
  std::ranges::replace_if(ids, [](TokenId id) { return id >= chunks::kFirstSecret; }, 50);
  return ids;
}

// A context with KV behind a system prompt and KV of its own, and a query.
struct TwoVariants {
  CompositionSpec anchored, independent;

  [[nodiscard]] const std::string& context() const { return anchored.context_chunk_ids[0]; }
};

TwoVariants register_two(ChunkedLLM& llm, const Ids& context, bool with_anchor = true) {
  TwoVariants made;
  ChunkContent system = content_of(plain_ids(20, 7), ChunkType::kSystemPrompt);
  system.options.pinned = true;
  made.anchored.system_chunk_id = must_register(llm, system);
  made.anchored.query_chunk_id = must_register(llm, content_of(plain_ids(6, 8), ChunkType::kQuery));
  ChunkContent content = content_of(context, ChunkType::kContext);
  content.options.anchor = with_anchor ? made.anchored.system_chunk_id : "";
  made.anchored.context_chunk_ids = {must_register(llm, content)};
  made.independent = made.anchored;
  made.independent.mode = ReuseMode::kIndependent;
  return made;
}

TEST(FormatsRoom, NarrowingThatHasNoRoomForAllKVChangesNothing) {
  int narrowed = 0, refused = 0;
  for (std::size_t held = 32; held <= 736; held += 64) {
    ChunkedLLM llm = open_small();
    const TwoVariants chunks = register_two(llm, some_ids(300, 1));
    const std::vector<float> anchored = logits(llm, chunks.anchored);
    const std::vector<float> independent = logits(llm, chunks.independent);
    ASSERT_TRUE(llm.llm().clear_prefix_cache().ok());
    const Sequence sequence = must(llm.llm().sequence(some_ids(held, 50)));
    const ChunkInfo before = must(llm.get_chunk(chunks.context()));
    ASSERT_EQ(before.num_variants, 2);
    const double bytes = stat(llm, "bytes_in_use");
    const auto after = llm.update_chunk(chunks.context(), {.kv_dtype = "int8"});
    if (after.ok()) {
      ++narrowed;
      EXPECT_EQ(after->num_variants, 2) << "all KV has the format";
      EXPECT_EQ(llm.get_chunk(chunks.context()).error().code, ErrorCode::kNotFound);
      continue;
    }
    ++refused;
    EXPECT_EQ(after.error().code, ErrorCode::kOutOfBlocks) << held;
    EXPECT_EQ(stat(llm, "bytes_in_use"), bytes) << held;
    EXPECT_EQ(llm.list_chunks()->size(), 3U) << held;
    EXPECT_EQ(must(llm.get_chunk(chunks.context())).num_variants, 2) << held;
    EXPECT_EQ(logits(llm, chunks.anchored), anchored) << held;
    EXPECT_EQ(logits(llm, chunks.independent), independent) << held;
  }
  EXPECT_GT(narrowed, 0);
  EXPECT_GT(refused, 2) << "no room for any KV, or none for the second";
}

// Values of a token depend a little on what stands before it. So there is a size of them that the
// format still holds in one variant and not in the other.
TEST(FormatsRoom, NarrowingWhoseSecondVariantDoesNotFitTheFormatChangesNothing) {
  Ids context = plain_ids(40, 1);
  context[35] = chunks::kFirstSecret;
  int split = 0;
  for (double factor = 1.6e6; factor < 3.6e6 && split == 0; factor *= 1.02) {
    const auto model = chunks::write_checkpoint(
        "second_variant", {.with_secrets = true, .secret_values = static_cast<float>(factor)});
    for (const bool with_anchor : {true, false}) {
      ChunkedLLM llm = must(ChunkedLLM::open(model, {.dtype = "float32", .threads = 2}, {}));
      TwoVariants chunks = register_two(llm, context, with_anchor);
      const auto alone = llm.update_chunk(chunks.context(), {.kv_dtype = "int8"});
      if (!alone.ok()) {
        continue;
      }
      ASSERT_TRUE(must(llm.delete_chunk(alone->chunk_id)));
      chunks = register_two(llm, context, with_anchor);
      const std::vector<float> anchored = logits(llm, chunks.anchored);
      const std::vector<float> independent = logits(llm, chunks.independent);
      const double bytes = stat(llm, "bytes_in_use");
      const auto both = llm.update_chunk(chunks.context(), {.kv_dtype = "int8"});
      if (both.ok()) {
        continue;
      }
      ++split;
      EXPECT_EQ(both.error().code, ErrorCode::kUnsupported);
      EXPECT_EQ(stat(llm, "bytes_in_use"), bytes);
      EXPECT_EQ(must(llm.get_chunk(chunks.context())).num_variants, 2);
      EXPECT_EQ(llm.list_chunks()->size(), 3U);
      EXPECT_EQ(logits(llm, chunks.anchored), anchored);
      EXPECT_EQ(logits(llm, chunks.independent), independent);
    }
  }
  EXPECT_GT(split, 0) << "one of the sizes lies between";
}

}  // namespace
}  // namespace quire

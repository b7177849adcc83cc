// Chunks that no request uses share their last blocks. The oracle is the same engine before.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "formats_scene.h"
#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/types.h"

namespace quire {
namespace {

class CoalescedChunks : public testing::TestWithParam<std::string> {};

TEST_P(CoalescedChunks, GiveTheBitsThatTheyGaveBefore) {
  ChunkedLLM llm = open_chunked(GetParam());
  const CompositionSpec spec = register_all(llm, {});
  for (std::uint32_t i = 0; i < 6; ++i) {
    must_register(llm, content_of(some_ids(33 + 3 * i, 10 + i), ChunkType::kContext));
  }
  const std::vector<float> before = logits(llm, spec);
  const double in_use = settled_stat(llm, "blocks_in_use", stat(llm, "blocks_in_use"));
  const std::int64_t freed = llm.coalesce().value();
  EXPECT_GE(freed, 3) << "tails of 8, 11, 1, 4, 7, 10, 13 and 16 tokens, in blocks of 32";
  EXPECT_LT(stat(llm, "blocks_in_use"), in_use);
  EXPECT_EQ(stat(llm, "blocks_coalesced"), static_cast<double>(freed));
  EXPECT_EQ(llm.coalesce().value(), 0);
  EXPECT_EQ(logits(llm, spec), before);
  EXPECT_GT(llm.coalesce().value(), 0) << "the request has ended";
  EXPECT_EQ(logits(llm, spec), before);
}

INSTANTIATE_TEST_SUITE_P(KV, CoalescedChunks,
                         testing::Values("float32", "bfloat16", "int8", "int4", "fp8"),
                         [](const auto& info) { return info.param; });

TEST(CoalescedChunksUnderPressure, KeepWhatIsCachedAndEvictNoChunk) {
  constexpr std::int64_t kBlocks = 48;
  ChunkedLLM probe = open_chunked("float32");
  const auto block = static_cast<std::int64_t>(stat(probe, "block_bytes"));
  ChunkedLLM llm =
      ChunkedLLM::open(kModel,
                       {.kv_dtype = "float32", .kv_budget_bytes = kBlocks * block, .threads = 2},
                       {.chunk_memory_ratio = 1})
          .value();
  for (std::uint32_t i = 0; i < 20; ++i) {
    must_register(llm, content_of(some_ids(36, 10 + i), ChunkType::kContext));  // two blocks each
  }
  const SamplingParams greedy{.temperature = 0, .max_tokens = 4, .ignore_eos = true};
  for (std::uint32_t i = 0; i < 3; ++i) {  // each keeps six of eight free blocks
    must(llm.llm().generate(some_ids(6 * 32 + 8, 60 + i), greedy));
  }
  EXPECT_GE(stat(llm, "blocks_coalesced"), 17) << "eight tails of 4 tokens fit into a block";
  EXPECT_EQ(stat(llm, "evictions"), 0);
  EXPECT_EQ(llm.chunk_stats()->evictions, 0);
  EXPECT_EQ(llm.chunk_stats()->total_chunks, 20);
}

// Twenty pinned chunks hold 40 of 48 blocks, and 23 once their tails share blocks.
class StuckRequest : public testing::Test {
 protected:
  static constexpr std::int64_t kBlocks = 48;

  void SetUp() override {
    for (std::uint32_t i = 0; i < 20; ++i) {
      ChunkContent content = content_of(some_ids(36, 10 + i), ChunkType::kContext);
      content.options.pinned = true;
      must_register(llm_, content);
    }
    ASSERT_EQ(stat(llm_, "blocks_coalesced"), 0);
  }
  // Returns an engine with so many blocks.
  static ChunkedLLM open(std::int64_t blocks) {
    ChunkedLLM probe = open_chunked("float32");
    const auto block = static_cast<std::int64_t>(stat(probe, "block_bytes"));
    return ChunkedLLM::open(
               kModel, {.kv_dtype = "float32", .kv_budget_bytes = blocks * block, .threads = 2},
               {.chunk_memory_ratio = 1})
        .value();
  }

  ChunkedLLM llm_ = open(kBlocks);
  const SamplingParams greedy_{.temperature = 0, .max_tokens = 4, .ignore_eos = true};
};

TEST_F(StuckRequest, RunsInTheBlocksThatCoalescingFrees) {
  const Ids prompt = some_ids(20 * 32, 60);  // 21 blocks, of which 8 are free
  ChunkedLLM roomy = open(4 * kBlocks);
  const Ids expected = must(roomy.llm().generate(prompt, greedy_)).token_ids;
  EXPECT_EQ(must(llm_.llm().generate(prompt, greedy_)).token_ids, expected);
  EXPECT_GE(stat(llm_, "blocks_coalesced"), 13);
  EXPECT_EQ(llm_.chunk_stats()->total_chunks, 20);
  EXPECT_EQ(stat(llm_, "preemptions"), 0);
}

TEST_F(StuckRequest, IsRefusedWithWhatIsLeftWhereCoalescingFreesTooFew) {
  const auto refused = llm_.llm().generate(some_ids(27 * 32, 60), greedy_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBlocks);
  EXPECT_EQ(stat(llm_, "blocks_coalesced"), 17);
  EXPECT_EQ(refused.error().free_bytes, 25 * static_cast<std::int64_t>(stat(llm_, "block_bytes")));
  EXPECT_EQ(llm_.chunk_stats()->total_chunks, 20);
  EXPECT_EQ(must(llm_.llm().generate(some_ids(40, 61), greedy_)).token_ids.size(), 4U);
}

}  // namespace
}  // namespace quire

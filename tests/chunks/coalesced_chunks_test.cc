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

}  // namespace
}  // namespace quire

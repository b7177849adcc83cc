// Preemption by swapping on any device. Oracle: the same requests in a pool that has room for all.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/sampling.h"

namespace quire {
namespace {

std::vector<Ids> answers(LLM& llm) {
  std::vector<Prompt> prompts;
  std::vector<SamplingParams> ways;
  for (std::uint32_t i = 0; i < 6; ++i) {
    prompts.emplace_back(small_ids(30 + 3 * i, i));
    ways.push_back(greedy_to_length(40));
    ways.back().temperature = i % 2 == 0 ? 0.0F : 1.0F;
    ways.back().seed = i;
  }
  std::vector<Ids> said;
  for (const GenerationOutput& output : must(llm.generate_batch(prompts, ways))) {
    said.push_back(output.token_ids);
  }
  return said;
}

TEST(SwappedRequests, SayWhatTheySayWhereNothingIsShort) {
  const std::string folder = source_path("tests/golden/model/llama_gqa");
  LLMOptions options = here({.block_tokens = 8, .kv_budget_bytes = 1 << 24, .threads = 1});
  LLM roomy = must(LLM::open(folder, options));
  const std::vector<Ids> want = answers(roomy);
  EXPECT_EQ(stat(roomy, "preemptions"), 0);
  options.kv_budget_bytes = 24 * static_cast<std::int64_t>(stat(roomy, "block_bytes"));
  options.preemption = "swap";
  options.prefix_cache = false;
  LLM tight = must(LLM::open(folder, options));
  EXPECT_EQ(answers(tight), want);
  EXPECT_GT(stat(tight, "preemptions_swapped"), 0);
  EXPECT_EQ(stat(tight, "swaps_restored"), stat(tight, "preemptions_swapped"));
  EXPECT_EQ(stat(tight, "preemptions_swapped"), stat(tight, "preemptions"));
  EXPECT_EQ(stat(tight, "blocks_in_use"), 0);
}

}  // namespace
}  // namespace quire

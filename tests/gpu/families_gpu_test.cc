// Families beyond dense ones on a GPU, as the tiny random models of tests/golden/model. Oracles:
// the CPU in fp32, and for batches the GPU's own run of each prompt alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

std::string golden(const std::string& name) { return source_path("tests/golden/model/") + name; }

LLM open(const std::string& model, LLMOptions options) {
  options.kv_budget_bytes = std::int64_t{64} << 20;
  options.threads = 2;
  return must(LLM::open(golden(model), options));
}

class FamilyOnAGpu : public ::testing::TestWithParam<std::string> {};

// A near tie of two experts may go the other way in 16 bits, on the CPU too. It changes that row
// much, and those behind it a little.
TEST_P(FamilyOnAGpu, LogitsOfMostRowsAreThoseOfTheCpu) {
  LLM exact = open(GetParam(), {.device = "cpu", .dtype = "float32"});
  for (const std::string dtype : {"bfloat16", "float16"}) {
    LLM gpu = open(GetParam(), {.device = "cuda", .dtype = dtype});
    int rows = 0, far = 0;
    for (const std::uint32_t seed : {1u, 2u, 3u}) {
      const Ids ids = small_ids(75, seed);
      const ForwardOutput want = must(exact.forward(ids, ForwardReuse::kNone));
      const ForwardOutput got = must(gpu.forward(ids, ForwardReuse::kNone));
      const auto vocab = static_cast<std::size_t>(want.vocab_size);
      ASSERT_EQ(got.logits.size(), want.logits.size());
      for (std::size_t first = 0; first < want.logits.size(); first += vocab) {
        const auto row = [&](const std::vector<float>& logits) {
          return std::vector<float>(logits.begin() + static_cast<std::ptrdiff_t>(first),
                                    logits.begin() + static_cast<std::ptrdiff_t>(first + vocab));
        };
        ++rows;
        far += distance(row(want.logits), row(got.logits)) > 0.06 ? 1 : 0;
      }
    }
    EXPECT_LE(far, rows / 8) << "of " << rows << " rows, " << dtype;
  }
}

TEST_P(FamilyOnAGpu, ABatchGivesWhatEachPromptGivesAlone) {
  for (const std::string quantize : {"", "q8g32", "q4g32"}) {
    LLM gpu = open(GetParam(), {.device = "cuda", .dtype = "bfloat16", .quantize = quantize});
    std::vector<Prompt> prompts;
    std::vector<Ids> alone;
    for (std::uint32_t i = 0; i < 20; ++i) {
      const Ids prompt = small_ids(5 + 17 * (i % 6), i);
      alone.push_back(must(gpu.generate(prompt, greedy_to_length(20))).token_ids);
      prompts.emplace_back(prompt);
    }
    ASSERT_TRUE(gpu.clear_prefix_cache().ok());
    const auto greedy = greedy_to_length(20);
    for (const std::size_t count : {3u, 20u}) {
      const auto outputs = must(gpu.generate_batch(std::span(prompts).first(count), {&greedy, 1}));
      for (std::size_t i = 0; i < count; ++i) {
        EXPECT_EQ(outputs[i].token_ids, alone[i]) << i << " of " << count << ", " << quantize;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, FamilyOnAGpu,
                         ::testing::Values("mixtral", "mixtral_window", "qwen3_moe",
                                           "qwen3_moe_dense", "qwen3_moe_sizes"),
                         [](const auto& info) { return info.param; });

TEST(ExpertsOnAGpu, AreRefusedInFp8ByName) {
  const auto llm =
      LLM::open(golden("mixtral"), {.device = "cuda", .quantize = "fp8", .threads = 2});
  ASSERT_FALSE(llm.ok());
  EXPECT_EQ(llm.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(llm.error().message, HasSubstr("experts of fp8 weights; use quantize=\"q8g32\""));
}

}  // namespace
}  // namespace quire

// GGUF files of every quantised type, from opening to generated ids. Oracle: the same file with its
// weights decoded to fp32.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/types.h"
#include "quire/weights/test_files.h"
#include "quire/weights/test_models.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using weights::testing::GgufModel;

class GgufTypes : public ::testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path write(const std::string& content) {
    folder_.write("model.gguf", content);
    return folder_.path() / "model.gguf";
  }

  weights::testing::TempFolder folder_;
};

std::vector<float> logits_of(LLM& llm, const Ids& ids) {
  return must(llm.forward(ids, ForwardReuse::kNone, ForwardRows::kLast)).logits;
}

TEST_P(GgufTypes, LogitsAreThoseOfTheDecodedWeights) {
  const auto model = write(GgufModel(GetParam()).build());
  LLM own = must(LLM::open(model, {.threads = 2}));
  LLM decoded = must(LLM::open(model, {.dtype = "float32", .threads = 2}));
  LLM eight = must(LLM::open(model, {.quantize = "q8g32", .threads = 2}));
  for (const std::size_t count : {1u, 5u, 40u, 150u}) {
    Ids ids;
    for (std::size_t i = 0; i < count; ++i) {
      ids.push_back(static_cast<TokenId>((i * 37 + 3) % GgufModel::kVocabulary));
    }
    // Rows of activations are rounded to 8 bits.
    const std::vector<float> wanted = logits_of(decoded, ids);
    EXPECT_LE(deviation(wanted, logits_of(own, ids)), 0.05) << count << " tokens";
    EXPECT_LE(deviation(wanted, logits_of(eight, ids)), 0.05) << count << " tokens";
  }
  EXPECT_LT(stat(own, "weight_bytes") * 3, stat(decoded, "weight_bytes"));
}

TEST_P(GgufTypes, GeneratedIdsAreThoseOfTheLargestLogits) {
  LLM llm = must(LLM::open(write(GgufModel(GetParam()).build()), {.threads = 2}));
  Ids ids = {3, 17, 39, 0, 5, 5, 21, 299};
  const auto output = must(
      llm.generate(ids, SamplingParams{.temperature = 0, .max_tokens = 12, .ignore_eos = true}));
  ASSERT_EQ(output.token_ids.size(), 12u);
  for (const TokenId id : output.token_ids) {
    const std::vector<float> logits = logits_of(llm, ids);
    EXPECT_EQ(id, std::ranges::max_element(logits) - logits.begin());
    ids.push_back(id);
  }
}

TEST_P(GgufTypes, AFileThatIsCutIsCorrupt) {
  std::string content = GgufModel(GetParam()).build();
  content.resize(content.size() - 100);
  const auto opened = LLM::open(write(content), {.threads = 2});
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(opened.error().message, HasSubstr("truncated"));
}

INSTANTIATE_TEST_SUITE_P(All, GgufTypes,
                         ::testing::Values("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K",
                                           "Q4_K", "Q5_K", "Q6_K", "IQ1_S", "IQ1_M", "IQ2_XXS",
                                           "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL",
                                           "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4", "Q1_0",
                                           "Q2_0"),
                         [](const auto& info) { return info.param; });

// Types that differ within a matrix, as files of several types have them.
TEST_F(GgufTypes, MatricesOfSeveralTypesAreQuantisedAgain) {
  const std::vector<std::string> types = {"Q6_K",  "Q8_0", "IQ2_XXS", "IQ4_XS",
                                          "IQ3_S", "Q2_K", "Q3_K"};
  const auto model = write(GgufModel(types).build());
  LLM own = must(LLM::open(model, {.threads = 2}));
  LLM decoded = must(LLM::open(model, {.dtype = "float32", .threads = 2}));
  const Ids ids = {3, 17, 39, 0, 5, 5, 21, 299, 120};
  EXPECT_LE(deviation(logits_of(decoded, ids), logits_of(own, ids)), 0.05);
}

}  // namespace
}  // namespace quire

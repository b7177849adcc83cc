// Models with quantised weights on a GPU. Oracles: the CPU, which computes from the same codes, and
// the CPU in fp32.
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
#include "quire/types.h"
#include "quire/weights/test_files.h"
#include "quire/weights/test_models.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using weights::testing::GgufModel;

LLMOptions quantised(const std::string& device, const std::string& format) {
  return {.device = device, .quantize = format, .threads = 2};
}

std::vector<float> logits_of(LLM& llm, const Ids& ids) {
  return must(llm.forward(ids, ForwardReuse::kNone, ForwardRows::kLast)).logits;
}

TEST(QuantisedOnAGpu, LogitsAreAsCloseToFp32AsTheCpusTwiceOver) {
  for (const char* format : {"q8g32", "q4g32"}) {
    LLM gpu = must(LLM::open(kModel, quantised("cuda", format)));
    LLM cpu = must(LLM::open(kModel, quantised("cpu", format)));
    EXPECT_NEAR(stat(gpu, "weight_bytes"), stat(cpu, "weight_bytes"), 1);
    for (const std::size_t length : {1, 5, 17, 33, 200, 700}) {
      const Ids ids = some_ids(length, static_cast<std::uint32_t>(length));
      // Both multiply the same weights. The CPU rounds rows to 8 bits.
      EXPECT_LE(distance(logits_of(cpu, ids), logits_of(gpu, ids)), 0.05)
          << format << ", " << length << " tokens";
    }
  }
}

// Says that two devices chose the same ids behind `prompt`, or that the logits of the CPU, where
// they part, are a near tie.
void expect_same_up_to_a_near_tie(LLM& cpu, Ids prompt, const Ids& want, const Ids& got) {
  const auto [there, here] = std::ranges::mismatch(want, got);
  if (there == want.end() || here == got.end()) {
    EXPECT_EQ(want, got);
    return;
  }
  prompt.insert(prompt.end(), want.begin(), there);
  const std::vector<float> logits = logits_of(cpu, prompt);
  const auto [least, most] = std::ranges::minmax(logits);
  const auto at = [&](TokenId id) { return logits[static_cast<std::size_t>(id)]; };
  EXPECT_LE(at(*there) - at(*here), 0.02 * (most - least)) << *there << " and " << *here;
}

TEST(QuantisedOnAGpu, GreedyIdsEqualTheCpusUpToANearTie) {
  for (const char* format : {"q8g32", "q4g32"}) {
    LLM cpu = must(LLM::open(kModel, quantised("cpu", format)));
    for (const bool deterministic : {true, false}) {
      LLMOptions options = quantised("cuda", format);
      options.deterministic = deterministic;
      LLM gpu = must(LLM::open(kModel, options));
      for (std::uint32_t seed = 0; seed < 8; ++seed) {
        SCOPED_TRACE(std::string(format) + ", seed " + std::to_string(seed));
        const Ids prompt = some_ids(20 + 10 * seed, seed);
        const SamplingParams params = {.temperature = 0, .max_tokens = 16, .ignore_eos = true};
        expect_same_up_to_a_near_tie(cpu, prompt, must(cpu.generate(prompt, params)).token_ids,
                                     must(gpu.generate(prompt, params)).token_ids);
      }
    }
  }
}

TEST(QuantisedOnAGpu, ABatchGivesWhatEachPromptGivesAlone) {
  for (const char* format : {"q8g32", "q4g32"}) {
    LLM gpu = must(LLM::open(kModel, quantised("cuda", format)));
    const SamplingParams params = {.temperature = 0, .max_tokens = 24, .ignore_eos = true};
    std::vector<Prompt> prompts;
    std::vector<Ids> alone;
    for (std::uint32_t i = 0; i < 40; ++i) {
      const Ids prompt = some_ids(5 + 37 * (i % 12), i);
      alone.push_back(must(gpu.generate(prompt, params)).token_ids);
      prompts.emplace_back(prompt);
    }
    EXPECT_TRUE(gpu.clear_prefix_cache().ok());
    const auto outputs = must(gpu.generate_batch(prompts, {&params, 1}));
    for (std::size_t i = 0; i < alone.size(); ++i) {
      EXPECT_EQ(outputs[i].token_ids, alone[i]) << format << ", prompt " << i;
    }
  }
}

TEST(QuantisedOnAGpu, AWarmRequestGivesTheBitsOfAColdOne) {
  LLM gpu = must(LLM::open(kModel, quantised("cuda", "q4g32")));
  const Ids prompt = some_ids(300, 1);
  const Ids longer = joined(prompt, some_ids(50, 2));
  const auto cold = logits_of(gpu, longer);
  (void)must(gpu.generate(prompt, {.temperature = 0, .max_tokens = 4}));
  EXPECT_EQ(must(gpu.forward(longer, ForwardReuse::kExact, ForwardRows::kLast)).logits, cold);
}

TEST(QuantisedOnAGpu, InFloat16ActivationsAndKVAreFp16) {
  LLMOptions options = quantised("cuda", "q8g32");
  options.dtype = "float16";
  LLM gpu = must(LLM::open(kModel, options));
  LLM cpu = must(LLM::open(kModel, quantised("cpu", "q8g32")));
  const Ids ids = some_ids(200, 4);
  EXPECT_LE(distance(logits_of(cpu, ids), logits_of(gpu, ids)), 0.05);
}

// Encodings whose codes stay, those that are packed again in eight bits, and what is not quantised,
// in every place.
TEST(QuantisedOnAGpu, GgufFilesOfEveryEncodingAreComputedFromTheirCodes) {
  const std::vector<std::vector<std::string>> files = {
      {"Q4_K", "Q6_K", "Q4_K", "Q6_K", "Q4_K", "Q4_K", "Q6_K"},
      {"Q8_0", "Q8_0", "Q8_0", "Q8_0", "Q5_0", "Q8_0", "Q5_0"},
      {"Q4_0", "F16", "Q4_0", "Q4_0", "Q4_1", "Q5_K", "Q5_1"},
      {"F16", "Q4_1", "F16", "F16", "Q5_K", "Q4_0", "Q4_K"}};
  const Ids ids = {3, 17, 39, 0, 5, 5, 21, 299, 120, 80, 4, 7, 9, 1, 2, 255, 256, 31, 33};
  for (const auto& encodings : files) {
    const weights::testing::TempFolder folder;
    folder.write("model.gguf", GgufModel(encodings).build());
    const std::filesystem::path model = folder.path() / "model.gguf";
    LLM gpu = must(LLM::open(model, {.device = "cuda", .threads = 2}));
    LLM cpu = must(LLM::open(model, {.threads = 2}));
    LLM exact = must(LLM::open(model, {.dtype = "float32", .threads = 2}));
    EXPECT_EQ(stat(gpu, "weight_bytes"), stat(cpu, "weight_bytes")) << encodings[0];
    for (const std::size_t count : {1u, 4u, 19u}) {
      const Ids some(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count));
      const auto want = logits_of(exact, some);
      EXPECT_LE(distance(want, logits_of(gpu, some)),
                2 * distance(want, logits_of(cpu, some)) + 1e-3)
          << encodings[0] << ", " << count << " tokens";
    }
  }
}

// Codes of a table or of two bits. Bytes and logits are those of the CPU, which rounds activations.
// A row has the same bits alone and among others.
TEST(QuantisedOnAGpu, TypesOfSmallIntegersAreComputedFromTheirCodes) {
  const Ids ids = {3, 17, 39, 0, 5, 5, 21, 299, 120, 80, 4, 7, 9, 1, 2, 255, 256, 31, 33};
  for (const char* type :
       {"Q2_K", "Q3_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S",
        "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4", "Q1_0", "Q2_0"}) {
    const weights::testing::TempFolder folder;
    folder.write("model.gguf", GgufModel(type).build());
    const std::filesystem::path model = folder.path() / "model.gguf";
    LLM gpu = must(LLM::open(model, {.device = "cuda", .threads = 2}));
    LLM cpu = must(LLM::open(model, {.threads = 2}));
    LLM exact = must(LLM::open(model, {.dtype = "float32", .threads = 2}));
    EXPECT_EQ(stat(gpu, "weight_bytes"), stat(cpu, "weight_bytes")) << type;
    const auto want = logits_of(exact, ids), got = logits_of(gpu, ids);
    EXPECT_LE(distance(want, got), 2 * distance(want, logits_of(cpu, ids)) + 1e-3) << type;
    Ids longer = ids;
    for (int i = 0; i < 60; ++i) {
      longer.push_back(ids[static_cast<std::size_t>(i) % ids.size()]);
    }
    EXPECT_TRUE(gpu.clear_prefix_cache().ok());
    const auto all = must(gpu.forward(longer, ForwardReuse::kExact, ForwardRows::kAll)).logits;
    const auto row = all.begin() + std::ssize(got) * (std::ssize(ids) - 1);
    EXPECT_TRUE(std::equal(got.begin(), got.end(), row)) << type;
  }
}

// The CPU has no fp8: eight bits in groups are nearer to the checkpoint, and fp8 is near those.
TEST(QuantisedOnAGpu, Fp8IsNearTheCheckpointAndRowsKeepTheirBits) {
  LLM gpu = must(LLM::open(kModel, quantised("cuda", "fp8")));
  LLM exact = must(LLM::open(kModel, {.dtype = "float32", .threads = 2}));
  const Ids ids = some_ids(200, 4);
  EXPECT_LE(distance(logits_of(exact, ids), logits_of(gpu, ids)), 0.2);
  const SamplingParams params = {.temperature = 0, .max_tokens = 12, .ignore_eos = true};
  std::vector<Prompt> prompts;
  std::vector<Ids> alone;
  for (std::uint32_t i = 0; i < 20; ++i) {
    prompts.emplace_back(some_ids(5 + 17 * i, i));
    alone.push_back(must(gpu.generate(some_ids(5 + 17 * i, i), params)).token_ids);
  }
  EXPECT_TRUE(gpu.clear_prefix_cache().ok());
  const auto outputs = must(gpu.generate_batch(prompts, {&params, 1}));
  for (std::size_t i = 0; i < alone.size(); ++i) {
    EXPECT_EQ(outputs[i].token_ids, alone[i]) << "prompt " << i;
  }
  const auto refused = LLM::open(kModel, quantised("cpu", "fp8"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("q8g32"));
}

TEST(QuantisedOnAGpu, WithADtypeAFileIsExpandedToIt) {
  const weights::testing::TempFolder folder;
  folder.write("model.gguf", GgufModel("Q4_0").build());
  const std::filesystem::path model = folder.path() / "model.gguf";
  LLM codes = must(LLM::open(model, {.device = "cuda", .threads = 2}));
  LLM wide = must(LLM::open(model, {.device = "cuda", .dtype = "bfloat16", .threads = 2}));
  EXPECT_GT(stat(wide, "weight_bytes"), 3 * stat(codes, "weight_bytes"));
}

}  // namespace
}  // namespace quire

// SmolLM2-135M-Instruct from its GGUF file: greedy answers equal to those of transformers on the
// dequantised weights. The file is fetched into .cache/smollm2 by tools/fetch_smollm.py and never
// committed; without it the test is skipped.
#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "golden.h"
#include "quire/device/cpu/isa.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/decoder.h"
#include "quire/tensor/dtype.h"
#include "quire/types.h"
#include "runner.h"

namespace quire::model::testing {
namespace {

std::optional<std::filesystem::path> find_gguf() {
  const auto folder = std::filesystem::path(QUIRE_SOURCE_DIR) / ".cache" / "smollm2";
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failure)) {
    if (entry.path().extension() == ".gguf") {
      return entry.path();
    }
  }
  return std::nullopt;
}

constexpr TokenId kEndOfTurn = 2;

// In float32, on the fastest kernels here.
class SmolLM2 : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto path = find_gguf();
    if (!path) {
      GTEST_SKIP() << "no .cache/smollm2/*.gguf; fetch it with tools/fetch_smollm.py";
    }
    auto loaded = load_decoder(*path, device::best_isa(), kernels::WeightFormat::kF32);
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    decoder_ = std::make_unique<Decoder>(std::move(loaded).value());
    golden_ = parse_file(golden_folder() / "smollm2" / "golden.json");
  }

  std::unique_ptr<Decoder> decoder_;
  base::json::value golden_;
};

// Equal to the id, without exceptions: the closest call of the reference on all these paths is
// 1.5e-3 (5e-4 standard deviations) between the best two logits.
TEST_F(SmolLM2, GreedyAnswersTo20PromptsEqualTransformers) {
  const auto& prompts = golden_.at("prompts").as_array();
  ASSERT_EQ(prompts.size(), 20U);
  for (const auto& prompt : prompts) {
    Runner runner(*decoder_, tensor::DType::kFloat32, 32, 20);
    const auto answer = numbers<TokenId>(prompt.at("greedy"));
    EXPECT_EQ(greedy(runner, numbers<TokenId>(prompt.at("ids")), answer.size(), kEndOfTurn),
              answer);
  }
}

TEST_F(SmolLM2, LogitsAndAnswerAfterALongDocumentEqualTransformers) {
  const auto& deep = golden_.at("deep");
  const auto ids = numbers<TokenId>(deep.at("ids"));
  ASSERT_GT(ids.size(), 1800U);
  Runner runner(*decoder_, tensor::DType::kFloat32, 32, 80);
  Sequence sequence;
  auto logits = runner.feed(sequence, ids, Rows::kLast);

  const auto stride = deep.at("logit_stride").to_number<std::size_t>();
  const auto expected = numbers<float>(deep.at("logits"));
  const double bound = 1e-3 * deep.at("logits_std").to_number<double>();
  ASSERT_EQ(logits.size(), expected.size() * stride);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(logits[i * stride], expected[i], bound) << "of token " << i * stride;
  }

  const auto answer = numbers<TokenId>(deep.at("greedy"));
  for (const TokenId id : answer) {
    EXPECT_EQ(argmax(logits), id);
    logits = runner.feed(sequence, {&id, 1}, Rows::kLast);
  }
}

}  // namespace
}  // namespace quire::model::testing

// SmolLM2-135M-Instruct from its GGUF file: greedy answers equal to those of transformers on the
// dequantised weights. The file is fetched into .cache/smollm2 by tools/fetch_smollm.py and never
// committed; without it the test is skipped.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "golden.h"
#include "quire/base/test_length.h"
#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/decoder.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/weight_packer.h"
#include "quire/tensor/dtype.h"
#include "quire/types.h"
#include "quire/weights/model_files.h"
#include "quire/weights/tensor_info.h"
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
    auto loaded = open_decoder(*path, device::best_isa(), kernels::WeightFormat::kF32);
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    decoder_ = std::make_unique<Decoder>(std::move(loaded).value());
    golden_ = parse_file(golden_folder() / "smollm2" / "golden.json");
  }

  std::unique_ptr<Decoder> decoder_;
  base::Json golden_;
};

// Equal to the id, without exceptions: the closest call of the reference on all these paths is
// 1.5e-3 (5e-4 standard deviations) between the best two logits.
TEST_F(SmolLM2, GreedyAnswersTo20PromptsEqualTransformers) {
  const base::JsonView prompts = golden_.view().find("prompts");
  ASSERT_EQ(prompts.size(), 20U);
  const std::size_t stride = base::test_length<std::size_t>(1, 4);
  for (std::size_t i = 0; i < prompts.size(); i += stride) {
    const base::JsonView prompt = prompts[i];
    Runner runner(*decoder_, tensor::DType::kFloat32, 32, 20);
    const auto answer = numbers<TokenId>(prompt.find("greedy"));
    EXPECT_EQ(greedy(runner, numbers<TokenId>(prompt.find("ids")), answer.size(), kEndOfTurn),
              answer);
  }
}

TEST_F(SmolLM2, LogitsAndAnswerAfterALongDocumentEqualTransformers) {
  const base::JsonView deep = golden_.view().find("deep");
  const auto ids = numbers<TokenId>(deep.find("ids"));
  ASSERT_GT(ids.size(), 1800U);
  Runner runner(*decoder_, tensor::DType::kFloat32, 32, 80);
  Sequence sequence;
  auto logits = runner.feed(sequence, ids, Rows::kLast);

  const auto stride = static_cast<std::size_t>(deep.find("logit_stride").as_int());
  const auto expected = numbers<float>(deep.find("logits"));
  const double bound = 1e-3 * deep.find("logits_std").as_double();
  ASSERT_EQ(logits.size(), expected.size() * stride);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(logits[i * stride], expected[i], bound) << "of token " << i * stride;
  }

  const auto answer = numbers<TokenId>(deep.find("greedy"));
  for (const TokenId id : answer) {
    EXPECT_EQ(argmax(logits), id);
    logits = runner.feed(sequence, {&id, 1}, Rows::kLast);
  }
}

// Weights that a user gets without a dtype: the file's own Q4_1 blocks.
class SmolLM2InItsOwnCodes : public SmolLM2 {
 protected:
  device::ThreadPool pool_{2};
  kernels::KernelContext context_{&kernels::kernels_for(device::best_isa()), &pool_};
  PackOptions options_{.format = kernels::WeightFormat::kBf16, .keep_codes = true};
};

TEST_F(SmolLM2InItsOwnCodes, ThePackedNumbersAreTheFiles) {
  const auto model_files = weights::ModelFiles::open(*find_gguf()).value();
  const auto config = config_from_gguf(*model_files.gguf()).value();
  PackReport report;
  const auto weights = pack_weights(context_, config, model_files, options_, report);
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  EXPECT_EQ(report.main_format, kernels::WeightFormat::kQ4m32);
  const auto expect_row = [&](const kernels::PackedWeights& packed, std::int64_t row,
                              const char* name, std::int64_t file_row) {
    const weights::TensorInfo& tensor = *model_files.find(name);
    std::vector<float> expected(static_cast<std::size_t>(tensor.columns())), seen(expected.size());
    weights::read_rows(tensor, file_row, 1, expected);
    packed.unpack_row(row, seen);
    EXPECT_EQ(seen, expected) << name;
  };
  const LayerWeights& layer = weights->layers[7];
  expect_row(layer.down.weights, 100, "blk.7.ffn_down.weight", 100);
  expect_row(layer.gate_up.weights, 1536 + 3, "blk.7.ffn_up.weight", 3);
  expect_row(layer.qkv.weights, 64 + 1, "blk.7.attn_q.weight", 64 + 2);  // interleaved in the file
  expect_row(weights->head, 4711, "token_embd.weight", 4711);
}

// Products with activations of 8 bits; llama.cpp computes them so too. Chance decides where values
// round: this is 0.04 to 0.12 of the deviation over instruction sets (portable, AVX2) and types of
// KV (fp32, bf16).
TEST_F(SmolLM2InItsOwnCodes, LogitsAfterALongDocumentAreNearTransformers) {
  auto loaded = open_decoder(*find_gguf(), device::best_isa(), options_);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  decoder_ = std::make_unique<Decoder>(std::move(loaded).value());
  const base::JsonView deep = golden_.view().find("deep");
  Runner runner(*decoder_, tensor::DType::kBFloat16, 32, 80);
  Sequence sequence;
  const auto logits = runner.feed(sequence, numbers<TokenId>(deep.find("ids")), Rows::kLast);
  const auto stride = static_cast<std::size_t>(deep.find("logit_stride").as_int());
  const auto expected = numbers<float>(deep.find("logits"));
  double squares = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = double{logits[i * stride]} - double{expected[i]};
    squares += error * error;
  }
  const double deviation = deep.find("logits_std").as_double();
  EXPECT_LE(std::sqrt(squares / static_cast<double>(expected.size())), 0.2 * deviation);
  EXPECT_EQ(argmax(logits), numbers<TokenId>(deep.find("greedy")).front());
}

}  // namespace
}  // namespace quire::model::testing

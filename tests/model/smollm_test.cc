// SmolLM2-135M-Instruct from its GGUF file: greedy answers equal to those of transformers on the
// dequantised weights. The file is fetched into .cache/smollm2 by tools/fetch_smollm.py and never
// committed; without it the test is skipped.
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <system_error>

#include "golden.h"
#include "quire/device/cpu/isa.h"
#include "quire/kernels/packed_weights.h"
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

TEST(SmolLM2, GreedyAnswersEqualTransformers) {
  const auto path = find_gguf();
  if (!path) {
    GTEST_SKIP() << "no .cache/smollm2/*.gguf; fetch it with tools/fetch_smollm.py";
  }
  auto decoder = load_decoder(*path, device::best_isa(), kernels::WeightFormat::kF32);
  ASSERT_TRUE(decoder.ok()) << decoder.error().message;
  constexpr TokenId kEndOfTurn = 2;
  const auto golden = parse_file(golden_folder() / "smollm2" / "golden.json");
  for (const auto& prompt : golden.at("prompts").as_array()) {
    Runner runner(*decoder, tensor::DType::kFloat32, 32, 40);
    const auto answer = numbers<TokenId>(prompt.at("greedy"));
    EXPECT_EQ(greedy(runner, numbers<TokenId>(prompt.at("ids")), answer.size(), kEndOfTurn),
              answer);
  }
}

}  // namespace
}  // namespace quire::model::testing

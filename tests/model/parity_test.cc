// The decoder against transformers, on a tiny random model of every family variant. Oracle and
// its versions: tests/golden/model/make_goldens.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <utility>

#include "golden.h"
#include "quire/base/json.h"
#include "quire/device/cpu/isa.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/decoder.h"
#include "quire/tensor/dtype.h"
#include "quire/types.h"
#include "runner.h"

namespace quire::model::testing {
namespace {

using kernels::WeightFormat;
using tensor::DType;

class ParityTest : public ::testing::TestWithParam<std::tuple<std::string, device::Isa>> {
 protected:
  [[nodiscard]] std::filesystem::path model() const {
    return golden_folder() / std::get<0>(GetParam());
  }
  [[nodiscard]] Golden golden() const { return read_golden(golden_of(std::get<0>(GetParam()))); }
  [[nodiscard]] device::Isa isa() const { return std::get<1>(GetParam()); }
};

struct Distance {
  double rms = 0;
  double max = 0;
};

// Returns the distance over all golden rows.
Distance distance_to(const Golden& golden, Decoder& decoder, DType kv_dtype) {
  double squares = 0;
  double count = 0;
  double max = 0;
  for (const GoldenPrompt& prompt : golden.prompts) {
    Runner runner(decoder, kv_dtype, 32, 8);
    Sequence sequence;
    const auto logits = runner.feed(sequence, prompt.ids);
    const auto vocab = static_cast<std::size_t>(decoder.config().vocab_size);
    for (std::size_t i = 0; i < prompt.rows.size(); ++i) {
      for (std::size_t v = 0; v < vocab; ++v) {
        const double off = logits[prompt.rows[i] * vocab + v] - prompt.logits[i][v];
        squares += off * off;
        count += 1;
        max = std::max(max, std::abs(off));
      }
    }
  }
  return {std::sqrt(squares / count), max};
}

TEST_P(ParityTest, Fp32LogitsAreWithinAThousandthOfTheirDeviation) {
  const Golden reference = golden();
  auto decoder = open_decoder(model(), isa(), WeightFormat::kF32);
  ASSERT_TRUE(decoder.ok()) << decoder.error().message;
  const Distance distance = distance_to(reference, *decoder, DType::kFloat32);
  EXPECT_LT(distance.max, 1e-3 * reference.std);
}

TEST_P(ParityTest, Fp32GreedyIdsAreEqual) {
  auto decoder = open_decoder(model(), isa(), WeightFormat::kF32);
  ASSERT_TRUE(decoder.ok()) << decoder.error().message;
  for (const GoldenPrompt& prompt : golden().prompts) {
    Runner runner(*decoder, DType::kFloat32, 32, 8);
    EXPECT_EQ(greedy(runner, prompt.ids, prompt.greedy.size()), prompt.greedy);
  }
}

TEST_P(ParityTest, Bf16LogitsAreWithinTwiceTheReferencesOwnDistance) {
  const Golden reference = golden();
  auto decoder = open_decoder(model(), isa(), WeightFormat::kBf16);
  ASSERT_TRUE(decoder.ok()) << decoder.error().message;
  const Distance distance = distance_to(reference, *decoder, DType::kBFloat16);
  EXPECT_LT(distance.rms, 2 * reference.bf16_rms);
  EXPECT_LT(distance.max, 2 * reference.bf16_max);
  EXPECT_GT(distance.max, 0.0);
}

// Quantised weights are no parity matter; this catches a wrong scale or a mixed-up layout.
TEST_P(ParityTest, QuantisedLogitsCorrelateWithTheReference) {
  const Golden reference = golden();
  for (const auto& [format, share] :
       {std::pair(WeightFormat::kQ8g32, 0.15), std::pair(WeightFormat::kQ4g32, 0.75)}) {
    auto decoder = open_decoder(model(), isa(), format);
    ASSERT_TRUE(decoder.ok()) << decoder.error().message;
    EXPECT_LT(distance_to(reference, *decoder, DType::kBFloat16).rms, share * reference.std)
        << kernels::format_name(format);
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, ParityTest,
                         ::testing::Combine(::testing::ValuesIn(variant_paths()),
                                            ::testing::ValuesIn(device::supported_isas())),
                         [](const auto& info) {
                           return test_name(std::get<0>(info.param)) + "_" +
                                  std::string(device::isa_name(std::get<1>(info.param)));
                         });

// A model as a folder, and as the GGUF file that llama.cpp's own writer made of it: other names,
// another order of rows, other metadata, the same numbers. But GGUF keeps the factors of llama3's
// frequencies in fp32: where the frequencies differ, ids are what must be the same. So it is where
// the file has the heads of a gated delta rule in another order, in which their outputs are summed
// and quantised.
TEST(SameModel, HasTheSameBitsAsAFolderAndAsGguf) {
  int compared = 0;
  for (const std::string& path : variant_paths()) {
    if (!path.ends_with(".gguf")) {
      continue;
    }
    const Ids prompt = read_golden(golden_of(path)).prompts.back().ids;
    for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kQ8g32,
                                      WeightFormat::kQ4g32, WeightFormat::kQ4m32}) {
      auto folder = open_decoder(golden_of(path), device::best_isa(), format).value();
      auto gguf = open_decoder(golden_folder() / path, device::best_isa(), format).value();
      Runner folder_runner(folder, DType::kFloat32, 32, 16);
      Runner gguf_runner(gguf, DType::kFloat32, 32, 16);
      const bool in_order = gguf.config().state.keys_in_turn == folder.config().state.keys_in_turn;
      if (in_order || format == WeightFormat::kF32) {
        EXPECT_EQ(greedy(gguf_runner, prompt, 20), greedy(folder_runner, prompt, 20)) << path;
      }
      if (in_order &&
          gguf.config().rotary.inverse_frequencies == folder.config().rotary.inverse_frequencies) {
        Sequence one, other;
        EXPECT_EQ(gguf_runner.feed(one, prompt), folder_runner.feed(other, prompt))
            << path << " " << kernels::format_name(format);
        ++compared;
      }
    }
  }
  EXPECT_GE(compared, 4 * 5) << "variants by formats";
}

// The demo model, with real text: greedy answers and the eight largest first logits.
class CardfileTest : public ::testing::TestWithParam<WeightFormat> {};

TEST_P(CardfileTest, AnswersAsTheReferenceDoes) {
  const bool fp32 = GetParam() == WeightFormat::kF32;
  const auto folder = std::filesystem::path(QUIRE_SOURCE_DIR) / "models" / "cardfile" / "model";
  auto decoder = open_decoder(folder, device::best_isa(), GetParam());
  ASSERT_TRUE(decoder.ok()) << decoder.error().message;
  constexpr int kPrompts = 24;                        // of 200; a second each on a busy machine
  constexpr double kLogitTolerance[] = {2e-3, 0.35};  // fp32: golden.jsonl keeps 5 decimals; bf16:
                                                      // logits up to 30 in 8 bits of mantissa
  std::ifstream lines(folder / "golden.jsonl");
  std::string line;
  int equal = 0;
  for (int i = 0; i < kPrompts && std::getline(lines, line); ++i) {
    const base::Json parsed = base::parse_json(line, "golden.jsonl").value();
    const base::JsonView json = parsed;
    Ids prompt;
    for (const base::JsonView piece : json.find("pieces").elements()) {
      const auto ids = numbers<TokenId>(piece);
      prompt.insert(prompt.end(), ids.begin(), ids.end());
    }
    Runner runner(*decoder, fp32 ? DType::kFloat32 : DType::kBFloat16, 32, 64);
    Sequence sequence;
    const auto logits = runner.feed(sequence, prompt, Rows::kLast);
    const auto top_ids = numbers<std::size_t>(json.find("top_ids"));
    const auto top_logits = numbers<float>(json.find("top_logits"));
    for (std::size_t k = 0; k < top_ids.size(); ++k) {
      EXPECT_NEAR(logits[top_ids[k]], top_logits[k], kLogitTolerance[fp32 ? 0 : 1]) << "line " << i;
    }
    const auto answer = numbers<TokenId>(json.find("greedy"));
    const bool same = greedy(runner, prompt, answer.size()) == answer;
    EXPECT_TRUE(same || !fp32) << "line " << i;
    equal += same ? 1 : 0;
  }
  EXPECT_GE(equal, fp32 ? kPrompts : kPrompts - 1);
}

INSTANTIATE_TEST_SUITE_P(Formats, CardfileTest,
                         ::testing::Values(WeightFormat::kF32, WeightFormat::kBf16),
                         [](const auto& info) { return kernels::format_name(info.param); });

}  // namespace
}  // namespace quire::model::testing

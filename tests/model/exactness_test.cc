// Warm equals cold at the level of the model: however a prompt is cut into steps, whatever else is
// in the batch and whatever the block size, every row has the bits of the one-shot prefill.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "golden.h"
#include "quire/device/cpu/isa.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/decoder.h"
#include "quire/tensor/dtype.h"
#include "runner.h"

namespace quire::model::testing {
namespace {

using kernels::WeightFormat;
using tensor::DType;

using Param = std::tuple<std::string, WeightFormat, device::Isa>;

class ExactnessTest : public ::testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    const std::string& path = std::get<0>(GetParam());
    auto loaded =
        open_decoder(golden_folder() / path, std::get<2>(GetParam()), std::get<1>(GetParam()));
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    decoder_.emplace(std::move(loaded).value());
    prompt_ = read_golden(golden_of(path)).prompts.back().ids;
    cold_ = cold(prompt_, 32);
  }

  [[nodiscard]] DType kv_dtype() const {
    return std::get<1>(GetParam()) == WeightFormat::kF32 ? DType::kFloat32 : DType::kBFloat16;
  }
  [[nodiscard]] std::int32_t blocks_for(std::int32_t block_tokens) const {
    return static_cast<std::int32_t>(2 * prompt_.size()) / block_tokens + 4;
  }
  std::vector<float> cold(const Ids& prompt, std::int32_t block_tokens) {
    Runner runner(*decoder_, kv_dtype(), block_tokens, blocks_for(block_tokens));
    Sequence sequence;
    return runner.feed(sequence, prompt);
  }
  // The prompt in steps of these sizes, the last one repeated.
  std::vector<float> split(std::int32_t block_tokens, const std::vector<std::size_t>& sizes) {
    Runner runner(*decoder_, kv_dtype(), block_tokens, blocks_for(block_tokens));
    Sequence sequence;
    std::vector<float> all;
    for (std::size_t done = 0, step = 0; done < prompt_.size(); ++step) {
      const std::size_t size =
          std::min(sizes[std::min(step, sizes.size() - 1)], prompt_.size() - done);
      const auto logits = runner.feed(sequence, std::span(prompt_).subspan(done, size));
      all.insert(all.end(), logits.begin(), logits.end());
      done += size;
    }
    return all;
  }

  std::optional<Decoder> decoder_;
  Ids prompt_;
  std::vector<float> cold_;  // [tokens, vocab], blocks of 32
};

// Bits, not values: 0 and -0 differ.
bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

TEST_P(ExactnessTest, BlockSizeDoesNotMatter) {
  for (const std::int32_t block_tokens : {1, 7, 256}) {
    EXPECT_TRUE(same_bits(cold(prompt_, block_tokens), cold_)) << block_tokens;
  }
}

TEST_P(ExactnessTest, ChunkedPrefillAndDecodeEqualTheOneShotPrefill) {
  for (const std::int32_t block_tokens : {1, 7, 32}) {
    EXPECT_TRUE(same_bits(split(block_tokens, {1}), cold_)) << "decode, " << block_tokens;
    EXPECT_TRUE(same_bits(split(block_tokens, {64, 33, 1, 16, 5}), cold_)) << block_tokens;
    EXPECT_TRUE(same_bits(split(block_tokens, {3, 100, 1}), cold_)) << block_tokens;
  }
}

TEST_P(ExactnessTest, OtherSequencesOfTheBatchDoNotMatter) {
  Runner runner(*decoder_, kv_dtype(), 7, 2 * blocks_for(7));
  Ids other(prompt_.rbegin(), prompt_.rend());
  Sequence a;
  Sequence b;
  Sequence c;
  const auto rest = std::span(prompt_).subspan(40);
  (void)runner.feed(a, std::span(other).first(50));
  (void)runner.feed(b, std::span(prompt_).first(40));
  const std::vector<Piece> pieces = {
      {&a, std::span(other).subspan(50, 1)}, {&b, rest}, {&c, std::span(other).first(20)}};
  const auto logits = runner.step(pieces, Rows::kAll);
  const auto vocab = static_cast<std::size_t>(decoder_->config().vocab_size);
  EXPECT_TRUE(same_bits(std::span(logits).subspan(vocab, rest.size() * vocab),
                        std::span(cold_).subspan(40 * vocab)));
}

TEST_P(ExactnessTest, AskingForFewerLogitsDoesNotChangeThem) {
  Runner runner(*decoder_, kv_dtype(), 32, blocks_for(32));
  Sequence sequence;
  const auto last = runner.feed(sequence, prompt_, Rows::kLast);
  EXPECT_TRUE(same_bits(last, std::span(cold_).last(last.size())));
}

// The last layer computes rows of logits only; the KV of all rows is stored.
TEST_P(ExactnessTest, RowsWithoutLogitsAreStoredAsTheyAreWithThem) {
  Runner runner(*decoder_, kv_dtype(), 7, 2 * blocks_for(7));
  const Ids other(prompt_.rbegin(), prompt_.rend());
  Sequence a;
  Sequence b;
  const std::vector<Piece> first = {{&a, std::span(prompt_).first(33)},
                                    {&b, std::span(other).first(20)}};
  EXPECT_TRUE(runner.step(first, Rows::kNone).empty());
  const std::vector<Piece> second = {{&b, std::span(other).subspan(20, 9)},
                                     {&a, std::span(prompt_).subspan(33, 30)}};
  const auto vocab = static_cast<std::size_t>(decoder_->config().vocab_size);
  const auto last = runner.step(second, Rows::kLast);
  ASSERT_EQ(last.size(), 2 * vocab);
  EXPECT_TRUE(
      same_bits(std::span(last).subspan(vocab), std::span(cold_).subspan(62 * vocab, vocab)));
  const auto rest = runner.feed(a, std::span(prompt_).subspan(63));
  EXPECT_TRUE(same_bits(rest, std::span(cold_).subspan(63 * vocab)));
}

INSTANTIATE_TEST_SUITE_P(
    Variants, ExactnessTest,
    ::testing::Combine(::testing::ValuesIn(variant_paths()),
                       ::testing::Values(WeightFormat::kF32, WeightFormat::kBf16,
                                         WeightFormat::kQ8g32, WeightFormat::kQ4g32,
                                         WeightFormat::kQ4m32),
                       ::testing::ValuesIn(device::supported_isas())),
    [](const auto& info) {
      return test_name(std::get<0>(info.param)) + "_" +
             kernels::format_name(std::get<1>(info.param)) + "_" +
             std::string(device::isa_name(std::get<2>(info.param)));
    });

}  // namespace
}  // namespace quire::model::testing

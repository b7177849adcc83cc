// GGUF metadata: what is read and what is refused under which key. That whole files give the logits
// of their safetensors twins is for tests/model/parity_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quire/model/config.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"
#include "quire/weights/test_files.h"

namespace quire::model {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using weights::testing::counted;
using weights::testing::raw;

// Value types of GGUF metadata.
constexpr std::uint32_t kUint32 = 4;
constexpr std::uint32_t kFloat32 = 6;
constexpr std::uint32_t kBool = 7;
constexpr std::uint32_t kString = 8;
constexpr std::uint32_t kF32Tensor = 0;

// A Llama of two layers with an embedding tensor; tests add keys.
class ConfigFromGguf : public ::testing::Test {
 protected:
  ConfigFromGguf() {
    file_.key("general.architecture", kString, counted("llama"));
    set("llama.context_length", 512);
    set("llama.embedding_length", 8);
    set("llama.feed_forward_length", 12);
    set("llama.attention.head_count", 2);
    set("llama.attention.head_count_kv", 1);
    file_.key("llama.attention.layer_norm_rms_epsilon", kFloat32, raw(1e-5f));
    add_tensor("token_embd.weight", {8, 5});
  }

  void set(std::string_view key, std::uint32_t value) { file_.key(key, kUint32, raw(value)); }
  void set_float(std::string_view key, float value) { file_.key(key, kFloat32, raw(value)); }
  void set_layers() { set("llama.block_count", 2); }
  // Ones; `sizes` in GGUF's order.
  void add_tensor(std::string_view name, const std::vector<std::uint64_t>& sizes,
                  float value = 1.0f) {
    std::uint64_t count = 1;
    for (const auto size : sizes) {
      count *= size;
    }
    file_.tensor(name, sizes, kF32Tensor, file_.data.size());
    for (std::uint64_t i = 0; i < count; ++i) {
      file_.data += raw(value);
    }
    file_.data.resize((file_.data.size() + 31) / 32 * 32);
  }

  Result<ModelConfig> parse() {
    bytes_ = file_.build();
    QUIRE_TRY(const auto parsed,
              weights::GgufFile::parse(weights::testing::bytes_of(bytes_), "test.gguf"));
    return config_from_gguf(parsed);
  }
  std::string refusal(ErrorCode code) {
    const auto config = parse();
    if (config.ok()) {
      return "accepted";
    }
    EXPECT_EQ(config.error().code, code) << config.error().message;
    return config.error().message;
  }

  weights::testing::GgufBuilder file_;
  std::string bytes_;
};

TEST_F(ConfigFromGguf, ReadsShapeAndTellsTheRestByTensors) {
  set_layers();
  set_float("llama.rope.freq_base", 500000.0f);
  set("tokenizer.ggml.eos_token_id", 3);
  set("tokenizer.ggml.eot_token_id", 4);
  add_tensor("blk.0.attn_q.bias", {8});
  const auto config = parse();
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->vocab_size, 5);
  EXPECT_EQ(config->head_dim, 4);
  EXPECT_EQ(config->layers, 2);
  EXPECT_TRUE(config->tied_embeddings && config->qkv_bias);
  EXPECT_FALSE(config->output_bias || config->mlp_bias || config->qk_norm);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(3, 4));
  EXPECT_THAT(config->window_tokens, Each(0));
  EXPECT_NEAR(config->rotary.inverse_frequencies[1], 1 / 707.10678, 1e-9);
}

TEST_F(ConfigFromGguf, RopeFreqsTensorDividesFrequencies) {
  set_layers();
  add_tensor("output.weight", {8, 5});
  add_tensor("rope_freqs.weight", {2}, 4.0f);
  const auto config = parse();
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_FALSE(config->tied_embeddings);
  EXPECT_DOUBLE_EQ(config->rotary.inverse_frequencies[0], 0.25);
}

// Converters write it as an unsigned integer, as the format says.
TEST_F(ConfigFromGguf, ReadsTheOriginalLengthOfYarnAsAWholeNumber) {
  set_layers();
  file_.key("llama.rope.scaling.type", kString, counted("yarn"));
  set_float("llama.rope.scaling.factor", 4.0f);
  set("llama.rope.scaling.original_context_length", 128);
  const auto config = parse();
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_NEAR(config->rotary.scale, 0.1 * std::log(4.0) + 1, 1e-6);
}

TEST_F(ConfigFromGguf, ReadsTheFactorsOfLongropeWithTheirOriginalLength) {
  set_layers();
  set("llama.rope.scaling.original_context_length", 128);
  add_tensor("rope_factors_short.weight", {2}, 2.0f);
  add_tensor("rope_factors_long.weight", {2}, 4.0f);
  const auto config = parse();
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->max_positions, 128);
  EXPECT_DOUBLE_EQ(config->rotary.inverse_frequencies[0], 0.5);
}

TEST_F(ConfigFromGguf, AppliesASlidingWindow) {
  set_layers();
  set("llama.attention.sliding_window", 16);
  EXPECT_THAT(parse()->window_tokens, ElementsAre(16, 16));
}

TEST_F(ConfigFromGguf, NamesAMissingKey) {
  EXPECT_THAT(refusal(ErrorCode::kCorrupt), HasSubstr("llama.block_count"));
}

TEST_F(ConfigFromGguf, NamesAKeyOfTheWrongType) {
  set_layers();
  file_.key("llama.rope.dimension_count", kString, counted("four"));
  EXPECT_THAT(refusal(ErrorCode::kCorrupt), HasSubstr("llama.rope.dimension_count"));
}

TEST_F(ConfigFromGguf, NamesAnUnknownKey) {
  set_layers();
  set_float("llama.logit_scale", 0.5f);
  EXPECT_THAT(refusal(ErrorCode::kUnsupported), HasSubstr("llama.logit_scale"));
}

TEST_F(ConfigFromGguf, ReadsPastWhatJoiningPartsAndPublishersLeaveInAFile) {
  set_layers();
  set("split.count", 0);
  set("split.tensors.count", 1);
  set("mradermacher.quantize_version", 2);
  EXPECT_TRUE(parse().ok());
}

TEST_F(ConfigFromGguf, AcceptsKeysThatSayWhatIsDoneAnyway) {
  set_layers();
  file_.key("llama.tensor_data_layout", kString, counted("Meta AI original pth"));
  file_.key("llama.attention.causal", kBool, raw(std::uint8_t{1}));
  EXPECT_TRUE(parse().ok()) << refusal(ErrorCode::kUnsupported);
}

TEST_F(ConfigFromGguf, RefusesAnotherLayoutOfTensors) {
  set_layers();
  file_.key("llama.tensor_data_layout", kString, counted("reference"));
  EXPECT_THAT(refusal(ErrorCode::kUnsupported), HasSubstr("tensor_data_layout is \"reference\""));
}

TEST_F(ConfigFromGguf, RefusesAttentionThatIsNotCausal) {
  set_layers();
  file_.key("llama.attention.causal", kBool, raw(std::uint8_t{0}));
  EXPECT_THAT(refusal(ErrorCode::kUnsupported), HasSubstr("attention.causal is false"));
}

TEST_F(ConfigFromGguf, AnEosIdOfAllBitsIsNone) {
  set_layers();
  set("tokenizer.ggml.eos_token_id", 4294967295U);
  set("tokenizer.ggml.eot_token_id", 4);
  const auto config = parse();
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_THAT(config->eos_token_ids, ElementsAre(4));
}

TEST_F(ConfigFromGguf, RefusesMixturesOfExperts) {
  set_layers();
  set("llama.expert_count", 8);
  EXPECT_THAT(refusal(ErrorCode::kUnsupported), HasSubstr("llama.expert_count is 8"));
}

TEST_F(ConfigFromGguf, RefusesPartialRotationInFilesThatInterleaveWholeHeads) {
  set_layers();
  set("llama.rope.dimension_count", 2);
  EXPECT_THAT(refusal(ErrorCode::kUnsupported), HasSubstr("rope.dimension_count is 2"));
}

TEST_F(ConfigFromGguf, RefusesOtherValueHeads) {
  set_layers();
  set("llama.attention.value_length", 8);
  EXPECT_THAT(refusal(ErrorCode::kUnsupported), HasSubstr("value heads of 8"));
}

TEST_F(ConfigFromGguf, RefusesNumbersOutOfBounds) {
  set("llama.block_count", 4000000000U);
  EXPECT_THAT(refusal(ErrorCode::kInvalidArgument), HasSubstr("llama.block_count"));
}

TEST_F(ConfigFromGguf, RefusesAMisshapenRopeTensor) {
  set_layers();
  add_tensor("rope_freqs.weight", {3});
  EXPECT_THAT(refusal(ErrorCode::kCorrupt), HasSubstr("3 values; expected 2"));
}

TEST_F(ConfigFromGguf, RefusesAnEosIdOutsideTheVocabulary) {
  set_layers();
  set("tokenizer.ggml.eos_token_id", 5);
  EXPECT_THAT(refusal(ErrorCode::kCorrupt), HasSubstr("eos_token_id is 5 of 5"));
}

TEST_F(ConfigFromGguf, NamesTheTypeOfAnEmbeddingThatIsNotImplemented) {
  weights::testing::GgufBuilder other;
  other.key("general.architecture", kString, counted("llama"));
  constexpr std::uint32_t kQ2K = 10;
  other.tensor("token_embd.weight", std::vector<std::uint64_t>{256, 1}, kQ2K, 0);
  other.data.resize(96);
  file_ = other;
  EXPECT_THAT(refusal(ErrorCode::kUnsupported), HasSubstr("\"token_embd.weight\" has type Q2_K"));
}

TEST_F(ConfigFromGguf, RefusesOtherArchitecturesByName) {
  weights::testing::GgufBuilder other;
  other.key("general.architecture", kString, counted("gemma3"));
  file_ = other;
  EXPECT_THAT(refusal(ErrorCode::kUnsupported), HasSubstr("\"gemma3\""));
}

}  // namespace
}  // namespace quire::model

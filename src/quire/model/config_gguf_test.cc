// GGUF metadata: what is read and what is refused under which key. That whole files give the logits
// of their safetensors twins is for tests/model/parity_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "quire/base/sha256.h"
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
constexpr std::uint32_t kArray = 9;
constexpr std::uint32_t kUint64 = 10;
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
  // Returns the digest of all in the config that decides a result; "" where it is refused.
  std::string digest() {
    const auto config = parse();
    base::FieldHasher hasher;
    add_config(hasher, config.ok() ? *config : ModelConfig());
    return config.ok() ? base::to_hex(hasher.finish()) : "";
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
  EXPECT_EQ(config->context_length, 128);
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

TEST_F(ConfigFromGguf, UnknownKeysThatSwitchNothingOnChangeNothing) {
  set_layers();
  const std::string plain = digest();
  set("llama.pooling_type", 0);
  set_float("llama.rope.scale_linear", 1.0f);
  set_float("llama.final_logit_softcapping", 0.0f);
  set_float("llama.residual_scale", 1.0f);
  file_.key("llama.use_parallel_residual", kBool, raw(std::uint8_t{0}));
  file_.key("llama.something_new", kString, counted("none"));
  file_.key("llama.some_list", kArray,
            raw(kUint32) + raw(std::uint64_t{2}) + raw(std::uint64_t{0}));
  set("llama.vocab_size", 7);                // of 5 rows of the embedding
  set_float("llama.attention.scale", 0.5f);  // 1 / sqrt(4)
  set_float("llama.attention.layer_norm_epsilon", 0.5f);
  EXPECT_EQ(digest(), plain) << refusal(ErrorCode::kUnsupported);
}

TEST_F(ConfigFromGguf, NamesAKeyThatSwitchesSomethingOn) {
  set_layers();
  const auto unchanged = file_;
  for (const auto& [key, type, value] :
       {std::tuple<const char*, std::uint32_t, std::string>{"pooling_type", kUint32, raw(1U)},
        {"residual_scale", kFloat32, raw(0.5f)},
        {"use_parallel_residual", kBool, raw(std::uint8_t{1})},
        {"something_new", kUint32, raw(1U)},
        {"something_new", kString, counted("on")},
        {"some_list", kArray, raw(kUint32) + raw(std::uint64_t{1}) + raw(1U)},
        {"attention.scale", kFloat32, raw(0.25f)}}) {
    file_ = unchanged;
    file_.key(std::string("llama.") + key, type, value);
    EXPECT_THAT(refusal(ErrorCode::kUnsupported), HasSubstr(std::string("llama.") + key));
  }
}

// The name that files of 2023 have for a linear factor, and the type that llama.cpp assumes.
TEST_F(ConfigFromGguf, AFactorWithoutATypeStretchesLinearly) {
  set_layers();
  const auto unchanged = file_;
  for (const char* key : {"llama.rope.scale_linear", "llama.rope.scaling.factor"}) {
    file_ = unchanged;
    set_float(key, 4.0f);
    const auto config = parse();
    ASSERT_TRUE(config.ok()) << config.error().message;
    EXPECT_DOUBLE_EQ(config->rotary.inverse_frequencies[0], 0.25) << key;
    EXPECT_EQ(config->context_length, 2048) << key;
  }
}

TEST_F(ConfigFromGguf, AStretchedLengthIsMergedWithTheStatedOne) {
  set_layers();
  file_.key("llama.rope.scaling.type", kString, counted("yarn"));
  set_float("llama.rope.scaling.factor", 4.0f);
  set("llama.rope.scaling.original_context_length", 512);
  EXPECT_EQ(parse()->context_length, 2048);
}

TEST_F(ConfigFromGguf, EndsComeFromEveryKeyThatNamesOne) {
  set_layers();
  set("tokenizer.ggml.eos_token_id", 0);
  set("tokenizer.ggml.eot_token_id", 1);
  set("tokenizer.ggml.eom_token_id", 2);
  file_.key("tokenizer.ggml.eos_token_ids", kArray,
            raw(kUint32) + raw(std::uint64_t{2}) + raw(0U) + raw(4U));
  EXPECT_THAT(parse()->eos_token_ids, ElementsAre(0, 1, 2, 4));
}

TEST_F(ConfigFromGguf, ErrorsGiveTheKeyOfTheFile) {
  const auto unchanged = file_;
  for (const auto& [key, value] : {std::pair<const char*, std::uint32_t>{"llama.block_count", 0},
                                   {"llama.block_count", 100'000},
                                   {"llama.attention.key_length", 600}}) {
    file_ = unchanged;
    if (std::string_view(key) != "llama.block_count") {
      set_layers();
    }
    set(key, value);
    EXPECT_THAT(refusal(ErrorCode::kInvalidArgument),
                HasSubstr("GGUF key " + std::string(key) + " is " + std::to_string(value)));
  }
  file_ = unchanged;
  set_layers();
  set_float("llama.rope.freq_base", 0.0f);
  EXPECT_THAT(refusal(ErrorCode::kInvalidArgument), HasSubstr("llama.rope.freq_base is 0"));
}

TEST_F(ConfigFromGguf, ReadsPastWhatJoiningPartsAndPublishersLeaveInAFile) {
  set_layers();
  set("split.count", 0);
  set("split.tensors.count", 1);
  set("mradermacher.quantize_version", 2);
  set("somebody.quantize_version", 2);
  set("imatrix.chunk_count", 3);
  file_.key("training.type", kString, counted("finetune_lora"));
  set("llamafile.version", 1);
  set("qwen2.expert_count", 8);
  file_.key("general.checksum", kUint64, raw((std::uint64_t{1} << 63) + 5));
  EXPECT_TRUE(parse().ok()) << refusal(ErrorCode::kUnsupported);
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

TEST_F(ConfigFromGguf, FilesOfLlamaWithExpertsAreMixtrals) {
  set_layers();
  set("llama.expert_count", 8);
  set("llama.expert_used_count", 2);
  const auto config = parse();
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->family, "mixtral");
  EXPECT_EQ(config->experts.count, 8);
  EXPECT_EQ(config->experts.chosen, 2);
  EXPECT_EQ(config->experts.intermediate_size, config->intermediate_size);
  EXPECT_EQ(config->experts.rule, RouterRule::kSoftmaxOfChosen);
  EXPECT_EQ(config->mlps.size(), static_cast<std::size_t>(config->layers));
}

TEST_F(ConfigFromGguf, RefusesExpertsThatDoNotAddUp) {
  set_layers();
  set("llama.expert_count", 8);
  EXPECT_THAT(refusal(ErrorCode::kInvalidArgument), HasSubstr("llama.expert_used_count is 0"));
  set("llama.expert_used_count", 9);
  EXPECT_THAT(refusal(ErrorCode::kInvalidArgument),
              HasSubstr("llama.expert_used_count is 9; must be in [1, 8]"));
}

TEST_F(ConfigFromGguf, RefusesOtherRouters) {
  set_layers();
  set("llama.expert_count", 8);
  set("llama.expert_used_count", 2);
  set("llama.expert_gating_func", 2);
  EXPECT_THAT(refusal(ErrorCode::kUnsupported), HasSubstr("llama.expert_gating_func is 2"));
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
  constexpr std::uint32_t kQ8K = 15;
  other.tensor("token_embd.weight", std::vector<std::uint64_t>{256, 1}, kQ8K, 0);
  other.data.resize(320);
  file_ = other;
  EXPECT_THAT(refusal(ErrorCode::kUnsupported), HasSubstr("\"token_embd.weight\" has type Q8_K"));
}

TEST_F(ConfigFromGguf, RefusesOtherArchitecturesByName) {
  weights::testing::GgufBuilder other;
  other.key("general.architecture", kString, counted("gemma3n"));
  file_ = other;
  EXPECT_THAT(refusal(ErrorCode::kUnsupported), HasSubstr("\"gemma3n\""));
}

// Draws keys and values of any type that the format has.
class RandomKeys {
 public:
  explicit RandomKeys(std::uint64_t seed) : random_(seed) {}

  int below(int bound) { return static_cast<int>(random_() % static_cast<std::uint64_t>(bound)); }

  std::string word() {
    std::string text;
    for (int i = 1 + below(8); i > 0; --i) {
      text += static_cast<char>('a' + below(26));
    }
    return text;
  }

  struct Value {
    std::uint32_t type;
    std::string bytes;
    bool switches_on;  // by the rule of the module's README
  };
  Value value() {
    const bool on = below(2) == 1;
    switch (below(7)) {
      case 0:
        return {kUint32, raw(on ? 1U + static_cast<std::uint32_t>(below(9)) : 0U), on};
      case 1:
        return {kFloat32, raw(on ? 0.25f * static_cast<float>(1 + below(9)) : 0.0f), on};
      case 2:
        return {kBool, raw(std::uint8_t{on}), on};
      case 3:
        return {kString, counted(on ? "x" + word() : ""), on};
      case 4:
        return {kUint64, raw(on ? ~std::uint64_t{0} : std::uint64_t{0}), on};
      case 5:
        return {kArray, raw(kUint32) + raw(std::uint64_t{2}) + raw(0U) + raw(on ? 3U : 0U), on};
      default:
        return {kArray, raw(kArray) + raw(std::uint64_t{1}) + raw(kUint32) + raw(std::uint64_t{0}),
                true};
    }
  }

 private:
  std::mt19937_64 random_;
};

// Two sources of one fact, in every way in which a file may state them.
TEST_F(ConfigFromGguf, ALengthIsTheLargerOfTheStatedAndTheStretchedOneForRandomFiles) {
  set_layers();  // 512 are stated
  const auto unchanged = file_;
  RandomKeys random(14);
  for (int round = 0; round < 100; ++round) {
    file_ = unchanged;
    const bool is_yarn = random.below(2) == 1;
    const bool is_absent = random.below(3) == 0;
    const int original = is_absent ? 512 : 16 * (1 + random.below(32));
    const float factor = 1.0f + 0.25f * static_cast<float>(random.below(30));
    file_.key("llama.rope.scaling.type", kString, counted(is_yarn ? "yarn" : "linear"));
    set_float("llama.rope.scaling.factor", factor);
    if (!is_absent) {
      set("llama.rope.scaling.original_context_length", static_cast<std::uint32_t>(original));
    }
    const auto config = parse();
    ASSERT_TRUE(config.ok()) << round << ": " << config.error().message;
    const int stretched = static_cast<int>(static_cast<float>(original) * factor);
    ASSERT_EQ(config->context_length, std::max(512, stretched)) << original << " x " << factor;
    ASSERT_EQ(config->remarks.empty(), stretched <= 512) << original << " x " << factor;
  }
}

// The oracle is the file without the keys.
TEST_F(ConfigFromGguf, KeysOutsideTheArchitectureNeverChangeOrRefuseAnything) {
  set_layers();
  set("tokenizer.ggml.eos_token_id", 3);
  const auto unchanged = file_;
  const std::string plain = digest();
  RandomKeys random(11);
  for (int round = 0; round < 300; ++round) {
    file_ = unchanged;
    std::set<std::string> keys;
    for (int i = 1 + random.below(6); i > 0; --i) {
      // Names of keys that are read elsewhere, and beginnings that only look like the architecture.
      const std::string beginning =
          std::vector<std::string>{"general.x", "tokenizer.x", "qwen2.", "llama2.",
                                   "llam",      "LLAMA.",      "x",      "imatrix."}
              [static_cast<std::size_t>(random.below(8))];
      const std::string end =
          std::vector<std::string>{
              random.word(),       "block_count",      "expert_count",
              "rope.scaling.type", "attention.causal", "logit_scale"}[static_cast<std::size_t>(
              random.below(6))];
      if (keys.insert(beginning + end).second) {
        const auto value = random.value();
        file_.key(beginning + end, value.type, value.bytes);
      }
    }
    const auto config = parse();
    ASSERT_TRUE(config.ok()) << round << ": " << config.error().message;
    ASSERT_EQ(digest(), plain) << round;
    ASSERT_EQ(config->context_length, 512);
    ASSERT_THAT(config->eos_token_ids, ElementsAre(3));
    ASSERT_TRUE(config->remarks.empty());
  }
}

TEST_F(ConfigFromGguf, AnUnknownKeyOfTheArchitectureIsRefusedUnlessItSwitchesNothingOn) {
  set_layers();
  const auto unchanged = file_;
  const std::string plain = digest();
  RandomKeys random(12);
  for (int round = 0; round < 300; ++round) {
    file_ = unchanged;
    const std::string key = "llama.zz_" + random.word();  // no key that is known begins so
    const auto value = random.value();
    file_.key(key, value.type, value.bytes);
    if (value.switches_on) {
      ASSERT_THAT(refusal(ErrorCode::kUnsupported), HasSubstr(key)) << round;
    } else {
      ASSERT_EQ(digest(), plain) << round << " " << key;
    }
  }
}

}  // namespace
}  // namespace quire::model

// Switches of families beyond Llama's: what config.json and GGUF metadata make of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/sha256.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/model/config.h"
#include "quire/model/layer_plan.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/weights/gguf.h"
#include "quire/weights/test_files.h"

// Names of this file alone, apart from those of the other tests of configs.
namespace quire::model::families_testing {
namespace {

using kernels::Activation;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using enum RopeKind;

// A small model of 6 layers of this type.
std::string text_of(std::string_view type, std::string_view members = "") {
  return R"({"model_type": ")" + std::string(type) +
         R"(", "hidden_size": 640, "intermediate_size": 96, "vocab_size": 200, "head_dim": 16,
            "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2)" +
         (members.empty() ? "" : ", ") + std::string(members) + "}";
}

Result<ModelConfig> try_parse(std::string_view type, std::string_view members) {
  return config_from_hf(text_of(type, members), "");
}

ModelConfig parse(std::string_view type, std::string_view members = "") {
  auto config = try_parse(type, members);
  EXPECT_TRUE(config.ok()) << (config.ok() ? "" : config.error().message);
  return config.ok() ? *config : ModelConfig();
}

std::string refusal(std::string_view type, std::string_view members) {
  const auto config = try_parse(type, members);
  return config.ok() ? "accepted" : config.error().message;
}

std::string digest(const ModelConfig& config) {
  base::FieldHasher hasher;
  add_config(hasher, config);
  return base::to_hex(hasher.finish());
}

TEST(Gemma2Config, HasCapsFourNormsAndAWindowOnEveryOtherLayer) {
  const ModelConfig config = parse("gemma2");
  EXPECT_EQ(config.norms, NormPlacement::kBoth);
  EXPECT_EQ(config.activation, Activation::kGeluTanh);
  EXPECT_TRUE(config.tied_embeddings && !config.qk_norm);
  EXPECT_THAT(config.window_tokens, ElementsAre(4096, 0, 4096, 0, 4096, 0));
  EXPECT_THAT(config.ropes, IsEmpty());
  EXPECT_DOUBLE_EQ(config.scales.score_cap, 50);
  EXPECT_DOUBLE_EQ(config.scales.logit_cap, 30);
  EXPECT_DOUBLE_EQ(config.score_scale(), 1.0 / 16);
  EXPECT_EQ(config.context_length, 8192);
}

TEST(Gemma2Config, CapsThatAreNullAreNone) {
  const ModelConfig config =
      parse("gemma2", R"("attn_logit_softcapping": null, "final_logit_softcapping": null)");
  EXPECT_EQ(config.scales.score_cap, 0);
  EXPECT_EQ(config.scales.logit_cap, 0);
}

TEST(GemmaConfig, TheFactorOnEmbeddingsIsRoundedToTheDtypeOfTheWeights) {
  const auto factor = [](std::string_view dtype) {
    return parse("gemma3_text", R"("dtype": ")" + std::string(dtype) + "\"").embedding_factor();
  };
  EXPECT_FLOAT_EQ(factor("float32"), 25.298221f);
  EXPECT_EQ(factor("bfloat16"), 25.25f);
  EXPECT_EQ(factor("float16"), 25.296875f);
}

TEST(Gemma3Config, WindowsTurnByTheirOwnRope) {
  const ModelConfig config = parse("gemma3_text", R"("sliding_window": 512, "rope_scaling":
    {"rope_type": "linear", "factor": 8.0})");
  EXPECT_EQ(config.family, "gemma3");
  EXPECT_TRUE(config.qk_norm && !config.qk_norms_rows);
  EXPECT_THAT(config.window_tokens, ElementsAre(512, 512, 512, 512, 512, 0));
  EXPECT_THAT(config.ropes, ElementsAre(kLocal, kLocal, kLocal, kLocal, kLocal, kMain));
  EXPECT_DOUBLE_EQ(config.rotary.inverse_frequencies[1], std::pow(1e6, -1.0 / 8) / 8);
  EXPECT_DOUBLE_EQ(config.local_rotary.inverse_frequencies[1], std::pow(1e4, -1.0 / 8));
  EXPECT_EQ(config.context_length, 131072) << "the stated length was stretched already";
  EXPECT_EQ(config.layer_plan(5).window_tokens, 0);
  EXPECT_EQ(config.layer_plan(0).rope, kLocal);
  EXPECT_EQ(config.layer_plan(0).qk_norm, QkNorm::kHeads);
}

TEST(Gemma3Config, ReadsTheBlocksOfBothKindsOfLayers) {
  const ModelConfig config = parse("gemma3_text", R"("layer_types": ["full_attention",
    "sliding_attention", "full_attention", "full_attention", "full_attention", "full_attention"],
    "sliding_window": 32, "rope_parameters": {"full_attention": {"rope_type": "default",
    "rope_theta": 16.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 81.0}})");
  EXPECT_THAT(config.window_tokens, ElementsAre(0, 32, 0, 0, 0, 0));
  EXPECT_DOUBLE_EQ(config.rotary.inverse_frequencies[4], 0.25);
  EXPECT_DOUBLE_EQ(config.local_rotary.inverse_frequencies[4], 1.0 / 9);
}

TEST(Gemma3Config, RefusesWhatChangesTheResultByName) {
  EXPECT_THAT(refusal("gemma3_text", R"("use_bidirectional_attention": true)"),
              HasSubstr("use_bidirectional_attention"));
  EXPECT_THAT(refusal("gemma3_text", R"("attn_logit_softcapping": 50.0)"),
              HasSubstr("attn_logit_softcapping"));
  EXPECT_THAT(refusal("gemma3_text", R"("hidden_activation": "gelu")"),
              HasSubstr("hidden_activation"));
  EXPECT_THAT(refusal("gemma3_text", R"("rope_parameters": {"rope_type": "default"})"),
              HasSubstr("rope_parameters.rope_type"));
  EXPECT_THAT(refusal("gemma3_text", R"("sliding_window": null)"), HasSubstr("sliding_window"));
  EXPECT_THAT(refusal("gemma3_text", R"("sliding_window_pattern": 0)"),
              HasSubstr("sliding_window_pattern"));
  EXPECT_THAT(refusal("gemma3_text", R"("query_pre_attn_scalar": 0)"),
              HasSubstr("query_pre_attn_scalar"));
}

constexpr std::string_view kImageModel = R"({"model_type": "gemma3", "architectures":
  ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106], "boi_token_index": 255999,
  "mm_tokens_per_image": 256, "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152},
  "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34,
  "intermediate_size": 10240, "sliding_window": 1024)";

TEST(Gemma3Config, TheTextPartOfAnImageModelTakesItsClassDefaults) {
  const auto config = config_from_hf(std::string(kImageModel) + "}}", "");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->family, "gemma3");
  EXPECT_TRUE(config->is_text_part && config->tied_embeddings);
  EXPECT_EQ(config->heads, 8);
  EXPECT_EQ(config->kv_heads, 4);
  EXPECT_EQ(config->head_dim, 256);
  EXPECT_EQ(config->vocab_size, 262208);
  EXPECT_EQ(config->stored_dtype, tensor::DType::kBFloat16);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(1, 106));
}

TEST(Gemma3Config, AnImageModelMustAgreeWithItsTextPart) {
  const auto message = [](const std::string& json) {
    const auto config = config_from_hf(json, "");
    return config.ok() ? std::string("accepted") : config.error().message;
  };
  const std::string model(kImageModel);
  EXPECT_THAT(message(model + R"(, "tie_word_embeddings": false}, "tie_word_embeddings": true})"),
              HasSubstr("text_config.tie_word_embeddings"));
  EXPECT_THAT(message(model + R"(}, "something_new": 1})"), HasSubstr("something_new"));
  EXPECT_THAT(message(R"({"model_type": "gemma3", "text_config": {"model_type": "llama"}})"),
              HasSubstr("whose text part of \"llama\""));
  EXPECT_THAT(message(R"({"model_type": "gemma3", "text_config": {"model_type": "gpt2"}})"),
              HasSubstr("text_config.model_type"));
}

TEST(Olmo2Config, NormsOutputsOnlyAndQueriesWhole) {
  const ModelConfig config = parse("olmo2");
  EXPECT_EQ(config.norms, NormPlacement::kBehind);
  EXPECT_EQ(config.layer_plan(0).qk_norm, QkNorm::kRows);
  EXPECT_THAT(config.window_tokens, Each(0));
  EXPECT_DOUBLE_EQ(config.norm_epsilon, 1e-5);
}

TEST(Olmo3Config, ScalesTheRopeOfFullLayersOnly) {
  const ModelConfig config = parse("olmo3", R"("sliding_window": 64, "rope_theta": 10000.0,
    "max_position_embeddings": 65536, "rope_scaling": {"rope_type": "yarn", "factor": 8.0,
    "original_max_position_embeddings": 8192, "attention_factor": 1.2})");
  EXPECT_THAT(config.window_tokens, ElementsAre(64, 64, 64, 0, 64, 64));
  EXPECT_EQ(config.layer_plan(3).rope, kMain);
  EXPECT_EQ(config.layer_plan(4).rope, kLocal);
  EXPECT_DOUBLE_EQ(config.rotary.scale, 1.2);
  EXPECT_DOUBLE_EQ(config.local_rotary.scale, 1.0);
  EXPECT_DOUBLE_EQ(config.local_rotary.inverse_frequencies[4], 0.01);
  EXPECT_LT(config.rotary.inverse_frequencies[7], config.local_rotary.inverse_frequencies[7] / 7);
}

TEST(SmolLM3Config, LeavesOutTheRopeOfEveryFourthLayerOrOfTheListed) {
  EXPECT_THAT(parse("smollm3").ropes, ElementsAre(kMain, kMain, kMain, kNone, kMain, kMain));
  EXPECT_THAT(parse("smollm3", R"("no_rope_layer_interval": 2)").ropes,
              ElementsAre(kMain, kNone, kMain, kNone, kMain, kNone));
  EXPECT_THAT(parse("smollm3", R"("no_rope_layers": [0, 1, 1, 1, 1, 1])").ropes,
              ElementsAre(kNone, kMain, kMain, kMain, kMain, kMain));
  EXPECT_THAT(refusal("smollm3", R"("no_rope_layers": [0, 1])"), HasSubstr("no_rope_layers"));
  EXPECT_THAT(refusal("smollm3", R"("no_rope_layers": [0, 1, 2, 1, 1, 1])"),
              HasSubstr("for layer 2"));
  EXPECT_THAT(refusal("smollm3", R"("no_rope_layer_interval": 0)"),
              HasSubstr("no_rope_layer_interval"));
}

TEST(SmolLM3Config, GivesWindowsToLayersWithoutARope) {
  EXPECT_THAT(parse("smollm3", R"("use_sliding_window": true, "sliding_window": 32)").window_tokens,
              ElementsAre(0, 0, 0, 32, 0, 0));
  EXPECT_THAT(
      parse("smollm3", R"("use_sliding_window": false, "sliding_window": 32)").window_tokens,
      Each(0));
  EXPECT_THAT(refusal("smollm3", R"("layer_types": ["full_attention", "sliding_attention",
    "full_attention", "full_attention", "full_attention", "full_attention"])"),
              HasSubstr("layer 1"));
}

TEST(GraniteConfig, ReadsItsMultipliers) {
  const ModelConfig config = parse("granite", R"("embedding_multiplier": 12.0,
    "attention_multiplier": 0.015625, "residual_multiplier": 0.22, "logits_scaling": 8.0)");
  EXPECT_EQ(config.embedding_factor(), 12.0f);
  EXPECT_DOUBLE_EQ(config.scales.residual, 0.22);
  EXPECT_DOUBLE_EQ(config.score_scale(), 0.015625);
  EXPECT_DOUBLE_EQ(config.scales.logits, 8);
  EXPECT_DOUBLE_EQ(parse("granite").score_scale(), 1.0) << "as transformers assumes";
  EXPECT_THAT(refusal("granite", R"("logits_scaling": 0)"), HasSubstr("the divisor of logits"));
}

TEST(Ministral3Config, QueriesGrowBehindTheOriginalLength) {
  const ModelConfig config = parse("ministral3", R"("rope_parameters": {"type": "yarn",
    "rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16384,
    "max_position_embeddings": 262144, "mscale": 1.0, "mscale_all_dim": 1.0, "rope_theta": 1e6,
    "llama_4_scaling_beta": 0.1})");
  EXPECT_DOUBLE_EQ(config.scales.query_growth, 0.1);
  EXPECT_EQ(config.scales.query_length, 16384);
  EXPECT_DOUBLE_EQ(config.rotary.scale, 1.0);
  EXPECT_EQ(config.context_length, 262144);
}

TEST(FamilySwitches, EachOneChangesTheDigestAndNoneThatOfAPlainModel) {
  const ModelConfig plain = parse("llama");
  std::vector<std::string> digests = {digest(plain)};
  const auto with = [&](auto change) {
    ModelConfig other = plain;
    change(other);
    digests.push_back(digest(other));
  };
  with([](ModelConfig& c) { c.norms = NormPlacement::kBoth; });
  with([](ModelConfig& c) { c.qk_norms_rows = true; });
  with([](ModelConfig& c) { c.activation = Activation::kGeluTanh; });
  with([](ModelConfig& c) { c.ropes.assign(6, kNone); });
  with([](ModelConfig& c) { c.scales.embedding = 2; });
  with([](ModelConfig& c) { c.scales.residual = 2; });
  with([](ModelConfig& c) { c.scales.scores = 2; });
  with([](ModelConfig& c) { c.scales.score_cap = 2; });
  with([](ModelConfig& c) { c.scales.logits = 2; });
  with([](ModelConfig& c) { c.scales.logit_cap = 2; });
  with([](ModelConfig& c) { c.scales.query_growth = 2; });
  std::ranges::sort(digests);
  EXPECT_EQ(std::ranges::adjacent_find(digests), digests.end());
}

TEST(FamilySwitches, AGpuRefusesEachByName) {
  for (const char* const type : {"llama", "qwen3", "gemma2", "gemma3_text", "ministral3", "olmo2",
                                 "olmo3", "smollm3", "granite"}) {
    EXPECT_TRUE(check_device_switches(parse(type)).ok()) << type;
  }
  ModelConfig normed = parse("llama"), scaled = parse("llama");
  normed.norms_values = true;
  scaled.scales_layers = true;
  const std::vector<std::pair<ModelConfig, std::string>> refused = {
      {normed, "norm of values"}, {scaled, "inputs or factors of layers"}};
  for (const auto& [config, name] : refused) {
    const Status status = check_device_switches(config);
    ASSERT_FALSE(status.ok()) << name;
    EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(status.error().message, HasSubstr(config.family));
    EXPECT_THAT(status.error().message, HasSubstr(name));
  }
}

// Value types of GGUF metadata.
constexpr std::uint32_t kUint32 = 4;
constexpr std::uint32_t kFloat32 = 6;
constexpr std::uint32_t kBool = 7;
constexpr std::uint32_t kString = 8;
constexpr std::uint32_t kArray = 9;

// A file of six layers; tests add keys.
class Gguf {
 public:
  explicit Gguf(std::string architecture, std::uint32_t context_length = 512)
      : prefix_(std::move(architecture)) {
    file_.key("general.architecture", kString, weights::testing::counted(prefix_));
    for (const auto& [name, value] :
         std::vector<std::pair<std::string, std::uint32_t>>{{"context_length", context_length},
                                                            {"embedding_length", 8},
                                                            {"feed_forward_length", 12},
                                                            {"block_count", 6},
                                                            {"attention.head_count", 2},
                                                            {"attention.head_count_kv", 1}}) {
      set(name, value);
    }
    set("attention.layer_norm_rms_epsilon", 1e-5f);
    file_.tensor("token_embd.weight", std::vector<std::uint64_t>{8, 5}, 0, 0);
    file_.data.resize(160);
  }
  Gguf& set(std::string_view name, std::uint32_t value) {
    return key(name, kUint32, weights::testing::raw(value));
  }
  Gguf& set(std::string_view name, float value) {
    return key(name, kFloat32, weights::testing::raw(value));
  }
  Gguf& set(std::string_view name, bool value) {
    return key(name, kBool, weights::testing::raw(static_cast<std::uint8_t>(value)));
  }
  Gguf& set(std::string_view name, const std::vector<bool>& values) {
    std::string bytes = weights::testing::raw(kBool) +
                        weights::testing::raw(static_cast<std::uint64_t>(values.size()));
    for (const bool value : values) {
      bytes += weights::testing::raw(static_cast<std::uint8_t>(value));
    }
    return key(name, kArray, bytes);
  }
  Gguf& key(std::string_view name, std::uint32_t type, const std::string& bytes) {
    file_.key(prefix_ + "." + std::string(name), type, bytes);
    return *this;
  }
  ModelConfig parse() {
    const auto config = try_parse();
    EXPECT_TRUE(config.ok()) << (config.ok() ? "" : config.error().message);
    return config.ok() ? *config : ModelConfig();
  }
  Result<ModelConfig> try_parse() {
    const std::string bytes = file_.build();
    QUIRE_TRY(const auto parsed,
              weights::GgufFile::parse(weights::testing::bytes_of(bytes), "test.gguf"));
    return config_from_gguf(parsed);
  }

 private:
  std::string prefix_;
  weights::testing::GgufBuilder file_;
};

TEST(GemmaGguf, LeavesThePatternTheRopesAndTheCapsToTheArchitecture) {
  const ModelConfig three =
      Gguf("gemma3").set("attention.sliding_window", 16U).set("rope.freq_base", 1e6f).parse();
  EXPECT_THAT(three.window_tokens, ElementsAre(16, 16, 16, 16, 16, 0));
  EXPECT_THAT(three.ropes, ElementsAre(kLocal, kLocal, kLocal, kLocal, kLocal, kMain));
  EXPECT_NEAR(three.local_rotary.inverse_frequencies[1], 0.01, 1e-12);
  EXPECT_NEAR(three.rotary.inverse_frequencies[1], 0.001, 1e-9);
  EXPECT_TRUE(three.qk_norm);
  EXPECT_EQ(three.scales.logit_cap, 0);
  EXPECT_FLOAT_EQ(three.embedding_factor(), std::sqrt(8.0f));

  const ModelConfig two = Gguf("gemma2").set("attention.sliding_window", 16U).parse();
  EXPECT_THAT(two.window_tokens, ElementsAre(16, 0, 16, 0, 16, 0));
  EXPECT_THAT(Gguf("gemma2", 8192).parse().window_tokens, ElementsAre(4096, 0, 4096, 0, 4096, 0));
  EXPECT_EQ(two.scales.score_cap, 50);
  EXPECT_EQ(two.scales.logit_cap, 30);
  EXPECT_EQ(two.norms, NormPlacement::kBoth);
}

TEST(GemmaGguf, ReadsAPatternAndAThetaThatTheFileGives) {
  Gguf file("gemma3");
  file.set("attention.sliding_window", 16U).set("rope.freq_base_swa", 100.0f);
  file.set("attention.sliding_window_pattern", {true, false, false, true, false, false});
  const ModelConfig config = file.parse();
  EXPECT_THAT(config.window_tokens, ElementsAre(16, 0, 0, 16, 0, 0));
  EXPECT_NEAR(config.local_rotary.inverse_frequencies[1], 0.1, 1e-9);
  Gguf period("gemma3");
  period.set("attention.sliding_window", 16U).set("attention.sliding_window_pattern", 3U);
  EXPECT_THAT(period.parse().window_tokens, ElementsAre(16, 16, 0, 16, 16, 0));
}

TEST(Olmo2Gguf, AFileWithAWindowIsOlmo3) {
  EXPECT_EQ(Gguf("olmo2").parse().family, "olmo2");
  const ModelConfig config = Gguf("olmo2").set("attention.sliding_window", 16U).parse();
  EXPECT_EQ(config.family, "olmo3");
  EXPECT_THAT(config.window_tokens, ElementsAre(16, 16, 16, 0, 16, 16));
  EXPECT_EQ(config.layer_plan(0).qk_norm, QkNorm::kRows);
}

TEST(GraniteGguf, ReadsItsScalesAndItsSwitchOfTheRope) {
  Gguf file("granite");
  file.set("attention.scale", 0.25f).set("embedding_scale", 12.0f);
  file.set("residual_scale", 0.5f).set("logit_scale", 8.0f);
  const ModelConfig config = file.parse();
  EXPECT_DOUBLE_EQ(config.score_scale(), 0.25);
  EXPECT_EQ(config.embedding_factor(), 12.0f);
  EXPECT_DOUBLE_EQ(config.scales.residual, 0.5);
  EXPECT_DOUBLE_EQ(config.scales.logits, 8);
  EXPECT_THAT(config.ropes, IsEmpty());
  EXPECT_THAT(file.set("rope.scaling.finetuned", false).parse().ropes, Each(kNone));
}

TEST(Mistral3Gguf, ReadsTheGrowthOfQueries) {
  Gguf file("mistral3");
  file.key("rope.scaling.type", kString, weights::testing::counted("yarn"));
  file.set("rope.scaling.factor", 4.0f).set("rope.scaling.original_context_length", 128U);
  file.set("rope.scaling.yarn_log_multiplier", 1.0f).set("attention.temperature_scale", 0.5f);
  const ModelConfig config = file.parse();
  EXPECT_EQ(config.family, "ministral3");
  EXPECT_DOUBLE_EQ(config.scales.query_growth, 0.5);
  EXPECT_EQ(config.scales.query_length, 128);
  EXPECT_DOUBLE_EQ(config.rotary.scale, 1.0);
}

Gguf qwen35() {
  return Gguf("qwen35")
      .set("ssm.conv_kernel", std::uint32_t{4})
      .set("ssm.state_size", std::uint32_t{8})
      .set("ssm.group_count", std::uint32_t{2})
      .set("ssm.time_step_rank", std::uint32_t{4})
      .set("ssm.inner_size", std::uint32_t{64})
      .set("full_attention_interval", std::uint32_t{4});
}

TEST(Qwen35Gguf, LeavesOutLayersForDraftsAndReadsSizesOfStates) {
  const ModelConfig config = qwen35().set("nextn_predict_layers", std::uint32_t{2}).parse();
  EXPECT_EQ(config.layers, 4);
  EXPECT_EQ(config.draft_layers, 2);
  using enum MixerKind;
  EXPECT_THAT(config.mixers, ElementsAre(kGatedDelta, kGatedDelta, kGatedDelta, kAttention));
  EXPECT_EQ(config.state.value_dim, 16);
  EXPECT_EQ(config.state.channels, 2 * 2 * 8 + 64);
  EXPECT_EQ(config.state.key_head(3), 1) << "value heads of one key head stand apart";
  EXPECT_EQ(
      qwen35()
          .set("attention.recurrent_layers", std::vector<bool>{true, false, true, true, true, true})
          .parse()
          .kv_layers(),
      1);
}

TEST(Qwen35Gguf, SizesThatDoNotAddUpAreNamed) {
  const auto refused = qwen35().set("nextn_predict_layers", std::uint32_t{6}).try_parse();
  EXPECT_THAT(refused.error().message, HasSubstr("nextn_predict_layers"));
  const auto listed =
      qwen35().set("attention.recurrent_layers", std::vector<bool>{true, false}).try_parse();
  EXPECT_THAT(listed.error().message, HasSubstr("recurrent_layers"));
}

TEST(ExpertGgufKeys, SharedMlpsAndSigmoidsAreOfTheArchitecture) {
  Gguf file("qwen3next");
  for (const auto& [name, value] :
       std::vector<std::pair<std::string_view, std::uint32_t>>{{"ssm.conv_kernel", 4},
                                                               {"ssm.state_size", 8},
                                                               {"ssm.group_count", 2},
                                                               {"ssm.time_step_rank", 4},
                                                               {"ssm.inner_size", 64},
                                                               {"expert_count", 4},
                                                               {"expert_used_count", 2},
                                                               {"expert_feed_forward_length", 6}}) {
    file.set(name, value);
  }
  EXPECT_EQ(file.parse().experts.shared_size, 6) << "as large as an expert where it is not said";
  EXPECT_EQ(file.parse().state.key_head(3), 1) << "value heads of one key head stand together";
  EXPECT_EQ(
      file.set("expert_shared_feed_forward_length", std::uint32_t{10}).parse().experts.shared_size,
      10);
  const auto lfm2 = [](std::uint32_t gating) {
    return Gguf("lfm2moe")
        .set("shortconv.l_cache", std::uint32_t{3})
        .set("expert_count", std::uint32_t{4})
        .set("expert_used_count", std::uint32_t{2})
        .set("expert_feed_forward_length", std::uint32_t{6})
        .set("leading_dense_block_count", std::uint32_t{1})
        .set("expert_gating_func", gating);
  };
  const ModelConfig config = lfm2(2).parse();
  EXPECT_EQ(config.experts.rule, RouterRule::kSigmoidOfChosen);
  EXPECT_EQ(config.mlps.front(), MlpKind::kDense);
  EXPECT_EQ(config.mlps.back(), MlpKind::kExperts);
  EXPECT_THAT(lfm2(1).try_parse().error().message, HasSubstr("only sigmoid, 2"));
}

// A file of latents whose heads are said as newer files do it.
Gguf deepseek2() {
  Gguf file("deepseek2");
  for (const auto& [name, value] :
       std::vector<std::pair<std::string_view, std::uint32_t>>{{"attention.kv_lora_rank", 6},
                                                               {"attention.key_length", 10},
                                                               {"attention.value_length", 6},
                                                               {"attention.key_length_mla", 7},
                                                               {"attention.value_length_mla", 5},
                                                               {"rope.dimension_count", 4},
                                                               {"expert_count", 8},
                                                               {"expert_used_count", 2},
                                                               {"expert_feed_forward_length", 3},
                                                               {"leading_dense_block_count", 1}}) {
    file.set(name, value);
  }
  return file;
}

TEST(Deepseek2Gguf, TheRouterTellsWhichFamilyItIs) {
  const ModelConfig second = deepseek2().set("expert_shared_count", 2U).parse();
  EXPECT_EQ(second.family, "deepseek_v2");
  EXPECT_EQ(second.kv_heads, 1);
  EXPECT_EQ(second.head_dim, 10);
  EXPECT_EQ(second.latent.plain_dim, 3);
  EXPECT_EQ(second.latent.value_dim, 5);
  EXPECT_EQ(second.latent.query_rank, 0);
  EXPECT_EQ(second.experts.rule, RouterRule::kSoftmaxOfAll);
  EXPECT_EQ(second.experts.shared_size, 6);
  EXPECT_EQ(second.rotary.rotary_dim(), 4);
  const ModelConfig third = deepseek2()
                                .set("expert_shared_count", 1U)
                                .set("expert_gating_func", 2U)
                                .set("expert_weights_norm", true)
                                .set("expert_group_count", 4U)
                                .set("expert_group_used_count", 2U)
                                .set("attention.q_lora_rank", 9U)
                                .set("nextn_predict_layers", 1U)
                                .parse();
  EXPECT_EQ(third.family, "deepseek_v3");
  EXPECT_EQ(third.latent.query_rank, 9);
  EXPECT_EQ(third.experts.rule, RouterRule::kSigmoidOfChosen);
  EXPECT_EQ(third.experts.groups, 4);
  EXPECT_EQ(third.layers, 5);
  EXPECT_EQ(third.draft_layers, 1);
}

TEST(Deepseek2Gguf, WhatDoesNotAddUpIsNamed) {
  const auto message = [](Gguf& file) {
    const auto config = file.try_parse();
    return config.ok() ? std::string("accepted") : config.error().message;
  };
  EXPECT_THAT(message(deepseek2().set("expert_shared_count", 0U)),
              HasSubstr("deepseek2.expert_shared_count is 0; must be in [1, 8]"));
  EXPECT_THAT(message(deepseek2()
                          .set("expert_shared_count", 1U)
                          .set("expert_group_count", 3U)
                          .set("expert_group_used_count", 1U)),
              HasSubstr("8 experts are no 3 groups"));
  EXPECT_THAT(message(deepseek2().set("nextn_predict_layers", 6U)),
              HasSubstr("deepseek2.nextn_predict_layers is 6 of 6 layers"));
  EXPECT_THAT(message(Gguf("deepseek2").set("attention.key_length", 10U)),
              HasSubstr("deepseek2.attention.kv_lora_rank is 0"));
}

Gguf gemma4() {
  return Gguf("gemma4")
      .set("attention.key_length", 64U)
      .set("attention.key_length_swa", 32U)
      .set("attention.sliding_window", 16U)
      .set("attention.sliding_window_pattern",
           std::vector<bool>{true, false, true, false, true, false})
      .set("embedding_length_per_layer_input", 4U);
}

TEST(Gemma4Gguf, ReadsSizesOfLayersAndWhoseKvTheyRead) {
  const ModelConfig config = gemma4().set("attention.shared_kv_layers", 2U).parse();
  EXPECT_EQ(config.kv_sizes[0].head_dim, 32);
  EXPECT_EQ(config.kv_sizes[1].head_dim, 64);
  EXPECT_THAT(config.kv_sources, ElementsAre(0, 1, 2, 3, 2, 3));
  EXPECT_EQ(config.local_rotary.rotary_dim(), 32);
  EXPECT_EQ(config.rotary.rotary_dim(), 64);
  EXPECT_EQ(config.layer_inputs.size, 4);
  EXPECT_EQ(config.layer_inputs.vocab_size, 5);
  EXPECT_EQ(config.score_scale(), 1.0);
}

TEST(Gemma4Gguf, WhatDoesNotAddUpIsNamed) {
  const auto message = [](Gguf& file) {
    const auto config = file.try_parse();
    return config.ok() ? std::string("accepted") : config.error().message;
  };
  EXPECT_THAT(message(gemma4().set("attention.shared_kv_layers", 6U)),
              HasSubstr("gemma4.attention.shared_kv_layers is 6; must be in [0, 5]"));
  EXPECT_THAT(message(gemma4().set("attention.shared_kv_layers", 5U)),
              HasSubstr("no layer before those has attention as layer 1"));
  EXPECT_THAT(message(Gguf("gemma4")
                          .set("attention.key_length", 64U)
                          .set("attention.key_length_swa", 1U)
                          .set("attention.sliding_window", 16U)),
              HasSubstr("gemma4.attention.key_length_swa is 1; must be in [2"));
}

TEST(FamilyGguf, KeysOfOtherArchitecturesStayRefused) {
  const auto message = [](Gguf& file) {
    const auto config = file.try_parse();
    return config.ok() ? std::string("accepted") : config.error().message;
  };
  Gguf llama("llama");
  EXPECT_THAT(message(llama.set("embedding_scale", 12.0f)), HasSubstr("llama.embedding_scale"));
  Gguf smollm3("smollm3");
  EXPECT_THAT(message(smollm3.set("attention.temperature_scale", 0.5f)),
              HasSubstr("smollm3.attention.temperature_scale"));
}

}  // namespace
}  // namespace quire::model::families_testing

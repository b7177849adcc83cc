// config.json: what is accepted, what it becomes, and what is refused under which name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/sha256.h"
#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/family.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"

namespace quire::model {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr std::string_view kShape =
    R"("hidden_size": 64, "intermediate_size": 96, "vocab_size": 200,
  "num_hidden_layers": 3, "num_attention_heads": 4)";

// Returns a config of `family` with these members on top of a small shape.
std::string config_text(std::string_view family, std::string_view members = "") {
  return std::string(R"({"model_type": ")") + std::string(family) + "\", " + std::string(kShape) +
         (members.empty() ? "" : ", ") + std::string(members) + "}";
}

std::string digest(const ModelConfig& config) {
  base::FieldHasher hasher;
  add_config(hasher, config);
  return base::to_hex(hasher.finish());
}

ModelConfig parse(std::string_view family, std::string_view members = "") {
  auto config = config_from_hf(config_text(family, members), "");
  EXPECT_TRUE(config.ok()) << (config.ok() ? "" : config.error().message);
  return config.ok() ? *config : ModelConfig();
}

TEST(ConfigFromHf, AbsentFieldsMeanWhatTransformersAssumes) {
  const ModelConfig llama = parse("llama");
  EXPECT_EQ(llama.kv_heads, 4);
  EXPECT_EQ(llama.head_dim, 16);
  EXPECT_EQ(llama.context_length, 2048);
  EXPECT_DOUBLE_EQ(llama.norm_epsilon, 1e-6);
  EXPECT_FALSE(llama.tied_embeddings || llama.qkv_bias || llama.mlp_bias || llama.qk_norm);
  EXPECT_THAT(llama.window_tokens, ElementsAre(0, 0, 0));
  EXPECT_EQ(llama.rotary.rotary_dim(), 16);
  EXPECT_DOUBLE_EQ(llama.rotary.inverse_frequencies[0], 1.0);
  EXPECT_EQ(llama.stored_dtype, tensor::DType::kFloat32);
  EXPECT_THAT(llama.remarks, IsEmpty());

  EXPECT_THAT(parse("mistral", R"("num_key_value_heads": 2)").window_tokens, Each(4096));
  EXPECT_EQ(parse("mistral", R"("num_key_value_heads": null)").kv_heads, 4);
  EXPECT_EQ(parse("qwen3", R"("num_key_value_heads": 2)").head_dim, 128);
  EXPECT_DOUBLE_EQ(parse("phi3").norm_epsilon, 1e-5);
}

TEST(ConfigFromHf, FamiliesSetTheirSwitches) {
  const ModelConfig llama = parse("llama", R"("attention_bias": true, "mlp_bias": true)");
  EXPECT_TRUE(llama.qkv_bias && llama.output_bias && llama.mlp_bias);
  const ModelConfig qwen2 = parse("qwen2", R"("num_key_value_heads": 2)");
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.output_bias && !qwen2.qk_norm);
  const ModelConfig qwen3 = parse("qwen3", R"("num_key_value_heads": 2, "attention_bias": true)");
  EXPECT_TRUE(qwen3.qk_norm && qwen3.qkv_bias && qwen3.output_bias);
  EXPECT_EQ(parse("phi3", R"("partial_rotary_factor": 0.75, "head_dim": 32)").rotary.rotary_dim(),
            24);
}

TEST(ConfigFromHf, WindowsFollowTheirFamily) {
  constexpr std::string_view kHeads = R"("num_key_value_heads": 2, )";
  const auto windows = [&](std::string_view family, std::string_view members) {
    return parse(family, std::string(kHeads) + std::string(members)).window_tokens;
  };
  EXPECT_THAT(windows("mistral", R"("sliding_window": 16)"), ElementsAre(16, 16, 16));
  EXPECT_THAT(windows("mistral", R"("sliding_window": null)"), ElementsAre(0, 0, 0));
  EXPECT_THAT(windows("phi3", R"("sliding_window": 2047)"), Each(2047));
  EXPECT_THAT(windows("qwen2", R"("sliding_window": 16, "max_window_layers": 1)"), Each(0));
  EXPECT_THAT(windows("qwen2", R"("use_sliding_window": true, "sliding_window": 16,
                      "max_window_layers": 1)"),
              ElementsAre(0, 16, 16));
  EXPECT_THAT(windows("qwen3", R"("use_sliding_window": true, "sliding_window": 16, "layer_types":
                      ["sliding_attention", "full_attention", "sliding_attention"])"),
              ElementsAre(16, 0, 16));
  EXPECT_THAT(windows("qwen2", R"("use_sliding_window": true, "sliding_window": null,
                      "max_window_layers": 0)"),
              Each(0));
}

TEST(ConfigFromHf, AWindowThatQwenDoesNotUseMayBeAnyNumber) {
  for (const char* unused : {"0", "-1", "4096"}) {
    const std::string window =
        std::string(R"("num_key_value_heads": 2, "sliding_window": )") + unused;
    EXPECT_THAT(parse("qwen2", window).window_tokens, Each(0)) << unused;
    EXPECT_THAT(parse("qwen3", window + R"(, "use_sliding_window": false)").window_tokens, Each(0));
  }
}

TEST(ConfigFromHf, LayerTypesOfMistralMaySayWhatItsWindowMeans) {
  const std::string sliding = R"("num_key_value_heads": 2, "layer_types": ["sliding_attention",
                                 "sliding_attention", "sliding_attention"])";
  const std::string full = R"("num_key_value_heads": 2, "layer_types": ["full_attention",
                              "full_attention", "full_attention"])";
  EXPECT_THAT(parse("mistral", sliding + R"(, "sliding_window": 16)").window_tokens, Each(16));
  EXPECT_THAT(parse("mistral", full + R"(, "sliding_window": null)").window_tokens, Each(0));
  for (const std::string& other :
       {full + R"(, "sliding_window": 16)", sliding + R"(, "sliding_window": null)"}) {
    const auto refused = config_from_hf(config_text("mistral", other), "");
    ASSERT_FALSE(refused.ok()) << other;
    EXPECT_THAT(refused.error().message, HasSubstr("layer_types"));
  }
}

TEST(ConfigFromHf, AWindowThatHidesNothingIsNone) {
  EXPECT_THAT(
      parse("phi3", R"("sliding_window": 262144, "max_position_embeddings": 131072)").window_tokens,
      Each(0));
}

TEST(ConfigFromHf, RopeBlockHasTwoNamesAndTheTypeTwoSpellings) {
  const auto linear = [](std::string_view members) {
    return parse("llama", members).rotary.inverse_frequencies.front();
  };
  EXPECT_DOUBLE_EQ(linear(R"("rope_scaling": {"type": "linear", "factor": 4.0})"), 0.25);
  EXPECT_DOUBLE_EQ(linear(R"("rope_scaling": {"rope_type": "linear", "factor": 4})"), 0.25);
  EXPECT_DOUBLE_EQ(linear(R"("rope_parameters": {"rope_type": "linear", "factor": 4,
                             "rope_theta": 500000.0})"),
                   0.25);
  EXPECT_DOUBLE_EQ(linear(R"("rope_scaling": {}, "rope_theta": 500000.0)"), 1.0);
}

TEST(ConfigFromHf, EndOfSequenceIdsComeFromBothFiles) {
  const auto config = config_from_hf(config_text("llama", R"("eos_token_id": [7, 9])"),
                                     R"({"eos_token_id": 5, "top_k": 50})");
  ASSERT_TRUE(config.ok());
  EXPECT_THAT(config->eos_token_ids, ElementsAre(7, 9, 5));
  EXPECT_THAT(parse("llama", R"("eos_token_id": [199, 200])").eos_token_ids, ElementsAre(199));
}

TEST(ConfigFromHf, TheBeginningOfTextIsAnIdOfTheVocabularyOrNone) {
  EXPECT_EQ(parse("llama", R"("bos_token_id": 0)").bos_token_id, 0);
  EXPECT_EQ(parse("llama", R"("bos_token_id": 199)").bos_token_id, 199);
  for (const char* none : {"200", "-1", "null", "[1]", "\"1\"", "1.5"}) {
    const std::string field = std::string("\"bos_token_id\": ") + none;
    EXPECT_EQ(parse("llama", field).bos_token_id, std::nullopt) << none;
  }
}

TEST(ConfigFromHf, TellsTheDtypeUnderBothNames) {
  EXPECT_EQ(parse("llama", R"("torch_dtype": "bfloat16")").stored_dtype, tensor::DType::kBFloat16);
  EXPECT_EQ(parse("llama", R"("dtype": "float16")").stored_dtype, tensor::DType::kFloat16);
}

// Real files of the families, with the bookkeeping that they carry.
TEST(ConfigFromHf, AcceptsPublishedConfigs) {
  EXPECT_EQ(parse("llama", R"("_name_or_path": "x", "architectures": ["LlamaForCausalLM"],
    "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "initializer_range": 0.02, "is_llama_config": true, "pad_token_id": 2, "pretraining_tp": 1,
    "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000, "torch_dtype":
    "bfloat16", "transformers.js_config": {"dtype": "q4"}, "transformers_version": "4.42.3",
    "unsloth_fixed": true, "use_cache": true, "tie_word_embeddings": true,
    "max_position_embeddings": 8192)")
                .family,
            "llama");
  const ModelConfig phi4_mini = parse("phi3", R"("architectures": ["Phi3ForCausalLM"],
    "attention_bias": false, "attention_dropout": 0.0, "auto_map": {"AutoConfig": "x"},
    "embd_pdrop": 0.0, "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": false,
    "max_position_embeddings": 131072, "mlp_bias": false, "num_key_value_heads": 2,
    "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75, "resid_pdrop": 0.0,
    "rope_scaling": {"long_factor": [1, 1.1, 1.2, 1.3, 1.4, 1.5], "short_factor":
    [1, 1, 1, 1, 1, 1], "type": "longrope"}, "rope_theta": 10000.0, "sliding_window": 262144,
    "tie_word_embeddings": true)");
  EXPECT_EQ(phi4_mini.context_length, 4096);
  EXPECT_THAT(phi4_mini.remarks, ElementsAre(HasSubstr("longrope: 4096 of 131072 positions")));
  EXPECT_NEAR(phi4_mini.rotary.scale, 1.1902380714238083, 1e-12);
}

TEST(ConfigFromHf, FieldsOfExecutionAndTrainingChangeNothing) {
  const ModelConfig plain = parse("llama");
  for (const std::string field :
       {R"("use_flash_attn": true)", R"("flash_attn": true)", R"("gradient_checkpointing": true)",
        R"("_flash_attn_2_enabled": true)", R"("_experts_implementation": "eager")",
        R"("attention_probs_dropout_prob": 0.1)", R"("mlp_dropout": 0.1)", R"("fp16": true)",
        R"("router_aux_loss_coef": 0.001)", R"("torch_compile": true)", R"("seq_length": 4096)",
        R"("unsloth_anything": 3)", R"("image_token_id": 7)", R"("max_window_layers": 28)",
        R"("attention_dropout": Infinity)", R"("attention_dropout": NaN)", R"("tp_size": 2)"}) {
    const auto config = config_from_hf(config_text("llama", field), "");
    ASSERT_TRUE(config.ok()) << field << ": " << config.error().message;
    EXPECT_EQ(digest(*config), digest(plain)) << field;
  }
}

TEST(ConfigFromHf, AFieldAtItsNeutralValueChangesNothing) {
  const ModelConfig plain = parse("llama");
  for (const std::string field :
       {R"("use_sliding_window": false)", R"("sliding_window": null)", R"("num_experts": 0)",
        R"("final_logit_softcapping": 0.0)", R"("quantization_config": {})",
        R"("something_new": "")", R"("something_new": [])", R"("residual_multiplier": 1.0)",
        R"("residual_multiplier": 1)", R"("pretraining_tp": 1.0)", R"("is_causal": true)",
        R"("rope_scaling": {"type": "default", "something_new": false})"}) {
    const auto config = config_from_hf(config_text("llama", field), "");
    ASSERT_TRUE(config.ok()) << field << ": " << config.error().message;
    EXPECT_EQ(digest(*config), digest(plain)) << field;
  }
}

// Qwen's own instructions add the block and leave the length.
TEST(ConfigFromHf, AStretchedLengthIsMergedWithTheStatedOne) {
  const ModelConfig qwen = parse("qwen2", R"("num_key_value_heads": 2,
    "max_position_embeddings": 32768, "rope_scaling": {"type": "yarn", "factor": 4.0,
    "original_max_position_embeddings": 32768})");
  EXPECT_EQ(qwen.context_length, 131072);
  EXPECT_THAT(qwen.remarks, ElementsAre(HasSubstr("yarn: 131072 positions are served")));
  EXPECT_EQ(qwen.context_text(), "131072");
  EXPECT_EQ(parse("llama", R"("max_position_embeddings": 4096,
    "rope_scaling": {"type": "linear", "factor": 4.0})")
                .context_length,
            16384);
  const ModelConfig edited = parse("llama", R"("max_position_embeddings": 256,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64})");
  EXPECT_EQ(edited.context_length, 256);
  EXPECT_THAT(edited.remarks, IsEmpty());
}

// Two sources of one fact, in every way in which a config may state them.
TEST(ConfigFromHf, ALengthIsTheLargerOfTheStatedAndTheStretchedOneForRandomConfigs) {
  std::mt19937_64 random(15);
  const auto below = [&random](int bound) {
    return static_cast<int>(random() % static_cast<std::uint64_t>(bound));
  };
  const auto member = [](std::string_view name, const std::string& value) {
    return ", \"" + std::string(name) + "\": " + value;
  };
  for (int round = 0; round < 100; ++round) {
    const int stated = 64 * (1 + below(16));
    const bool is_absent = below(3) == 0;
    const int original = is_absent ? stated : 16 * (1 + below(stated / 16));
    const double factor = 1.0 + 0.25 * below(30);
    std::string block = "{\"" + std::string(below(2) == 1 ? "type" : "rope_type") + "\": \"" +
                        (below(2) == 1 ? "yarn" : "linear") + "\"" +
                        member("factor", std::to_string(factor));
    if (!is_absent) {
      block += member("original_max_position_embeddings", std::to_string(original));
    }
    const std::string members = "\"num_key_value_heads\": 2" +
                                member("max_position_embeddings", std::to_string(stated)) +
                                member("rope_scaling", block + "}");
    const ModelConfig config = parse(below(2) == 1 ? "llama" : "qwen2", members);
    const int stretched = static_cast<int>(original * factor);
    ASSERT_EQ(config.context_length, std::max(stated, stretched)) << members;
    ASSERT_EQ(config.remarks.empty(), stretched <= stated) << members;
  }
}

TEST(ConfigFromHf, TheContextOfLongropeSaysWhyItEnds) {
  const std::string factors = R"("original_max_position_embeddings": 64,
    "max_position_embeddings": 256, "rope_scaling": {"type": "longrope",
    "short_factor": [1, 1, 1, 1, 1, 1, 1, 1], "long_factor": )";
  const ModelConfig two = parse("phi3", factors + "[1, 2, 3, 4, 5, 6, 7, 8]}");
  EXPECT_EQ(two.context_length, 64);
  EXPECT_THAT(two.context_text(), HasSubstr("64 (longrope"));
  EXPECT_THAT(two.context_text(), HasSubstr("256"));
  const ModelConfig one = parse("phi3", factors + "[1, 1, 1, 1, 1, 1, 1, 1]}");
  EXPECT_EQ(one.context_length, 256);
  EXPECT_EQ(one.context_text(), "256");
}

TEST(ConfigFromHf, AnErrorNamesTheFileThatIsBroken) {
  const auto message = [](std::string_view config, std::string_view generation) {
    const auto parsed = config_from_hf(config, generation);
    return parsed.ok() ? std::string("accepted") : parsed.error().message;
  };
  const std::string good = config_text("llama");
  EXPECT_THAT(message("{", ""), StartsWith("config.json: not valid JSON"));
  EXPECT_THAT(message(config_text("llama", R"("foo": 1)"), ""), StartsWith("config.json: field"));
  EXPECT_THAT(message(config_text("llama", R"("vocab_size": 0)"), ""),
              StartsWith("config.json: \"vocab_size\" is 0"));
  EXPECT_THAT(message(good, "{"), StartsWith("generation_config.json: not valid JSON"));
  EXPECT_THAT(message(good, "[]"), StartsWith("generation_config.json: must hold"));
  EXPECT_THAT(message(good, R"({"eos_token_id": "x"})"),
              StartsWith("generation_config.json: \"eos_token_id\""));
  EXPECT_EQ(message(good, R"({"temperature": Infinity, "top_p": NaN})"), "accepted");
}

struct Refused {
  const char* family;
  const char* members;
  ErrorCode code;
  const char* message;
};

class RefusedConfig : public ::testing::TestWithParam<Refused> {};

TEST_P(RefusedConfig, IsNamed) {
  const auto config = config_from_hf(config_text(GetParam().family, GetParam().members), "");
  ASSERT_FALSE(config.ok()) << GetParam().members;
  EXPECT_EQ(config.error().code, GetParam().code) << config.error().message;
  EXPECT_THAT(config.error().message, HasSubstr(GetParam().message));
}

constexpr auto kUnsupported = ErrorCode::kUnsupported;
constexpr auto kInvalid = ErrorCode::kInvalidArgument;

INSTANTIATE_TEST_SUITE_P(
    Fields, RefusedConfig,
    ::testing::Values(
        Refused{"gpt2", "", kUnsupported, "\"gpt2\""},
        Refused{"llama", R"("architectures": ["LlamaForSequenceClassification"])", kUnsupported,
                "LlamaForSequenceClassification"},
        Refused{"llama", R"("quantization_config": {"bits": 4})", kUnsupported,
                "quantization_config"},
        Refused{"llama", R"("logit_scale": 0.5)", kUnsupported, "logit_scale"},
        Refused{"llama", R"("sliding_window": 128)", kUnsupported, "sliding_window"},
        Refused{"llama", R"("pretraining_tp": 2)", kUnsupported, "pretraining_tp"},
        Refused{"llama", R"("is_encoder_decoder": true)", kUnsupported, "is_encoder_decoder"},
        Refused{"llama", R"("hidden_act": "gelu")", kUnsupported, "\"gelu\""},
        Refused{"llama", R"("dtype": "float8_e4m3fn")", kUnsupported, "float8_e4m3fn"},
        Refused{"llama", R"("partial_rotary_factor": 0.5)", kUnsupported, "partial_rotary_factor"},
        Refused{"llama", R"("head_dim": 15)", kUnsupported, "\"head_dim\" is 15"},
        Refused{"phi3", R"("lm_head_bias": true)", kUnsupported, "lm_head_bias"},
        Refused{"qwen2", R"("num_key_value_heads": 2, "use_mrope": true)", kUnsupported,
                "use_mrope"},
        Refused{"qwen2", R"("num_key_value_heads": 2, "layer_types": ["full_attention",
                "full_attention", "linear_attention"])",
                kUnsupported, "linear_attention"},
        Refused{"qwen2", R"("num_key_value_heads": 2, "layer_types": ["full_attention"])", kInvalid,
                "list of 3 names"},
        Refused{"mistral", R"("num_key_value_heads": 2, "sliding_window": 0)", kInvalid,
                "\"sliding_window\" is 0"},
        Refused{"llama", R"("rope_scaling": {"type": "dynamic", "factor": 2.0})", kUnsupported,
                "\"dynamic\""},
        Refused{"llama", R"("rope_scaling": {"type": "mrope"})", kUnsupported, "\"mrope\""},
        Refused{"llama", R"("rope_scaling": {"type": "linear"})", kInvalid, "\"factor\""},
        Refused{"llama", R"("rope_scaling": {"type": "linear", "factor": 0})", kInvalid,
                "\"factor\" = 0"},
        Refused{"llama", R"("rope_scaling": {"type": "linear", "factor": 2, "extra": 1})",
                kUnsupported, "rope_scaling.extra"},
        Refused{"llama", R"("rope_scaling": [1])", kInvalid, "must be an object"},
        Refused{"llama", R"("rope_theta": 0)", kInvalid, "\"rope_theta\" is 0"},
        Refused{"phi3", R"("rope_scaling": {"type": "longrope", "short_factor": [1],
                "long_factor": [1]})",
                kInvalid, "1 short and 1 long factors for 8"},
        Refused{"llama", R"("num_key_value_heads": 3)", kInvalid,
                "\"num_attention_heads\" is 4, which is no multiple of \"num_key_value_heads\", 3"},
        Refused{"llama", R"("num_key_value_heads": 0)", kInvalid, "\"num_key_value_heads\" is 0"},
        Refused{"llama", R"("num_attention_heads": 0)", kInvalid, "\"num_attention_heads\" is 0"},
        Refused{"llama", R"("num_hidden_layers": 1000000)", kInvalid,
                "\"num_hidden_layers\" is 1000000"},
        Refused{"llama", R"("head_dim": 2147483646)", kInvalid, "\"head_dim\" is 2147483646"},
        Refused{"llama", R"("hidden_size": 65)", kInvalid, "not a multiple"},
        Refused{"llama", R"("hidden_size": 1e30)", kInvalid, "hidden_size"},
        Refused{"llama", R"("vocab_size": -1)", kInvalid, "\"vocab_size\" is -1"},
        Refused{"llama", R"("vocab_size": 3000000000)", kInvalid, "32-bit"},
        Refused{"llama", R"("vocab_size": null)", kInvalid, "\"vocab_size\" is missing"},
        Refused{"llama", R"("rms_norm_eps": 0.0)", kInvalid, "\"rms_norm_eps\" is 0"},
        Refused{"llama", R"("max_position_embeddings": 0)", kInvalid,
                "\"max_position_embeddings\" is 0"},
        Refused{"llama", R"("eos_token_id": "2")", kInvalid, "eos_token_id"},
        Refused{"llama", R"("hidden_size": 60)", kUnsupported,
                "\"hidden_size\" / \"num_attention_heads\" is 15"},
        Refused{"llama", R"("vocab_size": 0)", kInvalid, "\"vocab_size\" is 0"},
        Refused{"llama", R"("hidden_size": 0, "head_dim": 16)", kInvalid, "\"hidden_size\" is 0"},
        Refused{"llama", R"("intermediate_size": 0)", kInvalid, "\"intermediate_size\" is 0"},
        Refused{"llama", R"("rms_norm_eps": NaN)", kInvalid, "\"rms_norm_eps\""},
        Refused{"llama", R"("rope_theta": Infinity)", kInvalid, "\"rope_theta\""},
        Refused{"llama", R"("head_dim": NaN)", kInvalid, "\"head_dim\""},
        Refused{"llama", R"("vocab_size": -Infinity)", kInvalid, "\"vocab_size\""},
        Refused{"llama", R"("eos_token_id": [NaN])", kInvalid, "\"eos_token_id\""},
        Refused{"llama", R"("tie_word_embeddings": NaN)", kInvalid, "\"tie_word_embeddings\""},
        Refused{"llama", R"("logit_scale": NaN)", kUnsupported, "\"logit_scale\""},
        Refused{"llama", R"("rope_scaling": {"type": "yarn", "factor": NaN})", kInvalid,
                "\"factor\""},
        Refused{"phi3", R"("rope_scaling": {"type": "longrope", "short_factor":
                [NaN, 1, 1, 1, 1, 1, 1, 1], "long_factor": [1, 1, 1, 1, 1, 1, 1, 1]})",
                kInvalid, "\"short_factor\""},
        Refused{"llama", R"("is_causal": false)", kUnsupported, "\"is_causal\""},
        Refused{"llama", R"("residual_multiplier": 0.5)", kUnsupported, "\"residual_multiplier\""},
        Refused{"llama", R"("use_sliding_window": true)", kUnsupported, "\"use_sliding_window\""},
        Refused{"llama", R"("num_experts": 8)", kUnsupported, "\"num_experts\""},
        Refused{"llama", R"("tie_word_embeddings": "yes")", kInvalid, "tie_word_embeddings"}));

TEST(ConfigFromHf, EverythingThatIsRefusedCanBeListed) {
  const std::string config =
      config_text("llama", R"("architectures": ["Other"], "foo": 1, "quantization_config": {"a": 1},
      "hidden_act": "gelu", "dtype": "float8", "partial_rotary_factor": 0.5, "rope_parameters":
      {"rope_type": "dynamic", "factor": 2, "bar": 1})");
  const auto refused = refused_by_hf(config, "");
  EXPECT_THAT(refused, ElementsAre(HasSubstr("architectures"), HasSubstr("foo"),
                                   HasSubstr("quantization_config"), HasSubstr("hidden_act"),
                                   HasSubstr("float8"), HasSubstr("rope_parameters.bar"),
                                   HasSubstr("partial_rotary_factor"), HasSubstr("dynamic")));
  EXPECT_EQ(config_from_hf(config, "").error().message, refused.front());
  EXPECT_THAT(refused_by_hf(config_text("llama"), ""), IsEmpty());
  EXPECT_THAT(refused_by_hf(config_text("gpt2"), ""), ElementsAre(HasSubstr("gpt2")));
}

// The oracle is the config without the field, and the rule of the module's README.
TEST(ConfigFromHf, AnUnknownFieldIsRefusedUnlessItSwitchesNothingOn) {
  const std::vector<std::string> neutral = {"null", "false", "0",  "0.0",
                                            "-0.0", "\"\"",  "[]", "{}"};
  const std::vector<std::string> on = {"true",       "1",   "-0.5", "\"x\"",     "[0]",
                                       "{\"a\": 0}", "NaN", "1e9",  "-Infinity", "[[]]"};
  const std::string plain = digest(parse("llama"));
  std::mt19937_64 random(13);
  for (int round = 0; round < 300; ++round) {
    std::string name = "zz_";  // no field that is known begins so
    for (int i = 0; i < 6; ++i) {
      name += static_cast<char>('a' + random() % 26);
    }
    const bool is_neutral = random() % 2 == 0;
    const auto& values = is_neutral ? neutral : on;
    const std::string& value = values[random() % values.size()];
    const auto config = config_from_hf(config_text("llama", "\"" + name + "\": " + value), "");
    ASSERT_EQ(config.ok(), is_neutral) << name << ": " << value;
    if (is_neutral) {
      ASSERT_EQ(digest(*config), plain) << name << ": " << value;
    } else {
      ASSERT_THAT(config.error().message, HasSubstr("\"" + name + "\"")) << value;
    }
  }
}

TEST(ConfigFromHf, RefusesWhatIsNoObject) {
  for (const char* text : {"", "[]", "{", "null", "{\"model_type\": 3}"}) {
    EXPECT_FALSE(config_from_hf(text, "").ok()) << text;
  }
  EXPECT_FALSE(config_from_hf(config_text("llama"), "[]").ok());
}

TEST(Presets, HaveThePublishedNumberOfParameters) {
  const std::vector<std::pair<std::string, std::int64_t>> published = {
      {"tinyllama-1.1b", 1100048384}, {"llama-3.1-8b", 8030261248}, {"llama-3.2-1b", 1235814400},
      {"qwen2.5-0.5b", 494032768},    {"qwen3-0.6b", 596049920},    {"mistral-7b", 7241732096},
      {"phi-3-mini", 3821079552},     {"smollm2-135m", 134515008},  {"llama-160m", 162417408},
      {"gemma-3-270m", 268098176},    {"gemma-3-4b", 3880263168},   {"lfm2-1.2b", 1170340608},
      {"gpt-oss-20b", 20914757184}};
  for (const auto& [name, parameters] : published) {
    const auto config = config_from_preset(name);
    ASSERT_TRUE(config.ok()) << config.error().message;
    EXPECT_EQ(num_parameters(*config), parameters) << name;
  }
}

TEST(Presets, AllParseAndAnUnknownOneListsThem) {
  for (const auto& name : preset_names()) {
    EXPECT_TRUE(config_from_preset(name).ok()) << name;
  }
  const auto unknown = config_from_preset("gpt-5");
  ASSERT_FALSE(unknown.ok());
  EXPECT_THAT(unknown.error().message, HasSubstr("tinyllama-1.1b"));
}

TEST(Families, AreFoundByBothNames) {
  EXPECT_EQ(find_family("qwen3")->gguf_architecture, "qwen3");
  EXPECT_EQ(find_gguf_family("phi3")->name, "phi3");
  EXPECT_EQ(find_gguf_family("llama")->name, "llama");
  EXPECT_THAT(gguf_family_names(),
              ElementsAre("deepseek2", "gemma2", "gemma3", "gemma4", "gpt-oss", "granite",
                          "granitehybrid", "lfm2", "lfm2moe", "llama", "mistral3", "nemotron_h",
                          "nemotron_h_moe", "olmo2", "phi3", "qwen2", "qwen3", "qwen35",
                          "qwen35moe", "qwen3moe", "qwen3next", "smollm3"));
  EXPECT_EQ(find_family("gpt2"), nullptr);
  EXPECT_EQ(find_gguf_family(""), nullptr);
  EXPECT_THAT(family_names(),
              ElementsAre("deepseek_v2", "deepseek_v3", "gemma2", "gemma3", "gemma4",
                          "glm4_moe_lite", "gpt_oss", "granite", "granitemoehybrid", "lfm2",
                          "lfm2_moe", "llama", "ministral3", "mistral", "mixtral", "nemotron_h",
                          "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "qwen3_5", "qwen3_5_moe",
                          "qwen3_moe", "qwen3_next", "smollm3"));
  EXPECT_EQ(find_family_of_type("gemma3_text")->name, "gemma3");
  EXPECT_EQ(find_family_of_type("qwen3")->name, "qwen3");
  EXPECT_EQ(find_family_of_type("gemma3"), nullptr);
}

}  // namespace
}  // namespace quire::model

// Families whose layers carry a state: what config.json and GGUF metadata make of them. That each
// key means what it means in transformers is a matter of parity_test, whose models differ in them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/sha256.h"
#include "quire/kernels/activation.h"
#include "quire/model/config.h"
#include "quire/model/layer_plan.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"

namespace quire::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using enum MixerKind;

// A small model of 4 layers of this type.
std::string state_model(std::string_view type, std::string_view members) {
  return R"({"model_type": ")" + std::string(type) +
         R"(", "hidden_size": 64, "intermediate_size": 96, "vocab_size": 200, "head_dim": 16,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2)" +
         (members.empty() ? "" : ", ") + std::string(members) + "}";
}

ModelConfig parsed(std::string_view type, std::string_view members = "") {
  auto config = config_from_hf(state_model(type, members), "");
  EXPECT_TRUE(config.ok()) << members << (config.ok() ? "" : config.error().message);
  return config.ok() ? *config : ModelConfig();
}

std::string refused(std::string_view type, std::string_view members) {
  const auto config = config_from_hf(state_model(type, members), "");
  return config.ok() ? "accepted" : config.error().message;
}

std::string digest_of(const ModelConfig& config) {
  base::FieldHasher hasher;
  add_config(hasher, config);
  return base::to_hex(hasher.finish());
}

constexpr std::string_view kConvLayers =
    R"("layer_types": ["conv", "full_attention", "conv", "conv"])";

TEST(Lfm2Config, LayersAreConvolutionsOrAttentionByEitherList) {
  EXPECT_THAT(parsed("lfm2", kConvLayers).mixers,
              ElementsAre(kShortConv, kAttention, kShortConv, kShortConv));
  EXPECT_THAT(parsed("lfm2", R"("full_attn_idxs": [1, 2])").mixers,
              ElementsAre(kShortConv, kAttention, kAttention, kShortConv));
  EXPECT_THAT(parsed("lfm2").mixers, ElementsAre(kAttention, kAttention, kAttention, kAttention))
      << "transformers takes all layers for attention";
}

TEST(Lfm2Config, TheInnerSizeIsTwoThirdsRoundedUp) {
  const auto inner = [](std::string_view members) {
    return parsed("lfm2", members).intermediate_size;
  };
  EXPECT_EQ(inner(""), 256);
  EXPECT_EQ(inner(R"("block_ff_dim": 12288)"), 8192);
  EXPECT_EQ(inner(R"("block_ff_dim": 120, "block_multiple_of": 32)"), 96);
  EXPECT_EQ(inner(R"("block_multiple_of": 32, "block_ffn_dim_multiplier": 1.5)"), 96);
  EXPECT_EQ(inner(R"("block_ffn_dim_multiplier": null)"), 64);
  EXPECT_EQ(inner(R"("block_auto_adjust_ff_dim": false)"), 96);
}

TEST(StateGeometry, CountsStatesApartFromKV) {
  const ModelConfig config = parsed("lfm2", kConvLayers);
  EXPECT_EQ(config.kv_layers(), 1);
  EXPECT_EQ(config.kv_geometry(tensor::DType::kBFloat16, 32).layers, 1);
  EXPECT_EQ(config.state_geometry().state_bytes, 3 * 2 * 64 * 4);
  EXPECT_THAT(config.state_geometry().offsets, ElementsAre(0, 512, 1024));
  EXPECT_EQ(config.layer_plan(3).group_index, 2);
  EXPECT_EQ(config.layer_plan(1).group_index, 0);
}

// Sizes that logs of another engine tell (research of the format): MiB of a state.
TEST(StateGeometry, OfPublishedModelsIsWhatOthersMeasured) {
  const auto mebibytes = [](std::string_view preset) {
    return static_cast<double>(config_from_preset(preset).value().state_geometry().state_bytes) /
           (1 << 20);
  };
  EXPECT_NEAR(mebibytes("qwen3.5-27b"), 149.626, 0.002);
  EXPECT_NEAR(mebibytes("qwen3.5-4b"), 50.25, 0.01);
  EXPECT_NEAR(mebibytes("lfm2-1.2b"), 0.16, 0.01);
}

TEST(Qwen35Config, EveryFourthLayerIsAttentionUnlessTheFileSaysOtherwise) {
  const ModelConfig config = parsed("qwen3_5_text");
  EXPECT_THAT(config.mixers, ElementsAre(kGatedDelta, kGatedDelta, kGatedDelta, kAttention));
  EXPECT_TRUE(config.gates_attention && config.qk_norm);
  EXPECT_EQ(config.rotary.rotary_dim(), 4) << "a quarter, where the file does not say it";
  EXPECT_THAT(parsed("qwen3_5_text", R"("full_attention_interval": 2)").mixers,
              ElementsAre(kGatedDelta, kAttention, kGatedDelta, kAttention));
  EXPECT_EQ(config.state.channels, 2 * 16 * 128 + 32 * 128);
}

constexpr std::string_view kMambaLayers =
    R"("mamba_n_heads": 4, "layer_types": ["mamba", "attention", "linear_attention", "mamba"])";

TEST(GraniteMoeHybridConfig, ReadsStateSpacesExpertsAndWhetherThereIsARope) {
  const ModelConfig config = parsed("granitemoehybrid", kMambaLayers);
  EXPECT_THAT(config.mixers, ElementsAre(kStateScan, kAttention, kStateScan, kStateScan));
  EXPECT_EQ(config.state.value_dim, 32) << "twice the hidden size, among 4 heads";
  EXPECT_EQ(config.state.channels, 128 + 2 * 256);
  EXPECT_EQ(config.state.in_width(), 128 + config.state.channels + 4);
  EXPECT_TRUE(config.state.conv_bias && !config.state.bias);
  EXPECT_EQ(config.experts.shared_size, 1024);
  EXPECT_FALSE(config.experts.gates_shared);
  EXPECT_THAT(config.ropes, testing::Each(RopeKind::kNone));
  const std::string layers(kMambaLayers);
  const ModelConfig dense = parsed("granitemoehybrid", layers + R"(, "num_local_experts": 0)");
  EXPECT_TRUE(dense.mlps.empty());
  EXPECT_EQ(dense.intermediate_size, 1024);
  EXPECT_TRUE(
      parsed("granitemoehybrid", layers + R"(, "position_embedding_type": "rope")").ropes.empty());
}

TEST(GraniteMoeHybridConfig, AModelOfAttentionAloneHasNoStates) {
  const ModelConfig config =
      parsed("granitemoehybrid", R"("mamba_n_heads": 4, "num_local_experts": 0,
             "position_embedding_type": "rope", "layer_types": ["attention", "attention",
             "attention", "attention"])");
  EXPECT_EQ(config.state_layers(), 0);
  EXPECT_EQ(config.kv_layers(), 4);
}

TEST(GraniteMoeHybridConfig, BothSpellingsOfNoBoundAreRead) {
  const std::string layers(kMambaLayers);
  for (const std::string_view bound : {R"(Infinity)", R"({"__float__": "Infinity"})"}) {
    const ModelConfig config = parsed(
        "granitemoehybrid", layers + R"(, "time_step_limit": [0.5, )" + std::string(bound) + "]");
    EXPECT_EQ(config.state.least_step, 0.5);
    EXPECT_TRUE(std::isinf(config.state.most_step));
  }
  EXPECT_THAT(refused("granitemoehybrid", layers + R"(, "time_step_limit": [2.0, 1.0])"),
              HasSubstr("bounded by 2 and 1"));
  EXPECT_THAT(refused("granitemoehybrid", layers + R"(, "time_step_limit": [2.0])"),
              HasSubstr("time_step_limit"));
}

TEST(GraniteMoeHybridConfig, NamesWhatDoesNotAddUp) {
  const std::string layers(kMambaLayers);
  EXPECT_THAT(refused("granitemoehybrid", layers + R"(, "mamba_d_head": 31)"),
              HasSubstr("\"mamba_n_heads\" 4 of 31"));
  EXPECT_THAT(refused("granitemoehybrid", R"("mamba_n_heads": 4)"),
              HasSubstr("no attention layer"));
  EXPECT_THAT(refused("granitemoehybrid", layers + R"(, "position_embedding_type": "alibi")"),
              HasSubstr("alibi"));
  EXPECT_THAT(refused("granitemoehybrid", layers + R"(, "normalization_function": "layernorm")"),
              HasSubstr("normalization_function"));
}

constexpr std::string_view kNemotronLayers = R"("hybrid_override_pattern": "M-*E")";

TEST(NemotronHConfig, EachLayerIsOneThing) {
  const ModelConfig config = parsed("nemotron_h", kNemotronLayers);
  EXPECT_THAT(config.mixers, ElementsAre(kStateScan, kNone, kAttention, kNone));
  EXPECT_THAT(config.mlps,
              ElementsAre(MlpKind::kNone, MlpKind::kDense, MlpKind::kNone, MlpKind::kExperts));
  EXPECT_EQ(config.kv_layers(), 1);
  EXPECT_EQ(config.state_layers(), 1);
  EXPECT_EQ(config.layer_plan(2).group_index, 0);
  EXPECT_FALSE(config.gates_mlp);
  EXPECT_EQ(config.state.least_step, 0.001);
  EXPECT_EQ(config.norm_epsilon, 1e-5);
  EXPECT_EQ(digest_of(config), digest_of(parsed("nemotron_h", R"("layers_block_type":
      ["mamba", "mlp", "attention", "moe"])")));
}

TEST(NemotronHConfig, NamesWhatIsNotImplementedOrDoesNotAddUp) {
  const std::string layers(kNemotronLayers);
  EXPECT_THAT(refused("nemotron_h", ""), HasSubstr("layers_block_type"));
  EXPECT_THAT(refused("nemotron_h", R"("hybrid_override_pattern": "M-*")"), HasSubstr("3 of 4"));
  EXPECT_THAT(refused("nemotron_h", R"("hybrid_override_pattern": "M-*X")"), HasSubstr("\"X\""));
  EXPECT_THAT(refused("nemotron_h", layers + R"(, "moe_latent_size": 8)"),
              HasSubstr("moe_latent_size"));
  EXPECT_THAT(refused("nemotron_h", layers + R"(, "n_group": 2)"), HasSubstr("n_group"));
  EXPECT_THAT(refused("nemotron_h", layers + R"(, "mlp_hidden_act": "silu")"),
              HasSubstr("mlp_hidden_act"));
  EXPECT_THAT(refused("nemotron_h", layers + R"(, "mlp_bias": true)"), HasSubstr("mlp_bias"));
}

// Oracle: the code of transformers, whose recurrent mixers apply "hidden_act" too. Its LFM2 reads
// no such key.
TEST(StateConfig, AnActivationThatARecurrentMixerWouldShareIsRefusedByName) {
  constexpr std::string_view kGelu = R"("hidden_act": "gelu_pytorch_tanh")";
  for (const auto& [type, members] : std::vector<std::pair<std::string_view, std::string>>{
           {"qwen3_5_text", ""},
           {"qwen3_5_moe_text", ""},
           {"qwen3_next", ""},
           {"granitemoehybrid", std::string(kMambaLayers) + ", "}}) {
    EXPECT_THAT(refused(type, members + std::string(kGelu)),
                testing::AllOf(HasSubstr("\"hidden_act\" is"), HasSubstr("gelu_pytorch_tanh")))
        << type;
    EXPECT_EQ(refused(type, members + R"("hidden_act": "swish")"), "accepted") << type;
  }
  const std::string attention =
      R"("mamba_n_heads": 4, "layer_types": ["attention", "attention", "attention", "attention"], )";
  EXPECT_EQ(parsed("granitemoehybrid", attention + std::string(kGelu)).activation,
            kernels::Activation::kGeluTanh)
      << "its MLPs alone have it";
  EXPECT_EQ(parsed("lfm2", std::string(kConvLayers) + ", " + std::string(kGelu)).activation,
            kernels::Activation::kSilu);
}

TEST(StateConfig, EachKeyChangesTheDigest) {
  const std::vector<std::pair<std::string_view, std::vector<std::string>>> families = {
      {"lfm2",
       {std::string(kConvLayers), std::string(kConvLayers) + R"(, "conv_L_cache": 4)",
        std::string(kConvLayers) + R"(, "conv_bias": true)",
        std::string(kConvLayers) + R"(, "norm_eps": 1e-3)",
        std::string(kConvLayers) + R"(, "block_ff_dim": 1000)",
        std::string(kConvLayers) + R"(, "tie_embedding": false)", R"("full_attn_idxs": [2])"}},
      {"qwen3_5_text",
       {"", R"("linear_conv_kernel_dim": 3)", R"("linear_num_key_heads": 8)",
        R"("linear_num_value_heads": 16)", R"("linear_key_head_dim": 64)",
        R"("linear_value_head_dim": 64)", R"("attention_bias": true)",
        R"("full_attention_interval": 2)", R"("partial_rotary_factor": 0.5)",
        R"("rms_norm_eps": 1e-3)"}},
      {"granitemoehybrid",
       {std::string(kMambaLayers), std::string(kMambaLayers) + R"(, "mamba_d_state": 64)",
        std::string(kMambaLayers) + R"(, "mamba_n_groups": 2)",
        std::string(kMambaLayers) + R"(, "mamba_d_conv": 3)",
        std::string(kMambaLayers) + R"(, "mamba_conv_bias": false)",
        std::string(kMambaLayers) + R"(, "mamba_proj_bias": true)",
        std::string(kMambaLayers) + R"(, "mamba_expand": 4)",
        std::string(kMambaLayers) + R"(, "time_step_limit": [0.1, 1.0])",
        std::string(kMambaLayers) + R"(, "shared_intermediate_size": 64)",
        std::string(kMambaLayers) + R"(, "residual_multiplier": 0.5)"}},
      {"nemotron_h",
       {std::string(kNemotronLayers), std::string(kNemotronLayers) + R"(, "time_step_min": 0.1)",
        std::string(kNemotronLayers) + R"(, "norm_topk_prob": false)",
        std::string(kNemotronLayers) + R"(, "routed_scaling_factor": 2.0)",
        std::string(kNemotronLayers) + R"(, "use_bias": true)",
        std::string(kNemotronLayers) + R"(, "use_conv_bias": false)"}}};
  for (const auto& [family, changes] : families) {
    std::set<std::string> digests;
    for (const std::string& members : changes) {
      EXPECT_TRUE(digests.insert(digest_of(parsed(family, members))).second) << members;
    }
  }
}

TEST(StateConfig, NamesWhatIsNotImplementedOrOutOfBounds) {
  EXPECT_THAT(refused("lfm2", R"("layer_types": ["conv", "conv", "conv", "conv"])"),
              HasSubstr("no attention layer"));
  EXPECT_THAT(refused("lfm2", R"("layer_types": ["conv"])"), HasSubstr("list of 4 names"));
  EXPECT_THAT(refused("lfm2", R"("layer_types": ["conv", "mamba", "conv", "full_attention"])"),
              HasSubstr("mamba"));
  EXPECT_THAT(refused("lfm2", R"("full_attn_idxs": [4])"), HasSubstr("from 0 to 3"));
  EXPECT_THAT(refused("lfm2", std::string(kConvLayers) + R"(, "conv_L_cache": 1)"),
              HasSubstr("inputs of a convolution"));
  EXPECT_THAT(refused("lfm2", R"("use_pos_enc": false)"), HasSubstr("use_pos_enc"));
  EXPECT_THAT(refused("qwen3_5_text", R"("attn_output_gate": false)"),
              HasSubstr("attn_output_gate"));
  EXPECT_THAT(refused("qwen3_5_text", R"("mamba_ssm_dtype": "bfloat16")"),
              HasSubstr("mamba_ssm_dtype"));
  EXPECT_THAT(refused("qwen3_5_text", R"("linear_num_value_heads": 24)"), HasSubstr("no multiple"));
  EXPECT_THAT(refused("qwen3_5_text", R"("mlp_only_layers": [1])"), HasSubstr("mlp_only_layers"));
  EXPECT_THAT(refused("qwen3_5_text", R"("full_attention_interval": 0)"),
              HasSubstr("full_attention_interval"));
}

TEST(StateConfig, AGpuComputesStatesWithKeysThatItsRegistersHold) {
  ModelConfig config = parsed("lfm2", kConvLayers);
  EXPECT_TRUE(check_device_switches(config).ok());
  config.state.key_dim = 129;
  EXPECT_THAT(check_device_switches(config).error().message,
              HasSubstr("keys of a state above 128 numbers"));
}

}  // namespace
}  // namespace quire::model

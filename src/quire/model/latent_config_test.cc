// Attention over latents in configs: what is read, and what is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/sha256.h"
#include "quire/base/str.h"
#include "quire/model/config.h"
#include "quire/model/layer_plan.h"
#include "quire/result.h"

namespace quire::model::latent_testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using enum MlpKind;

// A model of 4 layers; hidden 8, 2 heads, latents of 6, vocabulary 5.
Result<ModelConfig> try_parse(std::string_view type, std::string_view members) {
  return config_from_hf(
      base::str_cat(R"({"model_type": ")", type,
                    R"(", "hidden_size": 8, "intermediate_size": 6, "vocab_size": 5,
      "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 2,
      "kv_lora_rank": 6, "qk_rope_head_dim": 4, "qk_nope_head_dim": 3, "v_head_dim": 5,
      "num_experts_per_tok": 2, "n_routed_experts": 8, "n_group": 4, "topk_group": 2)",
                    members.empty() ? "" : ", ", members, "}"),
      "");
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
  const auto bytes = hasher.finish();
  return {bytes.begin(), bytes.end()};
}

TEST(LatentConfig, KvIsOneHeadOfTheSharedKeyAndTheLatent) {
  const ModelConfig config = parse("deepseek_v3");
  EXPECT_EQ(config.kv_heads, 1);
  EXPECT_EQ(config.head_dim, 10);
  EXPECT_EQ(config.rotary.rotary_dim(), 4);
  EXPECT_DOUBLE_EQ(config.score_scale(), 1 / std::sqrt(7.0));
  EXPECT_EQ(config.latent.query_rank, 1536);
  EXPECT_EQ(parse("deepseek_v3", R"("q_lora_rank": null)").latent.query_rank, 0);
  EXPECT_EQ(parse("glm4_moe_lite").latent.query_rank, 768);
  EXPECT_TRUE(config.latent.interleaved);
  EXPECT_FALSE(parse("deepseek_v3", R"("rope_interleave": false)").latent.interleaved);
}

TEST(LatentConfig, YarnScalesScoresByBothMscales) {
  const ModelConfig config =
      parse("deepseek_v2", R"("rope_scaling": {"type": "yarn", "factor": 40, "mscale": 0.707,
      "mscale_all_dim": 0.707, "original_max_position_embeddings": 64})");
  const double mscale = 0.1 * 0.707 * std::log(40.0) + 1;
  EXPECT_DOUBLE_EQ(config.score_scale(), mscale * mscale / std::sqrt(7.0));
  EXPECT_DOUBLE_EQ(config.rotary.scale, 1.0);
}

TEST(LatentConfig, ExpertsAreChosenByTheRuleOfTheFamily) {
  const ModelConfig second = parse("deepseek_v2");
  EXPECT_EQ(second.experts.rule, RouterRule::kSoftmaxOfAll);
  EXPECT_EQ(second.experts.groups, 1);
  EXPECT_EQ(second.experts.shared_size, 2 * 1407);
  EXPECT_EQ(parse("deepseek_v2", R"("topk_method": "group_limited_greedy")").experts.groups, 4);
  const ModelConfig third = parse("deepseek_v3");
  EXPECT_EQ(third.experts.rule, RouterRule::kSigmoidOfChosen);
  EXPECT_EQ(third.experts.groups, 4);
  EXPECT_EQ(third.experts.chosen_groups, 2);
  EXPECT_TRUE(third.experts.biases_choice);
  EXPECT_DOUBLE_EQ(third.experts.weight_scale, 2.5);
  EXPECT_EQ(third.draft_layers, 0);
  EXPECT_EQ(parse("deepseek_v3", R"("num_nextn_predict_layers": 1)").draft_layers, 1);
}

TEST(LatentConfig, DenseLayersAreTheFirstOrThoseOfTheList) {
  EXPECT_THAT(parse("deepseek_v3").mlps, ElementsAre(kDense, kDense, kDense, kExperts));
  EXPECT_THAT(parse("glm4_moe_lite").mlps, ElementsAre(kDense, kExperts, kExperts, kExperts));
  EXPECT_THAT(
      parse("glm4_moe_lite", R"("mlp_layer_types": ["sparse", "dense", "sparse", "sparse"])").mlps,
      ElementsAre(kExperts, kDense, kExperts, kExperts));
  EXPECT_THAT(parse("deepseek_v2", R"("first_k_dense_replace": 4)").mlps, IsEmpty());
}

TEST(LatentConfig, EverySwitchIsPartOfTheDigest) {
  std::set<std::string> seen;
  const std::vector<std::string_view> changes = {"",
                                                 R"("kv_lora_rank": 8)",
                                                 R"("q_lora_rank": 6)",
                                                 R"("qk_rope_head_dim": 2)",
                                                 R"("qk_nope_head_dim": 4)",
                                                 R"("v_head_dim": 4)",
                                                 R"("rope_interleave": false)",
                                                 R"("n_group": 2)",
                                                 R"("topk_group": 3)",
                                                 R"("norm_topk_prob": false)",
                                                 R"("routed_scaling_factor": 1.5)",
                                                 R"("n_shared_experts": 2)",
                                                 R"("first_k_dense_replace": 1)"};
  for (const std::string_view change : changes) {
    EXPECT_TRUE(seen.insert(digest(parse("deepseek_v3", change))).second) << change;
  }
}

TEST(LatentConfig, WhatDoesNotAddUpIsRefusedByName) {
  const std::vector<std::pair<std::string_view, std::string_view>> cases = {
      {R"("kv_lora_rank": 0)", "\"kv_lora_rank\" is 0"},
      {R"("kv_lora_rank": 700)",
       "a latent of 700 and a rotated key of 4 are more than the 576 values"},
      {R"("q_lora_rank": -1)", "\"q_lora_rank\" is -1"},
      {R"("qk_rope_head_dim": 3)", "is 3; must be even"},
      {R"("qk_nope_head_dim": 0)", "\"qk_nope_head_dim\" is 0"},
      {R"("v_head_dim": 0)", "\"v_head_dim\" is 0"},
      {R"("num_key_value_heads": 1)", "\"num_key_value_heads\" is 1; only 2"},
      {R"("head_dim": 8)", "\"head_dim\" is 8, but \"qk_rope_head_dim\" is 4"},
      {R"("attention_bias": true)", "\"attention_bias\" is \"true\""},
      {R"("n_routed_experts": 2000)", "\"n_routed_experts\" is 2000; must be in [1, 1024]"},
      {R"("n_routed_experts": 0)", "\"n_routed_experts\" is 0"},
      {R"("num_experts_per_tok": 9)", "\"num_experts_per_tok\" is 9; must be in [1, 8]"},
      {R"("n_shared_experts": 0)", "\"n_shared_experts\" is 0"},
      {R"("n_group": 3)", "8 experts are no 3 groups"},
      {R"("n_group": 8)", "8 experts are no 8 groups of two or more"},
      {R"("topk_group": 5)", "\"topk_group\" is 5, of \"n_group\", 4"},
      {R"("topk_group": 1, "num_experts_per_tok": 3)", "3 experts for a token are more than"},
      {R"("topk_method": "greedy")", "\"topk_method\" is \"\\\"greedy\\\"\""},
      {R"("scoring_func": "softmax")", "\"scoring_func\""},
      {R"("moe_layer_freq": 2)", "\"moe_layer_freq\" is \"2\""},
      {R"("first_k_dense_replace": 5)", "\"first_k_dense_replace\" is 5; must be in [0, 4]"},
      {R"("num_nextn_predict_layers": -1)", "\"num_nextn_predict_layers\" is -1"},
      {R"("partial_rotary_factor": 0.5)", "\"partial_rotary_factor\" is 0.5"}};
  for (const auto& [members, message] : cases) {
    EXPECT_THAT(refusal("deepseek_v3", members), HasSubstr(std::string(message)));
  }
  EXPECT_THAT(refusal("deepseek_v2", R"("norm_topk_prob": true)"),
              HasSubstr("\"norm_topk_prob\" is \"true\""));
  EXPECT_THAT(refusal("deepseek_v2", R"("topk_method": "noaux_tc")"),
              HasSubstr("\"topk_method\" is \"noaux_tc\"; known: greedy, group_limited_greedy"));
  EXPECT_THAT(refusal("glm4_moe_lite", R"("mlp_layer_types": ["sparse"])"),
              HasSubstr("\"mlp_layer_types\" must be a list of 4 names"));
  EXPECT_THAT(refusal("glm4_moe_lite", R"("mlp_layer_types": ["sparse", "x", "sparse", "sparse"])"),
              HasSubstr("\"mlp_layer_types\" has \"x\" for layer 1"));
  EXPECT_THAT(refusal("glm4_moe_lite",
                      R"("mlp_layer_types": ["sparse", "dense", "sparse", "sparse"],
                      "first_k_dense_replace": 1)"),
              HasSubstr("\"first_k_dense_replace\" is 1, but \"mlp_layer_types\""));
}

TEST(LatentConfig, AGpuTakesIt) {
  EXPECT_TRUE(check_device_switches(parse("deepseek_v2")).ok());
  EXPECT_TRUE(check_device_switches(parse("deepseek_v3")).ok());
  EXPECT_TRUE(check_device_switches(parse("glm4_moe_lite")).ok());
}

}  // namespace
}  // namespace quire::model::latent_testing

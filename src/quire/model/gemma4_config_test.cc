// Gemma 4 in configs: sizes of layers, shared KV, inputs of layers, experts, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::model::gemma4_testing {
namespace {

using tensor::KVLayerSize;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::string_view kTypes =
    R"("layer_types": ["sliding_attention", "full_attention", "sliding_attention",
       "full_attention"])";

// A model of 4 layers; hidden 8, 4 heads, 2 KV heads of 32, globally of 64, vocabulary 5.
Result<ModelConfig> try_parse(std::string_view members, std::string_view types = kTypes) {
  return config_from_hf(
      base::str_cat(R"({"model_type": "gemma4_text", "hidden_size": 8, "intermediate_size": 6,
      "vocab_size": 5, "vocab_size_per_layer_input": 5, "hidden_size_per_layer_input": 0,
      "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
      "sliding_window": 16, )",
                    types, members.empty() ? "" : ", ", members, "}"),
      "");
}

ModelConfig parse(std::string_view members = R"("global_head_dim": 64)",
                  std::string_view types = kTypes) {
  auto config = try_parse(members, types);
  EXPECT_TRUE(config.ok()) << (config.ok() ? "" : config.error().message);
  return config.ok() ? *config : ModelConfig();
}

std::string refusal(std::string_view members) {
  const auto config = try_parse(members);
  return config.ok() ? "accepted" : config.error().message;
}

std::string digest(const ModelConfig& config) {
  base::FieldHasher hasher;
  add_config(hasher, config);
  const auto bytes = hasher.finish();
  return {bytes.begin(), bytes.end()};
}

TEST(Gemma4Config, LayersWithAWindowHaveSmallerHeadsAndARopeOfTheirOwn) {
  const ModelConfig config = parse();
  EXPECT_THAT(config.window_tokens, ElementsAre(16, 0, 16, 0));
  EXPECT_THAT(config.kv_sizes, ElementsAre(KVLayerSize{2, 32}, KVLayerSize{2, 64},
                                           KVLayerSize{2, 32}, KVLayerSize{2, 64}));
  EXPECT_EQ(config.local_rotary.rotary_dim(), 32);
  ASSERT_EQ(config.rotary.rotary_dim(), 64);
  EXPECT_GT(config.rotary.inverse_frequencies[7], 0.0);
  EXPECT_EQ(config.rotary.inverse_frequencies[8], 0.0);
  EXPECT_EQ(config.score_scale(), 1.0);
  EXPECT_EQ(parse("").kv_sizes[1].head_dim, 512);
}

TEST(Gemma4Config, ABlockHoldsLayersOfSeveralSizes) {
  const tensor::KVGeometry geometry =
      parse(R"("global_head_dim": 96)").kv_geometry(tensor::DType::kBFloat16, 32);
  EXPECT_EQ(geometry.head_dim, 32);
  EXPECT_EQ(geometry.stored_heads(0), 2);
  EXPECT_EQ(geometry.stored_heads(1), 6);
  EXPECT_EQ(geometry.block_bytes(), (2 + 6 + 2 + 6) * 2 * 32 * 32 * 2);
  EXPECT_THAT(
      parse(R"("global_head_dim": 32)").kv_geometry(tensor::DType::kBFloat16, 32).layer_sizes,
      IsEmpty());
}

TEST(Gemma4Config, FullLayersMayTakeTheirKeysForValues) {
  const ModelConfig config =
      parse(R"("global_head_dim": 64, "attention_k_eq_v": true, "num_global_key_value_heads": 1)");
  EXPECT_EQ(config.kv_sizes[1], (KVLayerSize{1, 64}));
  EXPECT_FALSE(config.layer_plan(0).keys_are_values);
  EXPECT_TRUE(config.layer_plan(1).keys_are_values);
  EXPECT_EQ(parse(R"("global_head_dim": 64, "num_global_key_value_heads": 1)").kv_sizes[1],
            (KVLayerSize{2, 64}));
}

TEST(Gemma4Config, TheLastLayersReadTheKvOfTheLastOfTheirKind) {
  const ModelConfig config =
      parse(R"("global_head_dim": 64, "num_kv_shared_layers": 2, "use_double_wide_mlp": true)");
  EXPECT_THAT(config.kv_sources, ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(config.kv_layers(), 2);
  EXPECT_EQ(config.layer_plan(3).group_index, 1);
  EXPECT_FALSE(config.layer_plan(3).stores_kv);
  EXPECT_THAT(config.mlp_sizes, ElementsAre(6, 6, 12, 12));
  EXPECT_EQ(config.kv_geometry(tensor::DType::kBFloat16, 32).layers, 2);
}

TEST(Gemma4Config, TheSizesOfALayerStandInEitherPlace) {
  EXPECT_EQ(parse(R"("per_layer_config": {"1": {"head_dim": 64}, "3": {"head_dim": 64}})").kv_sizes,
            parse().kv_sizes);
  EXPECT_EQ(parse(R"("global_head_dim": 64,
                  "per_layer_config": {"1": {"head_dim": 64}, "3": {"head_dim": 64}})")
                .kv_sizes,
            parse().kv_sizes);
  EXPECT_THAT(refusal(R"("global_head_dim": 64, "per_layer_config": {"1": {"head_dim": 64}})"),
              HasSubstr("\"per_layer_config\" does not agree"));
}

TEST(Gemma4Config, TheLastLayerHasFullAttention) {
  const ModelConfig config =
      parse(R"("global_head_dim": 64)",
            R"("layer_types": ["full_attention", "full_attention", "full_attention",
         "sliding_attention"])");
  EXPECT_THAT(config.window_tokens, Each(0));
  EXPECT_THAT(config.remarks, ::testing::Contains(HasSubstr("the last layer has full attention")));
}

TEST(Gemma4Config, ExpertsStandBesideTheMlpWithNormsOfTheirOwn) {
  const ModelConfig config = parse(
      R"("enable_moe_block": true, "num_experts": 8, "top_k_experts": 2,
      "moe_intermediate_size": 3)");
  EXPECT_THAT(config.mlps, Each(MlpKind::kExperts));
  EXPECT_EQ(config.experts.rule, RouterRule::kSoftmaxOfChosen);
  EXPECT_TRUE(config.experts.has_norms);
  EXPECT_EQ(config.experts.shared_size, 6);
}

TEST(Gemma4Config, EverySwitchIsPartOfTheDigest) {
  std::set<std::string> seen;
  const std::vector<std::string_view> changes = {
      R"("global_head_dim": 64)",
      R"("global_head_dim": 96)",
      R"("global_head_dim": 64, "attention_k_eq_v": true)",
      R"("global_head_dim": 64, "attention_k_eq_v": true, "num_global_key_value_heads": 1)",
      R"("global_head_dim": 64, "num_kv_shared_layers": 1)",
      R"("global_head_dim": 64, "num_kv_shared_layers": 2)",
      R"("global_head_dim": 64, "num_kv_shared_layers": 2, "use_double_wide_mlp": true)",
      R"("global_head_dim": 64, "hidden_size_per_layer_input": 4)",
      R"("global_head_dim": 64, "final_logit_softcapping": 30)",
      R"("global_head_dim": 64, "sliding_window": 8)",
      R"("global_head_dim": 64, "enable_moe_block": true, "num_experts": 8, "top_k_experts": 2,
         "moe_intermediate_size": 3)"};
  for (const std::string_view change : changes) {
    EXPECT_TRUE(seen.insert(digest(parse(change))).second) << change;
  }
}

TEST(Gemma4Config, WhatDoesNotAddUpIsRefusedByName) {
  const std::vector<std::pair<std::string_view, std::string_view>> cases = {
      {R"("global_head_dim": 600)", "is 600; must be in [2, 576]"},
      {R"("global_head_dim": 33)", "is 33; must be even"},
      {R"("attention_k_eq_v": true, "num_global_key_value_heads": 3)", "no multiple of"},
      {R"("num_kv_shared_layers": 4)", "\"num_kv_shared_layers\" is 4; must be in [0, 3]"},
      {R"("num_kv_shared_layers": 3)", "no layer before those has attention as layer 1"},
      {R"("num_kv_shared_layers": -1)", "\"num_kv_shared_layers\" is -1"},
      {R"("per_layer_config": {"4": {"head_dim": 64}})", "\"4\", which is no layer of 4"},
      {R"("per_layer_config": {"1x": {}})", "\"1x\", which is no layer"},
      {R"("per_layer_config": {"1": {"sliding_window": 4}})",
       "\"per_layer_config\" has \"sliding_window\" for layer 1"},
      {R"("use_bidirectional_attention": "all")", "\"use_bidirectional_attention\" is \"all\""},
      {R"("hidden_size_per_layer_input": -1)", "\"hidden_size_per_layer_input\" is -1"},
      {R"("hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 4)",
       "the vocabulary of layers' inputs is 4; must be in [5"},
      {R"("enable_moe_block": true)", "\"num_experts\" is missing or 0"},
      {R"("enable_moe_block": true, "num_experts": 4, "top_k_experts": 5,
         "moe_intermediate_size": 3)",
       "\"top_k_experts\" is 5; must be in [1, 4]"},
      {R"("num_experts": 2000, "enable_moe_block": true)", "\"num_experts\" is 2000"},
      {R"("sliding_window": 0)", "\"sliding_window\" is 0"},
      {R"("partial_rotary_factor": 0.5)", "\"partial_rotary_factor\" is 0.5"}};
  for (const auto& [members, message] : cases) {
    EXPECT_THAT(refusal(members), HasSubstr(std::string(message))) << members;
  }
}

TEST(Gemma4Config, AGpuRefusesIt) { EXPECT_FALSE(check_device_switches(parse()).ok()); }

}  // namespace
}  // namespace quire::model::gemma4_testing

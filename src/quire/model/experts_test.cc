// Experts in configs and model files: what is read, and what is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/mapped_file.h"
#include "quire/base/sha256.h"
#include "quire/base/str.h"
#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/kernel_context.h"
#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/layer_plan.h"
#include "quire/model/weight_packer.h"
#include "quire/result.h"
#include "quire/weights/model_files.h"
#include "quire/weights/test_files.h"

namespace quire::model::experts_testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using enum MlpKind;

// A model of 4 layers; hidden 8, 2 heads of 4, 1 KV head, vocabulary 5.
Result<ModelConfig> try_parse(std::string_view type, std::string_view members) {
  return config_from_hf(
      base::str_cat(R"({"model_type": ")", type,
                    R"(", "hidden_size": 8, "intermediate_size": 6, "vocab_size": 5, "head_dim": 4,
      "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1)",
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

TEST(Qwen3MoeConfig, AbsentFieldsAreThoseOfTransformers) {
  const ModelConfig config = parse("qwen3_moe");
  EXPECT_EQ(config.experts.count, 128);
  EXPECT_EQ(config.experts.chosen, 8);
  EXPECT_EQ(config.experts.intermediate_size, 768);
  EXPECT_EQ(config.experts.rule, RouterRule::kSoftmaxOfAll);
  EXPECT_THAT(config.mlps, ElementsAre(kExperts, kExperts, kExperts, kExperts));
  EXPECT_TRUE(config.qk_norm);
  EXPECT_THAT(config.window_tokens, Each(0));
}

TEST(Qwen3MoeConfig, BothNamesOfTheCountAreRead) {
  EXPECT_EQ(parse("qwen3_moe", R"("num_experts": 9)").experts.count, 9);
  EXPECT_EQ(parse("qwen3_moe", R"("num_local_experts": 9)").experts.count, 9);
  EXPECT_EQ(parse("qwen3_moe", R"("num_local_experts": 9, "num_experts": 9)").experts.count, 9);
  EXPECT_THAT(refusal("qwen3_moe", R"("num_local_experts": 9, "num_experts": 10)"),
              HasSubstr("\"num_experts\" is 10, but \"num_local_experts\" is 9"));
}

TEST(Qwen3MoeConfig, DenseLayersAreThoseBetweenSteps) {
  const ModelConfig config = parse("qwen3_moe", R"("decoder_sparse_step": 2)");
  EXPECT_THAT(config.mlps, ElementsAre(kDense, kExperts, kDense, kExperts));
  EXPECT_EQ(config.layer_plan(2).mlp, kDense);
  EXPECT_EQ(config.layer_plan(3).mlp, kExperts);
  EXPECT_THAT(parse("qwen3_moe", R"("mlp_only_layers": [0, 3])").mlps,
              ElementsAre(kDense, kExperts, kExperts, kDense));
  EXPECT_THAT(parse("qwen3_moe", R"("decoder_sparse_step": 5)").mlps, IsEmpty());
  EXPECT_THAT(parse("qwen3_moe", R"("num_experts": 0)").mlps, IsEmpty());
}

TEST(Qwen3MoeConfig, AWindowIsOfAllLayersAndOffByDefault) {
  EXPECT_THAT(parse("qwen3_moe", R"("sliding_window": 24)").window_tokens, Each(0));
  EXPECT_THAT(
      parse("qwen3_moe", R"("sliding_window": 24, "use_sliding_window": true)").window_tokens,
      Each(24));
}

TEST(Qwen3MoeConfig, WhatDoesNotAddUpIsRefusedByName) {
  const std::vector<std::pair<std::string_view, std::string_view>> cases = {
      {R"("num_experts": 2000)", "\"num_experts\" is 2000; must be in [1, 1024]"},
      {R"("num_experts": -1)", "\"num_experts\" is -1"},
      {R"("num_experts": 4)", "\"num_experts_per_tok\" is 8; must be in [1, 4]"},
      {R"("num_experts_per_tok": 0)", "\"num_experts_per_tok\" is 0"},
      {R"("moe_intermediate_size": 0)", "\"moe_intermediate_size\" is 0"},
      {R"("moe_intermediate_size": 9999999)", "\"moe_intermediate_size\" is 9999999"},
      {R"("decoder_sparse_step": 0)", "\"decoder_sparse_step\" is 0"},
      {R"("mlp_only_layers": [4])", "\"mlp_only_layers\" holds 4, which is no layer of 4"},
      {R"("mlp_only_layers": [-1])", "\"mlp_only_layers\" holds -1"},
      {R"("mlp_only_layers": ["0"])", "\"mlp_only_layers\" holds \"0\""},
      {R"("mlp_only_layers": 1)", "\"mlp_only_layers\" must be a list"},
      {R"("norm_topk_prob": 1)", "norm_topk_prob"},
      {R"("shared_expert_intermediate_size": 8)", "\"shared_expert_intermediate_size\" = \"8"},
      {R"("n_group": 4)", "\"n_group\" = \"4"}};
  for (const auto& [members, message] : cases) {
    EXPECT_THAT(refusal("qwen3_moe", members), HasSubstr(std::string(message)));
  }
}

TEST(MixtralConfig, HasExpertsInAllLayersWhoseWeightsSumToOne) {
  const ModelConfig config = parse("mixtral");
  EXPECT_EQ(config.experts.count, 8);
  EXPECT_EQ(config.experts.chosen, 2);
  EXPECT_EQ(config.experts.intermediate_size, 6);
  EXPECT_EQ(config.experts.rule, RouterRule::kSoftmaxOfChosen);
  EXPECT_THAT(config.mlps, Each(kExperts));
  EXPECT_THAT(config.window_tokens, Each(0));
  EXPECT_THAT(parse("mixtral", R"("sliding_window": 24)").window_tokens, Each(24));
  EXPECT_THAT(refusal("mixtral", R"("num_local_experts": 0)"), HasSubstr("\"num_local_experts\""));
}

TEST(Lfm2MoeConfig, RoutesBySigmoidsBehindDenseLayers) {
  const ModelConfig config = parse("lfm2_moe");
  EXPECT_THAT(config.mlps, ElementsAre(kDense, kDense, kExperts, kExperts));
  EXPECT_EQ(config.experts.rule, RouterRule::kSigmoidOfChosen);
  EXPECT_TRUE(config.experts.biases_choice);
  EXPECT_EQ(config.experts.sum_epsilon, 1e-6);
  EXPECT_EQ(config.intermediate_size, 6) << "no rule of two thirds here";
  const ModelConfig other = parse(
      "lfm2_moe", R"("num_dense_layers": 4, "norm_topk_prob": false, "use_expert_bias": false)");
  EXPECT_THAT(other.mlps, IsEmpty());
  EXPECT_EQ(parse("lfm2_moe", R"("norm_topk_prob": false)").experts.rule,
            RouterRule::kSigmoidOfAll);
  EXPECT_EQ(parse("lfm2_moe", R"("routed_scaling_factor": 2.5)").experts.weight_scale, 2.5);
  EXPECT_THAT(refusal("lfm2_moe", R"("num_dense_layers": 5)"),
              HasSubstr("\"num_dense_layers\" is 5; must be in [0, 4]"));
  EXPECT_THAT(refusal("lfm2_moe", R"("block_ff_dim": 5)"), HasSubstr("block_ff_dim"));
}

TEST(QwenMoeConfig, HasOneMoreMlpBehindAGate) {
  for (const std::string_view type : {"qwen3_5_moe_text", "qwen3_next"}) {
    const ModelConfig config =
        parse(type, R"("partial_rotary_factor": 1, "shared_expert_intermediate_size": 12)");
    EXPECT_EQ(config.experts.shared_size, 12);
    EXPECT_TRUE(config.experts.gates_shared);
    EXPECT_EQ(config.experts.rule, RouterRule::kSoftmaxOfChosen);
    EXPECT_THAT(refusal(type, R"("shared_expert_intermediate_size": 0)"),
                HasSubstr("\"shared_expert_intermediate_size\" is 0"));
  }
  EXPECT_THAT(refusal("qwen3_5_moe_text", R"("norm_topk_prob": false)"),
              HasSubstr("norm_topk_prob"));
  EXPECT_EQ(
      parse("qwen3_next", R"("partial_rotary_factor": 1, "norm_topk_prob": false)").experts.rule,
      RouterRule::kSoftmaxOfAll);
  EXPECT_THAT(parse("qwen3_next", R"("partial_rotary_factor": 1, "mlp_only_layers": [1])").mlps,
              ElementsAre(kExperts, kDense, kExperts, kExperts));
  EXPECT_THAT(refusal("qwen3_5_moe_text", R"("mlp_only_layers": [1])"),
              HasSubstr("mlp_only_layers"));
}

TEST(GptOssConfig, HasSinksBiasesAndAWindowOnEveryOtherLayer) {
  const ModelConfig config = parse("gpt_oss");
  EXPECT_TRUE(config.has_sinks && config.qkv_bias && config.output_bias);
  EXPECT_TRUE(config.experts.has_bias && config.experts.router_has_bias);
  EXPECT_EQ(config.experts.rule, RouterRule::kSoftmaxOfChosen);
  EXPECT_THAT(config.window_tokens, ElementsAre(128, 0, 128, 0));
  EXPECT_NEAR(config.rotary.scale, 1.3466, 1e-4) << "YaRN by 32, where the file says nothing";
  EXPECT_THAT(refusal("gpt_oss", R"("swiglu_limit": 6.0)"), HasSubstr("swiglu_limit"));
  EXPECT_THAT(refusal("gpt_oss", R"("experts_per_token": 3)"),
              HasSubstr("\"experts_per_token\" is 3, but \"num_experts_per_tok\" is 4"));
  EXPECT_TRUE(check_device_switches(config).ok());
}

TEST(ExpertConfig, EachSwitchChangesTheDigest) {
  std::set<std::string> digests;
  for (const std::string_view members :
       {R"("num_dense_layers": 1)", R"("norm_topk_prob": false)", R"("use_expert_bias": false)",
        R"("routed_scaling_factor": 2.0)", R"("num_experts_per_tok": 3)"}) {
    base::FieldHasher hasher;
    add_config(hasher, parse("lfm2_moe", members));
    EXPECT_TRUE(digests.insert(base::to_hex(hasher.finish())).second) << members;
  }
  for (const std::string_view members :
       {R"("partial_rotary_factor": 1)",
        R"("partial_rotary_factor": 1, "shared_expert_intermediate_size": 12)"}) {
    base::FieldHasher hasher;
    add_config(hasher, parse("qwen3_next", members));
    EXPECT_TRUE(digests.insert(base::to_hex(hasher.finish())).second) << members;
  }
}

TEST(ExpertConfig, AGpuComputesExpertsAndRefusesWhatItLacksByName) {
  EXPECT_TRUE(check_device_switches(parse("mixtral")).ok());
  EXPECT_TRUE(check_device_switches(parse("qwen3_moe", R"("mlp_only_layers": [0, 3])")).ok());
  EXPECT_TRUE(check_device_switches(parse("qwen3_next", R"("partial_rotary_factor": 1)")).ok());
  ModelConfig config = parse("mixtral");
  config.experts.groups = 2;
  EXPECT_TRUE(check_device_switches(config).ok());
  config.experts.has_norms = true;
  const Status status = check_device_switches(config);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("mixtral models"));
  EXPECT_THAT(status.error().message, HasSubstr("experts with norms of their own"));
}

TEST(ExpertConfig, OnlyTheChosenExpertsAreActive) {
  const ModelConfig config = parse(
      "qwen3_moe", R"("num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 3)");
  EXPECT_EQ(num_parameters(config) - num_active_parameters(config), 4 * 3 * 3 * 3 * 8);
  EXPECT_EQ(num_active_parameters(parse("llama")), num_parameters(parse("llama")));
}

TEST(ExpertPreset, IsAsLargeAsItsNameSays) {
  const auto billions = [](std::int64_t count) { return static_cast<double>(count) / 1e9; };
  const ModelConfig qwen = config_from_preset("qwen3.6-35b-a3b").value();
  EXPECT_NEAR(billions(num_parameters(qwen)), 35, 0.5);
  EXPECT_NEAR(billions(num_active_parameters(qwen)), 3, 0.6);
  const ModelConfig granite = config_from_preset("granite-4-h-tiny").value();
  EXPECT_NEAR(billions(num_parameters(granite)), 7, 0.3);
  EXPECT_EQ(granite.kv_layers(), 4);
  const ModelConfig cut = config_from_preset("granite-4-h-tiny@layers=7").value();
  EXPECT_TRUE(cut.validate().ok());
  EXPECT_EQ(cut.state_layers(), 6);
}

TEST(ExpertPreset, KeepsTheFirstLayers) {
  const ModelConfig whole = config_from_preset("qwen3-30b-a3b").value();
  EXPECT_EQ(whole.layers, 48);
  EXPECT_EQ(num_parameters(whole), 30'532'122'624);
  EXPECT_EQ(num_active_parameters(whole), 3'353'032'704);
  const auto cut = config_from_preset("qwen3-30b-a3b@layers=3");
  ASSERT_TRUE(cut.ok()) << cut.error().message;
  EXPECT_EQ(cut->layers, 3);
  EXPECT_EQ(cut->mlps.size(), 3u);
  EXPECT_TRUE(cut->validate().ok());
  for (const std::string_view suffix : {"@layers=0", "@layers=49", "@layers=", "@layers=1x", "@",
                                        "@layers=-1", "@layers=99999999999", "@heads=1"}) {
    const auto config = config_from_preset(base::str_cat("qwen3-30b-a3b", suffix));
    ASSERT_FALSE(config.ok()) << suffix;
    EXPECT_EQ(config.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(config.error().message, HasSubstr("@layers=N, with N in [1, 48]"));
  }
}

using Shapes = std::map<std::string, std::vector<std::int64_t>>;

// Files of one layer with three experts of 4.
class ExpertFiles : public ::testing::Test {
 protected:
  static ModelConfig config() {
    return config_from_hf(R"({"model_type": "qwen3_moe", "hidden_size": 8, "vocab_size": 5,
      "head_dim": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
      "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 4,
      "tie_word_embeddings": true})",
                          "")
        .value();
  }

  static Shapes shapes(bool stacked) {
    const std::string layer = "model.layers.0.";
    Shapes all = {{"model.embed_tokens.weight", {5, 8}},
                  {"model.norm.weight", {8}},
                  {layer + "input_layernorm.weight", {8}},
                  {layer + "self_attn.q_proj.weight", {8, 8}},
                  {layer + "self_attn.k_proj.weight", {4, 8}},
                  {layer + "self_attn.v_proj.weight", {4, 8}},
                  {layer + "self_attn.o_proj.weight", {8, 8}},
                  {layer + "self_attn.q_norm.weight", {4}},
                  {layer + "self_attn.k_norm.weight", {4}},
                  {layer + "post_attention_layernorm.weight", {8}},
                  {layer + "mlp.gate.weight", {3, 8}}};
    if (stacked) {
      all[layer + "mlp.experts.gate_up_proj"] = {3, 8, 8};
      all[layer + "mlp.experts.down_proj"] = {3, 8, 4};
      return all;
    }
    for (int i = 0; i < 3; ++i) {
      const std::string expert = base::str_cat(layer, "mlp.experts.", i, ".");
      all[expert + "gate_proj.weight"] = {4, 8};
      all[expert + "up_proj.weight"] = {4, 8};
      all[expert + "down_proj.weight"] = {8, 4};
    }
    return all;
  }

  // Writes tensors whose values count up from what `first` says, or 0.
  weights::ModelFiles write(const Shapes& tensors, const std::map<std::string, float>& first = {}) {
    std::string header = "{";
    std::string data;
    for (const auto& [name, shape] : tensors) {
      std::int64_t count = 1;
      std::string sizes;
      for (const std::int64_t size : shape) {
        count *= size;
        sizes += base::str_cat(sizes.empty() ? "" : ",", size);
      }
      std::vector<float> values(static_cast<std::size_t>(count));
      const auto found = first.find(name);
      std::iota(values.begin(), values.end(), found == first.end() ? 0.0f : found->second);
      const std::size_t begin = data.size();
      data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
      header +=
          base::str_cat(header.size() == 1 ? "" : ",", '"', name, R"(":{"dtype":"F32","shape":[)",
                        sizes, R"(],"data_offsets":[)", begin, ",", data.size(), "]}");
    }
    folder_.write("model.safetensors", weights::testing::safetensors(header + "}") + data);
    return weights::ModelFiles::open(folder_.path()).value();
  }

  Result<DecoderWeights> pack(const weights::ModelFiles& files) {
    return pack_weights(context_, config(), files, options_, report_);
  }
  std::string refused(const Shapes& tensors) {
    const auto weights = pack(write(tensors));
    return weights.ok() ? "accepted" : weights.error().message;
  }
  static std::vector<float> row(const kernels::PackedWeights& weights, std::int64_t index) {
    std::vector<float> values(static_cast<std::size_t>(weights.depth()));
    weights.unpack_row(index, values);
    return values;
  }

  weights::testing::TempFolder folder_;
  device::ThreadPool pool_{2};
  kernels::KernelContext context_{&kernels::kernels_for(device::best_isa()), &pool_};
  PackOptions options_{.format = kernels::WeightFormat::kF32};
  PackReport report_;
};

TEST_F(ExpertFiles, AnExpertIsASliceOfAStackedTensor) {
  const auto weights = pack(write(shapes(true)));
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  const LayerWeights& layer = weights->layers[0];
  ASSERT_EQ(layer.experts.size(), 3u);
  EXPECT_EQ(row(layer.experts[2].gate_up.weights, 0).front(), 2 * 64);
  EXPECT_EQ(row(layer.experts[2].gate_up.weights, 7).back(), 3 * 64 - 1);
  EXPECT_EQ(row(layer.experts[1].down.weights, 3).front(), 32 + 3 * 4);
  EXPECT_EQ(layer.router.weights.columns(), 3);
  EXPECT_EQ(report_.bytes_read, 4 * (40 + 8 + 8 + 64 + 32 + 32 + 64 + 4 + 4 + 8 + 24 + 192 + 96));
  EXPECT_EQ(report_.expert_bytes, 3 * 2 * 4096);
}

TEST_F(ExpertFiles, GateAndUpOfOneExpertMayStandApart) {
  const std::string expert = "model.layers.0.mlp.experts.1.";
  const auto weights = pack(write(shapes(false), {{expert + "gate_proj.weight", 1000},
                                                  {expert + "up_proj.weight", 2000},
                                                  {expert + "down_proj.weight", 3000}}));
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  const LayerWeights::Expert& second = weights->layers[0].experts[1];
  EXPECT_EQ(row(second.gate_up.weights, 3).back(), 1031);
  EXPECT_EQ(row(second.gate_up.weights, 4).front(), 2000);
  EXPECT_EQ(row(second.down.weights, 7).back(), 3031);
}

TEST_F(ExpertFiles, ARouterStaysFp32) {
  options_.format = kernels::WeightFormat::kQ4g32;
  const auto weights = pack(write(shapes(true)));
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  EXPECT_EQ(weights->layers[0].router.weights.format(), kernels::WeightFormat::kF32);
  EXPECT_EQ(weights->layers[0].experts[0].down.weights.format(), kernels::WeightFormat::kQ4g32);
}

TEST_F(ExpertFiles, WhatIsMissingTooMuchOrOfAnotherShapeIsNamed) {
  const std::string experts = "model.layers.0.mlp.experts.";
  Shapes files = shapes(false);
  files.erase(experts + "2.down_proj.weight");
  EXPECT_THAT(refused(files), HasSubstr("experts.2.down_proj.weight"));

  files = shapes(false);
  files[experts + "3.down_proj.weight"] = {8, 4};
  EXPECT_THAT(refused(files), HasSubstr("experts.3.down_proj.weight\" is not part of"));

  files = shapes(false);
  files[experts + "1.up_proj.weight"] = {4, 7};
  EXPECT_THAT(refused(files), HasSubstr("has shape [4, 7], the config wants [4, 8]"));

  files = shapes(false);
  files.erase("model.layers.0.mlp.gate.weight");
  EXPECT_THAT(refused(files), HasSubstr("mlp.gate.weight"));

  files = shapes(true);
  files[experts + "gate_up_proj"] = {2, 8, 8};
  EXPECT_THAT(refused(files), HasSubstr("has shape [2, 8, 8], the config wants [3, 8, 8]"));

  files = shapes(true);
  files[experts + "down_proj"] = {24, 4};
  EXPECT_THAT(refused(files), HasSubstr("has shape [24, 4], the config wants [3, 8, 4]"));

  files = shapes(true);
  files["model.layers.0.mlp.gate.weight"] = {4, 8};
  EXPECT_THAT(refused(files), HasSubstr("has shape [4, 8], the config wants [3, 8]"));

  files = shapes(true);
  files["model.layers.0.mlp.down_proj.weight"] = {8, 4};
  EXPECT_THAT(refused(files), HasSubstr("mlp.down_proj.weight\" is not part of"));
}

// The golden checkpoint in MXFP4, as a folder with outputs first and rows in turn, and as GGUF.
TEST_F(ExpertFiles, Mxfp4ExpertsKeepTheirCodes) {
  const auto folder =
      std::filesystem::path(QUIRE_SOURCE_DIR) / "tests" / "golden" / "model" / "gpt_oss_mxfp4";
  const auto config =
      config_from_hf(base::read_file((folder / "config.json").string()).value(), "").value();
  const auto packed = [&](const std::filesystem::path& path, bool keep_codes) {
    const auto files = weights::ModelFiles::open(path).value();
    auto weights =
        pack_weights(context_, config, files,
                     {.format = kernels::WeightFormat::kF32, .keep_codes = keep_codes}, report_);
    EXPECT_TRUE(weights.ok()) << (weights.ok() ? "" : weights.error().message);
    return std::move(weights).value();
  };
  const DecoderWeights exact = packed(folder, false);
  for (const auto& path : {folder, folder / "model.gguf"}) {
    const DecoderWeights codes = packed(path, true);
    for (std::size_t i = 0; i < 4; ++i) {
      const LayerWeights::Expert& expert = codes.layers[0].experts[i];
      const LayerWeights::Expert& wanted = exact.layers[0].experts[i];
      EXPECT_EQ(expert.gate_up.weights.format(), kernels::WeightFormat::kT4g32);
      EXPECT_EQ(expert.down.weights.format(), kernels::WeightFormat::kT4g32);
      EXPECT_EQ(expert.gate_up.bias, wanted.gate_up.bias);
      for (const std::int64_t at : {0, 1, 31, 32, 63}) {
        EXPECT_EQ(row(expert.gate_up.weights, at), row(wanted.gate_up.weights, at)) << at;
      }
      EXPECT_EQ(row(expert.down.weights, 17), row(wanted.down.weights, 17));
    }
  }
}

TEST(ExpertFormats, OfOneLayerMustNotDiffer) {
  DecoderWeights weights;
  weights.layers.resize(2);
  for (LayerWeights::Expert& expert :
       weights.layers[1].experts = std::vector<LayerWeights::Expert>(2)) {
    expert.gate_up.weights = kernels::PackedWeights(kernels::WeightFormat::kQ8g32, 32, 32);
    expert.down.weights = kernels::PackedWeights(kernels::WeightFormat::kQ8g32, 32, 32);
  }
  EXPECT_TRUE(check_expert_formats(weights).ok());
  weights.layers[1].experts[1].down.weights =
      kernels::PackedWeights(kernels::WeightFormat::kQ4g32, 32, 32);
  const Status status = check_expert_formats(weights);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(status.error().message, HasSubstr("layer 1 has experts 0 and 1"));
}

}  // namespace
}  // namespace quire::model::experts_testing

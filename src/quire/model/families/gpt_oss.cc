// gpt-oss: experts with biases and clamped gates, windows on every other layer, a sink for each
// head.
#include <cstdint>
#include <string>
#include <string_view>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/model/config.h"
#include "quire/model/expert_fields.h"
#include "quire/model/family.h"
#include "quire/model/layer_plan.h"
#include "quire/model/layer_windows.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {
namespace {

constexpr WindowTurns kTurns = {.period = 2, .absent_window = 128};

// Sets what every such model has.
void set_switches(ModelConfig& config) {
  config.activation = kernels::Activation::kClampedSwiglu;
  config.has_sinks = true;
  config.experts.rule = RouterRule::kSoftmaxOfChosen;
  config.experts.has_bias = true;
  config.experts.router_has_bias = true;
}

Status configure_gpt_oss(base::JsonView json, ModelConfig& config) {
  QUIRE_TRY(const bool has_bias, base::get_bool(json, "attention_bias", true));
  config.qkv_bias = has_bias;
  config.output_bias = has_bias;
  QUIRE_TRY_STATUS(read_experts(
      json, {.count = 128, .chosen = 4, .size_field = "intermediate_size", .size = 2880}, config));
  if (config.mlps.empty()) {
    return {ErrorCode::kInvalidArgument, "\"num_local_experts\" is 0; must be 1 or more"};
  }
  QUIRE_TRY(const std::int64_t again,
            base::get_int(json, "experts_per_token", config.experts.chosen));
  if (again != config.experts.chosen) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("\"experts_per_token\" is ", again, ", but \"num_experts_per_tok\" is ",
                          config.experts.chosen)};
  }
  set_switches(config);
  return set_windows_in_turn(json, kTurns, config);
}

Status configure_gpt_oss_gguf(const weights::GgufFile& file, ModelConfig& config) {
  QUIRE_TRY_STATUS(read_gguf_experts(
      file, {.architecture = "gpt-oss", .absent_size = config.intermediate_size}, config));
  if (config.mlps.empty()) {
    return {ErrorCode::kUnsupported, "GGUF key gpt-oss.expert_count is 0 or missing"};
  }
  set_switches(config);
  QUIRE_TRY(const auto rope, file.get_string("gpt-oss.rope.scaling.type", ""));
  if (rope == "yarn") {
    config.remarks.emplace_back(
        "yarn: its ramp is the model's; llama.cpp begins and ends it at whole numbers");
  }
  return set_windows_in_turn(file, kTurns, config);
}

ExpertNames gpt_oss_expert_names() {
  return {.routers = {"mlp.router"},
          .each = {},
          .gate_up = {},
          .down = {},
          .stacked_gate_up = {{"mlp.experts.gate_up_proj"}},
          .stacked_down = {"mlp.experts.down_proj"},
          .gate_up_bias = {"mlp.experts.gate_up_proj_bias"},
          .down_bias = "mlp.experts.down_proj_bias",
          .in_turn = true,
          .inputs_first = true};
}

}  // namespace

const Family& gpt_oss_family() {
  static const Family family = [] {
    TensorNames hf = hf_names();
    hf.sinks = "self_attn.sinks";
    hf.experts = gpt_oss_expert_names();
    TensorNames gguf = gguf_names();
    gguf.sinks = "attn_sinks.weight";
    gguf.mlp_norm = "post_attention_norm";
    gguf.experts = gguf_expert_names();
    return Family{
        .name = "gpt_oss",
        .architecture = "GptOssForCausalLM",
        .gguf_architecture = "gpt-oss",
        .defaults = {.norm_epsilon = 1e-5,
                     .context_length = 131072,
                     .kv_heads = 8,
                     .head_dim = 64,
                     .vocab_size = 201088,
                     .hidden_size = 2880,
                     .intermediate_size = 2880,
                     .layers = 36,
                     .heads = 64,
                     .theta = 150000.0},
        // transformers does not read the length of training.
        .fields = {"attention_bias", "experts_per_token", "initial_context_length", "layer_types",
                   "num_experts", "num_experts_per_tok", "num_local_experts", "sliding_window"},
        .fixed = {{"swiglu_alpha", "1.702"}, {"swiglu_limit", "7.0"}},
        .configure = configure_gpt_oss,
        .configure_gguf = configure_gpt_oss_gguf,
        .gguf_keys = {"attention.sliding_window_pattern", "expert_count"},
        .default_rope = R"({"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0,
          "beta_slow": 1.0, "truncate": false, "original_max_position_embeddings": 4096})",
        .gguf_yarn_truncates = false,
        .hf = hf,
        .gguf = gguf};
  }();
  return family;
}

}  // namespace quire::model

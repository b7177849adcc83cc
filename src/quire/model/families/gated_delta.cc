#include "quire/model/families/gated_delta.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/model/config.h"
#include "quire/model/expert_fields.h"
#include "quire/model/families/ssm_keys.h"
#include "quire/model/family.h"
#include "quire/model/layer_mixers.h"
#include "quire/model/layer_plan.h"
#include "quire/model/state_shape.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {
namespace {

Result<std::int32_t> get_size(base::JsonView json, std::string_view key, std::int64_t absent) {
  QUIRE_TRY(const std::int64_t size, base::get_int(json, key, absent));
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(size, 0, 1 << 20));
}

// Sets the channels that are convolved: queries, keys and values.
void set_channels(StateShape& state) {
  const std::int64_t channels = std::int64_t{2} * state.key_heads * state.key_dim +
                                std::int64_t{state.value_heads} * state.value_dim;
  state.channels = static_cast<std::int32_t>(std::min<std::int64_t>(channels, 1 << 30));
}

// Returns what keys of a file's architecture begin with.
Result<std::string> prefix_of(const weights::GgufFile& file) {
  QUIRE_TRY(const auto architecture, file.get_string("general.architecture", ""));
  return architecture + ".";
}

}  // namespace

Status read_gated_delta(base::JsonView json, ModelConfig& config) {
  config.qk_norm = true;
  config.gates_attention = true;
  QUIRE_TRY(const bool attention_bias, base::get_bool(json, "attention_bias", false));
  config.qkv_bias = attention_bias;
  config.output_bias = attention_bias;
  StateShape& state = config.state;
  state.kind = MixerKind::kGatedDelta;
  QUIRE_TRY(state.taps, get_size(json, "linear_conv_kernel_dim", 4));
  QUIRE_TRY(state.key_heads, get_size(json, "linear_num_key_heads", 16));
  QUIRE_TRY(state.value_heads, get_size(json, "linear_num_value_heads", 32));
  QUIRE_TRY(state.key_dim, get_size(json, "linear_key_head_dim", 128));
  QUIRE_TRY(state.value_dim, get_size(json, "linear_value_head_dim", 128));
  set_channels(state);
  QUIRE_TRY(const std::int64_t interval, base::get_int(json, "full_attention_interval", 4));
  QUIRE_TRY_STATUS(set_mixers_in_turn(interval, "\"full_attention_interval\"", config));
  return set_mixers(json, {.state = {"linear_attention"}}, config);
}

Status read_gated_delta_gguf(const weights::GgufFile& file, ModelConfig& config) {
  config.gates_attention = true;
  StateShape& state = config.state;
  state.kind = MixerKind::kGatedDelta;
  QUIRE_TRY(const std::string prefix, prefix_of(file));
  QUIRE_TRY_STATUS(read_ssm_sizes(file, prefix, state));
  set_channels(state);
  QUIRE_TRY_STATUS(read_gguf_drafts(file, config));
  QUIRE_TRY(const std::int32_t interval, get_gguf_size(file, prefix + "full_attention_interval"));
  QUIRE_TRY_STATUS(set_mixers_in_turn(interval == 0 ? 4 : interval,
                                      base::str_cat("GGUF key ", prefix, "full_attention_interval"),
                                      config));
  QUIRE_TRY_STATUS(set_mixers_of_list(file, prefix + "attention.head_count_kv", 0, config));
  return set_mixers_of_list(file, prefix + "attention.recurrent_layers", 1, config);
}

TensorNames gated_delta_gguf_names() {
  TensorNames names = gguf_names();
  names.mlp_norm = "post_attention_norm";
  names.state_in = {"attn_qkv", "attn_gate"};
  names.state_gates = {"ssm_beta", "ssm_alpha"};
  names.state_out = "ssm_out";
  names.state_norm = "ssm_norm";
  names.conv = "ssm_conv1d";
  names.decay = "ssm_a";
  names.decay_shift = "ssm_dt.bias";
  return names;
}

TensorNames gated_delta_names() {
  TensorNames names = hf_names();
  names.norms_lack_one = true;
  names.state_in = {"linear_attn.in_proj_qkv", "linear_attn.in_proj_z"};
  names.state_gates = {"linear_attn.in_proj_b", "linear_attn.in_proj_a"};
  names.state_out = "linear_attn.out_proj";
  names.state_norm = "linear_attn.norm";
  names.conv = "linear_attn.conv1d";
  names.decay = "linear_attn.A_log";
  names.decay_shift = "linear_attn.dt_bias";
  names.decay_is_log = true;
  return names;
}

std::vector<std::string_view> gated_delta_fields() {
  return {"attention_bias", "full_attention_interval", "layer_types", "linear_conv_kernel_dim",
          "linear_key_head_dim", "linear_num_key_heads", "linear_num_value_heads",
          "linear_value_head_dim",
          // These are of layers for drafts, which are left out.
          "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"};
}

std::vector<std::string_view> gated_delta_gguf_keys() {
  return {"attention.recurrent_layers",
          "full_attention_interval",
          "nextn_predict_layers",
          "rope.dimension_sections",
          "ssm.conv_kernel",
          "ssm.group_count",
          "ssm.inner_size",
          "ssm.state_size",
          "ssm.time_step_rank"};
}

Status read_qwen_experts(base::JsonView json, const QwenExpertDefaults& defaults,
                         ModelConfig& config) {
  constexpr std::string_view kShared = "shared_expert_intermediate_size";
  bool normalised = true;
  if (defaults.may_be_raw) {
    QUIRE_TRY(normalised, base::get_bool(json, "norm_topk_prob", true));
  }
  config.experts.rule = normalised ? RouterRule::kSoftmaxOfChosen : RouterRule::kSoftmaxOfAll;
  QUIRE_TRY_STATUS(read_experts(json,
                                {.count = defaults.count,
                                 .chosen = defaults.chosen,
                                 .size_field = "moe_intermediate_size",
                                 .size = 512},
                                config));
  if (config.mlps.empty()) {
    return {};
  }
  config.experts.gates_shared = true;
  QUIRE_TRY(const std::int64_t shared, base::get_int(json, kShared, 512));
  return set_shared_size(shared, base::quoted(kShared), config);
}

Status read_qwen_experts_gguf(const weights::GgufFile& file, ModelConfig& config) {
  QUIRE_TRY(const auto architecture, file.get_string("general.architecture", ""));
  QUIRE_TRY_STATUS(read_gguf_experts(file, {.architecture = architecture}, config));
  if (config.mlps.empty()) {
    return {ErrorCode::kUnsupported,
            base::str_cat("GGUF key ", architecture, ".expert_count is 0 or missing")};
  }
  config.experts.gates_shared = true;
  const std::string key = architecture + ".expert_shared_feed_forward_length";
  QUIRE_TRY(const std::int64_t shared, file.get_int(key, config.experts.intermediate_size));
  return set_shared_size(shared, base::str_cat("GGUF key ", key), config);
}

std::vector<std::string_view> qwen_expert_fields() {
  return {"moe_intermediate_size", "norm_topk_prob",    "num_experts",
          "num_experts_per_tok",   "num_local_experts", "shared_expert_intermediate_size"};
}

ExpertNames qwen_expert_names() {
  return {.routers = {"mlp.gate"},
          .each = {"mlp.experts."},
          .gate_up = {"gate_proj", "up_proj"},
          .down = "down_proj",
          .stacked_gate_up = {{"mlp.experts.gate_up_proj"}},
          .stacked_down = {"mlp.experts.down_proj"},
          .shared_gate_up = {"mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"},
          .shared_down = "mlp.shared_expert.down_proj",
          .shared_gate = "mlp.shared_expert_gate"};
}

}  // namespace quire::model

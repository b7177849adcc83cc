// Granite 4: Mamba-2 in most layers, attention without a rope in the others, and the multipliers of
// Granite. An MLP for all rows stands beside experts, or alone.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/model/config.h"
#include "quire/model/expert_fields.h"
#include "quire/model/families/granite.h"
#include "quire/model/families/state_space.h"
#include "quire/model/family.h"
#include "quire/model/layer_mixers.h"
#include "quire/model/layer_plan.h"
#include "quire/model/state_shape.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {
namespace {

// Reads the sizes of the state spaces, whose heads together are "mamba_expand" times as wide as a
// row.
Status read_spaces(base::JsonView json, ModelConfig& config) {
  StateShape& state = config.state;
  QUIRE_TRY(state.value_heads, get_space_size(json, "mamba_n_heads", 128));
  QUIRE_TRY(const std::int32_t expand, get_space_size(json, "mamba_expand", 2));
  const std::int64_t inner = std::int64_t{expand} * config.hidden_size;
  const base::JsonView size = json.find("mamba_d_head");
  const bool is_auto = size.is_null() || size == "auto";
  state.value_dim = static_cast<std::int32_t>(
      std::min<std::int64_t>(inner / std::max(state.value_heads, 1), 1 << 20));
  if (!is_auto) {
    QUIRE_TRY(state.value_dim, get_space_size(json, "mamba_d_head", 0));
  }
  if (std::int64_t{state.value_heads} * state.value_dim != inner) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("\"mamba_n_heads\" ", state.value_heads, " of ", state.value_dim,
                          " are not \"mamba_expand\" times \"hidden_size\", ", inner)};
  }
  QUIRE_TRY(state.key_dim, get_space_size(json, "mamba_d_state", 256));
  QUIRE_TRY(state.key_heads, get_space_size(json, "mamba_n_groups", 1));
  QUIRE_TRY(state.taps, get_space_size(json, "mamba_d_conv", 4));
  QUIRE_TRY(state.conv_bias, base::get_bool(json, "mamba_conv_bias", true));
  QUIRE_TRY(state.bias, base::get_bool(json, "mamba_proj_bias", false));
  QUIRE_TRY_STATUS(read_step_limit(json, "time_step_limit", config));
  set_space_channels(config);
  return {};
}

Status read_mlps(base::JsonView json, ModelConfig& config) {
  constexpr std::string_view kShared = "shared_intermediate_size";
  QUIRE_TRY(const std::int64_t shared, base::get_int(json, kShared, 1024));
  QUIRE_TRY_STATUS(read_experts(
      json, {.count = 8, .chosen = 2, .size_field = "intermediate_size", .size = 11008}, config));
  QUIRE_TRY_STATUS(set_shared_size(shared, base::quoted(kShared), config));
  if (config.mlps.empty()) {
    config.experts = {};
    config.intermediate_size = static_cast<std::int32_t>(shared);
  }
  return {};
}

Status read_layers(base::JsonView json, ModelConfig& config) {
  config.mixers.assign(static_cast<std::size_t>(config.layers), MixerKind::kStateScan);
  for (const std::string_view field : {"layers_block_type", "layer_types"}) {
    QUIRE_TRY_STATUS(
        set_mixers(json, {.field = field, .state = {"linear_attention", "mamba"}}, config));
  }
  forget_unused_states(config);
  return {};
}

Status configure_granitemoehybrid(base::JsonView json, ModelConfig& config) {
  QUIRE_TRY_STATUS(read_granite(json, config));
  config.state.kind = MixerKind::kStateScan;
  QUIRE_TRY_STATUS(read_spaces(json, config));
  QUIRE_TRY_STATUS(read_mlps(json, config));
  QUIRE_TRY_STATUS(read_layers(json, config));
  QUIRE_TRY(const auto positions, base::get_string(json, "position_embedding_type", "nope"));
  if (positions != "nope" && positions != "rope") {
    return {ErrorCode::kUnsupported, base::str_cat("\"position_embedding_type\" is ",
                                                   base::quoted(positions), "; known: nope, rope")};
  }
  if (positions == "nope") {
    config.ropes.assign(config.window_tokens.size(), RopeKind::kNone);
  }
  return {};
}

Status configure_granitemoehybrid_gguf(const weights::GgufFile& file, ModelConfig& config) {
  const std::string prefix = "granitehybrid.";
  QUIRE_TRY_STATUS(read_granite_gguf(file, config));
  QUIRE_TRY_STATUS(read_state_spaces(file, prefix, config));
  config.state.most_step = kNoLimit;
  QUIRE_TRY_STATUS(set_mixers_of_list(file, prefix + "attention.head_count_kv", 0, config));
  forget_unused_states(config);
  QUIRE_TRY_STATUS(read_gguf_experts(
      file, {.architecture = "granitehybrid", .absent_size = config.intermediate_size}, config));
  if (config.mlps.empty()) {
    return {};
  }
  const std::string key = prefix + "expert_shared_feed_forward_length";
  QUIRE_TRY(const std::int64_t shared, file.get_int(key, 0));
  return set_shared_size(shared, base::str_cat("GGUF key ", key), config);
}

TensorNames granitemoehybrid_names() {
  TensorNames names = hf_names();
  set_space_names("mamba.", names);
  names.gate_up = {"shared_mlp.input_linear"};
  names.down = "shared_mlp.output_linear";
  names.experts = {.routers = {"block_sparse_moe.router.layer", "block_sparse_moe.router"},
                   .each = {},
                   .gate_up = {},
                   .down = {},
                   .stacked_gate_up = {{"block_sparse_moe.input_linear.weight"},
                                       {"block_sparse_moe.experts.gate_up_proj"}},
                   .stacked_down = {"block_sparse_moe.output_linear.weight",
                                    "block_sparse_moe.experts.down_proj"},
                   .shared_gate_up = names.gate_up,
                   .shared_down = names.down};
  return names;
}

TensorNames granitemoehybrid_gguf_names() {
  TensorNames names = gguf_names();
  set_space_gguf_names(names);
  names.interleaved = true;
  names.experts = gguf_expert_names();
  return names;
}

}  // namespace

const Family& granitemoehybrid_family() {
  static const Family family{
      .name = "granitemoehybrid",
      .architecture = "GraniteMoeHybridForCausalLM",
      .gguf_architecture = "granitehybrid",
      .defaults = {.vocab_size = 32000,
                   .hidden_size = 4096,
                   .intermediate_size = 11008,
                   .layers = 32,
                   .heads = 32},
      // transformers does not read how weights began, nor the length of its pieces of a scan.
      .fields = {"attention_bias",       "attention_multiplier",
                 "embedding_multiplier", "init_method",
                 "layer_types",          "layers_block_type",
                 "logits_scaling",       "mamba_chunk_size",
                 "mamba_conv_bias",      "mamba_d_conv",
                 "mamba_d_head",         "mamba_d_state",
                 "mamba_expand",         "mamba_n_groups",
                 "mamba_n_heads",        "mamba_proj_bias",
                 "num_experts",          "num_experts_per_tok",
                 "num_local_experts",    "position_embedding_type",
                 "residual_multiplier",  "shared_intermediate_size",
                 "time_step_limit"},
      .fixed = {{"mlp_bias", "false"}, {"normalization_function", "\"rmsnorm\""}},
      .configure = configure_granitemoehybrid,
      .configure_gguf = configure_granitemoehybrid_gguf,
      .gguf_keys = {"attention.scale", "embedding_scale", "expert_count",
                    "expert_shared_feed_forward_length", "logit_scale", "residual_scale",
                    "rope.scaling.finetuned", "ssm.conv_kernel", "ssm.group_count",
                    "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank"},
      .has_states = true,
      .hf = granitemoehybrid_names(),
      .gguf = granitemoehybrid_gguf_names()};
  return family;
}

}  // namespace quire::model

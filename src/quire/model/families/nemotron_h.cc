// Nemotron-H: each layer is one of Mamba-2, attention without a rope, an MLP, or experts. MLPs are
// squares of what is above 0; one for all rows stands beside experts.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/model/config.h"
#include "quire/model/expert_fields.h"
#include "quire/model/families/state_space.h"
#include "quire/model/family.h"
#include "quire/model/layer_plan.h"
#include "quire/model/state_shape.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"
#include "quire/weights/gguf_value.h"
#include "quire/weights/tensor_info.h"

namespace quire::model {
namespace {

constexpr double kLeastStep = 0.001;  // where a file does not say it

// Makes a layer what a word or a letter of the pattern says; false for an unknown one.
bool set_layer(std::string_view kind, std::size_t layer, ModelConfig& config) {
  MixerKind& mixer = config.mixers[layer];
  MlpKind& mlp = config.mlps[layer];
  if (kind == "linear_attention" || kind == "mamba" || kind == "M") {
    mixer = MixerKind::kStateScan;
  } else if (kind == "full_attention" || kind == "attention" || kind == "*") {
    mixer = MixerKind::kAttention;
  } else if (kind == "mlp" || kind == "-") {
    mlp = MlpKind::kDense;
  } else if (kind == "moe" || kind == "E") {
    mlp = MlpKind::kExperts;
  } else {
    return false;
  }
  return true;
}

// Sets all layers from a list of words, or from a text of letters.
Status set_layers(base::JsonView kinds, std::string_view field, ModelConfig& config) {
  const auto layers = static_cast<std::size_t>(config.layers);
  const std::size_t given = kinds.is_string()  ? kinds.as_string().size()
                            : kinds.is_array() ? kinds.size()
                                               : 0;
  if (given != layers) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat(base::quoted(field), " names ", given, " of ", config.layers, " layers")};
  }
  config.mixers.assign(layers, MixerKind::kNone);
  config.mlps.assign(layers, MlpKind::kNone);
  for (std::size_t i = 0; i < layers; ++i) {
    const std::string_view kind = kinds.is_string()      ? kinds.as_string().substr(i, 1)
                                  : kinds[i].is_string() ? kinds[i].as_string()
                                                         : std::string_view();
    if (!set_layer(kind, i, config)) {
      return {ErrorCode::kUnsupported,
              base::str_cat(base::quoted(field), " has ", base::quoted(kind), " for layer ", i,
                            "; known: linear_attention, full_attention, mlp, moe")};
    }
  }
  return {};
}

Status read_kinds(base::JsonView json, ModelConfig& config) {
  for (const std::string_view field :
       {"layers_block_type", "layer_types", "hybrid_override_pattern"}) {
    if (!json.find(field).is_null()) {
      return set_layers(json.find(field), field, config);
    }
  }
  return {ErrorCode::kInvalidArgument, "field \"layers_block_type\" is missing"};
}

// Sets what every such model has.
void set_switches(ModelConfig& config) {
  config.activation = kernels::Activation::kRelu;
  config.gates_mlp = false;
  config.ropes.assign(static_cast<std::size_t>(config.layers), RopeKind::kNone);
  config.experts.sum_epsilon = 1e-20;
  config.experts.biases_choice = true;
}

Status read_ssm(base::JsonView json, ModelConfig& config) {
  StateShape& state = config.state;
  state.kind = MixerKind::kStateScan;
  QUIRE_TRY(state.value_heads, get_space_size(json, "mamba_num_heads", 128));
  QUIRE_TRY(state.value_dim, get_space_size(json, "mamba_head_dim", 64));
  QUIRE_TRY(state.key_dim, get_space_size(json, "ssm_state_size", 128));
  QUIRE_TRY(state.key_heads, get_space_size(json, "n_groups", 8));
  QUIRE_TRY(state.taps, get_space_size(json, "conv_kernel", 4));
  QUIRE_TRY(state.conv_bias, base::get_bool(json, "use_conv_bias", true));
  QUIRE_TRY(state.bias, base::get_bool(json, "use_bias", false));
  QUIRE_TRY(state.least_step, base::get_double(json, "time_step_min", kLeastStep));
  state.most_step = kNoLimit;
  set_space_channels(config);
  return {};
}

Status configure_nemotron_h(base::JsonView json, ModelConfig& config) {
  constexpr std::string_view kShared = "moe_shared_expert_intermediate_size";
  QUIRE_TRY(config.norm_epsilon, base::get_double(json, "layer_norm_epsilon", 1e-5));
  QUIRE_TRY(config.mlp_bias, base::get_bool(json, "mlp_bias", false));
  QUIRE_TRY_STATUS(read_ssm(json, config));
  QUIRE_TRY_STATUS(read_experts(json,
                                {.count = 8,
                                 .chosen = 2,
                                 .size_field = "moe_intermediate_size",
                                 .size = 7688,
                                 .count_field = "n_routed_experts"},
                                config));
  QUIRE_TRY(const std::int64_t shared, base::get_int(json, kShared, 7688));
  QUIRE_TRY_STATUS(set_shared_size(shared, base::quoted(kShared), config));
  QUIRE_TRY(const bool normalised, base::get_bool(json, "norm_topk_prob", true));
  config.experts.rule = normalised ? RouterRule::kSigmoidOfChosen : RouterRule::kSigmoidOfAll;
  QUIRE_TRY(config.experts.weight_scale, base::get_double(json, "routed_scaling_factor", 1.0));
  QUIRE_TRY_STATUS(read_kinds(json, config));
  if (config.mlp_bias && std::ranges::find(config.mlps, MlpKind::kExperts) != config.mlps.end()) {
    return {ErrorCode::kUnsupported, "\"mlp_bias\" is true, which is not implemented for experts"};
  }
  set_switches(config);
  forget_unused_experts(config);
  forget_unused_states(config);
  return {};
}

// Layers with KV heads are attention, those with an MLP's size are MLPs, and the others state
// spaces.
Status read_gguf_layers(const weights::GgufFile& file, const std::string& prefix,
                        ModelConfig& config) {
  const auto list = [&](std::string_view name) {
    const weights::GgufValue* value = file.find(base::str_cat(prefix, name));
    const auto* numbers =
        value == nullptr ? nullptr : std::get_if<std::vector<std::int64_t>>(value);
    return numbers == nullptr ? std::vector<std::int64_t>() : *numbers;
  };
  const auto layers = static_cast<std::size_t>(config.layers);
  const auto heads = list("attention.head_count_kv");
  const auto sizes = list("feed_forward_length");
  if (heads.size() != layers || sizes.size() != layers) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("GGUF keys ", prefix, "attention.head_count_kv and ", prefix,
                          "feed_forward_length list ", heads.size(), " and ", sizes.size(), " of ",
                          config.layers, " layers")};
  }
  config.mixers.assign(layers, MixerKind::kNone);
  config.mlps.assign(layers, MlpKind::kNone);
  for (std::size_t i = 0; i < layers; ++i) {
    const std::string router = base::str_cat("blk.", i, ".ffn_gate_inp.weight");
    const bool routes = std::ranges::any_of(
        file.tensors(), [&](const weights::TensorInfo& tensor) { return tensor.name == router; });
    if (heads[i] > 0) {
      config.mixers[i] = MixerKind::kAttention;
    } else if (sizes[i] > 0 || routes) {
      config.mlps[i] = routes ? MlpKind::kExperts : MlpKind::kDense;
    } else {
      config.mixers[i] = MixerKind::kStateScan;
    }
  }
  return {};
}

Status configure_nemotron_h_gguf(const weights::GgufFile& file, ModelConfig& config) {
  QUIRE_TRY(const auto architecture, file.get_string("general.architecture", ""));
  const std::string prefix = architecture + ".";
  QUIRE_TRY_STATUS(read_state_spaces(file, prefix, config));
  config.state.least_step = kLeastStep;
  config.state.most_step = kNoLimit;
  QUIRE_TRY_STATUS(read_gguf_experts(
      file,
      {.architecture = architecture, .absent_size = config.intermediate_size, .by_sigmoid = true},
      config));
  if (!config.mlps.empty()) {
    const std::string key = prefix + "expert_shared_feed_forward_length";
    QUIRE_TRY(const std::int64_t shared, file.get_int(key, 0));
    QUIRE_TRY_STATUS(set_shared_size(shared, base::str_cat("GGUF key ", key), config));
  }
  QUIRE_TRY_STATUS(read_gguf_layers(file, prefix, config));
  set_switches(config);
  forget_unused_experts(config);
  forget_unused_states(config);
  return {};
}

TensorNames nemotron_h_names() {
  TensorNames names = hf_names();
  names.embedding = "backbone.embeddings";
  names.final_norm = "backbone.norm_f";
  names.layer = "backbone.layers.";
  names.attention_norm = "norm";
  names.mlp_norm = "norm";
  names.qkv = {"mixer.q_proj", "mixer.k_proj", "mixer.v_proj"};
  names.output = "mixer.o_proj";
  names.gate_up = {"mixer.up_proj"};
  names.down = "mixer.down_proj";
  set_space_names("mixer.", names);
  names.experts = {.routers = {"mixer.gate"},
                   .each = {"mixer.experts."},
                   .gate_up = {"up_proj"},
                   .down = "down_proj",
                   .stacked_gate_up = {{"mixer.experts.up_proj"}},
                   .stacked_down = {"mixer.experts.down_proj"},
                   .choice_bias = "mixer.gate.e_score_correction_bias",
                   .shared_gate_up = {"mixer.shared_experts.up_proj"},
                   .shared_down = "mixer.shared_experts.down_proj"};
  return names;
}

TensorNames nemotron_h_gguf_names() {
  TensorNames names = gguf_names();
  names.mlp_norm = names.attention_norm;
  names.gate_up = {"ffn_up"};
  set_space_gguf_names(names);
  names.experts = gguf_expert_names();
  names.experts.stacked_gate_up = {{"ffn_up_exps.weight"}};
  names.experts.shared_gate_up = {"ffn_up_shexp"};
  return names;
}

// transformers reads none of those from "chunk_size" on, or they change no sum.
std::vector<std::string_view> nemotron_h_fields() {
  return {"conv_kernel",
          "hybrid_override_pattern",
          "layer_norm_epsilon",
          "layer_types",
          "layers_block_type",
          "mamba_head_dim",
          "mamba_num_heads",
          "mlp_bias",
          "moe_intermediate_size",
          "moe_shared_expert_intermediate_size",
          "n_groups",
          "n_routed_experts",
          "norm_topk_prob",
          "num_experts_per_tok",
          "routed_scaling_factor",
          "ssm_state_size",
          "time_step_min",
          "use_bias",
          "use_conv_bias",
          "chunk_size",
          "expand",
          "moe_shared_expert_overlap",
          "mtp_hybrid_override_pattern",
          "mtp_layers_block_type",
          "n_shared_experts",
          "norm_eps",
          "num_nextn_predict_layers",
          "residual_in_fp32",
          "time_step_floor",
          "time_step_limit",
          "time_step_max",
          "use_mamba_kernels"};
}

}  // namespace

const Family& nemotron_h_family() {
  static const Family family{
      .name = "nemotron_h",
      .architecture = "NemotronHForCausalLM",
      .gguf_architecture = "nemotron_h",
      .other_gguf_architecture = "nemotron_h_moe",
      .defaults = {.context_length = 4096,
                   .kv_heads = 8,
                   .head_dim = 128,
                   .vocab_size = 131072,
                   .hidden_size = 4096,
                   .intermediate_size = 21504,
                   .heads = 32},
      .fields = nemotron_h_fields(),
      .fixed = {{"attention_bias", "false"},
                {"mamba_hidden_act", "\"silu\""},
                {"mamba_proj_bias", "false"},
                {"mamba_ssm_cache_dtype", "\"float32\""},
                {"mlp_hidden_act", "\"relu2\""},
                {"n_group", "1"},
                {"topk_group", "1"}},
      .configure = configure_nemotron_h,
      .configure_gguf = configure_nemotron_h_gguf,
      .gguf_keys = {"expert_count", "expert_shared_count", "expert_shared_feed_forward_length",
                    "ssm.conv_kernel", "ssm.group_count", "ssm.inner_size", "ssm.state_size",
                    "ssm.time_step_rank"},
      .has_states = true,
      .skipped_tensors = {"mtp."},
      .hf = nemotron_h_names(),
      .gguf = nemotron_h_gguf_names()};
  return family;
}

}  // namespace quire::model

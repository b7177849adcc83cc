// Qwen3.5 (dense): gated delta rules in three of four layers; the others are attention with QK norm
// and a gate on its output. Norms stand for 1 + w, but for those of the delta rule. Also the text
// part of the models that read images.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/model/config.h"
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

Status configure_qwen3_5(base::JsonView json, ModelConfig& config) {
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
  return set_mixers(json, "linear_attention", config);
}

Status configure_qwen3_5_gguf(const weights::GgufFile& file, ModelConfig& config) {
  config.gates_attention = true;
  StateShape& state = config.state;
  state.kind = MixerKind::kGatedDelta;
  state.keys_in_turn = true;
  const auto size = [&](const std::string& name) -> Result<std::int32_t> {
    QUIRE_TRY(const std::int64_t value, file.get_int("qwen35." + name, 0));
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(value, 0, 1 << 20));
  };
  QUIRE_TRY(state.taps, size("ssm.conv_kernel"));
  QUIRE_TRY(state.key_dim, size("ssm.state_size"));
  QUIRE_TRY(state.key_heads, size("ssm.group_count"));
  QUIRE_TRY(state.value_heads, size("ssm.time_step_rank"));
  QUIRE_TRY(const std::int32_t inner, size("ssm.inner_size"));
  if (state.value_heads == 0 || inner % state.value_heads != 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("GGUF key qwen35.ssm.inner_size is ", inner, ", which is no multiple of ",
                          state.value_heads, ", qwen35.ssm.time_step_rank")};
  }
  state.value_dim = inner / state.value_heads;
  set_channels(state);
  QUIRE_TRY(config.draft_layers, size("nextn_predict_layers"));
  if (config.draft_layers >= config.layers) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("GGUF key qwen35.nextn_predict_layers is ", config.draft_layers, " of ",
                          config.layers, " layers")};
  }
  config.layers -= config.draft_layers;
  config.window_tokens.resize(static_cast<std::size_t>(config.layers));
  QUIRE_TRY(const std::int32_t interval, size("full_attention_interval"));
  QUIRE_TRY_STATUS(set_mixers_in_turn(interval == 0 ? 4 : interval,
                                      "GGUF key qwen35.full_attention_interval", config));
  QUIRE_TRY_STATUS(set_mixers_of_list(file, "qwen35.attention.head_count_kv", 0, config));
  return set_mixers_of_list(file, "qwen35.attention.recurrent_layers", 1, config);
}

// Value heads stand in another order than in folders: those of one key head stand apart.
TensorNames qwen3_5_gguf_names() {
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

TensorNames qwen3_5_names() {
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

}  // namespace

const Family& qwen3_5_family() {
  static const Family family{
      .name = "qwen3_5",
      .model_type = "qwen3_5_text",
      .architecture = "Qwen3_5ForCausalLM",
      .gguf_architecture = "qwen35",
      .defaults = {.context_length = 32768,
                   .kv_heads = 4,
                   .head_dim = 256,
                   .vocab_size = 248320,
                   .hidden_size = 4096,
                   .intermediate_size = 12288,
                   .layers = 32,
                   .heads = 16,
                   .partial_rotary = 0.25},
      .fields = {"attention_bias", "full_attention_interval", "layer_types",
                 "linear_conv_kernel_dim", "linear_key_head_dim", "linear_num_key_heads",
                 "linear_num_value_heads", "linear_value_head_dim",
                 // These are of layers for drafts, which are left out.
                 "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"},
      .fixed = {{"attn_output_gate", "true"},
                {"mamba_ssm_dtype", "\"float32\""},
                {"output_gate_type", "\"swish\""}},
      .configure = configure_qwen3_5,
      .wrapper = {"qwen3_5", "Qwen3_5ForConditionalGeneration"},
      .rope_fields = {"mrope_interleaved", "mrope_section"},
      .configure_gguf = configure_qwen3_5_gguf,
      .gguf_keys = {"attention.recurrent_layers", "full_attention_interval", "nextn_predict_layers",
                    "rope.dimension_sections", "ssm.conv_kernel", "ssm.group_count",
                    "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank"},
      .partial_rotary = true,
      .qk_norm = true,
      .has_states = true,
      .skipped_tensors = {"mtp."},
      .hf = qwen3_5_names(),
      .gguf = qwen3_5_gguf_names()};
  return family;
}

}  // namespace quire::model

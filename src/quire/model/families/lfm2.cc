// LFM2: short convolutions of the last tokens instead of attention in most layers, QK norm in the
// others. Also LFM2-MoE, which has experts behind its first layers.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/kernels/activation.h"
#include "quire/model/config.h"
#include "quire/model/expert_fields.h"
#include "quire/model/family.h"
#include "quire/model/layer_mixers.h"
#include "quire/model/layer_plan.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {
namespace {

// Every layer that "full_attn_idxs" does not list has a convolution; without a list none has.
Status read_attention_layers(base::JsonView json, ModelConfig& config) {
  const base::JsonView list = json.find("full_attn_idxs");
  config.mixers.assign(static_cast<std::size_t>(config.layers),
                       list.is_null() ? MixerKind::kAttention : MixerKind::kShortConv);
  if (!list.is_null() && !list.is_array()) {
    return {ErrorCode::kInvalidArgument, "\"full_attn_idxs\" must be a list of layers"};
  }
  for (std::size_t i = 0; !list.is_null() && i < list.size(); ++i) {
    const auto layer = list[i].exact<std::int64_t>();
    if (!layer || *layer < 0 || *layer >= config.layers) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("\"full_attn_idxs\" holds ", base::write_json(list[i]),
                            "; give layers from 0 to ", config.layers - 1)};
    }
    config.mixers[static_cast<std::size_t>(*layer)] = MixerKind::kAttention;
  }
  return {};
}

// Sets the width of the MLP, which is 2 / 3 of what the file says, times a factor, rounded up.
Status read_inner_size(base::JsonView json, ModelConfig& config) {
  QUIRE_TRY(std::int64_t size, base::get_int(json, "block_ff_dim", config.intermediate_size));
  QUIRE_TRY(const bool adjusts, base::get_bool(json, "block_auto_adjust_ff_dim", true));
  constexpr std::int64_t kMost = 1 << 24;
  if (size < 1 || size > kMost) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("\"block_ff_dim\" is ", size, "; must be in [1, ", kMost, "]")};
  }
  const bool has_factor = !json.contains("block_ffn_dim_multiplier") ||
                          !json.find("block_ffn_dim_multiplier").is_null();
  if (adjusts) {
    size = static_cast<std::int64_t>(2.0 * static_cast<double>(size) / 3.0);
  }
  if (adjusts && has_factor) {
    QUIRE_TRY(const double factor, base::get_double(json, "block_ffn_dim_multiplier", 1.0));
    QUIRE_TRY(const std::int64_t multiple, base::get_int(json, "block_multiple_of", 256));
    if (!(factor > 0.0 && factor <= 64.0) || multiple < 1 || multiple > kMost) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("\"block_ffn_dim_multiplier\" is ", factor,
                            " and \"block_multiple_of\" is ", multiple,
                            "; must be in (0, 64] and in [1, ", kMost, "]")};
    }
    size = static_cast<std::int64_t>(factor * static_cast<double>(size));
    size = (size + multiple - 1) / multiple * multiple;
  }
  config.intermediate_size = static_cast<std::int32_t>(std::min(size, kMost));
  return {};
}

// Reads what both families have.
Status read_lfm2(base::JsonView json, ModelConfig& config) {
  config.qk_norm = true;
  config.activation = kernels::Activation::kSilu;  // transformers reads no field for it
  QUIRE_TRY(config.norm_epsilon, base::get_double(json, "norm_eps", 1e-5));
  QUIRE_TRY(config.tied_embeddings, base::get_bool(json, "tie_embedding", config.tied_embeddings));
  QUIRE_TRY(const std::int64_t taps, base::get_int(json, "conv_L_cache", 3));
  QUIRE_TRY(const bool bias, base::get_bool(json, "conv_bias", false));
  config.state = {.kind = MixerKind::kShortConv,
                  .taps = static_cast<std::int32_t>(std::clamp<std::int64_t>(taps, 0, 1 << 20)),
                  .channels = config.hidden_size,
                  .bias = bias,
                  .conv_bias = bias};
  QUIRE_TRY_STATUS(read_attention_layers(json, config));
  return set_mixers(json, {.state = {"conv"}}, config);
}

Status configure_lfm2(base::JsonView json, ModelConfig& config) {
  QUIRE_TRY_STATUS(read_inner_size(json, config));
  return read_lfm2(json, config);
}

// Sets what every LFM2-MoE has: sigmoids and a bias on the choice.
void set_sigmoids(ModelConfig& config) {
  constexpr double kSumEpsilon = 1e-6;
  config.experts.sum_epsilon = kSumEpsilon;
  config.experts.biases_choice = true;
}

Status configure_lfm2_moe(base::JsonView json, ModelConfig& config) {
  Experts& experts = config.experts;
  QUIRE_TRY_STATUS(read_experts(
      json, {.count = 32, .chosen = 4, .size_field = "moe_intermediate_size", .size = 1792},
      config));
  set_sigmoids(config);
  QUIRE_TRY(const bool normalised, base::get_bool(json, "norm_topk_prob", true));
  experts.rule = normalised ? RouterRule::kSigmoidOfChosen : RouterRule::kSigmoidOfAll;
  QUIRE_TRY(experts.biases_choice, base::get_bool(json, "use_expert_bias", true));
  QUIRE_TRY(experts.weight_scale, base::get_double(json, "routed_scaling_factor", 1.0));
  constexpr std::string_view kDense = "num_dense_layers";
  QUIRE_TRY(const std::int64_t dense, base::get_int(json, kDense, 2));
  QUIRE_TRY_STATUS(set_first_dense(dense, base::quoted(kDense), config));
  return read_lfm2(json, config);
}

Status configure_lfm2_gguf(const weights::GgufFile& file, ModelConfig& config) {
  QUIRE_TRY(const auto architecture, file.get_string("general.architecture", ""));
  QUIRE_TRY(const std::int64_t taps, file.get_int(architecture + ".shortconv.l_cache", 0));
  config.state = {.kind = MixerKind::kShortConv,
                  .taps = static_cast<std::int32_t>(std::clamp<std::int64_t>(taps, 0, 1 << 20)),
                  .channels = config.hidden_size};
  return set_mixers_of_list(file, architecture + ".attention.head_count_kv", 0, config);
}

Status configure_lfm2_moe_gguf(const weights::GgufFile& file, ModelConfig& config) {
  QUIRE_TRY_STATUS(
      read_gguf_experts(file, {.architecture = "lfm2moe", .by_sigmoid = true}, config));
  set_sigmoids(config);
  const std::string key = "lfm2moe.leading_dense_block_count";
  QUIRE_TRY(const std::int64_t dense, file.get_int(key, 0));
  QUIRE_TRY_STATUS(set_first_dense(dense, base::str_cat("GGUF key ", key), config));
  return configure_lfm2_gguf(file, config);
}

TensorNames lfm2_names() {
  TensorNames names = hf_names();
  names.final_norm = "model.embedding_norm";
  names.attention_norm = "operator_norm";
  names.q_norm = "self_attn.q_layernorm";
  names.k_norm = "self_attn.k_layernorm";
  names.output = "self_attn.out_proj";
  names.mlp_norm = "ffn_norm";
  names.gate_up = {"feed_forward.w1", "feed_forward.w3"};
  names.down = "feed_forward.w2";
  names.state_in = {"conv.in_proj"};
  names.state_out = "conv.out_proj";
  names.conv = "conv.conv";
  return names;
}

TensorNames lfm2_gguf_names() {
  TensorNames names = gguf_names();
  names.final_norm = "token_embd_norm";
  names.state_in = {"shortconv.in_proj"};
  names.state_out = "shortconv.out_proj";
  names.conv = "shortconv.conv";
  return names;
}

}  // namespace

const Family& lfm2_family() {
  static const Family family{
      .name = "lfm2",
      .architecture = "Lfm2ForCausalLM",
      .gguf_architecture = "lfm2",
      .defaults = {.context_length = 128000,
                   .kv_heads = 8,
                   .vocab_size = 65536,
                   .hidden_size = 2560,
                   .intermediate_size = 12288,
                   .layers = 32,
                   .heads = 32,
                   .tied_embeddings = true,
                   .theta = 1e6},
      // transformers reads none of those from "block_dim" on.
      .fields = {"block_auto_adjust_ff_dim", "block_ff_dim", "block_ffn_dim_multiplier",
                 "block_multiple_of", "conv_L_cache", "conv_bias", "full_attn_idxs", "layer_types",
                 "norm_eps", "tie_embedding", "block_dim", "block_mlp_init_scale", "block_norm_eps",
                 "block_out_init_scale", "block_use_xavier_init", "conv_dim", "conv_dim_out",
                 "conv_use_xavier_init", "num_heads"},
      .fixed = {{"block_use_swiglu", "true"}, {"use_pos_enc", "true"}},
      .configure = configure_lfm2,
      .configure_gguf = configure_lfm2_gguf,
      .gguf_keys = {"shortconv.l_cache"},
      .qk_norm = true,
      .has_states = true,
      .hf = lfm2_names(),
      .gguf = lfm2_gguf_names()};
  return family;
}

const Family& lfm2_moe_family() {
  static const Family family = [] {
    TensorNames hf = lfm2_names();
    hf.experts = {.routers = {"feed_forward.gate"},
                  .each = {"feed_forward.experts."},
                  .gate_up = {"w1", "w3"},
                  .down = "w2",
                  .stacked_gate_up = {{"feed_forward.experts.gate_up_proj"}},
                  .stacked_down = {"feed_forward.experts.down_proj"},
                  .choice_bias = "feed_forward.expert_bias"};
    TensorNames gguf = lfm2_gguf_names();
    gguf.experts = gguf_expert_names();
    return Family{.name = "lfm2_moe",
                  .architecture = "Lfm2MoeForCausalLM",
                  .gguf_architecture = "lfm2moe",
                  .defaults = {.context_length = 128000,
                               .kv_heads = 8,
                               .vocab_size = 65536,
                               .hidden_size = 2048,
                               .intermediate_size = 7168,
                               .layers = 32,
                               .heads = 32,
                               .tied_embeddings = true,
                               .theta = 1e6},
                  .fields = {"conv_L_cache", "conv_bias", "full_attn_idxs", "layer_types",
                             "norm_eps", "tie_embedding", "moe_intermediate_size", "norm_topk_prob",
                             "num_dense_layers", "num_experts", "num_experts_per_tok",
                             "num_local_experts", "routed_scaling_factor", "use_expert_bias"},
                  .fixed = {{"use_pos_enc", "true"}},
                  .configure = configure_lfm2_moe,
                  .configure_gguf = configure_lfm2_moe_gguf,
                  .gguf_keys = {"expert_count", "leading_dense_block_count", "shortconv.l_cache"},
                  .qk_norm = true,
                  .has_states = true,
                  .hf = hf,
                  .gguf = gguf};
  }();
  return family;
}

}  // namespace quire::model

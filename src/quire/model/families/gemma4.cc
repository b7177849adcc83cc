// Gemma 4: as Gemma 3 with norms that lack nothing and a norm of values. Layers with a window have
// smaller heads than the others. The last layers read the KV of earlier ones. Each layer has an
// input of its own and a factor. Some models have experts beside the MLP. Also the text part of the
// models that read images and sounds.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>
#include <variant>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/model/config.h"
#include "quire/model/expert_fields.h"
#include "quire/model/families/gemma.h"
#include "quire/model/family.h"
#include "quire/model/layer_plan.h"
#include "quire/model/layer_windows.h"
#include "quire/result.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/weights/gguf.h"
#include "quire/weights/gguf_value.h"

namespace quire::model {
namespace {

constexpr std::int64_t kPeriod = 6;

// Sets what every Gemma 4 has.
void set_gemma4(ModelConfig& config) {
  config.qk_norm = true;
  config.norms_values = true;
  config.norms = NormPlacement::kBoth;
  config.activation = kernels::Activation::kGeluTanh;
  config.scales.scores = 1.0;
  config.scales.embedding = std::sqrt(static_cast<double>(config.hidden_size));
  config.scales.embedding_is_rounded = true;
  config.scales_layers = true;
}

// Reads a number of a list, which is a size.
Result<std::int32_t> size_of(base::JsonView json, std::string_view key, std::int32_t absent) {
  constexpr std::int64_t kMost = 1 << 20;
  QUIRE_TRY(const std::int64_t value, base::get_int(json, key, absent));
  if (value < 0 || value > kMost) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat(base::quoted(key), " is ", value, "; must be in [0, ", kMost, "]")};
  }
  return static_cast<std::int32_t>(value);
}

// Gives layers without a window the sizes of "global_head_dim" and "num_global_key_value_heads".
Status read_global_sizes(base::JsonView json, ModelConfig& config) {
  QUIRE_TRY(const std::int32_t dim, size_of(json, "global_head_dim", 512));
  std::int32_t heads = config.kv_heads;
  if (config.full_keys_are_values) {
    QUIRE_TRY(heads, size_of(json, "num_global_key_value_heads", config.kv_heads));
  }
  config.kv_sizes.clear();
  for (const std::int32_t window : config.window_tokens) {
    const tensor::KVLayerSize local = {config.kv_heads, config.head_dim};
    config.kv_sizes.push_back(window > 0 ? local : tensor::KVLayerSize{heads, dim});
  }
  return {};
}

// Returns the layer that a member of "per_layer_config" names.
Result<std::size_t> layer_of_member(std::string_view name, std::int32_t layers) {
  std::int32_t layer = -1;
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), layer);
  const bool whole = parsed.ec == std::errc() && parsed.ptr == name.data() + name.size();
  if (!whole || layer < 0 || layer >= layers) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("\"per_layer_config\" has ", base::quoted(name),
                          ", which is no layer of ", layers)};
  }
  return static_cast<std::size_t>(layer);
}

// Reads the sizes of layers from "per_layer_config", which replaces the two fields. Both may be
// there and say the same.
Status read_layer_config(base::JsonView json, ModelConfig& config) {
  const base::JsonView list = json.find("per_layer_config");
  if (list.is_null()) {
    return {};
  }
  const bool has_both =
      !json.find("global_head_dim").is_null() || !json.find("num_global_key_value_heads").is_null();
  const auto stated = config.kv_sizes;
  config.kv_sizes.assign(stated.size(), {config.kv_heads, config.head_dim});
  for (const auto [name, sizes] : list.members()) {
    QUIRE_TRY(const std::size_t layer, layer_of_member(name, config.layers));
    for (const auto [key, value] : sizes.members()) {
      if (key != "head_dim" && key != "num_key_value_heads") {
        return {ErrorCode::kUnsupported,
                base::str_cat("\"per_layer_config\" has ", base::quoted(key), " for layer ", layer,
                              "; known: head_dim, num_key_value_heads")};
      }
    }
    tensor::KVLayerSize& size = config.kv_sizes[layer];
    QUIRE_TRY(size.kv_heads, size_of(sizes, "num_key_value_heads", size.kv_heads));
    QUIRE_TRY(size.head_dim, size_of(sizes, "head_dim", size.head_dim));
  }
  if (has_both && config.kv_sizes != stated) {
    return {ErrorCode::kInvalidArgument,
            "\"per_layer_config\" does not agree with \"global_head_dim\" and "
            "\"num_global_key_value_heads\""};
  }
  return {};
}

// Makes the last `count` layers read the KV of the last layer before them with the same attention.
Status share_kv(std::int64_t count, std::string_view name, ModelConfig& config) {
  if (count < 0 || count >= config.layers) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat(name, " is ", count, "; must be in [0, ", config.layers - 1, "]")};
  }
  config.kv_sources.clear();
  if (count == 0) {
    return {};
  }
  const std::int32_t first = config.layers - static_cast<std::int32_t>(count);
  for (std::int32_t layer = 0; layer < config.layers; ++layer) {
    std::int32_t source = layer < first ? layer : first - 1;
    const auto kind = [&](std::int32_t of) { return config.ropes[static_cast<std::size_t>(of)]; };
    while (source >= 0 && kind(source) != kind(layer)) {
      --source;
    }
    if (source < 0) {
      return {
          ErrorCode::kInvalidArgument,
          base::str_cat(name, " is ", count, ", but no layer before those has attention as layer ",
                        layer, " has it")};
    }
    config.kv_sources.push_back(source);
  }
  return {};
}

Status read_gemma4_experts(base::JsonView json, ModelConfig& config) {
  QUIRE_TRY(const bool has_experts, base::get_bool(json, "enable_moe_block", false));
  if (!has_experts) {
    return {};
  }
  QUIRE_TRY_STATUS(read_experts(json,
                                {.size_field = "moe_intermediate_size",
                                 .count_field = "num_experts",
                                 .chosen_field = "top_k_experts"},
                                config));
  if (config.mlps.empty()) {
    return {ErrorCode::kInvalidArgument,
            "\"enable_moe_block\" is true, but \"num_experts\" is missing or 0"};
  }
  if (!config.mlp_sizes.empty()) {
    return {ErrorCode::kUnsupported,
            "\"use_double_wide_mlp\" is not implemented beside \"enable_moe_block\""};
  }
  config.experts.has_norms = true;
  config.experts.shared_size = config.intermediate_size;
  return {};
}

Status read_inputs(base::JsonView json, ModelConfig& config) {
  LayerInputShape& inputs = config.layer_inputs;
  QUIRE_TRY(inputs.size, size_of(json, "hidden_size_per_layer_input", 256));
  if (inputs.size > 0) {
    QUIRE_TRY(const std::int64_t rows, base::get_int(json, "vocab_size_per_layer_input", 262144));
    inputs.vocab_size = static_cast<std::int32_t>(std::clamp<std::int64_t>(rows, 0, 1 << 22));
  }
  return {};
}

Status configure_gemma4(base::JsonView json, ModelConfig& config) {
  const kernels::Activation activation = config.activation;
  set_gemma4(config);
  config.activation = activation;
  QUIRE_TRY(const bool bias, base::get_bool(json, "attention_bias", false));
  config.qkv_bias = bias;
  config.output_bias = bias;
  QUIRE_TRY(const auto directions, base::get_string(json, "use_bidirectional_attention", ""));
  if (directions == "all") {
    return {ErrorCode::kUnsupported,
            "\"use_bidirectional_attention\" is \"all\"; only causal attention is implemented"};
  }
  QUIRE_TRY(config.scales.logit_cap, get_cap(json, "final_logit_softcapping", 0.0));
  QUIRE_TRY(config.full_keys_are_values, base::get_bool(json, "attention_k_eq_v", false));
  QUIRE_TRY_STATUS(set_windows_in_turn(json, {.period = kPeriod, .absent_window = 512}, config));
  if (config.window_tokens.back() != 0) {
    config.window_tokens.back() = 0;  // as transformers does it
    config.remarks.push_back("the last layer has full attention, whatever \"layer_types\" says");
  }
  turn_windows_locally(config);
  QUIRE_TRY_STATUS(read_global_sizes(json, config));
  QUIRE_TRY_STATUS(read_layer_config(json, config));
  QUIRE_TRY(const std::int64_t shared, base::get_int(json, "num_kv_shared_layers", 0));
  QUIRE_TRY_STATUS(share_kv(shared, "\"num_kv_shared_layers\"", config));
  QUIRE_TRY(const bool is_wide, base::get_bool(json, "use_double_wide_mlp", false));
  for (std::int32_t layer = 0; is_wide && shared > 0 && layer < config.layers; ++layer) {
    const bool stores = config.stores(static_cast<std::size_t>(layer));
    config.mlp_sizes.push_back(std::min(config.intermediate_size, 1 << 20) * (stores ? 1 : 2));
  }
  QUIRE_TRY_STATUS(read_inputs(json, config));
  return read_gemma4_experts(json, config);
}

// Returns the numbers of a key that lists them, or none.
std::vector<std::int64_t> numbers_of(const weights::GgufFile& file, const std::string& key) {
  const weights::GgufValue* value = file.find(key);
  const auto* list = value == nullptr ? nullptr : std::get_if<std::vector<std::int64_t>>(value);
  return list == nullptr ? std::vector<std::int64_t>() : *list;
}

// Checks that a list is of all layers, or not there.
Status check_list(const std::string& key, std::size_t count, const ModelConfig& config) {
  if (count == 0 || count == static_cast<std::size_t>(config.layers)) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat("GGUF key ", key, " lists ", count, " of ", config.layers, " layers")};
}

// Reads the sizes of KV: those of layers with a window have keys of their own.
Status read_gguf_kv_sizes(const weights::GgufFile& file, ModelConfig& config) {
  constexpr std::int64_t kMost = 1 << 20;
  const std::string heads_key = "gemma4.attention.head_count_kv";
  const std::string dim_key = "gemma4.attention.key_length_swa";
  const auto heads = numbers_of(file, heads_key);
  QUIRE_TRY_STATUS(check_list(heads_key, heads.size(), config));
  QUIRE_TRY(const std::int64_t local, file.get_int(dim_key, config.head_dim));
  if (local < 2 || local > kMost) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("GGUF key ", dim_key, " is ", local, "; must be in [2, ", kMost, "]")};
  }
  config.kv_sizes.clear();
  for (std::size_t layer = 0; layer < config.window_tokens.size(); ++layer) {
    const bool is_local = config.window_tokens[layer] > 0;
    config.kv_sizes.push_back(
        {.kv_heads = heads.empty() ? config.kv_heads
                                   : static_cast<std::int32_t>(
                                         std::clamp<std::int64_t>(heads[layer], 0, kMost)),
         .head_dim = is_local ? static_cast<std::int32_t>(local) : config.head_dim});
  }
  return {};
}

Status read_gguf_widths(const weights::GgufFile& file, ModelConfig& config) {
  const std::string key = "gemma4.feed_forward_length";
  const auto widths = numbers_of(file, key);
  QUIRE_TRY_STATUS(check_list(key, widths.size(), config));
  if (std::ranges::adjacent_find(widths, std::not_equal_to<>()) == widths.end()) {
    return {};
  }
  for (const std::int64_t width : widths) {
    config.mlp_sizes.push_back(
        static_cast<std::int32_t>(std::clamp<std::int64_t>(width, 0, 1 << 22)));
  }
  return {};
}

bool has_gguf_tensor(const weights::GgufFile& file, std::string_view name) {
  return std::ranges::any_of(file.tensors(),
                             [&](const auto& tensor) { return tensor.name == name; });
}

Status read_gemma4_gguf_experts(const weights::GgufFile& file, ModelConfig& config) {
  QUIRE_TRY_STATUS(read_gguf_experts(file, {.architecture = "gemma4"}, config));
  if (config.mlps.empty()) {
    return {};
  }
  if (!config.mlp_sizes.empty()) {
    return {ErrorCode::kUnsupported,
            "GGUF key gemma4.feed_forward_length lists several widths beside experts, which is not "
            "implemented"};
  }
  config.experts.has_norms = true;
  config.experts.rule = RouterRule::kSoftmaxOfChosen;
  config.experts.shared_size = config.intermediate_size;
  return {};
}

Status configure_gemma4_gguf(const weights::GgufFile& file, ModelConfig& config) {
  set_gemma4(config);
  QUIRE_TRY(config.scales.logit_cap, file.get_double("gemma4.final_logit_softcapping", 0.0));
  QUIRE_TRY_STATUS(set_windows_in_turn(file, {.period = kPeriod}, config));
  turn_windows_locally(config);
  QUIRE_TRY_STATUS(read_gguf_kv_sizes(file, config));
  const std::string shared_key = "gemma4.attention.shared_kv_layers";
  QUIRE_TRY(const std::int64_t shared, file.get_int(shared_key, 0));
  QUIRE_TRY_STATUS(share_kv(shared, "GGUF key " + shared_key, config));
  for (std::size_t layer = 0; layer < config.window_tokens.size(); ++layer) {
    const std::string prefix = base::str_cat("blk.", layer, ".");
    if (config.is_full(layer) && config.stores(layer)) {
      config.full_keys_are_values = !has_gguf_tensor(file, prefix + "attn_v.weight");
    }
  }
  QUIRE_TRY_STATUS(read_gguf_widths(file, config));
  const std::string input_key = "gemma4.embedding_length_per_layer_input";
  QUIRE_TRY(const std::int64_t inputs, file.get_int(input_key, 0));
  if (inputs < 0 || inputs > 1 << 16) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("GGUF key ", input_key, " is ", inputs, "; must be in [0, 65536]")};
  }
  config.layer_inputs = {.size = static_cast<std::int32_t>(inputs),
                         .vocab_size = inputs > 0 ? config.vocab_size : 0};
  return read_gemma4_gguf_experts(file, config);
}

TensorNames gemma4_names() {
  TensorNames names = gemma_names();
  names.norms_lack_one = false;
  names.layer_embedding = "model.embed_tokens_per_layer";
  names.layer_projection = "model.per_layer_model_projection";
  names.layer_input_norm = "model.per_layer_projection_norm";
  names.input_gate = "per_layer_input_gate";
  names.input_projection = "per_layer_projection";
  names.input_norm = "post_per_layer_input_norm";
  names.layer_scale = "layer_scalar";
  names.experts = {.routers = {"router.proj"},
                   .each = {},
                   .gate_up = {},
                   .down = {},
                   .stacked_gate_up = {{"experts.gate_up_proj"}, {"moe.gate_up_proj"}},
                   .stacked_down = {"experts.down_proj", "moe.down_proj"},
                   .shared_gate_up = names.gate_up,
                   .shared_down = names.down,
                   .router_norm = "router.scale",
                   .scales = "router.per_expert_scale",
                   .input_norm = "pre_feedforward_layernorm_2",
                   .shared_out_norm = "post_feedforward_layernorm_1",
                   .output_norm = "post_feedforward_layernorm_2"};
  return names;
}

TensorNames gemma4_gguf_names() {
  TensorNames names = gguf_names();
  names.layer_embedding = "per_layer_token_embd";
  names.layer_projection = "per_layer_model_proj";
  names.layer_input_norm = "per_layer_proj_norm";
  names.input_gate = "inp_gate";
  names.input_projection = "proj";
  names.input_norm = "post_norm";
  names.layer_scale = "layer_output_scale.weight";
  names.experts = gguf_expert_names();
  names.experts.shared_gate_up = names.gate_up;
  names.experts.shared_down = names.down;
  names.experts.router_norm = "ffn_gate_inp.scale";
  names.experts.scales = "ffn_down_exps.scale";
  names.experts.input_norm = "pre_ffw_norm_2";
  names.experts.shared_out_norm = "post_ffw_norm_1";
  names.experts.output_norm = "post_ffw_norm_2";
  return names;
}

}  // namespace

const Family& gemma4_family() {
  static const Family family{
      .name = "gemma4",
      .model_type = "gemma4_text",
      .architecture = "Gemma4ForCausalLM",
      .gguf_architecture = "gemma4",
      .defaults = {.context_length = 131072,
                   .kv_heads = 4,
                   .head_dim = 256,
                   .vocab_size = 262144,
                   .hidden_size = 2304,
                   .intermediate_size = 9216,
                   .layers = 30,
                   .heads = 8,
                   .tied_embeddings = true,
                   .activation = "gelu_pytorch_tanh"},
      .fields = {"allow_global_per_layer_attribute_access", "attention_bias", "attention_k_eq_v",
                 "enable_moe_block", "final_logit_softcapping", "global_head_dim",
                 "hidden_activation", "hidden_size_per_layer_input", "layer_types",
                 "moe_intermediate_size", "num_experts", "num_global_key_value_heads",
                 "num_kv_shared_layers", "per_layer_config", "sliding_window", "top_k_experts",
                 "use_bidirectional_attention", "use_double_wide_mlp",
                 "vocab_size_per_layer_input"},
      .configure = configure_gemma4,
      .wrapper = {"gemma4", "Gemma4ForConditionalGeneration"},
      .activation_field = "hidden_activation",
      .rope_by_kind = true,
      .configure_gguf = configure_gemma4_gguf,
      .gguf_keys = {"attention.key_length_swa", "attention.shared_kv_layers",
                    "attention.sliding_window_pattern", "attention.value_length_swa",
                    "embedding_length_per_layer_input", "expert_count", "final_logit_softcapping",
                    "rope.dimension_count_swa", "rope.freq_base_swa"},
      .default_rope = R"({"full_attention": {"rope_type": "proportional", "rope_theta": 1e6,
                                             "partial_rotary_factor": 0.25},
                          "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}})",
      .qk_norm = true,
      .kv_by_layer = true,
      .hf = gemma4_names(),
      .gguf = gemma4_gguf_names()};
  return family;
}

}  // namespace quire::model

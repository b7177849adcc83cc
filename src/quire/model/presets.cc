// Shapes of public models as the config.json texts that they were published with, cut to the fields
// that shape them. Random weights give them no meaning: for speed and memory only.
#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "quire/base/str.h"
#include "quire/model/config.h"
#include "quire/result.h"

namespace quire::model {
namespace {

struct Preset {
  std::string_view name;
  std::string_view json;
};

// The two first and llama-160m (multi-head attention, JackFram/llama-160m) are the shapes of the
// benchmarks. Their positions are many, so that a bench can start at any depth.
constexpr std::array<Preset, 23> kPresets = {{
    {"tinyllama-1.1b", R"({"model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": 32000,
      "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
      "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-05, "eos_token_id": 2})"},
    {"random-0.5b", R"({"model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": 32000,
      "hidden_size": 1280, "intermediate_size": 3584, "num_hidden_layers": 24,
      "num_attention_heads": 20, "num_key_value_heads": 4, "head_dim": 64,
      "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "eos_token_id": 2})"},
    {"llama-3.1-8b", R"({"model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": 128256,
      "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3",
      "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192}, "eos_token_id": [128001, 128008, 128009]})"},
    {"llama-3.2-1b", R"({"model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": 128256,
      "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
      "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
      "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
      "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
      "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
      "tie_word_embeddings": true, "eos_token_id": [128001, 128008, 128009]})"},
    {"qwen2.5-0.5b", R"({"model_type": "qwen2", "torch_dtype": "bfloat16", "vocab_size": 151936,
      "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
      "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 32768,
      "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
      "max_window_layers": 24, "use_sliding_window": false, "tie_word_embeddings": true,
      "eos_token_id": 151643})"},
    {"qwen3-0.6b", R"({"model_type": "qwen3", "torch_dtype": "bfloat16", "vocab_size": 151936,
      "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
      "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
      "max_position_embeddings": 40960, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
      "max_window_layers": 28, "use_sliding_window": false, "tie_word_embeddings": true,
      "eos_token_id": 151645})"},
    {"qwen3-30b-a3b", R"({"model_type": "qwen3_moe", "torch_dtype": "bfloat16",
      "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
      "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
      "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [],
      "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
      "head_dim": 128, "max_position_embeddings": 40960, "rms_norm_eps": 1e-06,
      "rope_theta": 1000000.0, "max_window_layers": 48, "use_sliding_window": false,
      "eos_token_id": 151645})"},
    {"mistral-7b", R"({"model_type": "mistral", "torch_dtype": "bfloat16", "vocab_size": 32000,
      "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 32768,
      "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096, "eos_token_id": 2})"},
    {"phi-3-mini", R"({"model_type": "phi3", "torch_dtype": "bfloat16", "vocab_size": 32064,
      "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096,
      "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
      "sliding_window": 2047, "eos_token_id": 32000})"},
    {"smollm2-135m", R"({"model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": 49152,
      "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
      "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192,
      "rms_norm_eps": 1e-05, "rope_theta": 100000, "rope_interleaved": false,
      "tie_word_embeddings": true, "eos_token_id": 2})"},
    {"gemma-3-270m", R"({"model_type": "gemma3_text", "torch_dtype": "bfloat16",
      "vocab_size": 262144, "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18,
      "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
      "max_position_embeddings": 32768, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
      "rope_local_base_freq": 10000.0, "query_pre_attn_scalar": 256, "sliding_window": 512,
      "eos_token_id": [1, 106]})"},
    {"gemma-3-4b", R"({"model_type": "gemma3", "torch_dtype": "bfloat16", "text_config": {
      "model_type": "gemma3_text", "vocab_size": 262208, "hidden_size": 2560,
      "intermediate_size": 10240, "num_hidden_layers": 34, "num_attention_heads": 8,
      "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
      "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
      "eos_token_id": [1, 106]})"},
    {"gemma-4-e4b", R"({"model_type": "gemma4_text", "torch_dtype": "bfloat16",
      "vocab_size": 262144, "hidden_size": 2560, "intermediate_size": 10240,
      "num_hidden_layers": 42, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
      "global_head_dim": 512, "num_kv_shared_layers": 18, "hidden_size_per_layer_input": 256,
      "sliding_window": 512, "final_logit_softcapping": 30.0, "max_position_embeddings": 131072,
      "eos_token_id": [1, 106]})"},
    {"gemma-4-26b-a4b", R"({"model_type": "gemma4_text", "torch_dtype": "bfloat16",
      "vocab_size": 262144, "hidden_size": 2816, "intermediate_size": 2112,
      "num_hidden_layers": 30, "num_attention_heads": 16, "num_key_value_heads": 8,
      "head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 2,
      "attention_k_eq_v": true, "hidden_size_per_layer_input": 0, "enable_moe_block": true,
      "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704,
      "sliding_window": 1024, "final_logit_softcapping": 30.0, "max_position_embeddings": 262144,
      "eos_token_id": [1, 106]})"},
    {"glm-4.7-flash", R"({"model_type": "glm4_moe_lite", "torch_dtype": "bfloat16",
      "rope_theta": 1000000.0, "eos_token_id": [154820, 154827, 154829]})"},
    {"lfm2-1.2b", R"({"model_type": "lfm2", "torch_dtype": "bfloat16", "vocab_size": 65536,
      "hidden_size": 2048, "block_ff_dim": 12288, "num_hidden_layers": 16,
      "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 128000,
      "norm_eps": 1e-05, "rope_theta": 1000000.0, "full_attn_idxs": [2, 5, 8, 10, 12, 14],
      "eos_token_id": 7})"},
    {"qwen3.5-0.8b",
     R"({"model_type": "qwen3_5_text", "torch_dtype": "bfloat16", "vocab_size": 248320,
      "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24,
      "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
      "max_position_embeddings": 262144, "rope_parameters": {"rope_type": "default",
      "rope_theta": 10000000, "partial_rotary_factor": 0.25}, "linear_num_key_heads": 16,
      "linear_num_value_heads": 16, "tie_word_embeddings": true, "eos_token_id": 248044})"},
    {"qwen3.5-4b",
     R"({"model_type": "qwen3_5_text", "torch_dtype": "bfloat16", "vocab_size": 248320,
      "hidden_size": 2560, "intermediate_size": 9216, "num_hidden_layers": 32,
      "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256,
      "max_position_embeddings": 262144, "rope_parameters": {"rope_type": "default",
      "rope_theta": 10000000, "partial_rotary_factor": 0.25}, "linear_num_key_heads": 16,
      "linear_num_value_heads": 32, "tie_word_embeddings": true, "eos_token_id": 248044})"},
    {"qwen3.5-27b",
     R"({"model_type": "qwen3_5_text", "torch_dtype": "bfloat16", "vocab_size": 248320,
      "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64,
      "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256,
      "max_position_embeddings": 262144, "rope_parameters": {"rope_type": "default",
      "rope_theta": 10000000, "partial_rotary_factor": 0.25}, "linear_num_key_heads": 16,
      "linear_num_value_heads": 48, "tie_word_embeddings": false, "eos_token_id": 248044})"},
    {"qwen3.6-35b-a3b",
     R"({"model_type": "qwen3_5_moe_text", "torch_dtype": "bfloat16", "vocab_size": 248320,
      "hidden_size": 2048, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
      "num_experts": 256, "num_experts_per_tok": 8, "num_hidden_layers": 40,
      "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
      "max_position_embeddings": 262144, "rope_parameters": {"rope_type": "default",
      "rope_theta": 10000000, "partial_rotary_factor": 0.25}, "linear_num_key_heads": 16,
      "linear_num_value_heads": 32, "tie_word_embeddings": false, "eos_token_id": 248044})"},
    {"gpt-oss-20b", R"({"model_type": "gpt_oss", "torch_dtype": "bfloat16", "vocab_size": 201088,
      "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
      "num_local_experts": 32, "num_experts_per_tok": 4, "num_attention_heads": 64,
      "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128,
      "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 150000,
      "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
      "truncate": false, "original_max_position_embeddings": 4096}, "eos_token_id": 200002})"},
    {"granite-4-h-tiny", R"({"model_type": "granitemoehybrid", "torch_dtype": "bfloat16",
      "vocab_size": 100352, "hidden_size": 1536, "intermediate_size": 512,
      "shared_intermediate_size": 1024, "num_local_experts": 64, "num_experts_per_tok": 6,
      "num_hidden_layers": 40, "num_attention_heads": 12, "num_key_value_heads": 4,
      "mamba_n_heads": 48, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1,
      "layer_types": ["mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba",
      "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba",
      "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba",
      "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba",
      "mamba", "mamba"], "embedding_multiplier": 12, "residual_multiplier": 0.22,
      "attention_multiplier": 0.0078125, "logits_scaling": 6, "position_embedding_type": "nope",
      "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "tie_word_embeddings": true,
      "eos_token_id": 100257})"},
    {"llama-160m", R"({"model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": 32000,
      "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
      "num_attention_heads": 12, "max_position_embeddings": 131072, "rms_norm_eps": 1e-06,
      "eos_token_id": 2})"},
}};

// Keeps the first `layers` of a model.
void keep_layers(std::int32_t layers, ModelConfig& config) {
  const auto cut = [&](auto& list) {
    list.resize(std::min(list.size(), static_cast<std::size_t>(layers)));
  };
  config.layers = layers;
  cut(config.window_tokens);
  cut(config.ropes);
  cut(config.mlps);
  cut(config.mixers);
  cut(config.kv_sizes);
  cut(config.kv_sources);
  cut(config.mlp_sizes);
}

// Reads what stands behind the name of a preset: "@layers=N".
Status apply_suffix(std::string_view suffix, ModelConfig& config) {
  constexpr std::string_view kLayers = "@layers=";
  const std::string_view digits =
      suffix.starts_with(kLayers) ? suffix.substr(kLayers.size()) : std::string_view();
  std::int32_t layers = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), layers);
  if (error != std::errc() || end != digits.data() + digits.size() || layers < 1 ||
      layers > config.layers) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("a preset has ", base::quoted(suffix), " behind its name; must be ",
                          kLayers, "N, with N in [1, ", config.layers, "]")};
  }
  keep_layers(layers, config);
  return {};
}

// Returns what belongs to the preset of that name, before any suffix.
Result<const Preset*> find_preset(std::string_view name) {
  std::string known;
  for (const Preset& preset : kPresets) {
    if (preset.name == name) {
      return &preset;
    }
    known += base::str_cat(known.empty() ? "" : ", ", preset.name);
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat("preset ", base::quoted(name), " is unknown; known: ", known)};
}

}  // namespace

Result<ModelConfig> config_from_preset(std::string_view name) {
  const std::size_t at = name.find('@');
  QUIRE_TRY(const Preset* preset, find_preset(name.substr(0, at)));
  QUIRE_TRY(ModelConfig config, config_from_hf(preset->json, ""));
  if (at != name.npos) {
    QUIRE_TRY_STATUS(apply_suffix(name.substr(at), config));
  }
  return config;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  names.reserve(kPresets.size());
  for (const Preset& preset : kPresets) {
    names.emplace_back(preset.name);
  }
  return names;
}

}  // namespace quire::model

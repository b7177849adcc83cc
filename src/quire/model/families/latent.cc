#include "quire/model/families/latent.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/model/config.h"
#include "quire/model/expert_fields.h"
#include "quire/model/family.h"
#include "quire/model/latent_shape.h"
#include "quire/model/layer_mixers.h"
#include "quire/model/layer_plan.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {
namespace {

constexpr double kSumEpsilon = 1e-20;

// A size of a head or of a latent; more cannot be a size of a matrix.
Status check_latent_size(std::string_view name, std::int64_t size) {
  constexpr std::int64_t kMost = std::int64_t{1} << 17;
  if (size >= 1 && size <= kMost) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat(name, " is ", size, "; must be in [1, ", kMost, "]")};
}

Status read_latent_size(base::JsonView json, std::string_view key, std::int32_t absent,
                        std::int32_t& size) {
  QUIRE_TRY(const std::int64_t value, base::get_int(json, key, absent));
  QUIRE_TRY_STATUS(check_latent_size(base::quoted(key), value));
  size = static_cast<std::int32_t>(value);
  return {};
}

// Sets what the decoder sees: one KV head of shared key and latent, and the scale of scores.
Status use_latents(double mscale, ModelConfig& config) {
  const LatentShape& latent = config.latent;
  QUIRE_TRY_STATUS(latent.validate());
  config.kv_heads = 1;
  config.head_dim = latent.kv_dim();
  config.scales.scores = mscale * mscale / std::sqrt(static_cast<double>(latent.query_dim()));
  return {};
}

// Returns what YaRN multiplies queries and keys by, beside the factor on their rotation.
Result<double> yarn_scale(base::JsonView json) {
  for (const std::string_view name : {"rope_scaling", "rope_parameters"}) {
    const base::JsonView block = json.find(name);
    if (!block.is_object() || block.size() == 0) {
      continue;
    }
    QUIRE_TRY(const auto old_name, base::get_string(block, "type", "default"));
    QUIRE_TRY(const auto type, base::get_string(block, "rope_type", old_name));
    QUIRE_TRY(const double all_dim, base::get_double(block, "mscale_all_dim", 0.0));
    QUIRE_TRY(const double factor, base::get_double(block, "factor", 1.0));
    return type == "default" || factor <= 1.0 ? 1.0 : 0.1 * all_dim * std::log(factor) + 1.0;
  }
  return 1.0;
}

// Refuses KV heads and a head size that would not be those of the latents.
Status check_latent_heads(base::JsonView json, const ModelConfig& config) {
  if (config.kv_heads != config.heads) {
    return {ErrorCode::kUnsupported,
            base::str_cat("\"num_key_value_heads\" is ", config.kv_heads, "; only ", config.heads,
                          ", the number of heads, is implemented")};
  }
  if (!json.find("head_dim").is_null() && config.head_dim != config.latent.rope_dim) {
    return {ErrorCode::kUnsupported,
            base::str_cat("\"head_dim\" is ", config.head_dim, ", but \"qk_rope_head_dim\" is ",
                          config.latent.rope_dim)};
  }
  return {};
}

}  // namespace

Status read_latents(base::JsonView json, const LatentShape& absent, ModelConfig& config) {
  LatentShape& latent = config.latent;
  QUIRE_TRY_STATUS(read_latent_size(json, "kv_lora_rank", absent.rank, latent.rank));
  QUIRE_TRY_STATUS(read_latent_size(json, "qk_rope_head_dim", absent.rope_dim, latent.rope_dim));
  QUIRE_TRY_STATUS(read_latent_size(json, "qk_nope_head_dim", absent.plain_dim, latent.plain_dim));
  QUIRE_TRY_STATUS(read_latent_size(json, "v_head_dim", absent.value_dim, latent.value_dim));
  constexpr std::string_view kQueries = "q_lora_rank";
  if (!json.contains(kQueries) || !json.find(kQueries).is_null()) {
    QUIRE_TRY_STATUS(read_latent_size(json, kQueries, absent.query_rank, latent.query_rank));
  }
  QUIRE_TRY(latent.interleaved, base::get_bool(json, "rope_interleave", true));
  QUIRE_TRY_STATUS(check_latent_heads(json, config));
  QUIRE_TRY(const double mscale, yarn_scale(json));
  return use_latents(mscale, config);
}

Status read_latent_experts(base::JsonView json, const LatentExperts& absent, ModelConfig& config) {
  QUIRE_TRY_STATUS(read_experts(json,
                                {.count = absent.count,
                                 .chosen = absent.chosen,
                                 .size_field = "moe_intermediate_size",
                                 .size = absent.size,
                                 .count_field = "n_routed_experts"},
                                config));
  QUIRE_TRY(config.experts.weight_scale,
            base::get_double(json, "routed_scaling_factor", absent.weight_scale));
  constexpr std::string_view kShared = "n_shared_experts";
  QUIRE_TRY(const std::int64_t shared, base::get_int(json, kShared, absent.shared));
  if (config.mlps.empty()) {
    return {ErrorCode::kUnsupported, "\"n_routed_experts\" is 0, which is not implemented"};
  }
  if (shared < 1 || shared > config.experts.count) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat(base::quoted(kShared), " is ", shared, "; must be in [1, ",
                          config.experts.count, "]")};
  }
  return set_shared_size(shared * config.experts.intermediate_size, base::quoted(kShared), config);
}

Status read_first_dense(base::JsonView json, std::int64_t absent, ModelConfig& config) {
  constexpr std::string_view kDense = "first_k_dense_replace";
  QUIRE_TRY(const std::int64_t dense, base::get_int(json, kDense, absent));
  return set_first_dense(dense, base::quoted(kDense), config);
}

Status read_groups(base::JsonView json, std::int32_t groups, std::int32_t chosen,
                   ModelConfig& config) {
  for (const auto& [key, absent, count] :
       {std::tuple("n_group", groups, &config.experts.groups),
        std::tuple("topk_group", chosen, &config.experts.chosen_groups)}) {
    QUIRE_TRY(const std::int64_t value, base::get_int(json, key, absent));
    if (value < 1 || value > config.experts.count) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat(base::quoted(key), " is ", value, "; must be in [1, ",
                            config.experts.count, "]")};
    }
    *count = static_cast<std::int32_t>(value);
  }
  if (config.experts.chosen_groups > config.experts.groups) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("\"topk_group\" is ", config.experts.chosen_groups, ", of \"n_group\", ",
                          config.experts.groups)};
  }
  return {};
}

Status read_sigmoids(base::JsonView json, ModelConfig& config) {
  Experts& experts = config.experts;
  QUIRE_TRY(const bool normalised, base::get_bool(json, "norm_topk_prob", true));
  experts.rule = normalised ? RouterRule::kSigmoidOfChosen : RouterRule::kSigmoidOfAll;
  experts.sum_epsilon = kSumEpsilon;
  experts.biases_choice = true;
  return {};
}

Status read_drafts(base::JsonView json, ModelConfig& config) {
  for (const std::string_view key : {"num_mtp_layers", "num_nextn_predict_layers"}) {
    QUIRE_TRY(const std::int64_t drafts, base::get_int(json, key, config.draft_layers));
    if (drafts < 0 || drafts > 1024) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat(base::quoted(key), " is ", drafts, "; must be in [0, 1024]")};
    }
    config.draft_layers = static_cast<std::int32_t>(drafts);
  }
  return {};
}

namespace {

// Reads the sizes of heads. Older files say those of queries and values as they are. Newer ones say
// those of the KV, and the others under names of their own.
Status read_gguf_latents(const weights::GgufFile& file, const std::string& prefix,
                         ModelConfig& config) {
  LatentShape& latent = config.latent;
  const auto size = [&](std::string_view name, std::int64_t absent) -> Result<std::int32_t> {
    const std::string key = base::str_cat(prefix, name);
    QUIRE_TRY(const std::int64_t value, file.get_int(key, absent));
    QUIRE_TRY_STATUS(check_latent_size(base::str_cat("GGUF key ", key), value));
    return static_cast<std::int32_t>(value);
  };
  QUIRE_TRY(latent.rank, size("attention.kv_lora_rank", 0));
  if (file.find(base::str_cat(prefix, "attention.q_lora_rank")) != nullptr) {
    QUIRE_TRY(latent.query_rank, size("attention.q_lora_rank", 0));
  }
  QUIRE_TRY(latent.rope_dim, size("rope.dimension_count", 0));
  QUIRE_TRY(const std::int32_t old_query, size("attention.key_length", 0));
  QUIRE_TRY(const std::int32_t old_value, size("attention.value_length", 0));
  QUIRE_TRY(const std::int32_t query, size("attention.key_length_mla", old_query));
  QUIRE_TRY(latent.value_dim, size("attention.value_length_mla", old_value));
  latent.plain_dim = query - latent.rope_dim;
  if (latent.plain_dim < 1) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("GGUF key ", prefix, "rope.dimension_count is ", latent.rope_dim,
                          " for heads of ", query)};
  }
  QUIRE_TRY(const double log_multiplier,
            file.get_double(base::str_cat(prefix, "rope.scaling.yarn_log_multiplier"), 0.0));
  QUIRE_TRY(const double factor,
            file.get_double(base::str_cat(prefix, "rope.scaling.factor"), 1.0));
  return use_latents(factor > 1.0 ? log_multiplier * std::log(factor) + 1.0 : 1.0, config);
}

Status read_gguf_latent_experts(const weights::GgufFile& file, const std::string& architecture,
                                ModelConfig& config) {
  constexpr std::int64_t kSigmoid = 2;
  const auto key = [&](std::string_view name) { return base::str_cat(architecture, ".", name); };
  QUIRE_TRY(const std::int64_t gating, file.get_int(key("expert_gating_func"), 1));
  const bool by_sigmoid = gating == kSigmoid;
  config.family = by_sigmoid ? "deepseek_v3" : "deepseek_v2";
  QUIRE_TRY_STATUS(read_gguf_experts(
      file, {.architecture = architecture, .by_sigmoid = by_sigmoid, .may_group = true}, config));
  if (config.mlps.empty()) {
    return {ErrorCode::kUnsupported,
            base::str_cat("GGUF key ", key("expert_count"), " is 0 or missing")};
  }
  Experts& experts = config.experts;
  QUIRE_TRY(const bool normalised, file.get_bool(key("expert_weights_norm"), false));
  if (by_sigmoid) {
    experts.rule = normalised ? RouterRule::kSigmoidOfChosen : RouterRule::kSigmoidOfAll;
    experts.sum_epsilon = kSumEpsilon;
    experts.biases_choice = true;
  } else {
    experts.rule = normalised ? RouterRule::kSoftmaxOfChosen : RouterRule::kSoftmaxOfAll;
  }
  const std::string shared_key = key("expert_shared_count");
  QUIRE_TRY(const std::int64_t shared, file.get_int(shared_key, 0));
  if (shared < 1 || shared > experts.count) {
    return {ErrorCode::kInvalidArgument, base::str_cat("GGUF key ", shared_key, " is ", shared,
                                                       "; must be in [1, ", experts.count, "]")};
  }
  QUIRE_TRY_STATUS(
      set_shared_size(shared * experts.intermediate_size, "GGUF key " + shared_key, config));
  const std::string dense_key = key("leading_dense_block_count");
  QUIRE_TRY(const std::int64_t dense, file.get_int(dense_key, 0));
  return set_first_dense(dense, "GGUF key " + dense_key, config);
}

Status configure_latent_gguf(const weights::GgufFile& file, ModelConfig& config) {
  QUIRE_TRY(const auto architecture, file.get_string("general.architecture", ""));
  QUIRE_TRY_STATUS(read_gguf_drafts(file, config));
  QUIRE_TRY_STATUS(read_gguf_latents(file, architecture + ".", config));
  return read_gguf_latent_experts(file, architecture, config);
}

TensorNames latent_names() {
  TensorNames names = hf_names();
  names.qkv = {"self_attn.q_proj", "self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"};
  names.latent_query_norm = "self_attn.q_a_layernorm";
  names.latent_queries = "self_attn.q_b_proj";
  names.latent_norm = "self_attn.kv_a_layernorm";
  names.latent_keys_values = "self_attn.kv_b_proj";
  names.experts = {.routers = {"mlp.gate"},
                   .each = {"mlp.experts."},
                   .gate_up = {"gate_proj", "up_proj"},
                   .down = "down_proj",
                   .stacked_gate_up = {{"mlp.experts.gate_up_proj"}},
                   .stacked_down = {"mlp.experts.down_proj"},
                   .choice_bias = "mlp.gate.e_score_correction_bias",
                   .shared_gate_up = {"mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"},
                   .shared_down = "mlp.shared_experts.down_proj"};
  return names;
}

TensorNames latent_gguf_names() {
  TensorNames names = gguf_names();
  names.qkv = {"attn_q", "attn_q_a", "attn_kv_a_mqa"};
  names.latent_query_norm = "attn_q_a_norm";
  names.latent_queries = "attn_q_b";
  names.latent_norm = "attn_kv_a_norm";
  names.latent_keys_values = "attn_kv_b";
  names.latent_keys = "attn_k_b";
  names.latent_values = "attn_v_b";
  names.experts = gguf_expert_names();
  return names;
}

// transformers reads none of those from "aux_loss_alpha" on, or they change no sum.
std::vector<std::string_view> latent_fields() {
  return {"kv_lora_rank",     "moe_intermediate_size", "n_group",        "n_routed_experts",
          "n_shared_experts", "num_experts_per_tok",   "q_lora_rank",    "qk_nope_head_dim",
          "qk_rope_head_dim", "routed_scaling_factor", "topk_group",     "v_head_dim",
          "aux_loss_alpha",   "output_router_logits",  "pretraining_tp", "qk_head_dim",
          "seq_aux"};
}

std::vector<std::string_view> latent_gguf_keys() {
  return {
      "attention.key_length_mla",   "attention.kv_lora_rank", "attention.q_lora_rank",
      "attention.value_length_mla", "expert_count",           "expert_shared_count",
      "leading_dense_block_count",  "nextn_predict_layers",   "rope.scaling.yarn_log_multiplier"};
}

}  // namespace

Family latent_family() {
  return {.gguf_architecture = "deepseek2",
          .fields = latent_fields(),
          .configure_gguf = configure_latent_gguf,
          .gguf_keys = latent_gguf_keys(),
          .hf = latent_names(),
          .gguf = latent_gguf_names()};
}

}  // namespace quire::model

#include "quire/model/families/gemma.h"

#include <cmath>
#include <cstdint>
#include <string_view>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/model/config.h"
#include "quire/model/family.h"
#include "quire/model/layer_plan.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {

Status configure_gemma(base::JsonView json, ModelConfig& config) {
  QUIRE_TRY(const bool attention_bias, base::get_bool(json, "attention_bias", false));
  config.qkv_bias = attention_bias;
  config.output_bias = attention_bias;
  config.norms = NormPlacement::kBoth;
  Scales& scales = config.scales;
  scales.embedding = std::sqrt(static_cast<double>(config.hidden_size));
  scales.embedding_is_rounded = true;
  QUIRE_TRY(const double scalar, base::get_double(json, "query_pre_attn_scalar", 256.0));
  if (!(scalar > 0.0)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("\"query_pre_attn_scalar\" is ", scalar, "; must be above 0")};
  }
  scales.scores = 1.0 / std::sqrt(scalar);
  return {};
}

Result<double> get_cap(base::JsonView json, std::string_view key, double absent) {
  return base::get_double(json, key, json.contains(key) ? 0.0 : absent);
}

Status configure_gemma_gguf(const weights::GgufFile& file, std::int32_t layers_of_27b,
                            ModelConfig& config) {
  config.norms = NormPlacement::kBoth;
  config.activation = kernels::Activation::kGeluTanh;
  Scales& scales = config.scales;
  scales.embedding = std::sqrt(static_cast<double>(config.hidden_size));
  const bool is_27b = config.layers == layers_of_27b;
  const std::int32_t scalar = is_27b ? config.hidden_size / config.heads : config.head_dim;
  scales.scores = 1.0 / std::sqrt(static_cast<double>(scalar));
  QUIRE_TRY(
      scales.logit_cap,
      file.get_double(base::str_cat(config.family, ".final_logit_softcapping"), scales.logit_cap));
  return {};
}

TensorNames gemma_names() {
  TensorNames names = hf_names();
  names.attention_out_norm = "post_attention_layernorm";
  names.mlp_norm = "pre_feedforward_layernorm";
  names.mlp_out_norm = "post_feedforward_layernorm";
  names.norms_lack_one = true;
  return names;
}

}  // namespace quire::model

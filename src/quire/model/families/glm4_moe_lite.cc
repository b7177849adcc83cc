// GLM-4.7-Flash: DeepSeek V3 with other sizes, whose layers say which of them have experts.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/model/config.h"
#include "quire/model/expert_fields.h"
#include "quire/model/families/latent.h"
#include "quire/model/family.h"
#include "quire/model/layer_plan.h"
#include "quire/result.h"

namespace quire::model {
namespace {

// Reads "mlp_layer_types", with which "first_k_dense_replace" must agree.
Status read_mlp_types(base::JsonView json, ModelConfig& config) {
  constexpr std::string_view kTypes = "mlp_layer_types", kFirst = "first_k_dense_replace";
  const base::JsonView types = json.find(kTypes);
  if (types.is_null()) {
    return read_first_dense(json, 1, config);
  }
  if (!types.is_array() || types.size() != config.mlps.size()) {
    return {ErrorCode::kInvalidArgument, base::str_cat(base::quoted(kTypes), " must be a list of ",
                                                       config.mlps.size(), " names")};
  }
  for (std::size_t i = 0; i < config.mlps.size(); ++i) {
    const bool is_dense = types[i] == "dense";
    if (!is_dense && types[i] != "sparse") {
      return {ErrorCode::kUnsupported,
              base::str_cat(base::quoted(kTypes), " has ", base::write_json(types[i]),
                            " for layer ", i, "; known: dense, sparse")};
    }
    config.mlps[i] = is_dense ? MlpKind::kDense : MlpKind::kExperts;
  }
  if (!json.find(kFirst).is_null()) {
    QUIRE_TRY(const std::int64_t first, base::get_int(json, kFirst, 0));
    for (std::size_t i = 0; i < config.mlps.size(); ++i) {
      if ((config.mlps[i] == MlpKind::kDense) != (static_cast<std::int64_t>(i) < first)) {
        return {ErrorCode::kInvalidArgument,
                base::str_cat(base::quoted(kFirst), " is ", first, ", but ", base::quoted(kTypes),
                              " has ", base::write_json(types[i]), " for layer ", i)};
      }
    }
  }
  forget_unused_experts(config);
  return {};
}

Status configure_glm4_moe_lite(base::JsonView json, ModelConfig& config) {
  QUIRE_TRY_STATUS(read_latents(
      json, {.rank = 512, .query_rank = 768, .rope_dim = 64, .plain_dim = 192, .value_dim = 256},
      config));
  QUIRE_TRY_STATUS(read_latent_experts(
      json, {.count = 64, .chosen = 4, .size = 1536, .shared = 1, .weight_scale = 1.8}, config));
  QUIRE_TRY_STATUS(read_sigmoids(json, config));
  QUIRE_TRY_STATUS(read_groups(json, 1, 1, config));
  QUIRE_TRY_STATUS(read_drafts(json, config));
  return read_mlp_types(json, config);
}

}  // namespace

const Family& glm4_moe_lite_family() {
  static const Family family = [] {
    Family made = latent_family();
    made.name = "glm4_moe_lite";
    made.architecture = "Glm4MoeLiteForCausalLM";
    made.defaults = {.norm_epsilon = 1e-5,
                     .context_length = 202752,
                     .kv_heads = 20,
                     .head_dim = 64,
                     .vocab_size = 154880,
                     .hidden_size = 2048,
                     .intermediate_size = 10240,
                     .layers = 47,
                     .heads = 20};
    made.fields.insert(made.fields.end(),
                       {"first_k_dense_replace", "mlp_layer_types", "norm_topk_prob",
                        "num_mtp_layers", "num_nextn_predict_layers", "rope_interleave"});
    made.fixed = {{"attention_bias", "false"},
                  {"moe_layer_freq", "1"},
                  {"scoring_func", "\"sigmoid\""},
                  {"topk_method", "\"noaux_tc\""}};
    made.configure = configure_glm4_moe_lite;
    return made;
  }();
  return family;
}

}  // namespace quire::model

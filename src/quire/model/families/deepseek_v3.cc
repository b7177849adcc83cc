// DeepSeek V3 and R1: DeepSeek V2 whose experts stand in groups and are chosen by sigmoids and a
// bias.
#include "quire/base/json.h"
#include "quire/model/config.h"
#include "quire/model/families/latent.h"
#include "quire/model/family.h"
#include "quire/result.h"

namespace quire::model {
namespace {

Status configure_deepseek_v3(base::JsonView json, ModelConfig& config) {
  QUIRE_TRY_STATUS(read_latents(
      json, {.rank = 512, .query_rank = 1536, .rope_dim = 64, .plain_dim = 128, .value_dim = 128},
      config));
  QUIRE_TRY_STATUS(read_latent_experts(
      json, {.count = 256, .chosen = 8, .size = 2048, .shared = 1, .weight_scale = 2.5}, config));
  QUIRE_TRY_STATUS(read_sigmoids(json, config));
  QUIRE_TRY_STATUS(read_groups(json, 8, 4, config));
  QUIRE_TRY_STATUS(read_drafts(json, config));
  return read_first_dense(json, 3, config);
}

}  // namespace

const Family& deepseek_v3_family() {
  static const Family family = [] {
    Family made = latent_family();
    made.name = "deepseek_v3";
    made.architecture = "DeepseekV3ForCausalLM";
    made.defaults = {.context_length = 4096,
                     .head_dim = 64,
                     .vocab_size = 129280,
                     .hidden_size = 7168,
                     .intermediate_size = 18432,
                     .layers = 61,
                     .heads = 128};
    made.fields.insert(made.fields.end(),
                       {"first_k_dense_replace", "norm_topk_prob", "num_mtp_layers",
                        "num_nextn_predict_layers", "rope_interleave"});
    made.fixed = {{"attention_bias", "false"},
                  {"moe_layer_freq", "1"},
                  {"scoring_func", "\"sigmoid\""},
                  {"topk_method", "\"noaux_tc\""}};
    made.configure = configure_deepseek_v3;
    return made;
  }();
  return family;
}

}  // namespace quire::model

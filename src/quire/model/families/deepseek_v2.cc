// DeepSeek V2: attention over latents, and experts that are chosen by a softmax beside one MLP for
// all rows.
#include <string_view>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/model/config.h"
#include "quire/model/families/latent.h"
#include "quire/model/family.h"
#include "quire/model/layer_plan.h"
#include "quire/result.h"

namespace quire::model {
namespace {

Status configure_deepseek_v2(base::JsonView json, ModelConfig& config) {
  QUIRE_TRY_STATUS(read_latents(
      json, {.rank = 512, .query_rank = 1536, .rope_dim = 64, .plain_dim = 128, .value_dim = 128},
      config));
  QUIRE_TRY_STATUS(
      read_latent_experts(json, {.count = 64, .chosen = 0, .size = 1407, .shared = 2}, config));
  config.experts.rule = RouterRule::kSoftmaxOfAll;
  QUIRE_TRY(const auto method, base::get_string(json, "topk_method", "greedy"));
  if (method == "group_limited_greedy") {
    QUIRE_TRY_STATUS(read_groups(json, 0, 0, config));
  } else if (method != "greedy") {
    return {ErrorCode::kUnsupported, base::str_cat("\"topk_method\" is ", base::quoted(method),
                                                   "; known: greedy, group_limited_greedy")};
  }
  return read_first_dense(json, 0, config);
}

}  // namespace

const Family& deepseek_v2_family() {
  static const Family family = [] {
    Family made = latent_family();
    made.name = "deepseek_v2";
    made.architecture = "DeepseekV2ForCausalLM";
    made.defaults = {.context_length = 2048,
                     .head_dim = 64,
                     .vocab_size = 102400,
                     .hidden_size = 4096,
                     .intermediate_size = 11008,
                     .layers = 32,
                     .heads = 32};
    made.fields.insert(made.fields.end(), {"first_k_dense_replace", "topk_method"});
    // transformers divides no weights by their sum here.
    made.fixed = {{"attention_bias", "false"},
                  {"mlp_bias", "false"},
                  {"moe_layer_freq", "1"},
                  {"norm_topk_prob", "false"},
                  {"scoring_func", "\"softmax\""}};
    made.configure = configure_deepseek_v2;
    return made;
  }();
  return family;
}

}  // namespace quire::model

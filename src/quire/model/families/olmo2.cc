// OLMo 2 and 3: norms behind attention and MLP only, queries and keys normed over all heads. OLMo 3
// has windows on three of four layers, whose rope is not scaled.
#include <string_view>

#include "quire/base/json.h"
#include "quire/model/config.h"
#include "quire/model/family.h"
#include "quire/model/layer_plan.h"
#include "quire/model/layer_windows.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {
namespace {

constexpr WindowTurns kOlmoTurns = {.period = 4, .absent_window = 4096};

Status configure_olmo2(base::JsonView json, ModelConfig& config) {
  QUIRE_TRY(const bool attention_bias, base::get_bool(json, "attention_bias", false));
  config.qkv_bias = attention_bias;
  config.output_bias = attention_bias;
  config.norms = NormPlacement::kBehind;
  config.qk_norm = true;
  config.qk_norms_rows = true;
  return {};
}

Status configure_olmo3(base::JsonView json, ModelConfig& config) {
  QUIRE_TRY_STATUS(configure_olmo2(json, config));
  QUIRE_TRY_STATUS(set_windows_in_turn(json, kOlmoTurns, config));
  turn_windows_locally(config);
  return {};
}

// Files of OLMo 3 call themselves "olmo2", and have a window.
Status configure_olmo2_gguf(const weights::GgufFile& file, ModelConfig& config) {
  config.norms = NormPlacement::kBehind;
  config.qk_norms_rows = true;
  if (config.window_tokens.front() == 0) {
    return {};
  }
  config.family = "olmo3";
  QUIRE_TRY_STATUS(set_windows_in_turn(file, kOlmoTurns, config));
  turn_windows_locally(config);
  return {};
}

Family olmo_family(std::string_view name, std::string_view architecture) {
  TensorNames hf = hf_names();
  hf.attention_norm = {};
  hf.mlp_norm = {};
  hf.attention_out_norm = "post_attention_layernorm";
  hf.mlp_out_norm = "post_feedforward_layernorm";
  return {.name = name,
          .architecture = architecture,
          .gguf_architecture = "olmo2",
          .defaults = {.norm_epsilon = 1e-5,
                       .vocab_size = 50304,
                       .hidden_size = 4096,
                       .intermediate_size = 11008,
                       .layers = 32,
                       .heads = 32},
          .fields = {"attention_bias"},
          .fixed = {},
          .configure = configure_olmo2,
          .configure_gguf = configure_olmo2_gguf,
          .gguf_keys = {"attention.sliding_window_pattern", "rope.freq_base_swa"},
          .qk_norm = true,
          .hf = hf,
          .gguf = gguf_names()};
}

}  // namespace

const Family& olmo2_family() {
  static const Family family = olmo_family("olmo2", "Olmo2ForCausalLM");
  return family;
}

const Family& olmo3_family() {
  static const Family family = [] {
    Family olmo3 = olmo_family("olmo3", "Olmo3ForCausalLM");
    olmo3.defaults.theta = 5e5;
    olmo3.fields = {"attention_bias", "layer_types", "sliding_window"};
    olmo3.configure = configure_olmo3;
    olmo3.rope_by_kind = true;
    return olmo3;
  }();
  return family;
}

}  // namespace quire::model

// Qwen3 (dense): every query and key head is normalised before its rotation.
#include "quire/base/json.h"
#include "quire/model/config.h"
#include "quire/model/family.h"
#include "quire/model/layer_windows.h"
#include "quire/result.h"

namespace quire::model {
namespace {

Status configure_qwen3(base::JsonView json, ModelConfig& config) {
  config.qk_norm = true;
  QUIRE_TRY(const bool attention_bias, base::get_bool(json, "attention_bias", false));
  config.qkv_bias = attention_bias;
  config.output_bias = attention_bias;
  return set_windows_by_layer(json, config);
}

}  // namespace

const Family& qwen3_family() {
  static const Family family{.name = "qwen3",
                             .architecture = "Qwen3ForCausalLM",
                             .gguf_architecture = "qwen3",
                             .defaults = {.context_length = 32768, .kv_heads = 32, .head_dim = 128},
                             .fields = {"attention_bias", "use_sliding_window", "sliding_window",
                                        "max_window_layers", "layer_types"},
                             .fixed = {{"use_mrope", "false"}, {"mlp_bias", "false"}},
                             .configure = configure_qwen3,
                             .qk_norm = true,
                             .hf = hf_names(),
                             .gguf = gguf_names()};
  return family;
}

}  // namespace quire::model

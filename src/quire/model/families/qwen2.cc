// Qwen2 and Qwen2.5: biases on queries, keys and values; a window from some layer on.
#include "quire/base/json.h"
#include "quire/model/config.h"
#include "quire/model/family.h"
#include "quire/model/layer_windows.h"
#include "quire/result.h"

namespace quire::model {
namespace {

Status configure_qwen2(base::JsonView json, ModelConfig& config) {
  config.qkv_bias = true;
  return set_windows_by_layer(json, config);
}

}  // namespace

const Family& qwen2_family() {
  static const Family family{
      .name = "qwen2",
      .architecture = "Qwen2ForCausalLM",
      .gguf_architecture = "qwen2",
      .defaults = {.context_length = 32768, .kv_heads = 32},
      .fields = {"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"},
      .fixed = {{"use_mrope", "false"}},
      .configure = configure_qwen2,
      .hf = hf_names(),
      .gguf = gguf_names()};
  return family;
}

}  // namespace quire::model

// Llama 1 to 3.3 and the many models that share their shape (SmolLM2, TinyLlama, ...).
#include "quire/base/json.h"
#include "quire/model/config.h"
#include "quire/model/expert_fields.h"
#include "quire/model/family.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {
namespace {

Status configure_llama(base::JsonView json, ModelConfig& config) {
  QUIRE_TRY(const bool attention_bias, base::get_bool(json, "attention_bias", false));
  config.qkv_bias = attention_bias;
  config.output_bias = attention_bias;
  QUIRE_TRY(config.mlp_bias, base::get_bool(json, "mlp_bias", false));
  return {};
}

// Files of Mixtral call themselves "llama", and have experts.
Status configure_llama_gguf(const weights::GgufFile& file, ModelConfig& config) {
  QUIRE_TRY_STATUS(read_gguf_experts(
      file, {.architecture = "llama", .absent_size = config.intermediate_size}, config));
  if (!config.mlps.empty()) {
    config.family = "mixtral";
  }
  return {};
}

}  // namespace

const Family& llama_family() {
  static const Family family = [] {
    TensorNames gguf = gguf_names();
    gguf.interleaved = true;
    return Family{.name = "llama",
                  .architecture = "LlamaForCausalLM",
                  .gguf_architecture = "llama",
                  .defaults = {},
                  .fields = {"attention_bias", "mlp_bias"},
                  .fixed = {{"pretraining_tp", "1"}, {"rope_interleaved", "false"}},
                  .configure = configure_llama,
                  .configure_gguf = configure_llama_gguf,
                  .gguf_keys = {"expert_count"},
                  .hf = hf_names(),
                  .gguf = gguf};
  }();
  return family;
}

}  // namespace quire::model

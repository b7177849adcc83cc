// Mistral 7B, Nemo and others of "model_type": "mistral": Llama with a sliding window in all
// layers. Their GGUF files call themselves llama.
#include <cstdint>

#include "quire/model/config.h"
#include "quire/model/family.h"
#include "quire/result.h"

namespace quire::model {
namespace {

constexpr std::int32_t kWindowIfAbsent = 4096;

Status configure(const base::json::object& json, ModelConfig& config) {
  return set_window(json, "sliding_window", kWindowIfAbsent, config);
}

}  // namespace

const Family& mistral_family() {
  static const Family family = [] {
    TensorNames gguf = gguf_names();
    gguf.interleaved = true;
    return Family{.name = "mistral",
                  .architecture = "MistralForCausalLM",
                  .gguf_architecture = "llama",
                  .defaults = {.max_positions = 131072, .kv_heads = 8},
                  .fields = {"sliding_window"},
                  .fixed = {{"attention_bias", "false"}, {"mlp_bias", "false"}},
                  .configure = configure,
                  .hf = hf_names(),
                  .gguf = gguf};
  }();
  return family;
}

}  // namespace quire::model

// Mistral 7B, Nemo and others of "model_type": "mistral": Llama with a sliding window in all
// layers. Their GGUF files call themselves llama.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/model/config.h"
#include "quire/model/family.h"
#include "quire/model/layer_windows.h"
#include "quire/result.h"

namespace quire::model {
namespace {

constexpr std::int32_t kWindowIfAbsent = 4096;

// Sets the windows. transformers ignores "layer_types" here, so the field must name the layers that
// it uses anyway.
Status configure_mistral(base::JsonView json, ModelConfig& config) {
  QUIRE_TRY_STATUS(set_window(json, "sliding_window", kWindowIfAbsent, config));
  const base::JsonView types = json.find("layer_types");
  if (types.is_null()) {
    return {};
  }
  const char* type = config.window_tokens.front() == 0 ? "full_attention" : "sliding_attention";
  const auto wanted =
      base::Json::list(std::vector<std::string>(static_cast<std::size_t>(config.layers), type));
  if (types != wanted) {
    return {ErrorCode::kUnsupported,
            base::str_cat("\"layer_types\" is not ", config.layers, " times \"", type,
                          "\", which the sliding window of a mistral model means")};
  }
  return {};
}

}  // namespace

const Family& mistral_family() {
  static const Family family = [] {
    TensorNames gguf = gguf_names();
    gguf.interleaved = true;
    return Family{.name = "mistral",
                  .architecture = "MistralForCausalLM",
                  .gguf_architecture = "llama",
                  .defaults = {.context_length = 131072, .kv_heads = 8},
                  .fields = {"sliding_window", "layer_types"},
                  .fixed = {{"attention_bias", "false"}, {"mlp_bias", "false"}},
                  .configure = configure_mistral,
                  .wrapper = {"mistral3", "Mistral3ForConditionalGeneration"},
                  .hf = hf_names(),
                  .gguf = gguf};
  }();
  return family;
}

}  // namespace quire::model

// Ministral 3: Llama with queries that grow with their position. Also the text part of the models
// that read images.
#include <cstdint>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/model/config.h"
#include "quire/model/family.h"
#include "quire/model/layer_plan.h"
#include "quire/model/layer_windows.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {
namespace {

Status set_growth(double growth, std::int64_t length, ModelConfig& config) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  if (length < 1 || length > kMost) {
    return {ErrorCode::kInvalidArgument, base::str_cat("the original number of positions is ",
                                                       length, "; must be in [1, ", kMost, "]")};
  }
  config.scales.query_growth = growth;
  config.scales.query_length = growth == 0.0 ? 1 : static_cast<std::int32_t>(length);
  return {};
}

Status configure_ministral3(base::JsonView json, ModelConfig& config) {
  QUIRE_TRY_STATUS(set_window(json, "sliding_window", 0, config));
  const base::JsonView rope = json.find("rope_parameters");
  QUIRE_TRY(const double growth, base::get_double(rope, "llama_4_scaling_beta", 0.0));
  QUIRE_TRY(const std::int64_t length,
            base::get_int(rope, "original_max_position_embeddings", config.context_length));
  return set_growth(growth, length, config);
}

Status configure_ministral3_gguf(const weights::GgufFile& file, ModelConfig& config) {
  QUIRE_TRY(const double growth, file.get_double("mistral3.attention.temperature_scale", 0.0));
  QUIRE_TRY(const std::int64_t length,
            file.get_int("mistral3.rope.scaling.original_context_length", config.context_length));
  return set_growth(growth, length, config);
}

}  // namespace

const Family& ministral3_family() {
  static const Family family = [] {
    TensorNames gguf = gguf_names();
    gguf.interleaved = true;
    return Family{.name = "ministral3",
                  .architecture = "Ministral3ForCausalLM",
                  .gguf_architecture = "mistral3",
                  .defaults = {.norm_epsilon = 1e-5,
                               .context_length = 262144,
                               .kv_heads = 8,
                               .head_dim = 128,
                               .vocab_size = 131072,
                               .hidden_size = 4096,
                               .intermediate_size = 14336,
                               .layers = 34,
                               .heads = 32},
                  .fields = {"sliding_window"},
                  .fixed = {{"attention_bias", "false"}, {"mlp_bias", "false"}},
                  .configure = configure_ministral3,
                  .wrapper = {"mistral3", "Mistral3ForConditionalGeneration"},
                  .rope_fields = {"llama_4_scaling_beta", "max_position_embeddings"},
                  .configure_gguf = configure_ministral3_gguf,
                  .gguf_keys = {"attention.temperature_scale", "attention.temperature_length",
                                "rope.scaling.yarn_log_multiplier"},
                  .hf = hf_names(),
                  .gguf = gguf};
  }();
  return family;
}

}  // namespace quire::model

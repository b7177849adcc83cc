// Granite 3 and the dense models of Granite 4 that call themselves so: Llama with four multipliers.
#include "quire/model/families/granite.h"

#include <string>

#include "quire/base/json.h"
#include "quire/model/config.h"
#include "quire/model/family.h"
#include "quire/model/layer_plan.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {
namespace {

Status configure_granite(base::JsonView json, ModelConfig& config) {
  QUIRE_TRY(config.mlp_bias, base::get_bool(json, "mlp_bias", false));
  return read_granite(json, config);
}

// Returns a factor that 0 leaves out.
Result<double> granite_factor(const weights::GgufFile& file, const std::string& key) {
  QUIRE_TRY(const double given, file.get_double(key, 1.0));
  return given == 0.0 ? 1.0 : given;
}

}  // namespace

Status read_granite(base::JsonView json, ModelConfig& config) {
  QUIRE_TRY(const bool attention_bias, base::get_bool(json, "attention_bias", false));
  config.qkv_bias = attention_bias;
  config.output_bias = attention_bias;
  Scales& scales = config.scales;
  QUIRE_TRY(scales.embedding, base::get_double(json, "embedding_multiplier", 1.0));
  QUIRE_TRY(scales.residual, base::get_double(json, "residual_multiplier", 1.0));
  QUIRE_TRY(scales.scores, base::get_double(json, "attention_multiplier", 1.0));
  QUIRE_TRY(scales.logits, base::get_double(json, "logits_scaling", 1.0));
  return {};
}

// "rope.scaling.finetuned" false means no rope here, and nothing in other families.
Status read_granite_gguf(const weights::GgufFile& file, ModelConfig& config) {
  QUIRE_TRY(const auto architecture, file.get_string("general.architecture", ""));
  const std::string prefix = architecture + ".";
  Scales& scales = config.scales;
  QUIRE_TRY(scales.embedding, granite_factor(file, prefix + "embedding_scale"));
  QUIRE_TRY(scales.residual, granite_factor(file, prefix + "residual_scale"));
  QUIRE_TRY(scales.scores, file.get_double(prefix + "attention.scale", 0.0));
  QUIRE_TRY(scales.logits, granite_factor(file, prefix + "logit_scale"));
  QUIRE_TRY(const bool turns, file.get_bool(prefix + "rope.scaling.finetuned", true));
  if (!turns) {
    config.ropes.assign(config.window_tokens.size(), RopeKind::kNone);
  }
  return {};
}

const Family& granite_family() {
  static const Family family = [] {
    TensorNames gguf = gguf_names();
    gguf.interleaved = true;
    return Family{.name = "granite",
                  .architecture = "GraniteForCausalLM",
                  .gguf_architecture = "granite",
                  .defaults = {},
                  .fields = {"attention_bias", "attention_multiplier", "embedding_multiplier",
                             "logits_scaling", "mlp_bias", "residual_multiplier"},
                  .fixed = {},
                  .configure = configure_granite,
                  .configure_gguf = read_granite_gguf,
                  .gguf_keys = {"attention.scale", "embedding_scale", "logit_scale",
                                "residual_scale", "rope.scaling.finetuned"},
                  .hf = hf_names(),
                  .gguf = gguf};
  }();
  return family;
}

}  // namespace quire::model

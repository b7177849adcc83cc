// Gemma 3: as Gemma 2 without caps, with normed queries and keys. Five of six layers have a window
// and a rope of their own. Also the text part of the models that read images.
#include "quire/base/json.h"
#include "quire/model/config.h"
#include "quire/model/families/gemma.h"
#include "quire/model/family.h"
#include "quire/model/layer_windows.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {
namespace {

constexpr WindowTurns kGemma3Turns = {
    .period = 6, .period_field = "sliding_window_pattern", .absent_window = 4096};

// transformers reads "attn_logit_softcapping" and does not apply it, so it is no field here.
Status configure_gemma3(base::JsonView json, ModelConfig& config) {
  QUIRE_TRY_STATUS(configure_gemma(json, config));
  config.qk_norm = true;
  QUIRE_TRY(config.scales.logit_cap, get_cap(json, "final_logit_softcapping", 0.0));
  QUIRE_TRY_STATUS(set_windows_in_turn(json, kGemma3Turns, config));
  turn_windows_locally(config);
  return {};
}

Status configure_gemma3_gguf(const weights::GgufFile& file, ModelConfig& config) {
  QUIRE_TRY_STATUS(configure_gemma_gguf(file, 62, config));
  QUIRE_TRY_STATUS(set_windows_in_turn(file, kGemma3Turns, config));
  turn_windows_locally(config);
  return {};
}

}  // namespace

const Family& gemma3_family() {
  static const Family family{
      .name = "gemma3",
      .model_type = "gemma3_text",
      .architecture = "Gemma3ForCausalLM",
      .gguf_architecture = "gemma3",
      .defaults = {.context_length = 131072,
                   .kv_heads = 4,
                   .head_dim = 256,
                   .vocab_size = 262208,
                   .hidden_size = 2304,
                   .intermediate_size = 9216,
                   .layers = 26,
                   .heads = 8,
                   .tied_embeddings = true,
                   .theta = 1e6,
                   .activation = "gelu_pytorch_tanh"},
      .fields = {"attention_bias", "final_logit_softcapping", "hidden_activation", "layer_types",
                 "query_pre_attn_scalar", "rope_local_base_freq", "sliding_window",
                 "sliding_window_pattern"},
      .fixed = {},
      .configure = configure_gemma3,
      .wrapper = {"gemma3", "Gemma3ForConditionalGeneration"},
      .activation_field = "hidden_activation",
      .rope_by_kind = true,
      .local_theta = 1e4,
      .configure_gguf = configure_gemma3_gguf,
      .gguf_keys = {"final_logit_softcapping", "attention.sliding_window_pattern",
                    "rope.freq_base_swa"},
      .qk_norm = true,
      .hf = gemma_names(),
      .gguf = gguf_names()};
  return family;
}

}  // namespace quire::model

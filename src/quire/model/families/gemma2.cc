// Gemma 2: norms before and behind attention and MLP, soft caps, a window on every other layer.
#include <algorithm>

#include "quire/base/json.h"
#include "quire/model/config.h"
#include "quire/model/families/gemma.h"
#include "quire/model/family.h"
#include "quire/model/layer_windows.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {
namespace {

constexpr WindowTurns kGemma2Turns = {.period = 2, .absent_window = 4096};

Status configure_gemma2(base::JsonView json, ModelConfig& config) {
  QUIRE_TRY_STATUS(configure_gemma(json, config));
  QUIRE_TRY(config.scales.score_cap, get_cap(json, "attn_logit_softcapping", 50.0));
  QUIRE_TRY(config.scales.logit_cap, get_cap(json, "final_logit_softcapping", 30.0));
  return set_windows_in_turn(json, kGemma2Turns, config);
}

// llama.cpp assumes these values where a file has none.
Status configure_gemma2_gguf(const weights::GgufFile& file, ModelConfig& config) {
  config.scales.logit_cap = 30.0;
  QUIRE_TRY_STATUS(configure_gemma_gguf(file, 46, config));
  QUIRE_TRY(config.scales.score_cap, file.get_double("gemma2.attn_logit_softcapping", 50.0));
  if (file.find("gemma2.attention.sliding_window") == nullptr) {
    std::ranges::fill(config.window_tokens, kGemma2Turns.absent_window);
  }
  return set_windows_in_turn(file, kGemma2Turns, config);
}

}  // namespace

const Family& gemma2_family() {
  static const Family family{
      .name = "gemma2",
      .architecture = "Gemma2ForCausalLM",
      .gguf_architecture = "gemma2",
      .defaults = {.context_length = 8192,
                   .kv_heads = 4,
                   .head_dim = 256,
                   .vocab_size = 256000,
                   .hidden_size = 2304,
                   .intermediate_size = 9216,
                   .layers = 26,
                   .heads = 8,
                   .tied_embeddings = true,
                   .activation = "gelu_pytorch_tanh"},
      .fields = {"attention_bias", "attn_logit_softcapping", "final_logit_softcapping",
                 "hidden_activation", "layer_types", "query_pre_attn_scalar", "sliding_window"},
      .fixed = {},
      .configure = configure_gemma2,
      .activation_field = "hidden_activation",
      .configure_gguf = configure_gemma2_gguf,
      .gguf_keys = {"attn_logit_softcapping", "final_logit_softcapping",
                    "attention.sliding_window_pattern"},
      .hf = gemma_names(),
      .gguf = gguf_names()};
  return family;
}

}  // namespace quire::model

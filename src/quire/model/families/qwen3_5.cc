// Qwen3.5 (dense), also the text part of the models that read images.
#include "quire/model/families/gated_delta.h"
#include "quire/model/family.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {
namespace {

// Value heads stand in another order than in folders: those of one key head stand apart.
Status configure_qwen3_5_gguf(const weights::GgufFile& file, ModelConfig& config) {
  config.state.keys_in_turn = true;
  return read_gated_delta_gguf(file, config);
}

}  // namespace

const Family& qwen3_5_family() {
  static const Family family{.name = "qwen3_5",
                             .model_type = "qwen3_5_text",
                             .architecture = "Qwen3_5ForCausalLM",
                             .gguf_architecture = "qwen35",
                             .defaults = {.context_length = 32768,
                                          .kv_heads = 4,
                                          .head_dim = 256,
                                          .vocab_size = 248320,
                                          .hidden_size = 4096,
                                          .intermediate_size = 12288,
                                          .layers = 32,
                                          .heads = 16,
                                          .partial_rotary = 0.25},
                             .fields = gated_delta_fields(),
                             .fixed = {{"attn_output_gate", "true"},
                                       {"mamba_ssm_dtype", "\"float32\""},
                                       {"output_gate_type", "\"swish\""}},
                             .configure = read_gated_delta,
                             .wrapper = {"qwen3_5", "Qwen3_5ForConditionalGeneration"},
                             .rope_fields = {"mrope_interleaved", "mrope_section"},
                             .configure_gguf = configure_qwen3_5_gguf,
                             .gguf_keys = gated_delta_gguf_keys(),
                             .partial_rotary = true,
                             .qk_norm = true,
                             .has_states = true,
                             .skipped_tensors = {"mtp."},
                             .hf = gated_delta_names(),
                             .gguf = gated_delta_gguf_names()};
  return family;
}

}  // namespace quire::model

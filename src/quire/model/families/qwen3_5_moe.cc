// Qwen3.5 with experts (35B-A3B): weights of the chosen always sum to one. Also the text part of
// the models that read images.
#include <string_view>
#include <vector>

#include "quire/base/json.h"
#include "quire/model/config.h"
#include "quire/model/families/gated_delta.h"
#include "quire/model/family.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {
namespace {

Status configure_qwen3_5_moe(base::JsonView json, ModelConfig& config) {
  QUIRE_TRY_STATUS(read_qwen_experts(json, {.count = 256, .chosen = 8}, config));
  return read_gated_delta(json, config);
}

// Value heads stand in another order than in folders: those of one key head stand apart.
Status configure_qwen3_5_moe_gguf(const weights::GgufFile& file, ModelConfig& config) {
  config.state.keys_in_turn = true;
  QUIRE_TRY_STATUS(read_gated_delta_gguf(file, config));
  return read_qwen_experts_gguf(file, config);
}

}  // namespace

const Family& qwen3_5_moe_family() {
  static const Family family = [] {
    TensorNames hf = gated_delta_names();
    hf.experts = qwen_expert_names();
    TensorNames gguf = gated_delta_gguf_names();
    gguf.experts = gguf_expert_names();
    std::vector<std::string_view> fields = gated_delta_fields();
    for (const std::string_view field : qwen_expert_fields()) {
      if (field != "norm_topk_prob") {
        fields.push_back(field);
      }
    }
    std::vector<std::string_view> keys = gated_delta_gguf_keys();
    keys.insert(keys.end(), {"expert_count", "expert_shared_feed_forward_length"});
    return Family{.name = "qwen3_5_moe",
                  .model_type = "qwen3_5_moe_text",
                  .architecture = "Qwen3_5MoeForCausalLM",
                  .gguf_architecture = "qwen35moe",
                  .defaults = {.context_length = 32768,
                               .kv_heads = 2,
                               .head_dim = 256,
                               .vocab_size = 248320,
                               .hidden_size = 2048,
                               .intermediate_size = 512,  // of no layer
                               .layers = 40,
                               .heads = 16,
                               .partial_rotary = 0.25},
                  .fields = fields,
                  .fixed = {{"attn_output_gate", "true"},
                            {"decoder_sparse_step", "1"},
                            {"mamba_ssm_dtype", "\"float32\""},
                            {"norm_topk_prob", "true"},
                            {"output_gate_type", "\"swish\""}},
                  .configure = configure_qwen3_5_moe,
                  .wrapper = {"qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration"},
                  .rope_fields = {"mrope_interleaved", "mrope_section"},
                  .configure_gguf = configure_qwen3_5_moe_gguf,
                  .gguf_keys = keys,
                  .partial_rotary = true,
                  .qk_norm = true,
                  .has_states = true,
                  .skipped_tensors = {"mtp."},
                  .hf = hf,
                  .gguf = gguf};
  }();
  return family;
}

}  // namespace quire::model

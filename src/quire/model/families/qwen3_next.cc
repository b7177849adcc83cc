// Qwen3-Next: the layers of Qwen3.5, whose projections are grouped by key heads, with experts.
#include <string_view>
#include <vector>

#include "quire/base/json.h"
#include "quire/model/config.h"
#include "quire/model/expert_fields.h"
#include "quire/model/families/gated_delta.h"
#include "quire/model/family.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {
namespace {

Status configure_qwen3_next(base::JsonView json, ModelConfig& config) {
  QUIRE_TRY_STATUS(
      read_qwen_experts(json, {.count = 512, .chosen = 10, .may_be_raw = true}, config));
  QUIRE_TRY_STATUS(read_dense_layers(json, config));
  return read_gated_delta(json, config);
}

Status configure_qwen3_next_gguf(const weights::GgufFile& file, ModelConfig& config) {
  QUIRE_TRY_STATUS(read_gated_delta_gguf(file, config));
  return read_qwen_experts_gguf(file, config);
}

}  // namespace

const Family& qwen3_next_family() {
  static const Family family = [] {
    TensorNames hf = gated_delta_names();
    hf.state_in = {"linear_attn.in_proj_qkvz"};
    hf.state_gates = {"linear_attn.in_proj_ba"};
    hf.experts = qwen_expert_names();
    TensorNames gguf = gated_delta_gguf_names();
    gguf.state_gates = {"ssm_ba"};
    gguf.experts = gguf_expert_names();
    std::vector<std::string_view> fields = gated_delta_fields();
    const auto more = qwen_expert_fields();
    fields.insert(fields.end(), more.begin(), more.end());
    fields.insert(fields.end(), {"decoder_sparse_step", "mlp_only_layers"});
    std::vector<std::string_view> keys = gated_delta_gguf_keys();
    keys.insert(keys.end(), {"expert_count", "expert_shared_feed_forward_length"});
    return Family{.name = "qwen3_next",
                  .architecture = "Qwen3NextForCausalLM",
                  .gguf_architecture = "qwen3next",
                  .defaults = {.context_length = 32768,
                               .kv_heads = 2,
                               .head_dim = 256,
                               .vocab_size = 151936,
                               .hidden_size = 2048,
                               .intermediate_size = 5632,
                               .layers = 48,
                               .heads = 16,
                               .partial_rotary = 0.25},
                  .fields = fields,
                  .fixed = {{"attn_output_gate", "true"}, {"mamba_ssm_dtype", "\"float32\""}},
                  .configure = configure_qwen3_next,
                  .configure_gguf = configure_qwen3_next_gguf,
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

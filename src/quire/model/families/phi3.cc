// Phi-3 and Phi-4-mini: fused projections, partial rotation, longrope.
#include "quire/base/json.h"
#include "quire/model/config.h"
#include "quire/model/family.h"
#include "quire/model/layer_windows.h"
#include "quire/result.h"

namespace quire::model {
namespace {

Status configure_phi3(base::JsonView json, ModelConfig& config) {
  return set_window(json, "sliding_window", 0, config);
}

}  // namespace

const Family& phi3_family() {
  static const Family family = [] {
    TensorNames hf = hf_names();
    hf.qkv = {"self_attn.qkv_proj"};
    hf.gate_up = {"mlp.gate_up_proj"};
    TensorNames gguf = gguf_names();
    gguf.qkv = {"attn_qkv"};
    gguf.gate_up = {"ffn_up"};
    return Family{.name = "phi3",
                  .architecture = "Phi3ForCausalLM",
                  .gguf_architecture = "phi3",
                  .defaults = {.norm_epsilon = 1e-5, .context_length = 4096},
                  .fields = {"sliding_window", "original_max_position_embeddings"},
                  .fixed = {{"attention_bias", "false"},
                            {"mlp_bias", "false"},
                            {"lm_head_bias", "false"},
                            {"full_attn_mod", "1"},
                            {"interpolate_factor", "1"}},
                  .configure = configure_phi3,
                  .partial_rotary = true,
                  .yarn = "longrope",
                  .hf = hf,
                  .gguf = gguf};
  }();
  return family;
}

}  // namespace quire::model

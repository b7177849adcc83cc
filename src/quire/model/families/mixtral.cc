// Mixtral 8x7B and 8x22B: Mistral whose MLPs are experts. Their GGUF files call themselves llama.
#include "quire/base/json.h"
#include "quire/model/config.h"
#include "quire/model/expert_fields.h"
#include "quire/model/family.h"
#include "quire/model/layer_plan.h"
#include "quire/model/layer_windows.h"
#include "quire/result.h"

namespace quire::model {
namespace {

Status configure_mixtral(base::JsonView json, ModelConfig& config) {
  config.experts.rule = RouterRule::kSoftmaxOfChosen;
  QUIRE_TRY_STATUS(read_experts(
      json, {.count = 8, .chosen = 2, .size_field = "intermediate_size", .size = 14336}, config));
  if (config.mlps.empty()) {
    return {ErrorCode::kInvalidArgument, "\"num_local_experts\" is 0; must be 1 or more"};
  }
  return set_window(json, "sliding_window", 0, config);
}

}  // namespace

const Family& mixtral_family() {
  static const Family family = [] {
    TensorNames hf = hf_names();
    hf.experts = {.routers = {"block_sparse_moe.gate", "mlp.gate"},
                  .each = {"block_sparse_moe.experts."},
                  .gate_up = {"w1", "w3"},
                  .down = "w2",
                  .stacked_gate_up = {{"block_sparse_moe.experts.gate_up_proj"},
                                      {"mlp.experts.gate_up_proj"}},
                  .stacked_down = {"block_sparse_moe.experts.down_proj", "mlp.experts.down_proj"}};
    TensorNames gguf = gguf_names();
    gguf.interleaved = true;
    gguf.experts = gguf_expert_names();
    return Family{.name = "mixtral",
                  .architecture = "MixtralForCausalLM",
                  .gguf_architecture = "llama",
                  .defaults = {.norm_epsilon = 1e-5,
                               .context_length = 131072,
                               .kv_heads = 8,
                               .vocab_size = 32000,
                               .hidden_size = 4096,
                               .intermediate_size = 14336,
                               .layers = 32,
                               .heads = 32,
                               .theta = 1e6},
                  .fields = {"num_experts", "num_experts_per_tok", "num_local_experts",
                             "router_jitter_noise", "sliding_window"},
                  .fixed = {{"attention_bias", "false"}, {"mlp_bias", "false"}},
                  .configure = configure_mixtral,
                  .hf = hf,
                  .gguf = gguf};
  }();
  return family;
}

}  // namespace quire::model

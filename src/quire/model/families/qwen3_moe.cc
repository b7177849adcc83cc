// Qwen3 with experts (30B-A3B, 235B-A22B): Qwen3 whose MLPs are experts, chosen by a softmax.
#include "quire/base/json.h"
#include "quire/model/config.h"
#include "quire/model/expert_fields.h"
#include "quire/model/family.h"
#include "quire/model/layer_plan.h"
#include "quire/model/layer_windows.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {
namespace {

Status configure_qwen3_moe(base::JsonView json, ModelConfig& config) {
  config.qk_norm = true;
  QUIRE_TRY(const bool attention_bias, base::get_bool(json, "attention_bias", false));
  config.qkv_bias = attention_bias;
  config.output_bias = attention_bias;
  QUIRE_TRY(const bool normalised, base::get_bool(json, "norm_topk_prob", false));
  config.experts.rule = normalised ? RouterRule::kSoftmaxOfChosen : RouterRule::kSoftmaxOfAll;
  QUIRE_TRY_STATUS(read_experts(
      json, {.count = 128, .chosen = 8, .size_field = "moe_intermediate_size", .size = 768},
      config));
  QUIRE_TRY_STATUS(read_dense_layers(json, config));
  QUIRE_TRY(const bool has_window, base::get_bool(json, "use_sliding_window", false));
  return has_window ? set_window(json, "sliding_window", 4096, config) : Status();
}

Status configure_qwen3_moe_gguf(const weights::GgufFile& file, ModelConfig& config) {
  QUIRE_TRY_STATUS(read_gguf_experts(file, {.architecture = "qwen3moe"}, config));
  if (config.mlps.empty()) {
    return {ErrorCode::kUnsupported, "GGUF key qwen3moe.expert_count is 0 or missing"};
  }
  return {};
}

}  // namespace

const Family& qwen3_moe_family() {
  static const Family family = [] {
    TensorNames hf = hf_names();
    hf.experts = {.routers = {"mlp.gate"},
                  .each = {"mlp.experts."},
                  .gate_up = {"gate_proj", "up_proj"},
                  .down = "down_proj",
                  .stacked_gate_up = {{"mlp.experts.gate_up_proj"}},
                  .stacked_down = {"mlp.experts.down_proj"}};
    TensorNames gguf = gguf_names();
    gguf.experts = gguf_expert_names();
    return Family{
        .name = "qwen3_moe",
        .architecture = "Qwen3MoeForCausalLM",
        .gguf_architecture = "qwen3moe",
        .defaults = {.context_length = 32768,
                     .kv_heads = 4,
                     .vocab_size = 151936,
                     .hidden_size = 2048,
                     .intermediate_size = 6144,
                     .layers = 24,
                     .heads = 32},
        .fields = {"attention_bias", "decoder_sparse_step", "mlp_only_layers",
                   "moe_intermediate_size", "norm_topk_prob", "num_experts", "num_experts_per_tok",
                   "num_local_experts", "sliding_window", "use_sliding_window"},
        .fixed = {{"use_mrope", "false"}, {"mlp_bias", "false"}},
        .configure = configure_qwen3_moe,
        .configure_gguf = configure_qwen3_moe_gguf,
        .gguf_keys = {"expert_count"},
        .qk_norm = true,
        .hf = hf,
        .gguf = gguf};
  }();
  return family;
}

}  // namespace quire::model

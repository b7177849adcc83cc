// The layers that Qwen3-Next and Qwen3.5 share. Three of four are gated delta rules; the others are
// attention with QK norm and a gate on its output. Norms stand for 1 + w, but for those of the
// delta rule.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "quire/base/json.h"
#include "quire/model/config.h"
#include "quire/model/family.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {

// Fields of config.json that read_gated_delta reads.
[[nodiscard]] std::vector<std::string_view> gated_delta_fields();
[[nodiscard]] Status read_gated_delta(base::JsonView json, ModelConfig& config);

// Keys of GGUF files that read_gated_delta_gguf reads, below the architecture's name.
[[nodiscard]] std::vector<std::string_view> gated_delta_gguf_keys();
[[nodiscard]] Status read_gated_delta_gguf(const weights::GgufFile& file, ModelConfig& config);

[[nodiscard]] TensorNames gated_delta_names();
[[nodiscard]] TensorNames gated_delta_gguf_names();

// The experts of such a model. Weights are a softmax over all, perhaps divided by the sum of the
// chosen. One more MLP for all rows stands behind a gate.
struct QwenExpertDefaults {
  std::int32_t count = 0;
  std::int32_t chosen = 0;
  bool may_be_raw = false;  // "norm_topk_prob" is read; else weights are always divided
};
[[nodiscard]] Status read_qwen_experts(base::JsonView json, const QwenExpertDefaults& defaults,
                                       ModelConfig& config);
[[nodiscard]] Status read_qwen_experts_gguf(const weights::GgufFile& file, ModelConfig& config);
[[nodiscard]] std::vector<std::string_view> qwen_expert_fields();
[[nodiscard]] ExpertNames qwen_expert_names();

}  // namespace quire::model

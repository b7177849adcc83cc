// The parts that families with attention over latents share: DeepSeek V2 and V3, GLM-4.7-Flash.
#pragma once

#include <cstdint>

#include "quire/base/json.h"
#include "quire/model/config.h"
#include "quire/model/family.h"
#include "quire/model/latent_shape.h"
#include "quire/result.h"

namespace quire::model {

// Reads the sizes of attention, those of `absent` where the file does not say them, and the scale
// of scores, to which YaRN adds.
[[nodiscard]] Status read_latents(base::JsonView json, const LatentShape& absent,
                                  ModelConfig& config);
// Values that transformers assumes for absent fields of experts; -1: the file must say it.
struct LatentExperts {
  std::int32_t count = 0, chosen = 0, size = 0, shared = 0;
  double weight_scale = 1;
};
// Reads experts, the MLP beside them, and the factor on their weights. All layers have them.
[[nodiscard]] Status read_latent_experts(base::JsonView json, const LatentExperts& absent,
                                         ModelConfig& config);
// Takes the experts from the first layers, as "first_k_dense_replace" says it.
[[nodiscard]] Status read_first_dense(base::JsonView json, std::int64_t absent,
                                      ModelConfig& config);
// Reads "n_group" and "topk_group".
[[nodiscard]] Status read_groups(base::JsonView json, std::int32_t groups, std::int32_t chosen,
                                 ModelConfig& config);
// Sets what every model has that chooses experts by sigmoids, and reads "norm_topk_prob".
[[nodiscard]] Status read_sigmoids(base::JsonView json, ModelConfig& config);
// Reads how many layers for drafts stand behind the others.
[[nodiscard]] Status read_drafts(base::JsonView json, ModelConfig& config);

// Returns what all of them have: fields, names of tensors, and the reader of GGUF files. The rule
// by which experts are chosen tells which family such a file is.
[[nodiscard]] Family latent_family();

}  // namespace quire::model

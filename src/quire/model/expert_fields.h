// The fields by which model files say what their experts are.
#pragma once

#include <cstdint>
#include <string_view>

#include "quire/base/json.h"
#include "quire/model/config.h"
#include "quire/model/layer_plan.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {

// Values that transformers assumes for absent fields of a family.
struct ExpertDefaults {
  std::int32_t count = 0;
  std::int32_t chosen = 0;
  std::string_view size_field;  // the intermediate size of an expert
  std::int32_t size = 0;
  std::string_view count_field = {};  // instead of "num_experts" and "num_local_experts"
  std::string_view chosen_field = "num_experts_per_tok";
};

// Reads "num_experts" or "num_local_experts", "num_experts_per_tok" and the size. All layers have
// experts then, or none if there are 0.
[[nodiscard]] Status read_experts(base::JsonView json, const ExpertDefaults& defaults,
                                  ModelConfig& config);

// Takes the experts from layers of "mlp_only_layers", and from those that "decoder_sparse_step"
// leaves out.
[[nodiscard]] Status read_dense_layers(base::JsonView json, ModelConfig& config);

// The answers of a family to what its GGUF files leave out about experts.
struct GgufExperts {
  std::string_view architecture;
  std::int32_t absent_size = 0;  // of an expert, where the file does not say it
  bool by_sigmoid = false;       // else by softmax: the one kind of router that the family has
  bool may_group = false;        // "expert_group_count" is honoured
};

// Reads the keys of GGUF files about experts. All layers have them, if there are any.
[[nodiscard]] Status read_gguf_experts(const weights::GgufFile& file, const GgufExperts& given,
                                       ModelConfig& config);

// Leaves nothing of experts where no layer has any; MLPs of other kinds stay.
void forget_unused_experts(ModelConfig& config);
// Takes the experts from the first `count` layers; `name` names the field.
[[nodiscard]] Status set_first_dense(std::int64_t count, std::string_view name,
                                     ModelConfig& config);
// Sets the size of the MLP beside experts; 1 or more, as `name` says it.
[[nodiscard]] Status set_shared_size(std::int64_t size, std::string_view name, ModelConfig& config);

}  // namespace quire::model

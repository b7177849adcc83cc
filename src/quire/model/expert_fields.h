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
};

// Reads "num_experts" or "num_local_experts", "num_experts_per_tok" and the size. All layers have
// experts then, or none if there are 0.
[[nodiscard]] Status read_experts(base::JsonView json, const ExpertDefaults& defaults,
                                  ModelConfig& config);

// Takes the experts from layers of "mlp_only_layers", and from those that "decoder_sparse_step"
// leaves out.
[[nodiscard]] Status read_dense_layers(base::JsonView json, ModelConfig& config);

// Reads the keys of GGUF files about experts. All layers have them, if there are any. Only
// routers by softmax are implemented. `absent_size` is the size of an expert where
// the file does not say it.
[[nodiscard]] Status read_gguf_experts(const weights::GgufFile& file, std::string_view architecture,
                                       std::int32_t absent_size, ModelConfig& config);

}  // namespace quire::model

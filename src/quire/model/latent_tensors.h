// The parts of tensors that make the weights of attention over latents.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/family.h"
#include "quire/model/tensor_part.h"
#include "quire/result.h"
#include "quire/weights/model_files.h"

namespace quire::model {

// Tells whether a weight is one of those; for the first projection of a layer the config decides.
[[nodiscard]] bool is_of_latents(const ModelConfig& config, WeightRole role);

// Where a weight's tensors are looked up.
struct LatentTensors {
  const ModelConfig& config;
  const TensorNames& names;
  const weights::ModelFiles& files;
  std::string_view prefix;  // of the layer
};

// Finds the tensors of such a weight, and checks their shapes.
[[nodiscard]] Result<std::vector<TensorPart>> find_of_latents(const LatentTensors& in,
                                                              const WeightId& id);

}  // namespace quire::model

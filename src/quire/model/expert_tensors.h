// Which tensors of model files hold the router and the experts of a layer.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "quire/model/decoder_weights.h"
#include "quire/model/family.h"
#include "quire/weights/model_files.h"

namespace quire::model {

// Names behind the layer's number, with their endings.
struct ExpertTensors {
  std::vector<std::string> names;
  bool stacked = false;  // each holds all experts of the layer
};

// Returns the tensors of a router or expert, of the first alternative that `files` have behind
// `prefix`; of the first alternative where they have none. Precondition: the family has experts.
[[nodiscard]] ExpertTensors expert_tensors(const ExpertNames& names, const WeightId& id,
                                           std::string_view prefix,
                                           const weights::ModelFiles& files);

[[nodiscard]] constexpr bool is_of_experts(WeightRole role) {
  return role == WeightRole::kRouter || role == WeightRole::kExpertGateUp ||
         role == WeightRole::kExpertDown;
}

}  // namespace quire::model

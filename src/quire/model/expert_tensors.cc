#include "quire/model/expert_tensors.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/str.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/family.h"
#include "quire/weights/model_files.h"

namespace quire::model {
namespace {

std::vector<ExpertTensors> alternatives(const ExpertNames& names, const WeightId& id) {
  std::vector<ExpertTensors> all;
  if (id.role == WeightRole::kRouter) {
    for (const std::string_view router : names.routers) {
      all.push_back({.names = {base::str_cat(router, id.bias ? ".bias" : ".weight")}});
    }
    return all;
  }
  const bool is_down = id.role == WeightRole::kExpertDown;
  if (id.bias) {
    ExpertTensors& biases = all.emplace_back();
    biases.stacked = true;
    if (is_down) {
      biases.names = {std::string(names.down_bias)};
    } else {
      biases.names.assign(names.gate_up_bias.begin(), names.gate_up_bias.end());
    }
    return all;
  }
  for (const std::string_view each : names.each) {
    ExpertTensors& next = all.emplace_back();
    for (const std::string_view stem :
         is_down ? std::vector<std::string_view>{names.down} : names.gate_up) {
      next.names.push_back(base::str_cat(each, id.expert, ".", stem, ".weight"));
    }
  }
  if (is_down) {
    for (const std::string_view stacked : names.stacked_down) {
      all.push_back({.names = {std::string(stacked)}, .stacked = true});
    }
    return all;
  }
  for (const auto& stacked : names.stacked_gate_up) {
    all.push_back({.names = {stacked.begin(), stacked.end()}, .stacked = true});
  }
  return all;
}

}  // namespace

ExpertTensors expert_tensors(const ExpertNames& names, const WeightId& id, std::string_view prefix,
                             const weights::ModelFiles& files) {
  std::vector<ExpertTensors> all = alternatives(names, id);
  QUIRE_CHECK(!all.empty(), "a config with experts is of a family that has them");
  const auto found = std::ranges::find_if(all, [&](const ExpertTensors& tensors) {
    return files.find(base::str_cat(prefix, tensors.names.front())) != nullptr;
  });
  return found == all.end() ? all.front() : *found;
}

}  // namespace quire::model

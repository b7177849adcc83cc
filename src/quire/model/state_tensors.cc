#include "quire/model/state_tensors.h"

#include <cstdint>
#include <vector>

#include "quire/model/decoder_weights.h"
#include "quire/model/state_shape.h"
#include "quire/model/tensor_part.h"
#include "quire/model/tensor_shape.h"
#include "quire/result.h"
#include "quire/weights/model_files.h"

namespace quire::model {

Status check_conv(const weights::TensorInfo& tensor, const WeightId& id, const StateShape& state) {
  if (!id.bias && tensor.shape.size() == 3 && tensor.shape[1] == 1 &&
      tensor.shape[0] == state.channels && tensor.shape[2] == state.taps) {
    return {};
  }
  return id.bias ? check_shape(tensor, {state.channels})
                 : check_shape(tensor, {state.channels, state.taps});
}

bool is_of_state(WeightRole role) {
  return role == WeightRole::kDecay || role == WeightRole::kDecayShift ||
         role == WeightRole::kStateSkip || role == WeightRole::kStateNorm;
}

std::vector<TensorPart> parts_by_key_head(const TensorPart& whole, WeightRole role,
                                          const StateShape& state) {
  const std::int64_t share = state.value_heads / state.key_heads;
  const std::vector<std::int64_t> sizes =
      role == WeightRole::kStateGates
          ? std::vector<std::int64_t>{share, share}
          : std::vector<std::int64_t>{state.key_dim, state.key_dim, share * state.value_dim,
                                      share * state.value_dim};
  std::vector<TensorPart> parts;
  std::int64_t first = 0;
  for (const std::int64_t size : sizes) {
    parts.push_back({.tensor = whole.tensor,
                     .rows = size * state.key_heads,
                     .first_row = first,
                     .groups = {.rows = size, .stride = whole.rows / state.key_heads}});
    first += size;
  }
  return parts;
}

}  // namespace quire::model

// The tensors of layers that carry a state: their shapes, and rows that files group.
#pragma once

#include <vector>

#include "quire/model/decoder_weights.h"
#include "quire/model/state_shape.h"
#include "quire/model/tensor_part.h"
#include "quire/result.h"
#include "quire/weights/model_files.h"

namespace quire::model {

// Checks the shape of a convolution, which is [channels, 1, taps], or [channels, taps] in GGUF.
[[nodiscard]] Status check_conv(const weights::TensorInfo& tensor, const WeightId& id,
                                const StateShape& state);
// Tells whether a vector is of a layer with a state. GGUF files may keep such vectors as matrices.
[[nodiscard]] bool is_of_state(WeightRole role);
// Returns the parts of a tensor of a gated delta rule whose rows are grouped by key heads. The rows
// of a group are queries, keys, values and what gates the output, or beta and decay.
[[nodiscard]] std::vector<TensorPart> parts_by_key_head(const TensorPart& whole, WeightRole role,
                                                        const StateShape& state);

}  // namespace quire::model

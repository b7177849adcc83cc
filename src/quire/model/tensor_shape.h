// The shapes that a config wants of tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "quire/result.h"
#include "quire/weights/model_files.h"

namespace quire::model {

// Returns kCorrupt that names the tensor and both shapes, unless they are the same.
[[nodiscard]] Status check_shape(const weights::TensorInfo& tensor,
                                 const std::vector<std::int64_t>& wanted);

}  // namespace quire::model

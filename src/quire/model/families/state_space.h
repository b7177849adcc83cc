// The fields and names that families with Mamba-2 layers share.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "quire/base/json.h"
#include "quire/model/config.h"
#include "quire/model/family.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {

// The upper bound of steps that have none.
inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// Returns a size that is clamped to what no index overflows; StateShape::validate bounds it.
[[nodiscard]] Result<std::int32_t> get_space_size(base::JsonView json, std::string_view key,
                                                  std::int64_t absent);
// Reads the bounds of steps, [0, infinity] where they are absent. Infinity is a bare word or what
// transformers writes for it.
[[nodiscard]] Status read_step_limit(base::JsonView json, std::string_view key,
                                     ModelConfig& config);
// Sets the channels that are convolved: values, keys and queries.
void set_space_channels(ModelConfig& config);
// Takes the state from a model of which no layer has one.
void forget_unused_states(ModelConfig& config);

// Reads the sizes of a GGUF file, from keys behind `prefix`, and whether convolutions have a bias.
[[nodiscard]] Status read_state_spaces(const weights::GgufFile& file, const std::string& prefix,
                                       ModelConfig& config);

// Sets the names of such layers' tensors, which begin with "mamba." or "mixer.".
void set_space_names(std::string_view beginning, TensorNames& names);
void set_space_gguf_names(TensorNames& names);

}  // namespace quire::model

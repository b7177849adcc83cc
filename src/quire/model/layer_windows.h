// The sliding windows of a model's layers, as families write them into config.json.
#pragma once

#include <cstdint>
#include <string_view>

#include "quire/base/json.h"
#include "quire/model/config.h"
#include "quire/result.h"

namespace quire::model {

// Gives all layers one window: `json[key]` tokens, none when it is null, `absent` when it is not
// there (0: none).
[[nodiscard]] Status set_window(base::JsonView json, std::string_view key, std::int32_t absent,
                                ModelConfig& config);
// Gives each layer its window as Qwen says it: "use_sliding_window", "sliding_window",
// "max_window_layers", "layer_types".
[[nodiscard]] Status set_windows_by_layer(base::JsonView json, ModelConfig& config);

}  // namespace quire::model

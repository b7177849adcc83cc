// The sliding windows of a model's layers, as families write them into config.json.
#pragma once

#include <cstdint>
#include <string_view>

#include "quire/base/json.h"
#include "quire/model/config.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {

// Gives all layers one window: `json[key]` tokens, none when it is null, `absent` when it is not
// there (0: none).
[[nodiscard]] Status set_window(base::JsonView json, std::string_view key, std::int32_t absent,
                                ModelConfig& config);
// Gives each layer its window as Qwen says it: "use_sliding_window", "sliding_window",
// "max_window_layers", "layer_types".
[[nodiscard]] Status set_windows_by_layer(base::JsonView json, ModelConfig& config);

// Windows on all layers but each `period`th, unless the file lists the layers' types.
struct WindowTurns {
  std::int64_t period = 0;
  std::string_view period_field = {};  // of config.json, if it has one
  std::int32_t absent_window = 0;      // where config.json does not name a window
};

// Gives the layers of "layer_types", or those of the turns, the window of "sliding_window".
[[nodiscard]] Status set_windows_in_turn(base::JsonView json, const WindowTurns& turns,
                                         ModelConfig& config);
// Does so for a GGUF file, from "attention.sliding_window" and "attention.sliding_window_pattern",
// which is a period or a list. A file without a window has none.
[[nodiscard]] Status set_windows_in_turn(const weights::GgufFile& file, const WindowTurns& turns,
                                         ModelConfig& config);
// Gives windows to layers without a rope, as SmolLM3 says it, unless "layer_types" names others.
[[nodiscard]] Status set_windows_without_rope(base::JsonView json, ModelConfig& config);
// Gives layers with a window the rope RopeKind::kLocal.
void turn_windows_locally(ModelConfig& config);

}  // namespace quire::model

#include "quire/model/layer_windows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/model/config.h"
#include "quire/model/layer_plan.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"
#include "quire/weights/gguf_value.h"

namespace quire::model {
namespace {

constexpr std::int64_t kMaxWindow = std::int64_t{1} << 30;

Result<std::int32_t> window_tokens(base::JsonView json, std::string_view key) {
  QUIRE_TRY(const std::int64_t window, base::get_int(json, key, 0));
  if (window < 1 || window > kMaxWindow) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat(base::quoted(key), " is ", window, "; must be in [1, ", kMaxWindow, "]")};
  }
  return static_cast<std::int32_t>(window);
}

// Returns true for the layers that "layer_types" gives a window; none if there is no such list.
Result<std::vector<bool>> listed_layers(base::JsonView json, std::int32_t layers) {
  const base::JsonView types = json.find("layer_types");
  if (types.is_null()) {
    return std::vector<bool>();
  }
  std::vector<bool> windowed(static_cast<std::size_t>(layers));
  if (!types.is_array() || types.size() != windowed.size()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("\"layer_types\" must be a list of ", layers, " names")};
  }
  for (std::size_t i = 0; i < windowed.size(); ++i) {
    const base::JsonView type = types[i];
    windowed[i] = type == "sliding_attention";
    if (!windowed[i] && type != "full_attention") {
      return {ErrorCode::kUnsupported,
              base::str_cat("\"layer_types\" has ", base::quoted(base::write_json(type)),
                            " for layer ", i, "; known: full_attention, sliding_attention")};
    }
  }
  return windowed;
}

// Returns true for the layers that have the window.
Result<std::vector<bool>> windowed_layers(base::JsonView json, bool use_window,
                                          std::int32_t layers) {
  QUIRE_TRY(std::vector<bool> windowed, listed_layers(json, layers));
  if (!windowed.empty()) {
    return windowed;
  }
  windowed.resize(static_cast<std::size_t>(layers));
  QUIRE_TRY(const std::int64_t first, base::get_int(json, "max_window_layers", 28));
  for (std::size_t i = 0; i < windowed.size(); ++i) {
    windowed[i] = use_window && static_cast<std::int64_t>(i) >= first;
  }
  return windowed;
}

// Returns true for all layers but each `period`th.
std::vector<bool> layers_in_turn(std::int64_t period, std::int32_t layers) {
  std::vector<bool> windowed(static_cast<std::size_t>(layers));
  for (std::size_t i = 0; i < windowed.size(); ++i) {
    windowed[i] = (static_cast<std::int64_t>(i) + 1) % period != 0;
  }
  return windowed;
}

Status check_period(std::string_view name, std::int64_t period) {
  if (period >= 1) {
    return {};
  }
  return {ErrorCode::kInvalidArgument, base::str_cat(name, " is ", period, "; must be 1 or more")};
}

void set_windows(const std::vector<bool>& windowed, std::int32_t window, ModelConfig& config) {
  config.window_tokens.assign(windowed.size(), 0);
  for (std::size_t i = 0; i < windowed.size(); ++i) {
    config.window_tokens[i] = windowed[i] ? window : 0;
  }
}

// Reads which layers of a GGUF file have a window.
Result<std::vector<bool>> layers_of_pattern(const weights::GgufFile& file, const std::string& key,
                                            const WindowTurns& turns, std::int32_t layers) {
  const weights::GgufValue* value = file.find(key);
  const auto* list = value == nullptr ? nullptr : std::get_if<std::vector<std::int64_t>>(value);
  if (list != nullptr) {
    if (list->size() != static_cast<std::size_t>(layers)) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("GGUF key ", key, " lists ", list->size(), " of ", layers, " layers")};
    }
    std::vector<bool> windowed;
    std::ranges::transform(*list, std::back_inserter(windowed),
                           [](std::int64_t item) { return item != 0; });
    return windowed;
  }
  QUIRE_TRY(const std::int64_t period, file.get_int(key, turns.period));
  QUIRE_TRY_STATUS(check_period(base::str_cat("GGUF key ", key), period));
  return layers_in_turn(period, layers);
}

}  // namespace

Status set_window(base::JsonView json, std::string_view key, std::int32_t absent,
                  ModelConfig& config) {
  std::int32_t window = json.contains(key) ? 0 : absent;
  if (!json.find(key).is_null()) {
    QUIRE_TRY(window, window_tokens(json, key));
  }
  config.window_tokens.assign(static_cast<std::size_t>(config.layers), window);
  return {};
}

Status set_windows_by_layer(base::JsonView json, ModelConfig& config) {
  QUIRE_TRY(bool use_window, base::get_bool(json, "use_sliding_window", false));
  std::int32_t window = 4096;  // if absent
  if (use_window && !json.find("sliding_window").is_null()) {
    QUIRE_TRY(window, window_tokens(json, "sliding_window"));
  } else if (json.contains("sliding_window")) {
    use_window = false;
  }
  QUIRE_TRY(const auto windowed, windowed_layers(json, use_window, config.layers));
  config.window_tokens.assign(windowed.size(), 0);
  for (std::size_t i = 0; i < windowed.size(); ++i) {
    if (windowed[i] && !use_window) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("\"layer_types\" gives layer ", i,
                            " a window, but \"use_sliding_window\" is false")};
    }
    config.window_tokens[i] = windowed[i] ? window : 0;
  }
  return {};
}

Status set_windows_in_turn(base::JsonView json, const WindowTurns& turns, ModelConfig& config) {
  QUIRE_TRY(std::vector<bool> windowed, listed_layers(json, config.layers));
  if (windowed.empty()) {
    std::int64_t period = turns.period;
    if (!turns.period_field.empty()) {
      QUIRE_TRY(period, base::get_int(json, turns.period_field, turns.period));
      QUIRE_TRY_STATUS(check_period(base::quoted(turns.period_field), period));
    }
    windowed = layers_in_turn(period, config.layers);
  }
  std::int32_t window = turns.absent_window;
  if (json.contains("sliding_window") && std::ranges::find(windowed, true) != windowed.end()) {
    QUIRE_TRY(window, window_tokens(json, "sliding_window"));
  }
  set_windows(windowed, window, config);
  return {};
}

Status set_windows_in_turn(const weights::GgufFile& file, const WindowTurns& turns,
                           ModelConfig& config) {
  const std::int32_t window = config.window_tokens.front();  // of all layers, as it was read
  if (window == 0) {
    return {};
  }
  QUIRE_TRY(const auto architecture, file.get_string("general.architecture", ""));
  QUIRE_TRY(const auto windowed,
            layers_of_pattern(file, architecture + ".attention.sliding_window_pattern", turns,
                              config.layers));
  set_windows(windowed, window, config);
  return {};
}

Status set_windows_without_rope(base::JsonView json, ModelConfig& config) {
  QUIRE_TRY(const bool asked, base::get_bool(json, "use_sliding_window", false));
  const bool use_window = asked && !json.find("sliding_window").is_null();
  QUIRE_TRY(std::vector<bool> windowed, listed_layers(json, config.layers));
  if (!use_window) {
    const auto first = std::ranges::find(windowed, true);
    if (first != windowed.end()) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("\"layer_types\" gives layer ", first - windowed.begin(),
                            " a window, but \"use_sliding_window\" is false")};
    }
    return {};
  }
  if (windowed.empty()) {
    for (const RopeKind rope : config.ropes) {
      windowed.push_back(rope == RopeKind::kNone);
    }
  }
  QUIRE_TRY(const std::int32_t window, window_tokens(json, "sliding_window"));
  set_windows(windowed, window, config);
  return {};
}

void turn_windows_locally(ModelConfig& config) {
  config.ropes.clear();
  for (const std::int32_t window : config.window_tokens) {
    config.ropes.push_back(window > 0 ? RopeKind::kLocal : RopeKind::kMain);
  }
}

}  // namespace quire::model

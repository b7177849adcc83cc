#include "quire/model/layer_windows.h"

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/model/config.h"
#include "quire/result.h"

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

// Returns true for the layers that have the window.
Result<std::vector<bool>> windowed_layers(base::JsonView json, bool use_window,
                                          std::int32_t layers) {
  std::vector<bool> windowed(static_cast<std::size_t>(layers));
  const base::JsonView types = json.find("layer_types");
  if (types.is_null()) {
    QUIRE_TRY(const std::int64_t first, base::get_int(json, "max_window_layers", 28));
    for (std::size_t i = 0; i < windowed.size(); ++i) {
      windowed[i] = use_window && static_cast<std::int64_t>(i) >= first;
    }
    return windowed;
  }
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

}  // namespace quire::model

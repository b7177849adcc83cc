// Measures a model by its own engine, each figure beside its floor.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "quire/diagnostics.h"
#include "quire/model/config.h"
#include "quire/result.h"
#include "quire/runtime/runtime.h"

namespace quire::diagnostics {

// Returns true if some layer has a sliding window. It forgets what a file or a chunk would hold.
[[nodiscard]] bool has_window(const model::ModelConfig& config);

// Makes the measurements that `options` name, which fit the model's context. Every shape is
// computed once before it is timed. Calls `say` before each measurement. Returns the first error.
[[nodiscard]] Result<std::vector<BenchRecord>> measure(
    runtime::Runtime& runtime, const BenchOptions& options,
    const std::function<void(const std::string&)>& say);

}  // namespace quire::diagnostics

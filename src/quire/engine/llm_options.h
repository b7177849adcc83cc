// Public options: their check, and what they are in the engine's terms.
#pragma once

#include "quire/engine/engine.h"
#include "quire/options.h"
#include "quire/result.h"

namespace quire::engine {

// Checks the options by themselves (LLMOptions::validate).
// Errors: kInvalidArgument and kUnsupported name the option and the values that are allowed.
[[nodiscard]] Status check_options(const LLMOptions& options);

// Returns what an engine is started with. Precondition: check_options(options).ok().
[[nodiscard]] EngineOptions to_engine_options(const LLMOptions& options);

}  // namespace quire::engine

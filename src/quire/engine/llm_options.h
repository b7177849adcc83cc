// Public options in the engine's terms.
#pragma once

#include "quire/engine/engine.h"
#include "quire/llm.h"

namespace quire::engine {

// Precondition: options.validate().ok().
[[nodiscard]] EngineOptions to_engine_options(const LLMOptions& options);

}  // namespace quire::engine

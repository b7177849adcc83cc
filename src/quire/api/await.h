// Waiting for requests on behalf of a caller.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "quire/engine/channel.h"
#include "quire/engine/engine.h"
#include "quire/interrupt.h"
#include "quire/output.h"
#include "quire/result.h"

namespace quire {

using Channels = std::span<const std::shared_ptr<engine::Channel>>;

// Blocks until all have ended. When one fails or the caller interrupts, ends those that still run,
// for nobody will read them, and returns the failure.
[[nodiscard]] Status await(engine::Engine& engine, Channels channels, const Interrupt& interrupted);

// Blocks as await() does, and returns the output of each.
[[nodiscard]] Result<std::vector<GenerationOutput>> await_outputs(engine::Engine& engine,
                                                                  Channels channels,
                                                                  const Interrupt& interrupted);

}  // namespace quire

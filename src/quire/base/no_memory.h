// Makes the error of a call that the machine refused memory. Nothing here throws.
#pragma once

#include "quire/result.h"

namespace quire::base {

// Returns kOutOfBlocks with a message that says `what` the memory was for. The message is shorter
// when there is no memory for it.
[[nodiscard]] Error no_memory(const char* what) noexcept;

// Returns a copy of `error`, or an error of no_memory() when there is no memory for a copy.
[[nodiscard]] Error copy_of(const Error& error) noexcept;

}  // namespace quire::base

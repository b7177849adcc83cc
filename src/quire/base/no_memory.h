// The error of a call that the machine refused memory.
#pragma once

#include "quire/result.h"

namespace quire::base {

// Returns kOutOfBlocks, with a message that says `what` the memory was for. Works without memory:
// then the message is shorter.
[[nodiscard]] Error no_memory(const char* what) noexcept;

// Returns a copy, or what no_memory says where there is no memory for one.
[[nodiscard]] Error copy_of(const Error& error) noexcept;

}  // namespace quire::base

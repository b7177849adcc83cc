// The memory of this process that is in RAM.
#pragma once

#include <cstdint>

namespace quire::base {

// Returns the bytes of the process that are in RAM, mapped files included; 0 where the system does
// not tell. Allocates nothing.
[[nodiscard]] std::int64_t resident_bytes();

}  // namespace quire::base

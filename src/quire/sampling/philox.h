// Philox4x32-10 is a counter-based generator: a number depends on its key and counter alone.
// Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
#pragma once

#include <array>
#include <cstdint>

namespace quire::sampling {

[[nodiscard]] std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter,
                                                         std::array<std::uint32_t, 2> key);

// Returns a uniform double in [0, 1), a multiple of 2^-53, that depends on nothing but its two
// arguments.
[[nodiscard]] double uniform_at(std::uint64_t seed, std::uint64_t counter);

}  // namespace quire::sampling

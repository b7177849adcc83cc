// Code books of ggml's IQ types: the groups of values that an index of a block names. They are data
// of the GGUF format. Source: the grids of ggml-common.h of llama.cpp (commit 0c1e57098), whose
// bytes are levels here.
#pragma once

#include <array>
#include <cstdint>

namespace quire::weights {

// Eight magnitudes, 2 bits each, that of the first value lowest: 0, 1 and 2 are 8, 25 and 43.
extern const std::array<std::uint16_t, 256> iq2_xxs_book;
extern const std::array<std::uint16_t, 512> iq2_xs_book;
extern const std::array<std::uint16_t, 1024> iq2_s_book;
// Four magnitudes, 3 bits each. Levels are 4, 12, 20, 28, 36, 44, 52 and 62 in IQ3_XXS, and the odd
// numbers from 1 to 15 in IQ3_S.
extern const std::array<std::uint16_t, 256> iq3_xxs_book;
extern const std::array<std::uint16_t, 512> iq3_s_book;
// Eight values of IQ1_S and IQ1_M, 2 bits each: 0, 1 and 2 are -1, 0 and 1.
extern const std::array<std::uint16_t, 2048> iq1_book;

}  // namespace quire::weights

// Codes of 4 bits that name weights in a table, and codes of 2 bits: t4g32, t4g16 and q2m16 of
// packed_weights.h, column by column.
#pragma once

#include <cstddef>

#include "quire/kernels/weight_format.h"
#include "quire/tensor/code_rows.h"

namespace quire::kernels {

// The table that pack_small_codes uses: twice the values of E2M1, the 4-bit floats of MXFP4.
inline constexpr tensor::CodeTable kE2m1Table = {0, 1,  2,  3,  4,  6,  8,  12,
                                                 0, -1, -2, -3, -4, -6, -8, -12};

// Writes a table to the head of a panel.
void put_code_table(const tensor::CodeTable& table, std::byte* panel);

// Writes column `column` of a step from the codes of group `group`, which are 32 weights of a row.
void place_small_codes(WeightFormat format, const tensor::CodeRows& from, std::size_t group,
                       int column, std::byte* step);

// Packs column `column` of a step from 32 plain weights. t4g32 and t4g16 find the nearest value of
// kE2m1Table times scale = amax / 12. In t4g16 a half's scale is a multiple, up to 127, of the
// larger one / 127. q2m16 has scale = range / 3 and a minimum, at most 0, for each half. Both are
// multiples, up to 15, of the larger one / 15.
void pack_small_codes(WeightFormat format, const float* w, int column, std::byte* step);

// Gives the 32 weights of a column of a step, whose panel begins with `head`.
void unpack_small_codes(WeightFormat format, const std::byte* head, const std::byte* step,
                        int column, float* w);

}  // namespace quire::kernels

// The places of int4 codes in a head block on a device. K and V each hold, for each run of 32
// tokens, [head_dim / 32][32 tokens][4] words. A word has eight neighbouring channels of a token,
// in the order of tensor::code_place. So 32 tokens of 32 channels are 512 neighbouring bytes, rows
// of 16 that a warp loads at once. Tokens lie in the order in which the tensor core's small
// products give them to lanes: a lane of four has eight neighbours. Scales lie as on the host.
#pragma once

#include "quire/tensor/kv_format.h"

namespace quire::kernels::cuda {

inline constexpr int kInt4WordCodes = 8;
inline constexpr int kInt4PieceWords = 4;  // of a token that lie together: 32 channels

// Returns the place of a token of a run among its 32.
[[nodiscard]] constexpr int int4_place(int token) {
  return token / 4 % 2 * 16 + token / 2 % 2 * 8 + token / 8 * 2 + token % 2;
}
// Returns the token at a place: the inverse.
[[nodiscard]] constexpr int int4_token(int place) {
  return place / 2 % 4 * 8 + place / 16 * 4 + place / 8 % 2 * 2 + place % 2;
}

// Returns the index of the word with channels [8 * word, 8 * word + 8) of a token slot, in K or V.
[[nodiscard]] constexpr int int4_word(int head_dim, int slot, int word) {
  constexpr int kRun = tensor::kInt4RunTokens;
  const int piece =
      slot / kRun * (head_dim / (kInt4WordCodes * kInt4PieceWords)) + word / kInt4PieceWords;
  return (piece * kRun + int4_place(slot % kRun)) * kInt4PieceWords + word % kInt4PieceWords;
}

}  // namespace quire::kernels::cuda

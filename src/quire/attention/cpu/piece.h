// One canonical piece of 256 tokens as the kernels see it: units of 32 tokens. Each has
//   K   [padded_dim / kPack][32] words, rows k_stride words apart
//   V   [32 / kPack][padded_dim] words
// Blocks of 32 tokens (or a multiple) hold whole units and are read where they lie. Blocks of any
// other size are first gathered into that order. So the arithmetic, and with it the bits, are the
// same for every block size.
#pragma once

#include "quire/attention/cpu/formats.h"
#include "quire/attention/cpu/kernel_table.h"

namespace quire::attention {
namespace {

using kernels::max_int;
using kernels::min_int;

// Tokens of one piece that the rows of the strip see.
struct PieceRows {
  TokenRange seen[kStripRows];  // empty: {0, 0}
  TokenRange common;            // seen by all rows
  int end = 0;                  // no row sees a token from here on
  unsigned units = 0;           // bit u: some row sees some token of unit u
};

// The units that some row sees, side by side.
struct PieceView {
  int units = 0;
  int place[kPieceUnits];  // unit of the piece -> index here, for those seen
  int unit[kPieceUnits];   // index here -> unit of the piece, ascending
  const Word* k[kPieceUnits];
  const Word* v[kPieceUnits];
  int value_words[kPieceUnits];  // rows of V that are multiplied
  std::ptrdiff_t k_stride = kUnitTokens;
  // Words that come after a unit of V: a unit of K of the next piece, or else the unit itself.
  const Word* after_v[kPieceUnits];
};

inline PieceRows rows_of_piece(const AttentionTask& t, int piece) {
  const int first = piece * kPieceTokens;
  PieceRows rows;
  rows.common = {0, kPieceTokens};
  for (int r = 0; r < t.rows; ++r) {
    const int begin = max_int(t.visible[r].begin - first, 0);
    const int end = min_int(t.visible[r].end - first, kPieceTokens);
    rows.seen[r] = begin < end ? TokenRange{begin, end} : TokenRange{};
    rows.common.begin = max_int(rows.common.begin, rows.seen[r].begin);
    rows.common.end = min_int(rows.common.end, rows.seen[r].end);
    if (begin < end) {
      rows.end = max_int(rows.end, end);
      const unsigned until_last = (2u << ((end - 1) / kUnitTokens)) - 1;
      rows.units |= until_last & ~((1u << (begin / kUnitTokens)) - 1);
    }
  }
  return rows;
}

// Returns where a token's block begins, or nullptr for a block that has been freed behind a window.
inline const std::byte* block_of(const AttentionTask& t, int token) {
  const std::int32_t id = t.blocks[token / t.block_tokens];
  return id < 0 ? nullptr : t.kv + id * t.block_stride;
}

// Calls fn(block, slot, token, count) for each range of [begin, end) that lies in one block.
template <class Fn>
void for_each_block_range(const AttentionTask& t, int begin, int end, Fn fn) {
  for (int token = begin; token < end;) {
    const int slot = token % t.block_tokens;
    const int count = min_int(t.block_tokens - slot, end - token);
    if (const std::byte* block = block_of(t, token)) {
      fn(block, slot, token, count);
    }
    token += count;
  }
}

inline void copy_words(Word* __restrict to, const Word* __restrict from, std::ptrdiff_t count) {
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    to[i] = from[i];
  }
}

// Returns the token slots of a block as stored.
template <class E>
int stored_slots(const AttentionTask& t) {
  constexpr int kUnit = max_int(E::kPack, 2);
  return (t.block_tokens + kUnit - 1) / kUnit * kUnit;
}

// Copies K of tokens [begin, end), all in one unit that begins at `first`. Other columns stay as
// they are: their scores are masked.
template <class E>
void gather_keys(const AttentionTask& t, int first, TokenRange tokens, Word* out) {
  const int slots = stored_slots<E>(t);
  for_each_block_range(t, tokens.begin, tokens.end,
                       [&](const std::byte* block, int slot, int token, int count) {
                         const Word* from = reinterpret_cast<const Word*>(block) + slot;
                         Word* to = out + (token - first);
                         for (int step = 0; step < t.padded_dim / E::kPack; ++step) {
                           copy_words(to, from, count);
                           to += kUnitTokens;
                           from += slots;
                         }
                       });
}

// Returns the place of code `index` in a word, as tensor::code_place.
template <class E>
constexpr int code_place(int index) {
  return index % 2 * (E::kPack / 2) + index / 2;
}

// Returns the first bit of token `slot` in a word of V.
template <class E>
constexpr int bit_of(int slot) {
  const int place = slot % E::kPack;
  return (E::kCodes ? code_place<E>(place) : place) * (32 / E::kPack);
}

// Adds one token to words of V, which hold zeros there so far. Bits count from the first on.
template <class E>
void add_part(Word* __restrict to, int to_bit, const Word* __restrict from, int from_bit,
              std::ptrdiff_t count) {
  constexpr Word kMask = (1u << (32 / E::kPack)) - 1;
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    to[i] |= (from[i] >> from_bit & kMask) << to_bit;
  }
}

// Copies `count` tokens of V from `slot` of a block to place `at` of a unit.
template <class E>
void copy_values(const AttentionTask& t, const Word* v, int slot, Word* unit, int at, int count) {
  const std::ptrdiff_t dim = t.padded_dim;
  if constexpr (E::kPack == 1) {
    copy_words(unit + at * dim, v + slot * dim, count * dim);
  } else {
    for (int i = 0; i < count;) {
      Word* to = unit + (at + i) / E::kPack * dim;
      const Word* from = v + (slot + i) / E::kPack * dim;
      if ((at + i) % E::kPack == 0 && (slot + i) % E::kPack == 0 && i + E::kPack <= count) {
        copy_words(to, from, dim);
        i += E::kPack;
      } else {
        add_part<E>(to, bit_of<E>(at + i), from, bit_of<E>(slot + i), dim);
        ++i;
      }
    }
  }
}

// Copies V of tokens [begin, end), all in one unit that begins at `first`; writes zeros elsewhere.
template <class E>
void gather_values(const AttentionTask& t, int first, TokenRange tokens, Word* out) {
  for (int i = 0; i < kUnitTokens / E::kPack * t.padded_dim; ++i) {
    out[i] = 0;
  }
  for_each_block_range(t, tokens.begin, tokens.end,
                       [&](const std::byte* block, int slot, int token, int count) {
                         const Word* v = reinterpret_cast<const Word*>(block + t.v_offset);
                         copy_values<E>(t, v, slot, out, token - first, count);
                       });
}

// Returns the tokens of the piece from the first to the last that some row sees.
inline TokenRange seen_by_some(const AttentionTask& t, const PieceRows& rows) {
  TokenRange seen = {kPieceTokens, rows.end};
  for (int r = 0; r < t.rows; ++r) {
    if (rows.seen[r].begin < rows.seen[r].end) {
      seen.begin = min_int(seen.begin, rows.seen[r].begin);
    }
  }
  return seen;
}

// Returns the tokens of the run that are in `seen` and in a unit, which begins at token `in_piece`
// of the piece.
inline TokenRange tokens_of_unit(int piece, TokenRange seen, int in_piece) {
  const int first = piece * kPieceTokens + in_piece;
  return {first + max_int(seen.begin - in_piece, 0),
          first + min_int(seen.end - in_piece, kUnitTokens)};
}

// Points v at copies of the units that hold tokens `seen` of the piece and zeros elsewhere.
template <class E>
void gather_all_values(const AttentionTask& t, int piece, TokenRange seen, PieceView& view) {
  const int unit_words = kUnitTokens / E::kPack * t.padded_dim;
  Word* out = reinterpret_cast<Word*>(t.scratch) + std::ptrdiff_t{kPieceUnits} * unit_words;
  for (int i = 0; i < view.units; ++i, out += unit_words) {
    const int in_piece = view.unit[i] * kUnitTokens, first = piece * kPieceTokens + in_piece;
    gather_values<E>(t, first, tokens_of_unit(piece, seen, in_piece), out);
    view.v[i] = out;
  }
}

template <class E>
void gather_piece(const AttentionTask& t, int piece, const PieceRows& rows, PieceView& view) {
  const TokenRange seen = seen_by_some(t, rows);
  const int unit_words = kUnitTokens / E::kPack * t.padded_dim;
  Word* out = reinterpret_cast<Word*>(t.scratch);
  for (int i = 0; i < view.units; ++i, out += unit_words) {
    const int in_piece = view.unit[i] * kUnitTokens, first = piece * kPieceTokens + in_piece;
    gather_keys<E>(t, first, tokens_of_unit(piece, seen, in_piece), out);
    view.k[i] = out;
  }
  gather_all_values<E>(t, piece, seen, view);
}

// Returns those of `units` that an earlier strip has made in scratch. The others count as made from
// here on.
inline unsigned kept_units(const AttentionTask& t, int piece, unsigned units) {
  if (t.widened == nullptr || t.block_tokens % kUnitTokens != 0) {
    return 0;
  }
  const unsigned kept = t.widened->piece == piece ? t.widened->units : 0;
  *t.widened = {piece, kept | units};
  return kept;
}

// Sets what is asked for with each unit of V. Only units that are blocks of their own are
// contiguous, as they are asked for.
inline void look_ahead(const AttentionTask& t, int piece, PieceView& view) {
  const NextPiece next =
      piece + 1 < t.last_piece ? NextPiece{t.kv, t.blocks, t.num_blocks, piece + 1} : t.next;
  for (int i = 0; i < view.units; ++i) {
    view.after_v[i] = view.v[i];
    const int block = next.piece * kPieceUnits + i;
    if (t.block_tokens == kUnitTokens && block < next.num_blocks && next.blocks[block] >= 0) {
      view.after_v[i] =
          reinterpret_cast<const Word*>(next.kv + next.blocks[block] * t.block_stride);
    }
  }
}

// Returns the units of a piece that rows see. Products multiply words of V up to token `end` of the
// piece.
template <class E>
PieceView view_piece(const AttentionTask& t, int piece, const PieceRows& rows, int end) {
  PieceView view;
  for (int unit = 0; unit < kPieceUnits; ++unit) {
    view.place[unit] = view.units;
    if ((rows.units >> unit & 1u) != 0) {
      const int tokens = min_int(end - unit * kUnitTokens, kUnitTokens);
      view.value_words[view.units] = (tokens + E::kPack - 1) / E::kPack;
      view.unit[view.units++] = unit;
    }
  }
  if (t.block_tokens % kUnitTokens != 0) {
    gather_piece<E>(t, piece, rows, view);
    return view;
  }
  view.k_stride = t.block_tokens;
  for (int i = 0; i < view.units; ++i) {
    const int token = piece * kPieceTokens + view.unit[i] * kUnitTokens;
    const int slot = token % t.block_tokens;
    const std::byte* block = block_of(t, token);
    view.k[i] = reinterpret_cast<const Word*>(block) + slot;
    view.v[i] = reinterpret_cast<const Word*>(block + t.v_offset) + slot / E::kPack * t.padded_dim;
  }
  return view;
}

// Tells whether every row sees every token of the view's units.
inline bool sees_all(const PieceRows& rows, const PieceView& view) {
  const int first = view.unit[0], last = view.unit[view.units - 1];
  return rows.common.begin <= first * kUnitTokens && (last + 1) * kUnitTokens <= rows.common.end;
}

template <class E>
bool holds_non_finite(const Word* words, int count) {
  unsigned found = 0;
  for (int i = 0; i < count; ++i) {
    for (const Word exponent : E::kExponents) {
      found |= (words[i] & exponent) == exponent ? 1u : 0u;
    }
  }
  return found != 0;
}

// Returns whether a word of V that is multiplied has a value that is not finite, where some row
// must not see some token. Zero times such a value is NaN.
template <class E>
bool hides_non_finite(const AttentionTask& t, const PieceRows& rows, const PieceView& view) {
  for (int i = 0; i < view.units; ++i) {
    const int first = view.unit[i] * kUnitTokens, words = view.value_words[i];
    const int before = (max_int(rows.common.begin - first, 0) + E::kPack - 1) / E::kPack;
    const int after = max_int(rows.common.end - first, 0) / E::kPack;
    const int end_before = min_int(before, words);
    const int first_after = max_int(min_int(after, words), end_before);
    const Word* v = view.v[i];
    if (holds_non_finite<E>(v, end_before * t.padded_dim) ||
        holds_non_finite<E>(v + std::ptrdiff_t{first_after} * t.padded_dim,
                            (words - first_after) * t.padded_dim)) {
      return true;
    }
  }
  return false;
}

}  // namespace
}  // namespace quire::attention

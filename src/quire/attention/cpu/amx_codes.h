// Codes on AMX tiles. bf16 holds the number of a code exactly: a whole one of int8, e4m3, an odd
// number of halves for int4. Units are widened once for all strips of a work item, and multiplied
// as bf16 then. Scales of int8 and fp8 meet scores and probabilities (softmax.h), so that queries
// and weights are rounded as they are over KV of bf16. amx_int4.h has the scales of int4.
#pragma once

#include <cstdint>

#include "quire/attention/cpu/amx_products.h"
#include "quire/attention/cpu/codes.h"
#include "quire/attention/cpu/expand.h"

namespace quire::attention {
namespace {

constexpr float e4m3_magnitude(int bits) {
  float value = bits < 8 ? static_cast<float>(bits) : static_cast<float>(8 + bits % 8);
  for (int exponent = bits / 8; exponent > 1; --exponent) {
    value *= 2;
  }
  return value / 512;
}

// Holds the low and the high bytes of the magnitudes of codes in bf16.
struct Bf16Bytes {
  static constexpr int kNumbers = 128;
  alignas(64) std::uint8_t low[kNumbers] = {};
  alignas(64) std::uint8_t high[kNumbers] = {};

  template <class Number>
  constexpr explicit Bf16Bytes(Number number) {
    for (int i = 0; i < kNumbers; ++i) {
      const auto bits = __builtin_bit_cast(std::uint32_t, number(i));
      low[i] = static_cast<std::uint8_t>(bits >> 16);
      high[i] = static_cast<std::uint8_t>(bits >> 24);
    }
  }
};
constexpr Bf16Bytes kWholeBytes([](int i) { return static_cast<float>(i); });
constexpr Bf16Bytes kE4m3Bytes([](int i) { return e4m3_magnitude(i); });

// Makes pairs of bf16 of words of four codes, by two look-ups of the magnitude.
template <const Bf16Bytes& kBytes, bool kTwosComplement>
struct Bf16OfBytes {
  using V = kernels::VecAvx512;
  static constexpr int kRows = 2;  // of pairs, from one row of words

  V::I low[2] = {_mm512_load_si512(kBytes.low), _mm512_load_si512(kBytes.low + 64)};
  V::I high[2] = {_mm512_load_si512(kBytes.high), _mm512_load_si512(kBytes.high + 64)};
  V::I sign = _mm512_set1_epi8(static_cast<char>(0x80));

  // Stores the pairs of 16 words, rows `stride` words apart. Even bytes of a word are its first two
  // values (tensor::code_place). The look-ups ignore the highest bit of each byte.
  void store(V::I codes, Word* to, std::ptrdiff_t stride) const {
    constexpr __mmask64 kOdd = 0xaaaaaaaaaaaaaaaaull;
    constexpr int kOrAnd = 0xf8;  // a | (b & c)
    const V::I magnitudes = kTwosComplement ? _mm512_abs_epi8(codes) : codes;
    const V::I lows = _mm512_permutex2var_epi8(low[0], magnitudes, low[1]);
    const V::I highs = _mm512_ternarylogic_epi32(
        _mm512_permutex2var_epi8(high[0], magnitudes, high[1]), codes, sign, kOrAnd);
    V::store_bits(to, _mm512_mask_blend_epi8(kOdd, lows, _mm512_slli_epi16(highs, 8)));
    V::store_bits(to + stride, _mm512_mask_blend_epi8(kOdd, _mm512_srli_epi16(lows, 8), highs));
  }
};

// Copies units to `scratch` as bf16 before they are multiplied. `C`: the codes as stored, `Widen`:
// what makes bf16 of them.
template <class C, class Widen, class F>
struct CodeUnits {
  using V = kernels::VecAvx512;
  using Stored = C;
  using Format = F;
  struct View : PieceView {
    const Word* coded_k[kPieceUnits];  // null: widened already
    const Word* coded_v[kPieceUnits];
    std::ptrdiff_t coded_stride;  // of K, words
  };
  static constexpr int kStoredWords = kUnitTokens / Stored::kPack;  // of a column of V

  // Sets the view of a piece whose units go to places behind a gathered piece's. Where no other
  // strip needs them, they take two places in turn, which stay in the first cache.
  static void set_view(const AttentionTask& t, int piece, const PieceRows& rows, View& view) {
    static_cast<PieceView&>(view) = view_piece<Stored>(t, piece, rows, kPieceTokens);
    look_ahead(t, piece, view);
    const unsigned kept = kept_units(t, piece, rows.units);
    const bool in_turn = t.widened == nullptr;
    const std::ptrdiff_t unit_words = std::ptrdiff_t{kUnitTokens} / 2 * t.padded_dim;
    Word* const first = reinterpret_cast<Word*>(t.scratch) +
                        std::ptrdiff_t{2} * kPieceUnits * kStoredWords * t.padded_dim;
    for (int i = 0; i < view.units; ++i) {
      const bool is_kept = (kept >> view.unit[i] & 1u) != 0;
      view.coded_k[i] = is_kept ? nullptr : view.k[i];
      view.coded_v[i] = is_kept ? nullptr : view.v[i];
      view.k[i] = first + (in_turn ? i % 2 : view.unit[i]) * unit_words;
      view.v[i] = view.k[i] + kPieceUnits * unit_words;
    }
    view.coded_stride = view.k_stride;
    view.k_stride = kUnitTokens;
  }

  static void keys(const AttentionTask& t, const View& view, int i) {
    if (view.coded_k[i] != nullptr) {
      const Rows rows = {view.coded_k[i], view.coded_stride, t.padded_dim / Stored::kPack};
      widen<kUnitTokens>(rows, const_cast<Word*>(view.k[i]), kUnitTokens, view.coded_v[i]);
    }
  }
  // Widens columns [dim, dim + columns), which are 32 or 64.
  static void values(const AttentionTask& t, const View& view, int i, int dim, int columns) {
    if (view.coded_v[i] != nullptr) {
      const Rows rows = {view.coded_v[i] + dim, t.padded_dim, kStoredWords};
      Word* const to = const_cast<Word*>(view.v[i]) + dim;
      const Word* const ahead = view.after_v[i] + std::ptrdiff_t{kStoredWords} * dim;
      columns == 64 ? widen<64>(rows, to, t.padded_dim, ahead)
                    : widen<32>(rows, to, t.padded_dim, ahead);
    }
  }

  // Rows of words of codes.
  struct Rows {
    const Word* words;
    std::ptrdiff_t stride;  // words
    int count;
  };

  // Makes rows of pairs of each row, one behind the other. Asks for as much of `ahead`, so that
  // memory is busy all the time.
  template <int kColumns>
  static void widen(Rows from, Word* to, std::ptrdiff_t to_stride, const Word* ahead) {
    const Widen bf16;
    for (int row = 0; row < from.count; ++row) {
#pragma GCC unroll 4
      for (int column = 0; column < kColumns; column += V::kLanes) {
        __builtin_prefetch(ahead + column, 0, 2);
        bf16.store(V::load_bits(from.words + column), to + column, to_stride);
      }
      ahead += kColumns;
      from.words += from.stride;
      to += Widen::kRows * to_stride;
    }
    kernels::fence_amx_tile_loads();
  }
};

// Codes of 8 bits, with a scale for each column of scores and probabilities.
struct ScaledBf16 : Bf16<kernels::VecAvx512Bf16> {
  static constexpr bool kScaled = true;
};
template <class C, class Widen>
struct ScaledUnits : CodeUnits<C, Widen, ScaledBf16>, QueriesAsLoaded {
  using Base = CodeUnits<C, Widen, ScaledBf16>;
  using View = typename Base::View;
  struct Room {
    explicit Room(const AttentionTask&) {}
  };

  static void set_view(const AttentionTask& t, int piece, const PieceRows& rows, Room&,
                       PieceBuffers<ScaledBf16>& b, View& view) {
    Base::set_view(t, piece, rows, view);
    ask_for_scales(t, piece, C::scales_bytes(t));
    C::load_column_scales(t, piece, rows, view, b);
  }
};
struct Int8Columns : Int8<kernels::VecAvx512> {
  static void load_column_scales(const AttentionTask& t, int piece, const PieceRows& rows,
                                 const PieceView& view, PieceBuffers<ScaledBf16>& b) {
    load_scales<kernels::VecAvx512>(t, piece, rows, view, b);
  }
};
struct Fp8Columns : Fp8<kernels::VecAvx512> {
  static void load_column_scales(const AttentionTask& t, int piece, const PieceRows& rows,
                                 const PieceView& view, PieceBuffers<ScaledBf16>& b) {
    const TokenRange seen = seen_by_some(t, rows);
    for (int i = 0; i < view.units; ++i) {
      const int in_piece = view.unit[i] * kUnitTokens;
      load_block_scales<kernels::VecAvx512>(
          t, piece * kPieceTokens + in_piece, tokens_of_unit(piece, seen, in_piece),
          b.key_scales + i * kUnitTokens, b.value_scales + i * kUnitTokens);
    }
  }
};
using Int8Units = ScaledUnits<Int8Columns, Bf16OfBytes<kWholeBytes, true>>;
using Fp8Units = ScaledUnits<Fp8Columns, Bf16OfBytes<kE4m3Bytes, false>>;

// Attends to codes that Units widens. Codes are finite: those that a row does not see are
// multiplied with zeros.
template <class Units>
void amx_attend_codes(const AttentionTask& t) {
  using Products = AmxProductsOf<Units>;
  using V = typename Products::V;
  const kernels::AmxTileShapes shapes = Products::shapes(t.rows);
  const kernels::AmxTileGuard guard(shapes);
  PieceBuffers<typename Units::Format> b;
  typename Units::Room room(t);
  for (int piece = t.first_piece; piece < t.last_piece; ++piece) {
    const PieceRows rows = rows_of_piece(t, piece);
    if (rows.units == 0) {
      continue;
    }
    typename Units::View view;
    Units::set_view(t, piece, rows, room, b, view);
    if (t.soft_cap == 0 && sees_all(rows, view)) {
      Products::interleaved(t, view, b);
    } else {
      Products::scores(t, view, b);
      cap_scores<V>(t, view, b);
      softmax_strip<V>(t, rows, view, b);
      Products::values(t, view, b, b.values);
    }
    merge<V>({t.state, {b.max, b.sum, b.values}, t.rows, t.padded_dim});
  }
}

}  // namespace
}  // namespace quire::attention

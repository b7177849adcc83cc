// int8 codes on AMX tiles. A code is a whole number that bf16 holds exactly. Units are widened once
// for all strips of a work item, and multiplied as bf16 then. Scales meet scores and probabilities
// (softmax.h), so that queries and weights are rounded as they are over KV of bf16.
#pragma once

#include <cstdint>

#include "quire/attention/cpu/amx_products.h"
#include "quire/attention/cpu/codes.h"

namespace quire::attention {
namespace {

// Holds the low and the high bytes of whole numbers in bf16.
struct Bf16Bytes {
  static constexpr int kNumbers = 128;
  alignas(64) std::uint8_t low[kNumbers] = {};
  alignas(64) std::uint8_t high[kNumbers] = {};

  constexpr Bf16Bytes() {
    for (int i = 0; i < kNumbers; ++i) {
      const auto bits = __builtin_bit_cast(std::uint32_t, static_cast<float>(i));
      low[i] = static_cast<std::uint8_t>(bits >> 16);
      high[i] = static_cast<std::uint8_t>(bits >> 24);
    }
  }
};
constexpr Bf16Bytes kBf16Bytes;

// Units that are copied to `scratch` as bf16 before they are multiplied.
struct CodeUnits {
  using V = kernels::VecAvx512;
  using Stored = Int8<V>;
  struct Format : Bf16<kernels::VecAvx512Bf16> {
    static constexpr bool kScaled = true;
  };
  struct View : PieceView {
    const Word* coded_k[kPieceUnits];  // null: widened already
    const Word* coded_v[kPieceUnits];
    std::ptrdiff_t coded_stride;  // of K, words
  };
  static constexpr int kStoredWords = kUnitTokens / Stored::kPack;  // of a column of V
  static constexpr int kLineWords = 16;                             // of a cache line

  // Returns the view of a piece whose units go to places of their own behind a gathered piece's.
  static View view_of(const AttentionTask& t, int piece, const PieceRows& rows) {
    View view = {view_piece<Stored>(t, piece, rows, kPieceTokens), {}, {}, 0};
    look_ahead(t, piece, view);
    const bool in_place = t.block_tokens % kUnitTokens == 0;
    const unsigned kept = in_place ? kept_units(t, piece, rows.units) : 0;
    const std::ptrdiff_t unit_words = std::ptrdiff_t{kUnitTokens} / Format::kPack * t.padded_dim;
    Word* const first = reinterpret_cast<Word*>(t.scratch) +
                        std::ptrdiff_t{2} * kPieceUnits * kStoredWords * t.padded_dim;
    for (int i = 0; i < view.units; ++i) {
      const bool is_kept = (kept >> view.unit[i] & 1u) != 0;
      view.coded_k[i] = is_kept ? nullptr : view.k[i];
      view.coded_v[i] = is_kept ? nullptr : view.v[i];
      view.k[i] = first + view.unit[i] * unit_words;
      view.v[i] = view.k[i] + kPieceUnits * unit_words;
    }
    view.coded_stride = view.k_stride;
    view.k_stride = kUnitTokens;
    return view;
  }

  // Returns those of `units` that an earlier strip has widened. The others count as widened from
  // here on.
  static unsigned kept_units(const AttentionTask& t, int piece, unsigned units) {
    if (t.widened == nullptr) {
      return 0;
    }
    const unsigned kept = t.widened->piece == piece ? t.widened->units : 0;
    *t.widened = {piece, kept | units};
    return kept;
  }

  static void keys(const AttentionTask& t, const View& view, int i) {
    if (view.coded_k[i] != nullptr) {
      const Rows rows = {view.coded_k[i], view.coded_stride, t.padded_dim / Stored::kPack,
                         kUnitTokens};
      widen(rows, const_cast<Word*>(view.k[i]), view.coded_v[i]);
    }
  }
  static void values(const AttentionTask& t, const View& view, int i) {
    if (view.coded_v[i] != nullptr) {
      const Rows rows = {view.coded_v[i], t.padded_dim, kStoredWords, t.padded_dim};
      widen(rows, const_cast<Word*>(view.v[i]), view.after_v[i]);
    }
  }

  // Rows of words of four codes.
  struct Rows {
    const Word* words;
    std::ptrdiff_t stride;  // words
    int count;
    int columns;
  };

  // Makes two rows of pairs of each row, one behind the other. Asks for as much of `ahead`, so that
  // memory is busy all the time.
  static void widen(const Rows& from, Word* to, const Word* ahead) {
    const Bf16OfCodes bf16;
    const Word* words = from.words;
    for (int row = 0; row < from.count; ++row) {
      for (int column = 0; column < from.columns; column += V::kLanes) {
        __builtin_prefetch(ahead, 0, 2);
        ahead += kLineWords;
        const Pairs pairs = bf16.of(V::load_bits(words + column));
        V::store_bits(to + column, pairs.first);
        V::store_bits(to + from.columns + column, pairs.second);
      }
      words += from.stride;
      to += std::ptrdiff_t{2} * from.columns;
    }
    kernels::fence_amx_tile_loads();
  }

  struct Pairs {
    V::I first, second;
  };

  // The two bytes of bf16, by the magnitude.
  struct Bf16OfCodes {
    V::I low[2] = {_mm512_load_si512(kBf16Bytes.low), _mm512_load_si512(kBf16Bytes.low + 64)};
    V::I high[2] = {_mm512_load_si512(kBf16Bytes.high), _mm512_load_si512(kBf16Bytes.high + 64)};
    V::I sign = _mm512_set1_epi8(static_cast<char>(0x80));

    // Even bytes of a word are its first two values (tensor::int8_place).
    [[nodiscard]] Pairs of(V::I codes) const {
      constexpr __mmask64 kOdd = 0xaaaaaaaaaaaaaaaaull;
      constexpr int kOrAnd = 0xf8;  // a | (b & c)
      const V::I magnitudes = _mm512_abs_epi8(codes);
      const V::I lows = _mm512_permutex2var_epi8(low[0], magnitudes, low[1]);
      const V::I highs = _mm512_ternarylogic_epi32(
          _mm512_permutex2var_epi8(high[0], magnitudes, high[1]), codes, sign, kOrAnd);
      return {_mm512_mask_blend_epi8(kOdd, lows, _mm512_slli_epi16(highs, 8)),
              _mm512_mask_blend_epi8(kOdd, _mm512_srli_epi16(lows, 8), highs)};
    }
  };
};

// Computes maxima, sums and values of a piece. Codes are finite: those that a row does not see are
// multiplied with zeros.
inline void amx_reduce_codes(const AttentionTask& t, int piece, const PieceRows& rows,
                             PieceBuffers<CodeUnits::Format>& b) {
  using Products = AmxProductsOf<CodeUnits>;
  using V = Products::V;
  const CodeUnits::View view = CodeUnits::view_of(t, piece, rows);
  load_scales<V>(t, piece, rows, view, b);
  ask_for_scales(t, piece);
  if (sees_all(rows, view)) {
    Products::interleaved(t, view, b);
    return;
  }
  Products::scores(t, view, b);
  softmax_strip<V>(t, rows, view, b);
  Products::values(t, view, b, b.values);
}

void amx_attend_int8(const AttentionTask& t) {
  using V = CodeUnits::V;
  const kernels::AmxTileShapes shapes = AmxProductsOf<CodeUnits>::shapes(t.rows);
  const kernels::AmxTileGuard guard(shapes);
  PieceBuffers<CodeUnits::Format> b;
  for (int piece = t.first_piece; piece < t.last_piece; ++piece) {
    const PieceRows rows = rows_of_piece(t, piece);
    if (rows.units != 0) {
      amx_reduce_codes(t, piece, rows, b);
      merge<V>({t.state, {b.max, b.sum, b.values}, t.rows, t.padded_dim});
    }
  }
}

}  // namespace
}  // namespace quire::attention

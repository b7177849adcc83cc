// Vector traits for AVX-512 with VNNI. Include only from files compiled with those flags.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace quire::kernels {
namespace {

struct VecAvx512 {
  using F = __m512;
  using I = __m512i;
  static constexpr int kLanes = 16;
  static constexpr bool kDotsBf16 = false;
  static constexpr bool kFewRegisters = false;
  // True if integers are added and shifted beside dots of bytes, not in their place.
  static constexpr bool kAddsExponents = false;
  static constexpr int kDenseRows = 8;  // x 2 registers of columns = 16 accumulators
  static constexpr int kDenseRegisters = 2;
  static constexpr int kQuantRows = 4;  // x 2 registers, twice: integer and float
  static constexpr int kQuantRegisters = 2;
  static constexpr int kDenseStreamRows = 8;
  static constexpr int kQuantStreamRows = 4;
  // Bytes by which a line of weights from memory is asked for before it is needed.
  static constexpr int kStreamAhead = 4096;
  static constexpr int kStreamLoads = 0;
  // Returns the bytes of a panel that are multiplied at a time. With one block of rows a panel
  // stays whole: storing sums in between costs 2 %.
  static constexpr int dense_block_bytes(int rows) { return rows <= 16 ? 256 << 10 : 128 << 10; }

  static F zero() { return _mm512_setzero_ps(); }
  static F set(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F abs(F a) { return _mm512_abs_ps(a); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F add_product(F acc, F a, F b) { return fma(a, b, acc); }
  static float reduce_add(F a) { return _mm512_reduce_add_ps(a); }
  static float reduce_max(F a) { return _mm512_reduce_max_ps(a); }
  // Rounds to an integer, ties to even; |a| < 2^22.
  static F round(F a) { return _mm512_roundscale_ps(a, 8); }
  static F scale_exponent(F a, F n) { return _mm512_scalef_ps(a, n); }  // a * 2^floor(n)
  static F above_floor(F a) { return _mm512_reduce_ps(a, 1); }  // a - floor(a); 0 for an infinity
  // Takes lanes at or after `count` from `other`.
  static F keep_first(F a, int count, F other) {
    return _mm512_mask_blend_ps(
        static_cast<__mmask16>(count >= 16 ? 0 : 0xffffu << (count < 0 ? 0 : count)), a, other);
  }
  static F load_fp16(const void* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  // Rounds to nearest even; NaN stays NaN.
  static void store_bf16(std::uint16_t* p, F x) {
    const I bits = _mm512_castps_si512(x);
    const I high = _mm512_srli_epi32(bits, 16);
    const I odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const I nearest = _mm512_srli_epi32(
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const I words = _mm512_mask_or_epi32(nearest, is_nan, high, _mm512_set1_epi32(0x40));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(words));
  }

  static I load_bits(const void* p) { return _mm512_loadu_si512(p); }
  static void store_bits(void* p, I x) { _mm512_storeu_si512(p, x); }
  static I set_bits(std::int32_t x) { return _mm512_set1_epi32(x); }
  static I as_bits(F x) { return _mm512_castps_si512(x); }
  static F as_float(I x) { return _mm512_castsi512_ps(x); }
  static I add_bits(I a, I b) { return _mm512_add_epi32(a, b); }
  static I and_bits(I a, I b) { return _mm512_and_si512(a, b); }
  static I xor_bits(I a, I b) { return _mm512_xor_si512(a, b); }
  static I shift_left(I x, int count) { return _mm512_slli_epi32(x, static_cast<unsigned>(count)); }
  static I shift_right(I x, int count) {
    return _mm512_srli_epi32(x, static_cast<unsigned>(count));
  }
  static F to_float(I x) { return _mm512_cvtepi32_ps(x); }
  static I to_int(F x) { return _mm512_cvtps_epi32(x); }  // nearest even
  static void store_int8(std::int8_t* p, I x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x));
  }

  // Returns signed bytes 0 and 2, or 1 and 3, of each word as integers of 16 bits.
  static I even_bytes(I x) { return _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8); }
  static I odd_bytes(I x) { return _mm512_srai_epi16(x, 8); }
  // Returns acc + lo(a) lo(b) + hi(a) hi(b) per lane, for pairs of 16 bits.
  static I dot_int16(I acc, I a, I b) { return _mm512_dpwssd_epi32(acc, a, b); }
  static void store_int16(std::int16_t* p, I x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x));
  }

  // Widens the low one of each pair of bf16 values; high_half widens the high one.
  static F low_half(I x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
  static F high_half(I x) {
    return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-65536)));
  }
  static I dot_bytes(I acc, I w, I x) { return _mm512_dpbusd_epi32(acc, w, x); }
  // Starts a group's integer sum of x . (w - 128); start_q4 starts one of x . (w - 8). `offset` is
  // -8 * sum(x).
  static I start_q8(std::int32_t offset) { return _mm512_set1_epi32(offset * 16); }
  static I dot_q8(I acc, I w, I x) { return dot_bytes(acc, w, x); }
  static I start_q4(std::int32_t offset) { return _mm512_set1_epi32(offset); }
  static I dot_q4(I acc, I w, I x) { return dot_bytes(acc, w, x); }
  static I end_q4(I acc, std::int32_t) { return acc; }
  static I low_nibbles(I w) { return _mm512_and_si512(w, _mm512_set1_epi8(15)); }
  static I high_nibbles(I w) {
    return _mm512_and_si512(_mm512_srli_epi16(w, 4), _mm512_set1_epi8(15));
  }
};

}  // namespace
}  // namespace quire::kernels

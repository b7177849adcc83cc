// Vector traits for AVX2 + FMA + F16C. Bytes are multiplied through 16-bit
// products.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace quire::kernels {
namespace {

struct VecAvx2 {
  using F = __m256;
  using I = __m256i;
  static constexpr int kLanes = 8;
  static constexpr bool kDotsBf16 = false;
  // Operands are loaded where they are multiplied, not ahead: sums take nearly all registers.
  static constexpr bool kFewRegisters = true;
  static constexpr bool kAddsExponents = false;
  static constexpr int kDenseRows = 6;  // x 2 registers of columns: 16 in all leave no more
  static constexpr int kDenseRegisters = 2;
  static constexpr int kQuantRows = 6;  // x 2 registers of integers; sums in fp32 wait in memory
  static constexpr int kQuantRegisters = 2;
  static constexpr int kDenseStreamRows = 2;
  static constexpr int kQuantStreamRows = 6;  // 7 and 8 are faster unpacked
  static constexpr int kStreamAhead = 4096;
  static constexpr int kStreamLoads = 0;
  // Returns the bytes of weights of a panel that are multiplied before sums are stored. With them
  // 16 rows of activations pass the first-level cache, or half of it, where there are no more rows.
  static constexpr int dense_block_bytes(int rows) { return rows > 16 ? 32 << 10 : 64 << 10; }

  static F zero() { return _mm256_setzero_ps(); }
  static F set(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  // Returns acc + a * b, in the register of acc and in the order in which it is written. Left to
  // itself the compiler loads too much ahead for 16 registers, and copies sums around.
  static F add_product(F acc, F a, F b) {
    __asm__ volatile("vfmadd231ps %2, %1, %0" : "+x"(acc) : "x"(a), "x"(b));
    return acc;
  }
  static float reduce_add(F a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static float reduce_max(F a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }
  static F round(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F scale_exponent(F a, F n) {  // n below -126 gives 0
    const I exponent = _mm256_add_epi32(_mm256_cvtps_epi32(_mm256_max_ps(n, set(-127.0f))),
                                        _mm256_set1_epi32(127));
    return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  }
  static F keep_first(F a, int count, F other) {
    const I lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_blendv_ps(
        other, a, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane)));
  }
  static F load_fp16(const void* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  // Rounds to nearest even; NaN stays NaN.
  static void store_bf16(std::uint16_t* p, F x) {
    const I bits = _mm256_castps_si256(x);
    const I high = _mm256_srli_epi32(bits, 16);
    const I odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const I nearest = _mm256_srli_epi32(
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const I quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const I is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const I words = _mm256_blendv_epi8(nearest, quiet, is_nan);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(p),
        _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }

  static I load_bits(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static void store_bits(void* p, I x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
  static I set_bits(std::int32_t x) { return _mm256_set1_epi32(x); }
  static I as_bits(F x) { return _mm256_castps_si256(x); }
  static F as_float(I x) { return _mm256_castsi256_ps(x); }
  static I add_bits(I a, I b) { return _mm256_add_epi32(a, b); }
  static I and_bits(I a, I b) { return _mm256_and_si256(a, b); }
  static I xor_bits(I a, I b) { return _mm256_xor_si256(a, b); }
  static I shift_left(I x, int count) { return _mm256_slli_epi32(x, count); }
  static I shift_right(I x, int count) { return _mm256_srli_epi32(x, count); }
  static F to_float(I x) { return _mm256_cvtepi32_ps(x); }
  static I to_int(F x) { return _mm256_cvtps_epi32(x); }
  static void store_int8(std::int8_t* p, I x) {
    const __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
  }

  // Returns signed bytes 0 and 2, or 1 and 3, of each word as integers of 16 bits.
  static I even_bytes(I x) { return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8); }
  static I odd_bytes(I x) { return _mm256_srai_epi16(x, 8); }
  // Returns acc + lo(a) lo(b) + hi(a) hi(b) per lane, for pairs of 16 bits.
  static I dot_int16(I acc, I a, I b) { return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b)); }
  static void store_int16(std::int16_t* p, I x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
  }

  static F low_half(I x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }
  static F high_half(I x) {
    return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(-65536)));
  }
  static I add_quads(I acc, I products) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(products, _mm256_set1_epi16(1)));
  }
  // Starts a sum of x . (w - 128) at zero. vpmaddubsw saturates at 16 bits: 255 * 127 * 2 would not
  // fit, |w| * 127 * 2 <= 32512 does. So the sign of the weight moves to x, and no offset is
  // needed.
  static I start_q8(std::int32_t) { return _mm256_setzero_si256(); }
  static I dot_q8(I acc, I w, I x) {
    const I signed_w = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
    return add_quads(
        acc, _mm256_maddubs_epi16(_mm256_abs_epi8(signed_w), _mm256_sign_epi8(x, signed_w)));
  }
  // Starts a sum of x . (w - 8) at zero. Codes are below 16, so that the products of a whole group
  // fit in 16 bits: 8 times 2 * 15 * 127.
  static I start_q4(std::int32_t) { return _mm256_setzero_si256(); }
  static I dot_q4(I acc, I w, I x) { return _mm256_add_epi16(acc, _mm256_maddubs_epi16(w, x)); }
  static I end_q4(I acc, std::int32_t offset) { return add_quads(_mm256_set1_epi32(offset), acc); }
  static I dot_bytes(I acc, I w, I x) { return add_quads(acc, _mm256_maddubs_epi16(w, x)); }
  static I low_nibbles(I w) { return _mm256_and_si256(w, _mm256_set1_epi8(15)); }
  static I high_nibbles(I w) {
    return _mm256_and_si256(_mm256_srli_epi16(w, 4), _mm256_set1_epi8(15));
  }
};

}  // namespace
}  // namespace quire::kernels

// Vector traits for AVX-512 with VNNI and BF16. Include only from files compiled with those flags.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "quire/kernels/cpu/vec_avx512.h"

namespace quire::kernels {
namespace {

struct VecAvx512Bf16 : VecAvx512 {
  static constexpr bool kDotsBf16 = true;
  static constexpr bool kAddsExponents = true;  // Zen 4: of its four pipes two multiply
  static constexpr int kStreamAhead = 0;  // Zen 4 asks early enough itself: 3 to 5 % faster without
  static constexpr int kStreamLoads = 8;  // Zen 4: 10 to 40 % faster than one by one

  // Rounds to nearest even; NaN stays NaN, subnormals become zero.
  static void store_bf16(std::uint16_t* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
  }
  // Stores 2 * kLanes numbers so.
  static void store_bf16(std::uint16_t* p, F x, F y) {
    _mm512_storeu_si512(p, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(y, x)));
  }
  // Returns acc + lo(w) lo(x) + hi(w) hi(x) per lane of bf16 pairs.
  static F dot_bf16(F acc, I w, I x) {
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x));
  }
};

// Intel's two pipes of 512 bits are said to do everything; what Zen 4 gains was not measured there.
struct VecAvx512Bf16Intel : VecAvx512Bf16 {
  static constexpr bool kAddsExponents = false;
};

}  // namespace
}  // namespace quire::kernels

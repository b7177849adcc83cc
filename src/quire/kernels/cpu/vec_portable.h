// Vector traits with nothing but the GCC/Clang vector extension: four lanes on any target (SSE2,
// NEON, ...). Slow and simple; it is what runs where no better file was built, and the second
// opinion in tests.
#pragma once

#include <cstdint>

namespace quire::kernels {
namespace {

struct VecPortable {
  typedef float F __attribute__((vector_size(16)));
  typedef std::int32_t I __attribute__((vector_size(16)));
  static constexpr int kLanes = 4;
  static constexpr bool kDotsBf16 = false;
  static constexpr bool kFewRegisters = false;
  static constexpr bool kAddsExponents = false;
  static constexpr int kDenseRows = 2;
  static constexpr int kDenseRegisters = 4;
  static constexpr int kQuantRows = 1;
  static constexpr int kQuantRegisters = 4;
  static constexpr int kDenseStreamRows = 1;
  static constexpr int kQuantStreamRows = 1;
  static constexpr int kStreamAhead = 0;
  static constexpr int kStreamLoads = 0;
  static constexpr int dense_block_bytes(int) { return 128 << 10; }

  static F zero() { return F{}; }
  static F set(float x) { return F{x, x, x, x}; }
  static F load(const float* p) {
    F x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  static void store(float* p, F x) { __builtin_memcpy(p, &x, sizeof x); }
  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F div(F a, F b) { return a / b; }
  static F max(F a, F b) { return a > b ? a : b; }
  static F abs(F a) { return max(a, -a); }
  static F fma(F a, F b, F c) {
    return a * b + c;
  }  // two roundings: compiled with -ffp-contract=off
  static F add_product(F acc, F a, F b) { return fma(a, b, acc); }
  static float reduce_add(F a) { return (a[0] + a[2]) + (a[1] + a[3]); }
  static float reduce_max(F a) {
    const float low = a[0] > a[1] ? a[0] : a[1], high = a[2] > a[3] ? a[2] : a[3];
    return low > high ? low : high;
  }
  static F round(F a) {
    const F magic = set(0x1.8p23f);
    return (a + magic) - magic;
  }  // |a| < 2^22
  static F scale_exponent(F a, F n) {
    const F clamped = max(n, set(-127.0f));
    return a * reinterpret_cast<F>((__builtin_convertvector(clamped, I) + 127) << 23);
  }
  static F keep_first(F a, int count, F other) {
    return I{0, 1, 2, 3} < I{count, count, count, count} ? a : other;
  }
  static F load_fp16(const void* p) {
    std::uint16_t h[4];
    __builtin_memcpy(h, p, sizeof h);
    const I bits = {h[0], h[1], h[2], h[3]};
    const I magnitude = (bits & 0x7fff) << 13;
    // The exponent now stands in fp32's field with a bias that is 112 too small; one multiplication
    // repairs it, for subnormals too. Infinity and NaN get fp32's largest exponent.
    const I finite = reinterpret_cast<I>(reinterpret_cast<F>(magnitude) * set(0x1p112f));
    const I special = magnitude | 0x7f800000;
    const I value = magnitude >= (0x7c00 << 13) ? special : finite;
    return reinterpret_cast<F>(value | ((bits & 0x8000) << 16));
  }
  // Rounds to nearest even; NaN stays NaN.
  static void store_bf16(std::uint16_t* p, F x) {
    typedef std::uint32_t U __attribute__((vector_size(16)));
    const U bits = reinterpret_cast<U>(x);
    const U high = bits >> 16;
    const U nearest = (bits + 0x7fff + (high & 1)) >> 16;
    const U words = x == x ? nearest : high | 0x40;
    for (int i = 0; i < 4; ++i) {
      p[i] = static_cast<std::uint16_t>(words[i]);
    }
  }

  static I load_bits(const void* p) {
    I x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  static void store_bits(void* p, I x) { __builtin_memcpy(p, &x, sizeof x); }
  static I set_bits(std::int32_t x) { return I{x, x, x, x}; }
  static I as_bits(F x) { return reinterpret_cast<I>(x); }
  static F as_float(I x) { return reinterpret_cast<F>(x); }
  static I add_bits(I a, I b) { return a + b; }
  static I and_bits(I a, I b) { return a & b; }
  static I xor_bits(I a, I b) { return a ^ b; }
  static I shift_left(I x, int count) { return x << count; }
  static I shift_right(I x, int count) {  // zeros come in
    typedef std::uint32_t U __attribute__((vector_size(16)));
    return reinterpret_cast<I>(reinterpret_cast<U>(x) >> static_cast<std::uint32_t>(count));
  }
  static F to_float(I x) { return __builtin_convertvector(x, F); }
  static I to_int(F x) { return __builtin_convertvector(round(x), I); }
  static void store_int8(std::int8_t* p, I x) {
    for (int i = 0; i < 4; ++i) {
      p[i] = static_cast<std::int8_t>(x[i]);
    }
  }

  typedef std::int16_t S __attribute__((vector_size(16)));
  // Returns signed bytes 0 and 2, or 1 and 3, of each word as integers of 16 bits.
  static I even_bytes(I x) { return reinterpret_cast<I>((reinterpret_cast<S>(x) << 8) >> 8); }
  static I odd_bytes(I x) { return reinterpret_cast<I>(reinterpret_cast<S>(x) >> 8); }
  // Returns acc + lo(a) lo(b) + hi(a) hi(b) per lane, for pairs of 16 bits.
  static I dot_int16(I acc, I a, I b) {
    return acc + ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
  }
  static void store_int16(std::int16_t* p, I x) {
    for (int i = 0; i < 4; ++i) {
      p[i] = static_cast<std::int16_t>(x[i]);
    }
  }

  static F low_half(I x) { return reinterpret_cast<F>(x << 16); }
  static F high_half(I x) { return reinterpret_cast<F>(x & set_bits(-65536)); }
  // Adds signed bytes of x times unsigned bytes of w to acc. Byte b of w needs a logical shift: it
  // is masked after shifting.
  static I dot_bytes(I acc, I w, I x) {
    for (int b = 0; b < 4; ++b) {
      acc += ((w >> (8 * b)) & 255) * ((x << (24 - 8 * b)) >> 24);
    }
    return acc;
  }
  static I start_q8(std::int32_t offset) { return set_bits(offset * 16); }
  static I dot_q8(I acc, I w, I x) { return dot_bytes(acc, w, x); }
  static I start_q4(std::int32_t offset) { return set_bits(offset); }
  static I dot_q4(I acc, I w, I x) { return dot_bytes(acc, w, x); }
  static I end_q4(I acc, std::int32_t) { return acc; }
  static I low_nibbles(I w) { return w & 0x0f0f0f0f; }
  static I high_nibbles(I w) { return (w >> 4) & 0x0f0f0f0f; }
};

}  // namespace
}  // namespace quire::kernels

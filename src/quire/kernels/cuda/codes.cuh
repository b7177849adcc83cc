// Quantised weights in registers, in the formats of device_codes.h. Their codes become pairs of
// 16-bit floats for the tensor core's small product (PTX ISA, mma.m16n8k16). A lane is (g, t) =
// (lane / 4, lane % 4).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "quire/kernels/cuda/coded_matrix.h"
#include "quire/kernels/device_codes.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {

// Returns (bits & mask) | value. The compiler takes two instructions where mask and value are both
// constants.
template <std::uint32_t kMask>
__device__ __forceinline__ std::uint32_t masked_or(std::uint32_t bits, std::uint32_t value) {
  std::uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;\n" : "=r"(result) : "r"(bits), "n"(kMask), "r"(value));
  return result;
}
// Returns (bits & mask) ^ value.
template <std::uint32_t kMask>
__device__ __forceinline__ std::uint32_t masked_xor(std::uint32_t bits, std::uint32_t value) {
  std::uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;\n" : "=r"(result) : "r"(bits), "n"(kMask), "r"(value));
  return result;
}

// Pairs of T out of codes that lie as nibble_shift() and byte_shift() say. All are exact: a code is
// put behind the point of a power of two, and the power is taken off with the code's offset.
template <tensor::DType T>
struct CodePairs;

template <>
struct CodePairs<tensor::DType::kBFloat16> {
  static constexpr std::uint32_t kOnes = 0x3f803f80u;

  template <int kOffset>
  __device__ __forceinline__ static std::uint32_t of_nibbles(std::uint32_t bits) {
    constexpr std::uint32_t kPower = 0x43004300u;  // 128, in steps of 1
    return minus(masked_or<0x000f000fu>(bits, kPower), kPower + kOffset * 0x00010001u);
  }
  template <int kOffset>
  __device__ __forceinline__ static std::uint32_t of_two_bits(std::uint32_t bits) {
    constexpr std::uint32_t kPower = 0x43004300u;
    return minus(masked_or<0x00030003u>(bits, kPower), kPower + kOffset * 0x00010001u);
  }
  // Puts seven bits behind the point. Takes 256 instead of 128 off where the eighth, which is worth
  // 128, is missing.
  template <int kOffset>
  __device__ __forceinline__ static std::uint32_t of_bytes(std::uint32_t bits) {
    static_assert(kOffset == 128);
    return minus(masked_or<0x007f007fu>(bits, 0x43004300u),
                 masked_xor<0x00800080u>(bits, 0x43804380u));
  }
  // Widens the exponent, which counts from 127 instead of 7.
  template <int kPair>
  __device__ __forceinline__ static std::uint32_t of_e4m3(std::uint32_t bits) {
    constexpr std::uint32_t kPower = 0x7b807b80u;  // 2^120
    const std::uint32_t sign = (kPair == 0 ? bits << 8 : bits) & 0x80008000u;
    const std::uint32_t small = masked_or<0x07f007f0u>(kPair == 0 ? bits << 4 : bits >> 4, sign);
    const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&small),
                                           *reinterpret_cast<const __nv_bfloat162*>(&kPower));
    return *reinterpret_cast<const std::uint32_t*>(&product);
  }
  __device__ __forceinline__ static void multiply(float (&d)[4], const std::uint32_t (&a)[4],
                                                  std::uint32_t b0, std::uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  // Multiplies without adding to anything.
  __device__ __forceinline__ static void begin(float (&d)[4], const std::uint32_t (&a)[4],
                                               std::uint32_t b0, std::uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%10,%10,%10,%10};\n"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
  }

 private:
  __device__ __forceinline__ static std::uint32_t minus(std::uint32_t a, std::uint32_t b) {
    const __nv_bfloat162 difference = __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&a),
                                              *reinterpret_cast<const __nv_bfloat162*>(&b));
    return *reinterpret_cast<const std::uint32_t*>(&difference);
  }
};

template <>
struct CodePairs<tensor::DType::kFloat16> {
  static constexpr std::uint32_t kOnes = 0x3c003c00u;
  static constexpr std::uint32_t kPower = 0x64006400u;  // 1024, in steps of 1

  template <int kOffset>
  __device__ __forceinline__ static std::uint32_t of_nibbles(std::uint32_t bits) {
    return minus(masked_or<0x000f000fu>(bits, kPower), kPower + kOffset * 0x00010001u);
  }
  template <int kOffset>
  __device__ __forceinline__ static std::uint32_t of_two_bits(std::uint32_t bits) {
    return minus(masked_or<0x00030003u>(bits, kPower), kPower + kOffset * 0x00010001u);
  }
  template <int kOffset>
  __device__ __forceinline__ static std::uint32_t of_bytes(std::uint32_t bits) {
    return minus(masked_or<0x00ff00ffu>(bits, kPower), kPower + kOffset * 0x00010001u);
  }
  // Widens the exponent, which counts from 15 instead of 7.
  template <int kPair>
  __device__ __forceinline__ static std::uint32_t of_e4m3(std::uint32_t bits) {
    constexpr std::uint32_t k256 = 0x5c005c00u;
    const std::uint32_t sign = (kPair == 0 ? bits << 8 : bits) & 0x80008000u;
    const std::uint32_t small = masked_or<0x3f803f80u>(kPair == 0 ? bits << 7 : bits >> 1, sign);
    const __half2 product = __hmul2(*reinterpret_cast<const __half2*>(&small),
                                    *reinterpret_cast<const __half2*>(&k256));
    return *reinterpret_cast<const std::uint32_t*>(&product);
  }
  __device__ __forceinline__ static void multiply(float (&d)[4], const std::uint32_t (&a)[4],
                                                  std::uint32_t b0, std::uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  // Multiplies without adding to anything.
  __device__ __forceinline__ static void begin(float (&d)[4], const std::uint32_t (&a)[4],
                                               std::uint32_t b0, std::uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%10,%10,%10,%10};\n"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
  }

 private:
  __device__ __forceinline__ static std::uint32_t minus(std::uint32_t a, std::uint32_t b) {
    const __half2 difference =
        __hsub2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
    return *reinterpret_cast<const std::uint32_t*>(&difference);
  }
};

// Returns the table of a matrix, whose codes are places in one.
template <CodeFormat kFormat>
__device__ __forceinline__ uint4 table_of(const CodedWeights& weights) {
  if constexpr (has_table(kFormat)) {
    return __ldg(reinterpret_cast<const uint4*>(
        weights.data + unit_bytes(kFormat, weights.outputs, weights.inputs)));
  } else {
    return {};
  }
}

// Returns the bytes that the first four of eight places name.
__device__ __forceinline__ std::uint32_t look_up(const uint4& table, std::uint32_t places) {
  const std::uint32_t in_half = places & 0x7777u;  // a selector's highest bit means something else
  const std::uint32_t low = __byte_perm(table.x, table.y, in_half);
  const std::uint32_t high = __byte_perm(table.z, table.w, in_half);
  return __byte_perm(low, high, 0x3210u | (places & 0x8888u) >> 1);
}

// The part of a unit that a lane multiplies: rows g and g + 8.
template <CodeFormat kFormat>
struct LaneUnit {
  static constexpr int kLoads = unit_loads(kFormat);
  static constexpr int kHeads = unit_heads(kFormat);
  static constexpr bool kHasMinimum = has_minimum(kFormat);
  static constexpr int kHalves = has_halves(kFormat) ? 2 : 1;  // of a group, with own multiples
  static constexpr int kSteps = kUnitGroups * kHalves;         // groups, or halves of them

  uint4 codes[kLoads];
  uint4 heads[kHeads == 0 ? 1 : kHeads];

  // Asks for the part of `lane` of the unit that begins there. kOnce: nobody reads it again soon.
  template <bool kOnce>
  __device__ __forceinline__ void load(const uint4* unit, int lane) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      codes[i] = kOnce ? __ldcs(unit + i * kWarpLanes + lane) : __ldg(unit + i * kWarpLanes + lane);
    }
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      const uint4* const head = unit + kLoads * kWarpLanes + i * kHeadVectors + lane / 4;
      heads[i] = kOnce ? __ldcs(head) : __ldg(head);
    }
  }

  // Makes the left operands of a group's two products; inputs 8t to 8t + 3, and 8t + 4 to 8t + 7.
  // Words of an operand: a pair of row g, of row g + 8, then the next pair of both.
  template <tensor::DType T>
  __device__ __forceinline__ void operands(int group, [[maybe_unused]] const uint4& table,
                                           std::uint32_t (&a)[2][4]) const {
    constexpr int kOffset = code_offset(kFormat);
    if constexpr (kFormat == CodeFormat::kE4m3) {
      const uint4& code = codes[group];
      const std::uint32_t words[2][2] = {{code.x, code.z}, {code.y, code.w}};
#pragma unroll
      for (int product = 0; product < 2; ++product) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          a[product][half] = CodePairs<T>::template of_e4m3<0>(words[half][product]);
          a[product][half + 2] = CodePairs<T>::template of_e4m3<1>(words[half][product]);
        }
      }
    } else if constexpr (code_bits(kFormat) == 8) {
      const uint4& code = codes[group];
      const std::uint32_t words[2][2] = {{code.x, code.z}, {code.y, code.w}};
#pragma unroll
      for (int product = 0; product < 2; ++product) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          a[product][i] =
              CodePairs<T>::template of_bytes<kOffset>(words[i % 2][product] >> (i / 2 * 8));
        }
      }
    } else if constexpr (code_bits(kFormat) == 2) {
      const uint4& code = codes[0];
      const std::uint32_t words[2] = {group < 2 ? code.x : code.z, group < 2 ? code.y : code.w};
#pragma unroll
      for (int product = 0; product < 2; ++product) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          a[product][i] = CodePairs<T>::template of_two_bits<kOffset>(
              words[i % 2] >> (group % 2 * 8 + product * 4 + i / 2 * 2));
        }
      }
    } else if constexpr (has_table(kFormat)) {
      const uint4& code = codes[group / 2];
      const std::uint32_t words[2] = {group % 2 == 0 ? code.x : code.z,
                                      group % 2 == 0 ? code.y : code.w};
#pragma unroll
      for (int product = 0; product < 2; ++product) {
        const std::uint32_t bytes[2] = {look_up(table, words[0] >> (product * 16)),
                                        look_up(table, words[1] >> (product * 16))};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          a[product][i] = CodePairs<T>::template of_bytes<128>(bytes[i % 2] >> (i / 2 * 8));
        }
      }
    } else {
      const uint4& code = codes[group / 2];
      const std::uint32_t words[2] = {group % 2 == 0 ? code.x : code.z,
                                      group % 2 == 0 ? code.y : code.w};
#pragma unroll
      for (int product = 0; product < 2; ++product) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          a[product][i] =
              CodePairs<T>::template of_nibbles<kOffset>(words[i % 2] >> (product * 8 + i / 2 * 4));
        }
      }
    }
  }

  // Returns the scale or minimum of row g (half 0) or g + 8 (half 1).
  [[nodiscard]] __device__ __forceinline__ float head(int index, int half, int group) const {
    if constexpr (has_table(kFormat)) {
      const uint4& wide = heads[half];
      return __uint_as_float(group == 0   ? wide.x
                             : group == 1 ? wide.y
                             : group == 2 ? wide.z
                                          : wide.w);
    }
    const uint4& all = heads[index];
    const std::uint32_t low = half == 0 ? all.x : all.z, high = half == 0 ? all.y : all.w;
    const std::uint32_t both = group < 2 ? low : high;
    return __half2float(
        __ushort_as_half(static_cast<unsigned short>(group % 2 == 0 ? both : both >> 16)));
  }

  // Returns the scale or minimum of a step, with its multiple.
  [[nodiscard]] __device__ __forceinline__ float step_head(int index, int half, int step) const {
    const float whole = head(index, half, step / kHalves);
    if constexpr (!has_halves(kFormat)) {
      return whole;
    } else {
      const uint4& all = heads[multiples_head(kFormat) + index];
      const std::uint32_t low = half == 0 ? all.x : all.z, high = half == 0 ? all.y : all.w;
      const auto multiple =
          static_cast<signed char>((step < 4 ? low : high) >> (step % 4 * 8) & 0xffu);
      return __fmul_rn(whole, static_cast<float>(multiple));
    }
  }
};

// Returns whether a lane has inputs of a half of each group.
__device__ __forceinline__ bool is_in_half(int inputs_half) {
  return static_cast<int>(threadIdx.x) % 4 / 2 == inputs_half;
}

// Makes the operands of a step: those of a group, or of a half of it, with zeros of the other half.
template <tensor::DType T, CodeFormat kFormat>
__device__ __forceinline__ void step_operands(const LaneUnit<kFormat>& unit, int step,
                                              const uint4& table, std::uint32_t (&a)[2][4]) {
  constexpr int kHalves = LaneUnit<kFormat>::kHalves;
  unit.template operands<T>(step / kHalves, table, a);
  if constexpr (kHalves > 1) {
    const bool takes = is_in_half(step % kHalves);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      std::uint32_t& pair = a[i / 4][i % 4];
      pair = takes ? pair : 0u;
    }
  }
}

// Adds a step of a unit to the sums of a tile [16 outputs x 8 rows]. That is the product of its
// codes, times its scale, in fp32. Scales of whole outputs come last. `values` has inputs 8t to
// 8t + 7 of row g of the activations.
template <CodeFormat kFormat, tensor::DType T>
__device__ __forceinline__ void add_step(float (&sums)[4], const std::uint32_t (&a)[2][4],
                                         const LaneUnit<kFormat>& unit, int step,
                                         const uint4& values) {
  if constexpr (LaneUnit<kFormat>::kHeads == 0) {
    CodePairs<T>::multiply(sums, a[0], values.x, values.y);
    CodePairs<T>::multiply(sums, a[1], values.z, values.w);
  } else {
    float part[4];
    CodePairs<T>::begin(part, a[0], values.x, values.y);
    CodePairs<T>::multiply(part, a[1], values.z, values.w);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[i] = __fmaf_rn(unit.step_head(0, i / 2, step), part[i], sums[i]);
    }
  }
}

// Sums the inputs of a group, as minimums multiply them; in the places of a tile's sums. Sums those
// of the lanes that take part.
template <tensor::DType T>
__device__ __forceinline__ void sum_inputs(float (&sums)[4], const uint4& values,
                                           bool takes = true) {
  const std::uint32_t one = takes ? CodePairs<T>::kOnes : 0u;
  const std::uint32_t ones[4] = {one, one, one, one};
  CodePairs<T>::multiply(sums, ones, values.x, values.y);
  CodePairs<T>::multiply(sums, ones, values.z, values.w);
}

// Adds what the minimums of a step contribute.
template <CodeFormat kFormat>
__device__ __forceinline__ void add_minimums(float (&sums)[4], const LaneUnit<kFormat>& unit,
                                             int step, const float (&inputs)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sums[i] = __fmaf_rn(unit.step_head(1, i / 2, step), inputs[i], sums[i]);
  }
}

// Returns the scales of the outputs of e4m3; null for others.
__device__ __forceinline__ const float* output_scales(const CodedWeights& weights) {
  return weights.format == CodeFormat::kE4m3
             ? reinterpret_cast<const float*>(
                   weights.data + unit_bytes(weights.format, weights.outputs, weights.inputs))
             : nullptr;
}

// Returns the sum of all inputs times the scale of its row, where rows have some.
template <CodeFormat kFormat, class Product>
__device__ __forceinline__ float scaled_row(const Product& product, std::int64_t row, float sum) {
  return kFormat == CodeFormat::kE4m3 ? __fmul_rn(sum, product.row_scales[row]) : sum;
}

// Returns the sum of all inputs times the scale of its output, where outputs have some.
template <CodeFormat kFormat>
__device__ __forceinline__ float scaled(const float* scales, std::int64_t output, float sum) {
  return kFormat == CodeFormat::kE4m3 ? __fmul_rn(sum, scales[output]) : sum;
}

// Returns launch.operator()<format>() for formats whose groups have scales.
template <class Launch>
[[nodiscard]] cudaError_t launch_for_groups(CodeFormat format, const Launch& launch) {
  switch (format) {
    case CodeFormat::kQ8:
      return launch.template operator()<CodeFormat::kQ8>();
    case CodeFormat::kQ4:
      return launch.template operator()<CodeFormat::kQ4>();
    case CodeFormat::kQ4Minimum:
      return launch.template operator()<CodeFormat::kQ4Minimum>();
    case CodeFormat::kTable:
      return launch.template operator()<CodeFormat::kTable>();
    case CodeFormat::kTableHalves:
      return launch.template operator()<CodeFormat::kTableHalves>();
    case CodeFormat::kTwoMinimum:
      return launch.template operator()<CodeFormat::kTwoMinimum>();
    case CodeFormat::kE4m3:
      break;
  }
  return cudaErrorInvalidValue;
}

// Returns launch.operator()<format>().
template <class Launch>
[[nodiscard]] cudaError_t launch_for_codes(CodeFormat format, const Launch& launch) {
  return format == CodeFormat::kE4m3 ? launch.template operator()<CodeFormat::kE4m3>()
                                     : launch_for_groups(format, launch);
}

}  // namespace quire::kernels::cuda

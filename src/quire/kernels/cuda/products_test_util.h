// 16-bit numbers for the tests of products on a GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "quire/kernels/test_util.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::test {

inline constexpr tensor::DType kDTypes[] = {tensor::DType::kBFloat16, tensor::DType::kFloat16};

inline std::uint16_t round_to(tensor::DType dtype, float number) {
  return dtype == tensor::DType::kFloat16 ? tensor::float_to_fp16(number)
                                          : tensor::float_to_bf16(number);
}

inline double widen(tensor::DType dtype, std::uint16_t bits) {
  return dtype == tensor::DType::kFloat16 ? tensor::fp16_to_float(bits)
                                          : tensor::bf16_to_float(bits);
}

inline std::vector<std::uint16_t> random_rows(tensor::DType dtype, std::int64_t size,
                                              std::uint32_t seed) {
  std::vector<std::uint16_t> rows;
  for (const float number : random_floats(size, seed)) {
    rows.push_back(round_to(dtype, number));
  }
  return rows;
}

}  // namespace quire::kernels::test

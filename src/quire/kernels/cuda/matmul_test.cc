// Matrix products on a GPU. Oracle: sums in double precision.
#include "quire/kernels/cuda/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "quire/device/cuda/gpu_test_util.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {
namespace {

using device::cuda::test::must;
using tensor::DType;

constexpr DType kDTypes[] = {DType::kBFloat16, DType::kFloat16};

std::vector<std::uint16_t> random_values(DType dtype, std::size_t size, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<std::uint16_t> values(size);
  for (std::uint16_t& value : values) {
    const float number = uniform(random);
    value =
        dtype == DType::kFloat16 ? tensor::float_to_fp16(number) : tensor::float_to_bf16(number);
  }
  return values;
}

double widen(DType dtype, std::uint16_t bits) {
  return dtype == DType::kFloat16 ? tensor::fp16_to_float(bits) : tensor::bf16_to_float(bits);
}

struct Sizes {
  std::int64_t rows, outputs, inputs;
};

class Products : public device::cuda::test::GpuTest {
 protected:
  std::vector<float> run(MatMul& matmul, const Sizes& sizes, const std::vector<std::uint16_t>& x,
                         const std::vector<std::uint16_t>& weights, bool accumulate) {
    const std::vector<float> out(static_cast<std::size_t>(sizes.rows * sizes.outputs), 3.0f);
    const auto on_device = upload(out);
    const auto x_there = upload(x), weights_there = upload(weights);
    must(matmul.run({.x = x_there.data(),
                     .weights = weights_there.data(),
                     .out = on_device.data(),
                     .rows = sizes.rows,
                     .outputs = sizes.outputs,
                     .inputs = sizes.inputs,
                     .accumulate = accumulate}));
    return download(on_device, out.size());
  }
};

TEST_F(Products, EqualSumsInDoublePrecision) {
  for (const DType dtype : kDTypes) {
    for (const bool row_invariant : {false, true}) {
      MatMul matmul = must(MatMul::create(*context_, row_invariant, dtype));
      for (const Sizes sizes : {Sizes{1, 33, 64}, Sizes{1, 1000, 2056}, Sizes{2, 64, 256},
                                Sizes{7, 96, 512}, Sizes{64, 200, 128}, Sizes{300, 128, 704}}) {
        const auto x = random_values(dtype, static_cast<std::size_t>(sizes.rows * sizes.inputs), 1);
        const auto weights =
            random_values(dtype, static_cast<std::size_t>(sizes.outputs * sizes.inputs), 2);
        for (const bool accumulate : {false, true}) {
          const auto out = run(matmul, sizes, x, weights, accumulate);
          for (std::int64_t row = 0; row < sizes.rows; ++row) {
            for (std::int64_t output = 0; output < sizes.outputs; ++output) {
              double sum = accumulate ? 3 : 0;
              for (std::int64_t i = 0; i < sizes.inputs; ++i) {
                sum += widen(dtype, x[row * sizes.inputs + i]) *
                       widen(dtype, weights[output * sizes.inputs + i]);
              }
              ASSERT_NEAR(out[row * sizes.outputs + output], sum, 1e-4 * std::sqrt(sizes.inputs))
                  << sizes.rows << " rows, output " << output;
            }
          }
        }
      }
    }
  }
}

TEST_F(Products, RowInvariantOnesGiveARowTheSameBitsInEveryBatch) {
  for (const DType dtype : kDTypes) {
    MatMul matmul = must(MatMul::create(*context_, true, dtype));
    // Rows, outputs, inputs.
    for (const Sizes& all : {Sizes{700, 256, 1024}, {700, 160, 80}, {700, 80, 80}}) {
      const auto x = random_values(dtype, static_cast<std::size_t>(all.rows * all.inputs), 3);
      const auto weights =
          random_values(dtype, static_cast<std::size_t>(all.outputs * all.inputs), 4);
      const auto want = run(matmul, all, x, weights, false);
      for (const std::int64_t rows : {1, 2, 5, 16, 64, 74, 75, 100, 513}) {
        const std::int64_t first = all.rows - rows;
        const std::vector<std::uint16_t> part(x.begin() + first * all.inputs, x.end());
        const auto got = run(matmul, {rows, all.outputs, all.inputs}, part, weights, false);
        EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin() + first * all.outputs))
            << rows << " rows, " << all.inputs << " inputs, " << all.outputs << " outputs";
      }
    }
  }
}

}  // namespace
}  // namespace quire::kernels::cuda

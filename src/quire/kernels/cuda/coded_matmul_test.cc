// Products with quantised weights on a GPU. Oracle: sums in double precision of what the CPU
// unpacks.
#include "quire/kernels/cuda/coded_matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/gpu_test_util.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/cuda/coded_weights.h"
#include "quire/kernels/cuda/matmul.h"
#include "quire/kernels/cuda/products_test_util.h"
#include "quire/kernels/cuda/rows.h"
#include "quire/kernels/device_codes.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_weights.h"
#include "quire/kernels/test_util.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/float8.h"

namespace quire::kernels::cuda {
namespace {

using device::cuda::DeviceBuffer;
using device::cuda::test::must;
using tensor::DType;
using test::kDTypes;
using test::random_rows;
using test::round_to;
using test::widen;

class CodedProducts : public device::cuda::test::GpuTest {
 protected:
  // A matrix on both sides.
  struct Matrix {
    CodeFormat format;
    std::int64_t outputs, inputs;
    std::vector<float> plain;  // [outputs, inputs], as the CPU computes with it
    DeviceBuffer<std::byte> codes;
    [[nodiscard]] CodedWeights coded() const { return {format, codes.data(), outputs, inputs}; }
  };

  Matrix matrix(const test::CodedKind& kind, std::int64_t outputs, std::int64_t inputs) {
    const auto values = test::random_floats(outputs, inputs, 5);
    const PackedWeights packed = test::pack_plain(cpu_, kind.packed, values, outputs, inputs);
    Matrix made{kind.device, outputs, inputs, std::vector<float>(values.size()), {}};
    for (std::int64_t output = 0; output < outputs; ++output) {
      packed.unpack_row(output, std::span(made.plain)
                                    .subspan(static_cast<std::size_t>(output * inputs),
                                             static_cast<std::size_t>(inputs)));
    }
    const auto bytes = std::span(packed.data(), packed.size_bytes());
    const auto there = upload(std::vector<std::byte>(bytes.begin(), bytes.end()));
    made.codes = must(DeviceBuffer<std::byte>::make(
        context_->device_pool(),
        static_cast<std::size_t>(device_code_bytes(kind.device, outputs, inputs))));
    must(device::cuda::to_status(
        arrange_codes(there.data(), made.coded(), made.codes.data(), stream()), "arrange_codes"));
    wait();
    return made;
  }

  std::vector<float> run(CodedMatMul& coded, MatMul& matmul, const Matrix& weights,
                         const std::vector<std::uint16_t>& x, bool accumulate) {
    const std::int64_t rows = static_cast<std::int64_t>(x.size()) / weights.inputs;
    const std::vector<float> before(static_cast<std::size_t>(rows * weights.outputs) + 1, 3.0f);
    const auto out = upload(before);
    const auto x_there = upload(x);
    must(coded.run({.format = weights.format,
                    .weights = weights.codes.data(),
                    .x = x_there.data(),
                    .out = out.data(),
                    .rows = rows,
                    .outputs = weights.outputs,
                    .inputs = weights.inputs,
                    .accumulate = accumulate},
                   matmul));
    auto got = download(out, before.size());
    EXPECT_EQ(got.back(), 3.0f) << "nothing is written behind the last row";
    got.pop_back();
    return got;
  }

  // Rounds rows as products with e4m3 do: to codes times the largest magnitude / 448.
  static void round_to_e4m3(std::int64_t inputs, std::vector<double>& rows) {
    for (auto row = rows.begin(); row != rows.end(); row += inputs) {
      float largest = 0;
      for (auto value = row; value != row + inputs; ++value) {
        largest = std::max(largest, std::abs(static_cast<float>(*value)));
      }
      const float scale = largest / 448.0f, inverse = 448.0f / largest;
      for (auto value = row; value != row + inputs; ++value) {
        const std::uint8_t code = tensor::float_to_e4m3(static_cast<float>(*value) * inverse);
        *value = double{tensor::e4m3_to_float(code)} * scale;
      }
    }
  }

  // The largest difference between `got` and exact sums, beside the norms of what was multiplied.
  static double error_of(DType dtype, const Matrix& weights, const std::vector<std::uint16_t>& x,
                         const std::vector<float>& got, double before) {
    std::vector<double> wide;
    wide.reserve(x.size());
    for (const std::uint16_t bits : x) {
      wide.push_back(widen(dtype, bits));
    }
    if (weights.format == CodeFormat::kE4m3) {
      round_to_e4m3(weights.inputs, wide);
    }
    double worst = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / weights.outputs;
      const auto output = static_cast<std::int64_t>(i) % weights.outputs;
      double sum = before, squares = 1e-9;
      for (std::int64_t k = 0; k < weights.inputs; ++k) {
        const double product = wide[static_cast<std::size_t>(row * weights.inputs + k)] *
                               weights.plain[static_cast<std::size_t>(output * weights.inputs + k)];
        sum += product;
        squares += product * product;
      }
      worst = std::max(worst, std::abs(got[i] - sum) / std::sqrt(squares));
    }
    return worst;
  }

  device::ThreadPool pool_{4};
  KernelContext cpu_{&kernels_for(device::Isa::kPortable), &pool_};
};

struct Size {
  std::int64_t outputs, inputs;
};

// Sums of exact products in fp32 by the tensor cores, which drop what lies below 2^-23 or so of the
// largest term.
constexpr double kTolerance = 2e-5;
// Their products of 8-bit floats drop what lies below 2^-13 or so.
constexpr double kToleranceOfE4m3 = 1e-2;

double tolerance_of(CodeFormat format) {
  return format == CodeFormat::kE4m3 ? kToleranceOfE4m3 : kTolerance;
}

TEST_F(CodedProducts, EqualSumsInDoublePrecision) {
  for (const DType dtype : kDTypes) {
    MatMul matmul = must(MatMul::create(*context_, true, dtype));
    CodedMatMul coded = must(CodedMatMul::create(*context_, true, dtype, {}));
    for (const test::CodedKind& kind : test::kCodedKinds) {
      for (const Size& size : {Size{1, 8}, Size{33, 40}, Size{130, 576}, Size{272, 2176}}) {
        const Matrix weights = matrix(kind, size.outputs, size.inputs);
        for (const std::int64_t rows : {1, 2, 3, 8, 13, 16, 17, 32, 40, 64, 65, 130}) {
          const auto x = random_rows(dtype, rows * size.inputs, static_cast<std::uint32_t>(rows));
          const bool accumulate = rows % 2 == 1;
          const auto got = run(coded, matmul, weights, x, accumulate);
          const double error = error_of(dtype, weights, x, got, accumulate ? 3 : 0);
          ASSERT_LE(error, tolerance_of(kind.device))
              << format_name(kind.packed) << ", " << rows << " rows, " << size.outputs << " x "
              << size.inputs;
        }
      }
    }
  }
}

TEST_F(CodedProducts, GiveARowTheSameBitsInEveryBatch) {
  // Outputs of the last two fill a device with whole ones, so nothing is split there.
  constexpr Size kSizes[] = {{300, 1152}, {64, 4096}, {4500, 1152}, {17000, 1152}};
  for (const DType dtype : kDTypes) {
    MatMul matmul = must(MatMul::create(*context_, true, dtype));
    CodedMatMul coded = must(CodedMatMul::create(*context_, true, dtype, {}));
    for (const test::CodedKind& kind : test::kCodedKinds) {
      for (const Size& size : kSizes) {
        const Matrix weights = matrix(kind, size.outputs, size.inputs);
        const std::int64_t all = 300;
        const auto x = random_rows(dtype, all * size.inputs, 7);
        const auto want = run(coded, matmul, weights, x, false);
        for (const std::int64_t rows : {1, 2, 3, 7, 8, 9, 16, 17, 31, 33, 64, 65, 128, 257}) {
          const std::int64_t first = all - rows;
          const std::vector<std::uint16_t> part(x.begin() + first * size.inputs, x.end());
          const auto got = run(coded, matmul, weights, part, false);
          EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin() + first * size.outputs))
              << format_name(kind.packed) << ", " << rows << " rows";
        }
      }
    }
  }
}

// Weights are rounded to 16 bits there.
TEST_F(CodedProducts, OfManyRowsAreAsNearAsRoundedWeights) {
  for (const DType dtype : kDTypes) {
    MatMul matmul = must(MatMul::create(*context_, false, dtype));
    for (const test::CodedKind& kind : test::kCodedKinds) {
      const Matrix weights = matrix(kind, 328, 704);
      CodedMatMul coded = must(CodedMatMul::create(*context_, false, dtype, {328, 704}));
      for (const std::int64_t rows : {256, 257, 400}) {
        const auto x = random_rows(dtype, rows * weights.inputs, 9);
        for (const bool accumulate : {false, true}) {
          const auto got = run(coded, matmul, weights, x, accumulate);
          const double bound = rows <= CodedMatMul::kMostRows || kind.device == CodeFormat::kE4m3
                                   ? tolerance_of(kind.device)
                               : dtype == DType::kFloat16 ? 2e-3
                                                          : 1.5e-2;
          ASSERT_LE(error_of(dtype, weights, x, got, accumulate ? 3 : 0), bound)
              << format_name(kind.packed) << ", " << rows << " rows";
        }
      }
    }
  }
}

// More than are expanded at once: 64 MiB hold 2,048 outputs of 16,384 inputs.
TEST_F(CodedProducts, OfManyRowsWithAMatrixThatIsExpandedInPartsFillAllOutputs) {
  const Matrix weights = matrix(test::kCodedKinds[1], 2100, 16384);
  MatMul matmul = must(MatMul::create(*context_, false));
  CodedMatMul coded = must(CodedMatMul::create(*context_, false, DType::kBFloat16, {2100, 16384}));
  CodedMatMul exact = must(CodedMatMul::create(*context_, true, DType::kBFloat16, {}));
  const auto x = random_rows(DType::kBFloat16, 260 * weights.inputs, 9);
  const auto got = run(coded, matmul, weights, x, false);
  const auto want = run(exact, matmul, weights, x, false);
  double difference = 0, all = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double each = double{got[i]} - want[i];
    difference += each * each;
    all += double{want[i]} * want[i];
  }
  EXPECT_LE(std::sqrt(difference / all), 4e-3);
}

TEST_F(CodedProducts, OfARowWithANaNSpoilThatRowOnly) {
  const DType dtype = DType::kBFloat16;
  MatMul matmul = must(MatMul::create(*context_, true, dtype));
  CodedMatMul coded = must(CodedMatMul::create(*context_, true, dtype, {}));
  for (const test::CodedKind& kind : test::kCodedKinds) {
    const Matrix weights = matrix(kind, 48, 256);
    for (const std::int64_t rows : {3, 20}) {
      auto x = random_rows(dtype, rows * weights.inputs, 7);
      x[static_cast<std::size_t>(weights.inputs + 5)] =
          tensor::float_to_bf16(std::numeric_limits<float>::quiet_NaN());
      const auto got = run(coded, matmul, weights, x, false);
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(std::isnan(got[i]), static_cast<std::int64_t>(i) / weights.outputs == 1);
      }
    }
  }
}

TEST_F(CodedProducts, ExpandedWeightsAreTheCpusRoundedOnce) {
  for (const DType dtype : kDTypes) {
    for (const test::CodedKind& kind : test::kCodedKinds) {
      const Matrix weights = matrix(kind, 70, 576);
      const auto out = upload(std::vector<std::uint16_t>(70 * 576));
      must(device::cuda::to_status(expand_codes({.dtype = dtype,
                                                 .weights = weights.coded(),
                                                 .first = 16,
                                                 .count = 54,
                                                 .out = out.data()},
                                                stream()),
                                   "expand_codes"));
      const auto got = download(out, 70 * 576);
      for (std::size_t i = 0; i < 54 * 576; ++i) {
        ASSERT_EQ(got[i], round_to(dtype, weights.plain[16 * 576 + i]))
            << format_name(kind.packed) << ", value " << i;
      }
      EXPECT_EQ(got[54 * 576], 0) << "nothing is written behind them";
    }
  }
}

TEST_F(CodedProducts, EmbeddedRowsAreTheCpusBitForBit) {
  for (const test::CodedKind& kind : test::kCodedKinds) {
    if (kind.packed == WeightFormat::kF8) {
      continue;  // no embedding is packed so
    }
    const Matrix weights = matrix(kind, 70, 328);
    const auto ids = upload(std::vector<std::int32_t>{69, 0, 17, 5});
    const auto from = upload(std::vector<std::int32_t>{-1, -1, -1, 1});
    const auto chosen = upload(std::vector<std::int32_t>{3, 33});
    const auto out = upload(std::vector<float>(4 * 328));
    must(device::cuda::to_status(embed_codes(weights.coded(),
                                             {.ids = ids.data(),
                                              .from = from.data(),
                                              .chosen = chosen.data(),
                                              .rows = 4,
                                              .width = 328,
                                              .out = out.data()},
                                             stream()),
                                 "embed_codes"));
    const auto got = download(out, 4 * 328);
    const std::int64_t want[] = {69, 0, 17, 33};
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], weights.plain[static_cast<std::size_t>(want[i / 328]) * 328 + i % 328]);
    }
  }
}

}  // namespace
}  // namespace quire::kernels::cuda

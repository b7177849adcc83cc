// Outputs on their way to the residual stream, factors, and queries that grow, on a GPU. Oracle:
// double precision.
#include "quire/kernels/cuda/residual.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/gpu_test_util.h"
#include "quire/kernels/test_util.h"

namespace quire::kernels::cuda {
namespace {

using device::cuda::to_status;
using device::cuda::test::must;

class Residual : public device::cuda::test::GpuTest {};

TEST_F(Residual, RowsAreNormedAndScaledBeforeTheyAreAdded) {
  constexpr int kRows = 5;
  for (const int width : {40, 2880}) {
    for (const bool is_normed : {false, true}) {
      const auto x = test::random_floats(kRows, width, 1);
      const auto norm = test::random_floats(width, 2);
      const auto before = test::random_floats(kRows, width, 3);
      const auto x_there = upload(x), norm_there = upload(norm);
      const auto out = upload(before);
      must(to_status(add_residual({.x = x_there.data(),
                                   .norm = is_normed ? norm_there.data() : nullptr,
                                   .epsilon = 1e-5f,
                                   .factor = 0.25f,
                                   .rows = kRows,
                                   .width = width,
                                   .out = out.data()},
                                  stream()),
                     "add_residual"));
      const auto got = download(out, before.size());
      for (int row = 0; row < kRows; ++row) {
        double squares = 0;
        for (int i = 0; i < width; ++i) {
          squares += double{x[row * width + i]} * x[row * width + i];
        }
        const double scale = 1 / std::sqrt(squares / width + 1e-5);
        for (int i = 0; i < width; ++i) {
          const int at = row * width + i;
          const double value = is_normed ? x[at] * scale * norm[i] : x[at];
          ASSERT_NEAR(got[at], before[at] + 0.25 * value, 1e-5) << row << ", " << i;
        }
      }
    }
  }
}

TEST_F(Residual, ValuesAreScaledAndCapped) {
  const auto values = test::random_floats(3'000'001, 1);
  for (const float cap : {0.0f, 1.5f}) {
    const auto there = upload(values);
    must(to_status(scale({.values = there.data(),
                          .count = static_cast<std::int64_t>(values.size()),
                          .factor = 3,
                          .cap = cap},
                         stream()),
                   "scale"));
    const auto got = download(there, values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double scaled = 3.0f * values[i];
      ASSERT_NEAR(got[i], cap == 0 ? scaled : cap * std::tanh(scaled / cap), 1e-5) << i;
    }
  }
}

TEST_F(Residual, QueriesGrowWithTheLogarithmOfTheirPosition) {
  constexpr int kWidth = 300, kStride = 520;
  const std::vector<std::int32_t> positions = {0, 63, 64, 127, 128, 100'000};
  const auto rows = static_cast<int>(positions.size());
  const auto before = test::random_floats(rows, kStride, 1);
  const auto there = upload(before);
  const auto positions_there = upload(positions);
  must(to_status(grow_queries({.q = there.data(),
                               .stride = kStride,
                               .rows = rows,
                               .width = kWidth,
                               .positions = positions_there.data(),
                               .growth = 0.3,
                               .length = 64},
                              stream()),
                 "grow_queries"));
  const auto got = download(there, before.size());
  for (int row = 0; row < rows; ++row) {
    const auto factor =
        static_cast<float>(1 + 0.3 * std::log(1.0 + positions[static_cast<std::size_t>(row)] / 64));
    for (int i = 0; i < kStride; ++i) {
      const auto at = static_cast<std::size_t>(row * kStride + i);
      const float want = i < kWidth ? before[at] * factor : before[at];
      ASSERT_NEAR(got[at], want, std::abs(want) * 1e-6) << "row " << row << ", number " << i;
    }
  }
}

}  // namespace
}  // namespace quire::kernels::cuda

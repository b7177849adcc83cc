// Products of rows grouped by expert on a GPU. Oracle: sums in double precision of the weights as
// they are, or as the CPU unpacks them.
#include "quire/kernels/cuda/grouped_products.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/gpu_test_util.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/cuda/coded_products.h"
#include "quire/kernels/cuda/coded_weights.h"
#include "quire/kernels/cuda/experts.h"
#include "quire/kernels/cuda/products_test_util.h"
#include "quire/kernels/device_codes.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_weights.h"
#include "quire/kernels/test_util.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {
namespace {

using device::cuda::DeviceBuffer;
using device::cuda::test::must;
using tensor::DType;

constexpr int kExperts = 3;

struct Sizes {
  std::int64_t outputs, inputs;
};

class GroupedProducts : public device::cuda::test::GpuTest {
 protected:
  // Matrices of all experts, on both sides.
  struct Matrices {
    std::optional<CodeFormat> format;
    Sizes sizes;
    std::vector<double> plain;  // [experts, outputs, inputs]
    DeviceBuffer<std::byte> there;
    [[nodiscard]] ExpertMatrices view() const {
      return {there.data(), format, sizes.outputs, sizes.inputs};
    }
  };

  Matrices floats(DType dtype, const Sizes& sizes) {
    const auto halves = test::random_rows(dtype, kExperts * sizes.outputs * sizes.inputs, 5);
    Matrices made{{}, sizes, {}, {}};
    for (const std::uint16_t half : halves) {
      made.plain.push_back(test::widen(dtype, half));
    }
    const auto bytes = std::as_bytes(std::span(halves));
    made.there = upload(std::vector<std::byte>(bytes.begin(), bytes.end()));
    return made;
  }

  Matrices codes(const test::CodedKind& kind, const Sizes& sizes) {
    const auto size = static_cast<std::size_t>(sizes.outputs * sizes.inputs);
    const auto values = test::random_floats(kExperts * sizes.outputs, sizes.inputs, 5);
    const std::int64_t bytes = device_code_bytes(kind.device, sizes.outputs, sizes.inputs);
    Matrices made{kind.device, sizes, {}, {}};
    made.there = must(DeviceBuffer<std::byte>::make(context_->device_pool(),
                                                    static_cast<std::size_t>(kExperts * bytes)));
    std::vector<float> row(static_cast<std::size_t>(sizes.inputs));
    for (int expert = 0; expert < kExperts; ++expert) {
      const PackedWeights packed =
          test::pack_plain(cpu_, kind.packed,
                           std::span(values).subspan(static_cast<std::size_t>(expert) * size, size),
                           sizes.outputs, sizes.inputs);
      for (std::int64_t output = 0; output < sizes.outputs; ++output) {
        packed.unpack_row(output, row);
        made.plain.insert(made.plain.end(), row.begin(), row.end());
      }
      const auto data = std::span(packed.data(), packed.size_bytes());
      const auto there = upload(std::vector<std::byte>(data.begin(), data.end()));
      must(device::cuda::to_status(
          arrange_codes(there.data(), {kind.device, nullptr, sizes.outputs, sizes.inputs},
                        made.there.data() + expert * bytes, stream()),
          "arrange_codes"));
      wait();
    }
    return made;
  }

  // Multiplies rows of x for places, which come by expert, `counts` of each.
  std::vector<float> run(DType dtype, const Matrices& weights, const std::vector<std::uint16_t>& x,
                         const std::vector<std::int32_t>& row_of, const std::vector<int>& counts,
                         int block_rows) {
    std::vector<ExpertRows> groups = {{}};  // one without places
    int first = 0;
    for (int expert = 0; expert < kExperts; ++expert) {
      const int count = counts[static_cast<std::size_t>(expert)];
      for (int at = 0; at < count; at += block_rows) {
        groups.push_back({expert, first + at, std::min(block_rows, count - at)});
      }
      first += count;
    }
    const std::vector<float> before(static_cast<std::size_t>(first * weights.sizes.outputs) + 1, 3);
    const auto x_there = upload(x);
    const auto rows_there = upload(row_of);
    const auto groups_there = upload(groups);
    const auto out = upload(before);
    DeviceBuffer<std::byte> images;
    if (block_rows == kGroupedWideRows) {
      images = must(DeviceBuffer<std::byte>::make(
          context_->device_pool(),
          static_cast<std::size_t>(
              grouped_images_bytes(*weights.format, std::ssize(groups), weights.sizes.inputs))));
    }
    must(device::cuda::to_status(
        multiply_groups({.dtype = dtype,
                         .weights = weights.view(),
                         .x = x_there.data(),
                         .row_of = row_of.empty() ? nullptr : rows_there.data(),
                         .groups = groups_there.data(),
                         .num_groups = std::ssize(groups),
                         .block_rows = block_rows,
                         .out = out.data(),
                         .images = images.data()},
                        stream()),
        "multiply_groups"));
    auto got = download(out, before.size());
    EXPECT_EQ(got.back(), 3.0f) << "nothing is written behind the last place";
    got.pop_back();
    return got;
  }

  void expect_sums(DType dtype, const Matrices& weights) {
    const auto [outputs, inputs] = weights.sizes;
    const auto x = test::random_rows(dtype, 5 * inputs, 7);
    std::vector<std::int32_t> row_of;
    for (int place = 0; place < 38; ++place) {
      row_of.push_back(place * 3 % 5);
    }
    std::vector<int> sizes = {8, weights.format ? 16 : 32};
    if (weights.format && can_multiply_wide()) {
      sizes.push_back(kGroupedWideRows);
    }
    for (const int block_rows : sizes) {
      const auto got = run(dtype, weights, x, row_of, {1, 0, 37}, block_rows);
      for (int place = 0; place < 38; ++place) {
        for (std::int64_t output = 0; output < outputs; ++output) {
          const std::int64_t matrix = place == 0 ? output : 2 * outputs + output;
          double sum = 0;
          for (std::int64_t i = 0; i < inputs; ++i) {
            sum += test::widen(dtype, x[row_of[place] * inputs + i]) *
                   weights.plain[matrix * inputs + i];
          }
          ASSERT_NEAR(got[place * outputs + output], sum, 1e-4 * std::sqrt(inputs))
              << "place " << place << ", output " << output << " of " << outputs << ", " << inputs
              << " inputs, groups of " << block_rows;
        }
      }
    }
  }

  void expect_bits_of_a_row_alone(DType dtype, const Matrices& weights) {
    const auto [outputs, inputs] = weights.sizes;
    const std::vector<int> counts = {3, 196, 1};
    const auto x = test::random_rows(dtype, 200 * inputs, 9);
    std::vector<int> sizes = {weights.format ? 16 : 32};
    if (weights.format && can_multiply_wide()) {
      sizes.push_back(kGroupedWideRows);
    }
    for (const int most : sizes) {
      const auto together = run(dtype, weights, x, {}, counts, most);
      for (const int row : {0, 2, 3, 10, 20, 130, 198, 199}) {
        const int expert = row < 3 ? 0 : row < 199 ? 1 : 2;
        std::vector<int> one(kExperts);
        one[static_cast<std::size_t>(expert)] = 1;
        const std::vector<std::uint16_t> alone(x.begin() + row * inputs,
                                               x.begin() + (row + 1) * inputs);
        const auto got = run(dtype, weights, alone, {}, one, 8);
        EXPECT_TRUE(std::equal(got.begin(), got.end(), together.begin() + row * outputs))
            << "row " << row << ", " << outputs << " outputs, " << inputs << " inputs, groups of "
            << most;
      }
    }
  }

  device::ThreadPool pool_{1};
  KernelContext cpu_{&kernels_for(device::Isa::kPortable), &pool_};
};

TEST_F(GroupedProducts, EqualSumsInDoublePrecision) {
  for (const DType dtype : test::kDTypes) {
    for (const Sizes& sizes : {Sizes{33, 24}, {64, 96}, {160, 704}}) {
      expect_sums(dtype, floats(dtype, sizes));
      for (const test::CodedKind& kind : test::kCodedKinds) {
        if (kind.device == CodeFormat::kE4m3) {
          continue;  // experts have none
        }
        expect_sums(dtype, codes(kind, sizes));
      }
    }
  }
}

TEST_F(GroupedProducts, GiveARowTheSameBitsInEveryGroup) {
  for (const DType dtype : test::kDTypes) {
    for (const Sizes& sizes : {Sizes{33, 24}, {96, 1024}}) {
      expect_bits_of_a_row_alone(dtype, floats(dtype, sizes));
      for (const test::CodedKind& kind : test::kCodedKinds) {
        if (kind.device == CodeFormat::kE4m3) {
          continue;  // experts have none
        }
        expect_bits_of_a_row_alone(dtype, codes(kind, sizes));
      }
    }
  }
}

}  // namespace
}  // namespace quire::kernels::cuda

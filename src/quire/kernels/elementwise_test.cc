// Norms, gates and look-ups against double precision, and their bits against their own bits in
// other batches.
#include "quire/kernels/elementwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_weights.h"
#include "quire/kernels/reference.h"
#include "quire/kernels/test_util.h"
#include "quire/tensor/dtype.h"
#include "quire/types.h"

namespace quire::kernels {
namespace {

using reference::Tolerance;
using test::random_floats;
using test::same_bits;

class ElementwiseTest : public test::OnEveryIsa {
 protected:
  device::ThreadPool pool_{2};
  KernelContext context() { return on(pool_); }
};

constexpr std::int64_t kWidths[] = {1, 3, 16, 17, 64, 100, 576, 2048, 5633};

std::span<const float> row_of(const std::vector<float>& values, std::int64_t row,
                              std::int64_t width) {
  return std::span(values).subspan(static_cast<std::size_t>(row * width),
                                   static_cast<std::size_t>(width));
}

TEST_P(ElementwiseTest, RmsNormMatchesDoublePrecision) {
  for (const std::int64_t width : kWidths) {
    const std::int64_t rows = 37;
    const std::vector<float> x = random_floats(rows * width, 1);
    const std::vector<float> weight = random_floats(width, 2);
    std::vector<float> out(x.size());
    rms_norm(context(), x, weight, 1e-5, rows, out);
    for (std::int64_t row = 0; row < rows; ++row) {
      EXPECT_LE(reference::relative_l2(row_of(out, row, width),
                                       reference::rms_norm(row_of(x, row, width), weight, 1e-5)),
                Tolerance::kRmsNorm)
          << "width " << width;
    }
  }
}

TEST_P(ElementwiseTest, RmsNormRowsDoNotDependOnTheBatchAndMayBeInPlace) {
  for (const std::int64_t width : kWidths) {
    const std::int64_t rows = 41;
    const std::vector<float> x = random_floats(rows * width, 3);
    const std::vector<float> weight = random_floats(width, 4);
    std::vector<float> all(x.size());
    rms_norm(context(), x, weight, 1e-6, rows, all);
    for (const std::int64_t row : {0, 20, 40}) {
      std::vector<float> alone(row_of(x, row, width).begin(), row_of(x, row, width).end());
      rms_norm(context(), alone, weight, 1e-6, 1, alone);
      EXPECT_TRUE(same_bits(alone, row_of(all, row, width))) << "width " << width;
    }
  }
}

TEST_P(ElementwiseTest, RmsNormOfZerosIsZeroAndOfNotANumberStays) {
  const std::vector<float> weight(64, 1.0f);
  std::vector<float> x(64, 0.0f);
  rms_norm(context(), x, weight, 1e-5, 1, x);
  EXPECT_EQ(x, std::vector<float>(64, 0.0f));
  x[63] = std::numeric_limits<float>::quiet_NaN();
  rms_norm(context(), x, weight, 1e-5, 1, x);
  EXPECT_TRUE(std::isnan(x[0]));
}

// Oracle: rms_norm of the copied heads; everything between the rows' heads keeps its value.
TEST_P(ElementwiseTest, RmsNormHeadsIsRmsNormOfEachHead) {
  for (const std::int64_t head_dim : {64, 80, 128}) {
    const std::int64_t rows = 19;
    const std::int64_t heads = 5;
    const std::int64_t stride = heads * head_dim + 48;
    const std::vector<float> before = random_floats(rows * stride, 5);
    const std::vector<float> weight = random_floats(head_dim, 6);
    std::vector<float> x = before;
    rms_norm_heads(context(), {x, stride, rows, heads}, weight, 1e-6);
    std::vector<float> expected = before;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t head = 0; head < heads; ++head) {
        const auto part =
            std::span(expected).subspan(static_cast<std::size_t>(row * stride + head * head_dim),
                                        static_cast<std::size_t>(head_dim));
        rms_norm(context(), part, weight, 1e-6, 1, part);
      }
    }
    EXPECT_TRUE(same_bits(x, expected)) << head_dim;
  }
}

TEST_P(ElementwiseTest, SiluMulMatchesDoublePrecision) {
  for (const std::int64_t width : kWidths) {
    const std::int64_t rows = 9;
    std::vector<float> x = random_floats(rows * 2 * width, 7);
    for (float& value : x) {
      value *= 4;
    }
    std::vector<float> out(static_cast<std::size_t>(rows * width));
    silu_mul(context(), x, rows, width, out);
    for (std::int64_t row = 0; row < rows; ++row) {
      EXPECT_LE(reference::relative_l2(row_of(out, row, width),
                                       reference::silu_mul(row_of(x, row, 2 * width))),
                Tolerance::kSiluMul)
          << "width " << width;
    }
  }
}

// Tests each value for itself over the whole range of the exponential. The relative error is at
// most 1e-6. Below -87 the result is smaller than 1e-35, and only that is asked for.
TEST_P(ElementwiseTest, SiluIsAccurateEverywhere) {
  std::vector<float> x;
  x.reserve(40002);
  for (int i = -10000; i <= 10000; ++i) {
    x.push_back(static_cast<float>(i) * 0.01f);
  }
  const auto width = static_cast<std::int64_t>(x.size());
  x.resize(x.size() * 2, 1.0f);
  std::vector<float> out(static_cast<std::size_t>(width));
  silu_mul(context(), x, 1, width, out);
  const std::vector<double> expected = reference::silu_mul(x);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (x[i] < -87.0f) {
      EXPECT_LE(std::fabs(double{out[i]}), 1e-35);
    } else {
      EXPECT_LE(std::fabs(out[i] - expected[i]), 1e-6 * std::fabs(expected[i])) << x[i];
    }
  }
}

TEST_P(ElementwiseTest, SiluMulElementsDoNotDependOnTheirPlace) {
  const std::int64_t width = 101;
  const std::int64_t rows = 40;
  const std::vector<float> x = random_floats(rows * 2 * width, 8);
  std::vector<float> all(static_cast<std::size_t>(rows * width));
  silu_mul(context(), x, rows, width, all);
  for (const std::int64_t row : {0, 7, 39}) {
    std::vector<float> alone(static_cast<std::size_t>(width));
    silu_mul(context(), row_of(x, row, 2 * width), 1, width, alone);
    EXPECT_TRUE(same_bits(alone, row_of(all, row, width)));
    for (const std::int64_t i : {0, 50, 95, 96, 100}) {
      const float pair[2] = {row_of(x, row, 2 * width)[static_cast<std::size_t>(i)],
                             row_of(x, row, 2 * width)[static_cast<std::size_t>(width + i)]};
      float one[1];
      silu_mul(context(), pair, 1, 1, one);
      EXPECT_EQ(one[0], alone[static_cast<std::size_t>(i)]);
    }
  }
}

TEST_P(ElementwiseTest, SiluOfNotANumberStays) {
  const float x[] = {std::numeric_limits<float>::quiet_NaN(),
                     1.0f,
                     std::numeric_limits<float>::infinity(),
                     2.0f,
                     2.0f,
                     2.0f};
  float out[3];
  silu_mul(context(), x, 1, 3, out);
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_TRUE(std::isinf(out[2]));
}

// Tests each value for itself. tanh rounds to -1 below -5, where the product of the reference is
// exact and small; so an absolute bound stands beside the relative one.
TEST_P(ElementwiseTest, GeluIsAccurateEverywhere) {
  std::vector<float> x;
  x.reserve(8002);
  for (int i = -2000; i <= 2000; ++i) {
    x.push_back(static_cast<float>(i) * 0.01f);
  }
  const auto width = static_cast<std::int64_t>(x.size());
  x.resize(x.size() * 2, 1.0f);
  std::vector<float> out(static_cast<std::size_t>(width));
  gate_mul(context(), Activation::kGeluTanh, x, 1, out);
  const std::vector<double> expected = reference::gelu_mul(x);
  for (std::size_t i = 0; i < out.size(); ++i) {
    EXPECT_LE(std::fabs(out[i] - expected[i]), 2e-6 * std::fabs(expected[i]) + 1e-7) << x[i];
  }
}

TEST_P(ElementwiseTest, ClampedSwigluAndReluFollowTheirFormulas) {
  std::vector<float> x;
  for (int i = -1000; i <= 1000; ++i) {
    x.push_back(static_cast<float>(i) * 0.012f);
  }
  const std::size_t width = x.size();
  for (std::size_t i = 0; i < width; ++i) {
    x.push_back(x[width - 1 - i]);
  }
  std::vector<float> out(width), relu(width);
  gate_mul(context(), Activation::kClampedSwiglu, x, 1, out);
  gate_mul(context(), Activation::kRelu, x, 1, relu);
  for (std::size_t i = 0; i < width; ++i) {
    const double gate = std::min<double>(x[i], 7), up = std::clamp<double>(x[width + i], -7, 7);
    const double expected = (up + 1) * gate / (1 + std::exp(-1.702f * gate));
    EXPECT_NEAR(out[i], expected, 2e-6 * std::fabs(expected) + 1e-6) << x[i];
    EXPECT_EQ(relu[i], x[i] > 0 ? x[i] * x[width + i] : 0.0f);
  }
  const float bad[2] = {std::numeric_limits<float>::quiet_NaN(), 1};
  float one[1];
  gate_mul(context(), Activation::kClampedSwiglu, bad, 1, one);
  EXPECT_TRUE(std::isnan(one[0]));
}

TEST_P(ElementwiseTest, GeluElementsDoNotDependOnTheirPlace) {
  const std::int64_t width = 101;
  const std::vector<float> x = random_floats(2 * width, 18);
  std::vector<float> all(static_cast<std::size_t>(width));
  gate_mul(context(), Activation::kGeluTanh, x, 1, all);
  for (const std::size_t i : {std::size_t{0}, std::size_t{50}, std::size_t{100}}) {
    const float pair[2] = {x[i], x[i + static_cast<std::size_t>(width)]};
    float one[1];
    gate_mul(context(), Activation::kGeluTanh, pair, 1, one);
    EXPECT_EQ(one[0], all[i]);
  }
}

TEST_P(ElementwiseTest, SoftCapIsAccurateWhateverTheSizeAndThePlace) {
  for (const float cap : {0.5f, 30.0f, 50.0f}) {
    for (const std::int64_t size : {1, 7, 64, 1001}) {
      std::vector<float> x = random_floats(size, 19);
      for (float& value : x) {
        value *= 3 * cap;
      }
      std::vector<float> capped = x;
      soft_cap(context(), cap, capped);
      const std::vector<double> expected = reference::soft_cap(x, cap);
      for (std::size_t i = 0; i < x.size(); ++i) {
        EXPECT_LE(std::fabs(capped[i] - expected[i]), 3e-7 * cap) << x[i] << " by " << cap;
        float one[1] = {x[i]};
        soft_cap(context(), cap, one);
        EXPECT_EQ(one[0], capped[i]);
      }
    }
  }
  float nan[1] = {std::numeric_limits<float>::quiet_NaN()};
  soft_cap(context(), 1.0f, nan);
  EXPECT_TRUE(std::isnan(nan[0]));
}

TEST_P(ElementwiseTest, ScaledRowsAreAddedWithTwoRoundings) {
  const std::vector<float> x = random_floats(1500, 20);
  std::vector<float> sum = random_floats(1500, 21);
  const std::vector<float> before = sum;
  add_scaled(context(), x, 0.3f, sum);
  std::vector<float> scaled = x;
  scale(context(), 0.3f, scaled);
  for (std::size_t i = 0; i < x.size(); ++i) {
    volatile float product = x[i] * 0.3f;
    EXPECT_EQ(scaled[i], product);
    EXPECT_EQ(sum[i], before[i] + product);
  }
}

TEST_P(ElementwiseTest, EmbedReturnsTheRowsThatTheKernelsSee) {
  for (const WeightFormat format : test::kFormats) {
    const PackedWeights table =
        test::pack_plain(context(), format, random_floats(25700, 9), 257, 100);
    const std::vector<float> plain = reference::unpack_weights(table);
    std::vector<TokenId> ids(600);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<TokenId>(i * 97 % 257);
    }
    std::vector<float> out(ids.size() * 100);
    embed(context(), table, ids, out);
    for (std::size_t t = 0; t < ids.size(); ++t) {
      ASSERT_TRUE(
          same_bits(row_of(out, static_cast<std::int64_t>(t), 100), row_of(plain, ids[t], 100)))
          << format_name(format);
    }
  }
}

TEST_P(ElementwiseTest, NoRowsIsANoOp) {
  const std::vector<float> x = random_floats(16, 11);
  const std::vector<float> before = random_floats(16, 12);
  std::vector<float> out = before;  // the rows stand in front of it
  const std::span<const float> no_rows = std::span(x).first(0);
  const std::span<float> nothing = std::span(out).first(0);
  const std::vector<float> ones(8, 1.0f);
  rms_norm(context(), no_rows, ones, 1e-5, 0, nothing);
  EXPECT_EQ(out, before);
  rms_norm_heads(context(), {nothing, 8, 0, 1}, ones, 1e-5);
  EXPECT_EQ(out, before);
  silu_mul(context(), no_rows, 0, 8, nothing);
  EXPECT_EQ(out, before);
  embed(context(), PackedWeights(WeightFormat::kF32, 4, 8), {}, nothing);
  EXPECT_EQ(out, before);
}

// Oracle: the scalar conversion; every value half way between two neighbours among them.
TEST_P(ElementwiseTest, RoundingToBf16IsTheScalarRounding) {
  std::vector<float> x = random_floats(1000, 10);
  for (std::uint32_t bits = 0x3f80; bits < 0x4080; ++bits) {
    x.push_back(std::bit_cast<float>((bits << 16) + 0x8000u));
    x.push_back(-x.back());
  }
  for (const float special :
       {0.0f, -0.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max(),
        std::numeric_limits<float>::lowest()}) {
    x.push_back(special);
  }
  for (const std::size_t count : {x.size(), std::size_t{1}, std::size_t{15}}) {
    std::vector<std::uint16_t> rounded(count + 1, 0xabcd);
    context().table->round_bf16(x.data(), static_cast<std::int64_t>(count), rounded.data());
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(rounded[i], tensor::float_to_bf16(x[i])) << x[i];
    }
    EXPECT_EQ(rounded[count], 0xabcd);
  }
  const float nan[] = {std::numeric_limits<float>::quiet_NaN(), std::bit_cast<float>(0x7fffffffu),
                       std::bit_cast<float>(0xff800001u)};
  std::uint16_t rounded[3];
  context().table->round_bf16(nan, 3, rounded);
  for (const std::uint16_t bits : rounded) {
    EXPECT_TRUE(std::isnan(tensor::bf16_to_float(bits)));
  }
}

INSTANTIATE_TEST_SUITE_P(All, ElementwiseTest, test::every_isa(), test::isa_test_name);

}  // namespace
}  // namespace quire::kernels

// Matrix products: tolerance against double precision, row invariance bit by bit, agreement between
// instruction sets, epilogues, borders, allocations.
#include "quire/kernels/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <new>
#include <span>
#include <vector>

#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/elementwise.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_rows.h"
#include "quire/kernels/packed_weights.h"
#include "quire/kernels/reference.h"
#include "quire/kernels/test_util.h"

namespace {

std::atomic<std::int64_t> allocations{0};  // of operator new, in this test program

}  // namespace

// Not inlined, so that the compiler sees pairs of new and delete, not of new and free.
[[gnu::noinline]] void* operator new(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* data = std::malloc(size == 0 ? 1 : size);  // NOLINT: this is the allocator
  if (data == nullptr) {
    throw std::bad_alloc();
  }
  return data;
}
[[gnu::noinline]] void operator delete(void* data) noexcept {
  std::free(data);
}  // NOLINT: the same
[[gnu::noinline]] void operator delete(void* data, std::size_t) noexcept {
  std::free(data);
}  // NOLINT: the same

namespace quire::kernels {
namespace {

using device::Isa;
using device::ThreadPool;
using reference::Tolerance;
using test::random_floats;
using test::same_bits;

struct Shape {
  std::int64_t columns, depth;
};

struct Case {
  WeightFormat format;
  Shape shape;
};

// Every format with each of the shapes.
std::vector<Case> cases_of(std::initializer_list<Shape> shapes) {
  std::vector<Case> cases;
  for (const WeightFormat format : test::kFormats) {
    for (const Shape shape : shapes) {
      cases.push_back({format, shape});
    }
  }
  return cases;
}

PackedWeights random_weights(const KernelContext& context, WeightFormat format, Shape s,
                             std::uint32_t seed) {
  return test::pack_plain(context, format, random_floats(s.columns, s.depth, seed), s.columns,
                          s.depth);
}

constexpr float kBefore = 0.25f;  // what `out` holds before the product

std::vector<float> multiply(const KernelContext& context, const PackedWeights& w,
                            std::span<const float> x, std::int64_t rows,
                            const Epilogue& epilogue = {}) {
  PackedRows packed;
  LinearScratch scratch;
  std::vector<float> out(static_cast<std::size_t>(rows * w.columns()), kBefore);
  pack_rows(context, w.format(), {x, w.depth(), rows, w.depth()}, packed);
  linear(context, w, packed, {out, w.columns()}, epilogue, scratch);
  return out;
}

class LinearTest : public test::OnEveryIsa {
 protected:
  ThreadPool pool_{2};
  KernelContext context() { return on(pool_); }
};

// The packed input of the product after a gated one, part by part.
std::vector<std::byte> bytes_of(PackedRows& rows) {
  const std::int64_t values = rows.rows() * rows.steps() * kStepDepth;
  const auto bytes = static_cast<std::size_t>(values * value_bytes(rows.format()));
  std::vector<std::byte> all(rows.values(0), rows.values(0) + bytes);
  if (rows.format() == RowFormat::kInt8) {
    const auto groups = static_cast<std::size_t>(values / kStepDepth);
    const auto scales = std::as_bytes(std::span(rows.scales(0), groups));
    const auto offsets = std::as_bytes(std::span(rows.offsets(0), groups));
    all.insert(all.end(), scales.begin(), scales.end());
    all.insert(all.end(), offsets.begin(), offsets.end());
  }
  return all;
}

TEST_P(LinearTest, GatedRowsAreThoseOfTheStepsOneByOne) {
  constexpr std::int64_t kDepth = 96;
  for (const WeightFormat format : test::kFormats) {
    for (const std::int64_t width : {32, 160, 1152}) {
      const PackedWeights w = random_weights(context(), format, {2 * width, kDepth}, 1);
      const std::vector<float> bias = random_floats(1, 2 * width, 2);
      for (const std::int64_t rows : {1, 16, 33, 64, 300}) {
        const std::vector<float> x = random_floats(rows, kDepth, 3);
        for (const std::span<const float> with : {std::span<const float>(), std::span(bias)}) {
          const Activation activation = rows == 33 ? Activation::kGeluTanh : Activation::kSilu;
          std::vector<float> gated(static_cast<std::size_t>(rows * width));
          gate_mul(context(), activation, multiply(context(), w, x, rows, {.bias = with}), rows,
                   gated);
          PackedRows input, expected, result;
          pack_rows(context(), format, {gated, width, rows, width}, expected);

          LinearScratch scratch;
          pack_rows(context(), format, {x, kDepth, rows, kDepth}, input);
          linear_gated(context(), w, input, with, {result, format, activation}, scratch);
          EXPECT_EQ(result.rows(), rows);
          EXPECT_EQ(result.depth(), width);
          EXPECT_EQ(bytes_of(result), bytes_of(expected))
              << format_name(format) << " " << rows << " rows, width " << width;
        }
      }
    }
  }
}

TEST_P(LinearTest, NormedRowsArePackedAsIfNormedBefore) {
  for (const WeightFormat format : test::kFormats) {
    for (const std::int64_t depth : {1, 31, 32, 70, 576, 2080}) {
      const std::vector<float> weight = random_floats(1, depth, 7);
      for (const std::int64_t rows : {1, 3, 16, 17, 300}) {
        const std::int64_t stride = depth + 5;
        std::vector<float> x = random_floats(rows, stride, 8);
        x[0] = depth == 70 ? std::numeric_limits<float>::quiet_NaN() : x[0];
        std::vector<float> normed(x.size());
        for (std::int64_t row = 0; row < rows; ++row) {
          rms_norm(context(), std::span(x).subspan(static_cast<std::size_t>(row * stride)), weight,
                   1e-5, 1, std::span(normed).subspan(static_cast<std::size_t>(row * stride)));
        }
        PackedRows expected, result;
        pack_rows(context(), format, {normed, stride, rows, depth}, expected);
        pack_normed_rows(context(), format, {x, stride, rows, depth}, {weight, 1e-5}, result);
        EXPECT_EQ(bytes_of(result), bytes_of(expected))
            << format_name(format) << " " << rows << " rows, depth " << depth;
      }
    }
  }
}

TEST_P(LinearTest, GateAndUpInOnePanelCannotBeGatedTogether) {
  const auto can = [&](std::int64_t columns) {
    return can_gate(random_weights(context(), WeightFormat::kBf16, {columns, 32}, 1));
  };
  EXPECT_TRUE(can(64));
  EXPECT_FALSE(can(32));
  EXPECT_FALSE(can(96));
  EXPECT_FALSE(can(100));
}

TEST_P(LinearTest, MatchesDoublePrecision) {
  for (const auto& [format, s] :
       cases_of({{32, 32}, {64, 256}, {100, 96}, {31, 70}, {40, 2080}, {1, 1}})) {
    const PackedWeights w = random_weights(context(), format, s, 1);
    const std::vector<float> plain = reference::unpack_weights(w);
    for (const std::int64_t rows : {1, 2, 3, 8, 15, 16, 17, 33, 48, 61}) {
      const std::vector<float> x = random_floats(rows, s.depth, 2);
      PackedRows packed;
      pack_rows(context(), format, {x, s.depth, rows, s.depth}, packed);
      const std::vector<double> expected =
          reference::linear(reference::unpack_rows(packed), plain, s.depth, {});
      EXPECT_LE(reference::relative_l2(multiply(context(), w, x, rows), expected),
                Tolerance::kLinear)
          << format_name(format) << " " << rows << "x" << s.columns << "x" << s.depth;
    }
  }
}

TEST_P(LinearTest, RoundingOfActivationsIsSmall) {
  const std::int64_t rows = 19;
  const std::int64_t columns = 96;
  const std::int64_t depth = 512;
  for (const WeightFormat format : test::kFormats) {
    const PackedWeights w =
        test::pack_plain(context(), format, random_floats(columns * depth, 3), columns, depth);
    const std::vector<float> x = random_floats(rows * depth, 4);
    const double error =
        reference::relative_l2(multiply(context(), w, x, rows),
                               reference::linear(x, reference::unpack_weights(w), depth, {}));
    const RowFormat taken = row_format_for(*context().table, format);
    const double bound = taken == RowFormat::kF32    ? Tolerance::kLinear
                         : taken == RowFormat::kBf16 ? Tolerance::kBf16Rows
                                                     : Tolerance::kInt8Rows;
    EXPECT_LE(error, bound) << format_name(format);
  }
}

// The contract of the engine: a row alone, in any batch, at any place, on any number of threads,
// has the same bits. Shapes with several depth blocks, with tails in both directions, with less
// than a panel.
TEST_P(LinearTest, RowsDoNotDependOnTheBatch) {
  ThreadPool one(1);
  ThreadPool three(3);
  for (const auto& [format, s] : cases_of({{160, 1056}, {75, 100}, {32, 2100}, {7, 33}})) {
    const std::int64_t rows = 300;
    const PackedWeights w = random_weights(context(), format, s, 5);
    const std::vector<float> x = random_floats(rows, s.depth, 6);
    const std::vector<float> all = multiply(context(), w, x, rows);
    const auto same_part = [&](std::int64_t first, std::int64_t count, ThreadPool& pool) {
      const auto x_part = std::span(x).subspan(static_cast<std::size_t>(first * s.depth),
                                               static_cast<std::size_t>(count * s.depth));
      const auto y_part = std::span(all).subspan(static_cast<std::size_t>(first * s.columns),
                                                 static_cast<std::size_t>(count * s.columns));
      return same_bits(multiply(on(pool), w, x_part, count), y_part);
    };
    for (const std::int64_t first : {0, 7, 239}) {
      for (const std::int64_t count :
           {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 16, 17, 31, 32, 33, 40, 48, 61}) {
        ASSERT_TRUE(same_part(first, count, count % 2 == 0 ? one : three))
            << format_name(format) << " " << s.columns << "x" << s.depth << " rows " << first << "+"
            << count;
      }
    }
  }
}

// Bias and residual are exact additions on top of the plain product, so their bits follow from its
// bits. This is also what keeps them row-invariant.
TEST_P(LinearTest, EpilogueAddsBiasThenResidual) {
  for (const auto& [format, s] : cases_of({{96, 1056}, {75, 100}, {20, 40}, {1100, 32}})) {
    const PackedWeights w = random_weights(context(), format, s, 7);
    const std::vector<float> bias = random_floats(s.columns, 8);
    for (const std::int64_t rows : {1, 7, 40, 257}) {
      const std::vector<float> x = random_floats(rows, s.depth, 9);
      const std::vector<float> product = multiply(context(), w, x, rows);
      std::vector<float> biased = product;
      std::vector<float> summed = product;
      std::vector<float> both = product;
      for (std::size_t i = 0; i < product.size(); ++i) {
        const float b = bias[i % static_cast<std::size_t>(s.columns)];
        biased[i] = product[i] + b;
        summed[i] = kBefore + product[i];
        both[i] = kBefore + (product[i] + b);
      }
      const Epilogue all = {.bias = bias, .accumulate = true};
      EXPECT_TRUE(same_bits(multiply(context(), w, x, rows, {.bias = bias}), biased));
      EXPECT_TRUE(same_bits(multiply(context(), w, x, rows, {.accumulate = true}), summed));
      EXPECT_TRUE(same_bits(multiply(context(), w, x, rows, all), both));
    }
  }
}

// Rows of `out` further apart than the columns: what lies between and behind keeps its canaries.
TEST_P(LinearTest, WritesNothingBesideTheOutput) {
  constexpr float kCanary = -77.0f;
  const auto misplaced = [&](const PackedWeights& w, std::int64_t rows, const Epilogue& epilogue) {
    const std::int64_t stride = w.columns() + 7;
    const std::vector<float> x = random_floats(rows, w.depth() + 3, 11);
    PackedRows packed;
    LinearScratch scratch;
    pack_rows(context(), w.format(), {x, w.depth() + 3, rows, w.depth()}, packed);
    std::vector<float> out(static_cast<std::size_t>(rows * stride), kCanary);
    linear(context(), w, packed, {out, stride}, epilogue, scratch);
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < rows * stride; ++i) {
      const bool written = out[static_cast<std::size_t>(i)] != kCanary;
      wrong += written == (i % stride < w.columns()) ? 0 : 1;
    }
    return wrong;
  };
  for (const auto& [format, s] : cases_of({{2049, 64}, {64, 64}, {33, 40}, {5, 8}})) {
    const PackedWeights w = random_weights(context(), format, s, 10);
    for (const std::int64_t rows : {1, 3, 34}) {
      EXPECT_EQ(misplaced(w, rows, {}), 0) << format_name(format) << " " << s.columns;
      EXPECT_EQ(misplaced(w, rows, {.accumulate = true}), 0) << format_name(format);
    }
  }
}

TEST_P(LinearTest, NoRowsIsANoOp) {
  const PackedWeights w =
      test::pack_plain(context(), WeightFormat::kBf16, random_floats(32, 32, 12), 32, 32);
  EXPECT_TRUE(multiply(context(), w, {}, 0).empty());
}

TEST_P(LinearTest, ExtremeCodesDoNotOverflow) {
  const std::int64_t depth = 64;
  const std::int64_t columns = 32;
  const std::int64_t rows = 33;
  std::vector<float> w(static_cast<std::size_t>(columns * depth));
  std::vector<float> x(static_cast<std::size_t>(rows * depth));
  for (std::size_t i = 0; i < w.size(); ++i) {
    w[i] = i % 3 == 0 ? -1.0f : 1.0f;
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = i % 5 == 0 ? -127.0f : 127.0f;  // the codes themselves: their scale is 1
  }
  for (const WeightFormat format : test::kQuantisedFormats) {
    const PackedWeights packed = test::pack_plain(context(), format, w, columns, depth);
    const std::vector<double> expected =
        reference::linear(x, reference::unpack_weights(packed), depth, {});
    EXPECT_LE(reference::relative_l2(multiply(context(), packed, x, rows), expected), 1e-5);
  }
}

// Subnormal activations have no finite inverse scale; their products are as good as zero.
TEST_P(LinearTest, SubnormalRowsAreNegligible) {
  const std::int64_t depth = 64;
  for (const WeightFormat format : test::kFormats) {
    const PackedWeights w = random_weights(context(), format, {32, depth}, 19);
    const std::vector<float> x(static_cast<std::size_t>(depth), 1e-40f);
    for (const float value : multiply(context(), w, x, 1)) {
      EXPECT_LE(std::fabs(value), 1e-36f) << format_name(format);
    }
  }
}

// A row with NaN or infinity spoils itself only.
TEST_P(LinearTest, BrokenRowsStayAlone) {
  const std::int64_t depth = 96;
  const std::int64_t columns = 64;
  const std::int64_t rows = 35;
  for (const WeightFormat format : test::kFormats) {
    const PackedWeights w =
        test::pack_plain(context(), format, random_floats(columns * depth, 13), columns, depth);
    std::vector<float> x = random_floats(rows * depth, 14);
    const std::vector<float> healthy = multiply(context(), w, x, rows);
    x[static_cast<std::size_t>(5 * depth + 3)] = std::numeric_limits<float>::quiet_NaN();
    x[static_cast<std::size_t>(17 * depth + 3)] = std::numeric_limits<float>::infinity();
    const std::vector<float> mixed = multiply(context(), w, x, rows);
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto at = static_cast<std::size_t>(row * columns);
      const bool same =
          same_bits(std::span(healthy).subspan(at, 64), std::span(mixed).subspan(at, 64));
      EXPECT_EQ(same, row != 5 && row != 17) << format_name(format) << " row " << row;
    }
    EXPECT_TRUE(std::isnan(mixed[static_cast<std::size_t>(5 * columns)])) << format_name(format);
    EXPECT_FALSE(std::isfinite(mixed[static_cast<std::size_t>(17 * columns)]))
        << format_name(format);
  }
}

// Integer group sums are exact and the fp32 chain is the same, so quantised results agree in every
// bit.
TEST_P(LinearTest, QuantisedBitsAreTheSameOnAllFusedSets) {
  if (GetParam() == Isa::kPortable) {
    GTEST_SKIP() << "the portable set has no fused multiply-add";
  }
  ThreadPool one(1);
  for (const WeightFormat format : test::kQuantisedFormats) {
    const PackedWeights w =
        test::pack_plain(context(), format, random_floats(96, 1024, 7), 96, 1024);
    const std::vector<float> x = random_floats(37, 1024, 8);
    EXPECT_TRUE(same_bits(multiply(context(), w, x, 37),
                          multiply({&kernels_for(Isa::kAvx2), &one}, w, x, 37)))
        << format_name(format);
  }
}

// Tests scales that products by addition of exponents cannot have. Scales of weights are zero (all
// codes zero, or weights too small for fp16) and infinite, those of rows huge. Groups of zeros
// stand among the others.
TEST_P(LinearTest, UnusualScalesGiveTheSameBitsOnAllFusedSets) {
  if (GetParam() == Isa::kPortable) {
    GTEST_SKIP() << "the portable set has no fused multiply-add";
  }
  constexpr std::int64_t kColumns = 64;
  constexpr std::int64_t kDepth = 1024;
  constexpr std::int64_t kRows = 21;
  ThreadPool one(1);
  for (const float weight : {1.0f, 0.0f, 1e-7f, 1e6f, 1e8f}) {
    for (const float input : {1.0f, 0.0f, 1e-35f, 1e-28f, 1e33f, 1e38f}) {
      std::vector<float> w = random_floats(kColumns * kDepth, 21);
      std::vector<float> x = random_floats(kRows * kDepth, 22);
      for (std::int64_t k = 0; k < kStepDepth;
           ++k) {  // one group of one column, which meets that of one row
        w[static_cast<std::size_t>(5 * kDepth + 64 + k)] *= weight;
        x[static_cast<std::size_t>(9 * kDepth + 64 + k)] *= input;
      }
      for (const WeightFormat format : test::kQuantisedFormats) {
        const PackedWeights packed = test::pack_plain(context(), format, w, kColumns, kDepth);
        std::vector<float> here = multiply(context(), packed, x, kRows);
        std::vector<float> there = multiply({&kernels_for(Isa::kAvx2), &one}, packed, x, kRows);
        for (std::vector<float>* out : {&here, &there}) {
          for (float& value : *out) {
            value = std::isnan(value) ? 0.0f : value;  // of any sign and payload
          }
        }
        EXPECT_TRUE(same_bits(here, there))
            << format_name(format) << " weights x " << weight << ", inputs x " << input;
      }
    }
  }
}

// Few bits, so that products of scales are additions; an eighth of the step is lost on average.
TEST_P(LinearTest, ScalesOfInt8RowsHaveTwoBitsBehindTheLeadingOne) {
  constexpr std::int64_t kDepth = 640;
  const std::vector<float> x = random_floats(3 * kDepth, 23);
  PackedRows packed;
  pack_rows(context(), WeightFormat::kQ8g32, {x, kDepth, 3, kDepth}, packed);
  const std::vector<float> seen = reference::unpack_rows(packed);
  for (std::int64_t group = 0; group < 3 * kDepth / kStepDepth; ++group) {
    const std::int64_t row = group / (kDepth / kStepDepth);
    const std::int64_t step = group % (kDepth / kStepDepth);
    const float scale = packed.scales(0)[step * 3 + row];
    float amax = 0;
    for (std::int64_t i = group * kStepDepth; i < (group + 1) * kStepDepth; ++i) {
      const auto at = static_cast<std::size_t>(i);
      amax = std::max(amax, std::fabs(x[at]));
      EXPECT_LE(std::fabs(seen[at] - x[at]), scale * 0.5001f);
    }
    EXPECT_EQ(std::bit_cast<std::uint32_t>(scale) & 0x1fffffu, 0u);
    EXPECT_GE(scale, amax / 127.0f);
    EXPECT_LT(scale, amax / 127.0f * 1.25f);
  }
}

TEST_P(LinearTest, SteadyStateAllocatesNothing) {
  for (const WeightFormat format : test::kFormats) {
    const PackedWeights w =
        test::pack_plain(context(), format, random_floats(320, 512, 15), 320, 512);
    const std::vector<float> x = random_floats(64, 512, 16);
    std::vector<float> out(std::size_t{64} * 320);
    PackedRows packed;
    LinearScratch scratch;
    const auto step = [&](std::int64_t rows) {
      pack_rows(context(), format, {x, 512, rows, 512}, packed);
      linear(context(), w, packed, {out, 320}, {.accumulate = true}, scratch);
    };
    step(64);
    const std::byte* values = packed.values(0);
    const std::byte* room = scratch.of_thread(1);
    const std::int64_t before = allocations.load();
    for (const std::int64_t rows : {1, 64, 17}) {
      step(rows);
    }
    EXPECT_EQ(allocations.load(), before) << format_name(format);
    EXPECT_EQ(packed.values(0), values);
    EXPECT_EQ(scratch.of_thread(1), room);
  }
}

TEST_P(LinearTest, OneScratchServesAllFormats) {
  PackedRows packed;
  LinearScratch scratch;
  const std::vector<float> x = random_floats(20, 64, 17);
  for (int round = 0; round < 2; ++round) {
    for (const WeightFormat format : test::kFormats) {
      const PackedWeights w =
          test::pack_plain(context(), format, random_floats(64, 64, 18), 64, 64);
      std::vector<float> out(std::size_t{20} * 64);
      pack_rows(context(), format, {x, 64, 20, 64}, packed);
      linear(context(), w, packed, {out, 64}, {}, scratch);
      EXPECT_TRUE(same_bits(out, multiply(context(), w, x, 20)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LinearTest, test::every_isa(), test::isa_test_name);

TEST(LinearDeath, MismatchedOperandsAreCaught) {
  ThreadPool pool(1);
  const KernelContext context = {&kernels_for(Isa::kPortable), &pool};
  const PackedWeights w(WeightFormat::kBf16, 32, 64);
  const std::vector<float> x(64, 1.0f);
  std::vector<float> out(32);
  PackedRows packed;
  LinearScratch scratch;
  pack_rows(context, WeightFormat::kQ8g32, {x, 64, 1, 64}, packed);
  EXPECT_DEATH(linear(context, w, packed, {out, 32}, {}, scratch), "another format");
  pack_rows(context, WeightFormat::kBf16, {x, 32, 1, 32}, packed);
  EXPECT_DEATH(linear(context, w, packed, {out, 32}, {}, scratch), "another depth");
  pack_rows(context, WeightFormat::kBf16, {x, 64, 1, 64}, packed);
  EXPECT_DEATH(linear(context, w, packed, {std::span(out).first(31), 32}, {}, scratch), "short");
}

}  // namespace
}  // namespace quire::kernels

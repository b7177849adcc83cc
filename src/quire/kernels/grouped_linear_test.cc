// Products of rows in groups: the bits of linear() on each group alone.
#include "quire/kernels/grouped_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/elementwise.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/linear.h"
#include "quire/kernels/packed_rows.h"
#include "quire/kernels/packed_weights.h"
#include "quire/kernels/test_util.h"

namespace quire::kernels {
namespace {

using test::random_floats;
using test::same_bits;

constexpr std::int64_t kRows = 90;
constexpr std::int64_t kDepth = 96;
constexpr std::int64_t kOutputs = 70;  // no whole panels
constexpr std::int64_t kInner = 160;
// Rows of each group: one, a few, blocks with and without a rest, more than a task of fp32 has.
constexpr std::int64_t kGroupRows[] = {1, 16, 3, 75, 33, 2};

// Groups of rows of x, and their matrices.
struct Groups {
  Groups(const KernelContext& context, WeightFormat format, std::int64_t columns,
         std::int64_t depth, bool has_bias)
      : bias(random_floats(columns, 91)) {
    std::uint32_t seed = 1;
    std::int64_t first = 0;
    weights.reserve(std::size(kGroupRows));
    for (const std::int64_t rows : kGroupRows) {
      weights.push_back(
          test::pack_plain(context, format, random_floats(columns, depth, ++seed), columns, depth));
      groups.push_back({.weights = &weights.back(),
                        .bias = has_bias ? std::span<const float>(bias) : std::span<const float>(),
                        .first = first,
                        .rows = rows});
      for (std::int64_t i = 0; i < rows; ++i) {
        sources.push_back(static_cast<std::int32_t>((i * 7 + first) % kRows));
      }
      first += rows;
    }
  }
  std::vector<PackedWeights> weights;
  std::vector<float> bias;
  std::vector<RowGroup> groups;
  std::vector<std::int32_t> sources;
};

std::vector<float> rows_of(std::span<const float> x, const RowGroup& group,
                           std::span<const std::int32_t> sources, std::int64_t depth) {
  std::vector<float> rows;
  for (std::int64_t i = 0; i < group.rows; ++i) {
    const auto from = x.begin() + sources[static_cast<std::size_t>(group.first + i)] * depth;
    rows.insert(rows.end(), from, from + depth);
  }
  return rows;
}

class GroupedLinear : public test::OnEveryIsa {
 protected:
  // Returns linear() of one group.
  std::vector<float> alone(const RowGroup& group, std::span<const float> rows) {
    PackedRows packed;
    const std::int64_t depth = group.weights->depth();
    const std::int64_t columns = group.weights->columns();
    std::vector<float> out(static_cast<std::size_t>(group.rows * columns));
    pack_rows(context(), group.weights->format(), {rows, depth, group.rows, depth}, packed);
    linear(context(), *group.weights, packed, {out, columns}, {.bias = group.bias}, scratch_);
    return out;
  }
  // Packs x and puts its rows into the groups.
  void gather(const Groups& all, std::span<const float> x) {
    pack_rows(context(), all.weights.front().format(), {x, kDepth, kRows, kDepth}, packed_);
    gather_packed_rows(context(), packed_, all.sources, all.groups, grouped_);
  }
  KernelContext context() { return on(pool_); }

  device::ThreadPool pool_{3};
  LinearScratch scratch_;
  PackedRows packed_, grouped_;
};

TEST_P(GroupedLinear, EachGroupHasTheBitsOfItsOwnProduct) {
  const std::vector<float> x = random_floats(kRows, kDepth, 40);
  for (const WeightFormat format : test::kFormats) {
    const Groups all(context(), format, kOutputs, kDepth, format != WeightFormat::kQ4g32);
    gather(all, x);
    constexpr std::int64_t kStride = 96;
    std::vector<float> out(all.sources.size() * kStride);
    linear_groups(context(), all.groups, grouped_, {out, kStride}, scratch_);
    for (const RowGroup& group : all.groups) {
      const auto wanted = alone(group, rows_of(x, group, all.sources, kDepth));
      for (std::int64_t i = 0; i < group.rows; ++i) {
        EXPECT_TRUE(same_bits(std::span(out).subspan((group.first + i) * kStride, kOutputs),
                              std::span(wanted).subspan(i * kOutputs, kOutputs)))
            << format_name(format) << " group at " << group.first << " row " << i;
      }
    }
  }
}

// The oracle adds the products of linear() in order of places.
TEST_P(GroupedLinear, SumsHaveTheBitsOfOneChainOfAdditions) {
  const std::vector<float> x = random_floats(kRows, kDepth, 41);
  for (const WeightFormat format : test::kFormats) {
    const Groups all(context(), format, kOutputs, kDepth, format == WeightFormat::kBf16);
    gather(all, x);
    const std::vector<float> factors = random_floats(std::ssize(all.sources), 42);
    std::vector<float> sums(kRows * kOutputs, 7.0f);
    linear_groups_summed(context(), all.groups, grouped_, {kRows, all.sources, factors},
                         {sums, kOutputs}, scratch_);
    std::vector<float> wanted(kRows * kOutputs);
    for (const RowGroup& group : all.groups) {
      const auto products = alone(group, rows_of(x, group, all.sources, kDepth));
      for (std::int64_t i = 0; i < group.rows; ++i) {
        const auto place = static_cast<std::size_t>(group.first + i);
        for (std::int64_t c = 0; c < kOutputs; ++c) {
          float& sum = wanted[static_cast<std::size_t>(all.sources[place] * kOutputs + c)];
          sum = sum + factors[place] * products[static_cast<std::size_t>(i * kOutputs + c)];
        }
      }
    }
    EXPECT_TRUE(same_bits(sums, wanted)) << format_name(format);
  }
}

TEST_P(GroupedLinear, GatedGroupsHaveTheBitsOfLinearGatedOnEach) {
  const std::vector<float> x = random_floats(kRows, kDepth, 43);
  for (const WeightFormat format : test::kFormats) {
    for (const WeightFormat next : {WeightFormat::kF32, WeightFormat::kQ4g32}) {
      const Groups all(context(), format, 2 * kInner, kDepth, true);
      const Groups down(context(), next, kOutputs, kInner, false);
      gather(all, x);
      PackedRows gated, one;
      linear_gated_groups(context(), all.groups, grouped_, {gated, next, Activation::kSilu},
                          scratch_);
      std::vector<float> out(all.sources.size() * 96);
      linear_groups(context(), down.groups, gated, {out, 96}, scratch_);
      for (std::size_t i = 0; i < all.groups.size(); ++i) {
        const RowGroup& group = all.groups[i];
        const auto both = alone(group, rows_of(x, group, all.sources, kDepth));
        std::vector<float> inner(static_cast<std::size_t>(group.rows * kInner));
        gate_mul(context(), Activation::kSilu, both, group.rows, inner);
        const auto wanted = alone(down.groups[i], inner);
        for (std::int64_t row = 0; row < group.rows; ++row) {
          EXPECT_TRUE(same_bits(std::span(out).subspan((group.first + row) * 96, kOutputs),
                                std::span(wanted).subspan(row * kOutputs, kOutputs)))
              << format_name(format) << " group " << i << " row " << row;
        }
      }
    }
  }
}

TEST_P(GroupedLinear, NoGroupIsNoWork) {
  PackedRows packed, gated;
  linear_groups(context(), {}, packed, {}, scratch_);
  linear_gated_groups(context(), {}, packed, {gated, WeightFormat::kF32}, scratch_);
  linear_groups_summed(context(), {}, packed, {}, {}, scratch_);
  EXPECT_EQ(gated.rows(), 0);
}

INSTANTIATE_TEST_SUITE_P(All, GroupedLinear, test::every_isa(), test::isa_test_name);

TEST(GroupedLinearDeath, GroupsOfSeveralKindsAreCaught) {
  device::ThreadPool pool(1);
  const KernelContext context = {&kernels_for(device::Isa::kPortable), &pool};
  const PackedWeights one(WeightFormat::kBf16, 32, 64);
  const PackedWeights other(WeightFormat::kQ8g32, 32, 64);
  const std::vector<float> x(std::size_t{2} * 64, 1.0f);
  std::vector<float> out(64);
  PackedRows packed;
  LinearScratch scratch;
  pack_rows(context, WeightFormat::kBf16, {x, 64, 2, 64}, packed);
  const std::vector<RowGroup> groups = {{.weights = &one, .first = 0, .rows = 1},
                                        {.weights = &other, .first = 1, .rows = 1}};
  EXPECT_DEATH(linear_groups(context, groups, packed, {out, 32}, scratch), "several kinds");
  const std::vector<RowGroup> far = {{.weights = &one, .first = 1, .rows = 2}};
  EXPECT_DEATH(linear_groups(context, far, packed, {out, 32}, scratch), "not there");
}

}  // namespace
}  // namespace quire::kernels

// The measurements run and agree in order of magnitude.
#include "quire/kernels/ceilings.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_rows.h"
#include "quire/kernels/packed_weights.h"
#include "quire/kernels/test_util.h"

namespace quire::kernels {
namespace {

class CeilingsTest : public test::OnEveryIsa {};

TEST_P(CeilingsTest, EveryProductThatAMatmulRunsHasThePeakOfARealMachine) {
  device::ThreadPool pool(1);
  const KernelContext context = on(pool);
  for (const WeightFormat format : test::kFormats) {
    for (const std::int64_t rows : {1, 512}) {
      const double peak = measure_peak(context, product_of(context, format, rows));
      EXPECT_GT(peak, 1e8);   // a tenth of a GFLOP/s
      EXPECT_LT(peak, 1e15);  // no core does a petaflop: the loop was optimised away
    }
  }
}

// Oracle: the instructions of attention over int8 codes. AMX multiplies them as bf16.
TEST_P(CeilingsTest, PairsOf16BitIntegersHaveAPeakWhereVectorsMultiplyThem) {
  device::ThreadPool pool(1);
  const KernelContext context = on(pool);
  const auto& loop = context.table->peaks[static_cast<std::size_t>(Product::kInt16Pairs)];
  EXPECT_EQ(loop.run == nullptr, GetParam() == device::Isa::kAmx);
  if (loop.run != nullptr) {
    const double peak = measure_peak(context, Product::kInt16Pairs);
    EXPECT_GT(peak, 1e8);
    EXPECT_LT(peak, 1e15);
  }
}

// Oracle: pack_rows. Products take the rows that it makes for them.
TEST_P(CeilingsTest, ProductsAreOfTheTypeThatRowsArePackedTo) {
  device::ThreadPool pool(1);
  const KernelContext context = on(pool);
  for (const WeightFormat format : test::kFormats) {
    for (const std::int64_t rows : {1, 31, 32, 512}) {
      RowFormat expected = RowFormat::kInt8;
      switch (product_of(context, format, rows)) {
        case Product::kFloats:
          expected = RowFormat::kF32;
          break;
        case Product::kBf16Pairs:
        case Product::kBf16Tiles:
          expected = RowFormat::kBf16;
          break;
        case Product::kBytes:
        case Product::kSmallBytes:
        case Product::kByteTiles:
          break;
        case Product::kInt16Pairs:
          FAIL() << "linear() multiplies no integers of 16 bits";
      }
      EXPECT_EQ(row_format_for(*context.table, format), expected) << format_name(format);
    }
  }
}

// Oracle: the instructions of each kernel (README.md, cpu/amx_matmul.h).
TEST_P(CeilingsTest, ProductsAreThoseOfTheInstructionSet) {
  device::ThreadPool pool(1);
  const KernelContext context = on(pool);
  const bool tiles = GetParam() == device::Isa::kAmx;
  const bool pairs = GetParam() == device::Isa::kAvx512;
  for (const std::int64_t rows : {1, 16, 31, 32, 33, 512}) {
    const bool many = tiles && rows >= 32;
    EXPECT_EQ(product_of(context, WeightFormat::kF32, rows), Product::kFloats);
    EXPECT_EQ(product_of(context, WeightFormat::kBf16, rows), tiles   ? Product::kBf16Tiles
                                                              : pairs ? Product::kBf16Pairs
                                                                      : Product::kFloats);
    EXPECT_EQ(product_of(context, WeightFormat::kQ8g32, rows),
              many ? Product::kByteTiles : Product::kBytes);
    for (const WeightFormat format : {WeightFormat::kQ4g32, WeightFormat::kQ4m32}) {
      EXPECT_EQ(product_of(context, format, rows),
                many ? Product::kByteTiles : Product::kSmallBytes);
    }
    EXPECT_EQ(product_of(context, WeightFormat::kT4g32, rows),
              many ? Product::kByteTiles : Product::kBytes);
    EXPECT_EQ(product_of(context, WeightFormat::kT4g16, rows), Product::kBytes);
    EXPECT_EQ(product_of(context, WeightFormat::kQ2m16, rows), Product::kSmallBytes);
  }
}

TEST_P(CeilingsTest, ReadingIsFasterThanADiskAndSlowerThanRegisters) {
  device::ThreadPool pool(2);
  const double rate = measure_read_bandwidth(on(pool), std::size_t{32} << 20);
  EXPECT_GT(rate, 1e8);
  EXPECT_LT(rate, 1e13);
}

INSTANTIATE_TEST_SUITE_P(All, CeilingsTest, test::every_isa(), test::isa_test_name);

}  // namespace
}  // namespace quire::kernels

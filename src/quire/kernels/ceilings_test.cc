// The measurements run and agree in order of magnitude.
#include "quire/kernels/ceilings.h"

#include <gtest/gtest.h>

#include <cstddef>

#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/test_util.h"

namespace quire::kernels {
namespace {

class CeilingsTest : public test::OnEveryIsa {};

TEST_P(CeilingsTest, PeaksAreThoseOfARealMachine) {
  device::ThreadPool pool(1);
  const ComputePeaks peaks = measure_compute_peaks(on(pool));
  for (const double peak : {peaks.f32, peaks.bf16, peaks.int8}) {
    EXPECT_GT(peak, 1e8);   // a tenth of a GFLOP/s
    EXPECT_LT(peak, 1e15);  // no core does a petaflop: the loop was optimised away
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

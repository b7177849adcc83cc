// The measurements run, agree in order of magnitude, and the self-test passes.
#include "quire/kernels/ceilings.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>

#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/self_check.h"
#include "quire/kernels/test_util.h"
#include "quire/result.h"

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

TEST_P(CeilingsTest, SelfTestPassesQuickly) {
  const auto start = std::chrono::steady_clock::now();
  const Status status = self_test(GetParam());
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  RecordProperty("milliseconds", static_cast<int>(time.count() * 1e3));
}

INSTANTIATE_TEST_SUITE_P(All, CeilingsTest, test::every_isa(), test::isa_test_name);

TEST(SelfTest, NamesAnInstructionSetThatTheMachineLacks) {
  if (device::isa_supported(device::Isa::kAmx)) {
    GTEST_SKIP() << "this machine has every instruction set";
  }
  const Status status = self_test(device::Isa::kAmx);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(status.error().message.find("amx"), std::string::npos);
}

}  // namespace
}  // namespace quire::kernels

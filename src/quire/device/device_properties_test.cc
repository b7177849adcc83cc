#include "quire/device/device_properties.h"

#include <gtest/gtest.h>

#include <string>

#include "quire/result.h"

namespace quire::device {
namespace {

TEST(DeviceProperties, OldChipsAreRefusedByName) {
  const Status status =
      check_supported({.ordinal = 1, .name = "Tesla V100", .compute_major = 7, .compute_minor = 5});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kDevice);
  EXPECT_NE(status.error().message.find("device 1 (Tesla V100) has compute capability 7.5"),
            std::string::npos);
}

TEST(DeviceProperties, AmpereAndLaterAreTaken) {
  EXPECT_TRUE(check_supported({.compute_major = 8}).ok());
  EXPECT_TRUE(check_supported({.compute_major = 9}).ok());
}

TEST(DeviceProperties, KernelsWhoseBitsDependOnTheBatchAreOthers) {
  const DeviceProperties hopper{.compute_major = 9};
  EXPECT_EQ(kernels_name(hopper, true), "cuda-9.0-4");
  EXPECT_EQ(kernels_name(hopper, false), "cuda-9.0-4-fast");
  EXPECT_EQ(kernels_name({.compute_major = 8, .compute_minor = 6}, true), "cuda-8.6-4");
}

}  // namespace
}  // namespace quire::device

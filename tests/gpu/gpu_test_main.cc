// main of the programs that test on a GPU: without a usable one they fail, with the reason, instead
// of passing or skipping. Tests that run on any device run on the first GPU.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "quire/device/cuda/device_context.h"

int main(int argc, char** argv) {
  ::setenv("QUIRE_TEST_DEVICE", "cuda", 1);
  ::testing::InitGoogleTest(&argc, argv);
  if (GTEST_FLAG_GET(list_tests)) {
    return RUN_ALL_TESTS();
  }
  const auto context = quire::device::cuda::DeviceContext::create(0);
  if (!context.ok()) {
    std::fprintf(stderr, "DeviceError: %s\n", context.error().message.c_str());
    return 1;
  }
  std::printf("device: %s\n", (*context)->properties().name.c_str());
  return RUN_ALL_TESTS();
}

#include "quire/runtime/runtime.h"

#include <gtest/gtest.h>

#include "quire/device/cpu/no_threads.h"
#include "quire/result.h"

namespace quire::runtime {
namespace {

TEST(Runtime, WhereTheSystemGrantsNoThreadOpeningIsAnError) {
  const device::NoThreads refused;
  const auto engine = runtime::Runtime::start(QUIRE_SOURCE_DIR "/models/cardfile/model", {});
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace quire::runtime

#include "quire/engine/llm_options.h"

#include <gtest/gtest.h>

#include "quire/device/cpu/no_threads.h"
#include "quire/engine/runtime.h"
#include "quire/llm.h"
#include "quire/result.h"

namespace quire::engine {
namespace {

TEST(LLMOptions, OnlyTheCpuTakesItsDtypeFromTheCheckpoint) {
  EXPECT_EQ(to_engine_options({}).model.dtype, "auto");
  EXPECT_EQ(to_engine_options({.device = "cuda"}).model.dtype, "bfloat16");
  EXPECT_EQ(to_engine_options({.device = "cuda:1"}).model.dtype, "bfloat16");
  EXPECT_EQ(to_engine_options({.device = "cuda", .dtype = "float32"}).model.dtype, "float32");
}

TEST(LLMOptions, WhereTheSystemGrantsNoThreadOpeningIsAnError) {
  const device::NoThreads refused;
  const auto engine = Runtime::start(QUIRE_SOURCE_DIR "/models/cardfile/model", {});
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace quire::engine

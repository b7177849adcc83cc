#include "quire/engine/llm_options.h"

#include <gtest/gtest.h>

#include "quire/options.h"
#include "quire/result.h"

namespace quire::engine {
namespace {

TEST(LLMOptions, TheDtypeIsLeftToTheModelOnEveryDevice) {
  EXPECT_EQ(to_engine_options({}).model.dtype, "auto");
  EXPECT_EQ(to_engine_options({.device = "cuda"}).model.dtype, "auto");
  EXPECT_EQ(to_engine_options({.device = "cuda:1"}).model.dtype, "auto");
  EXPECT_EQ(to_engine_options({.device = "cuda", .dtype = "float32"}).model.dtype, "float32");
}

}  // namespace
}  // namespace quire::engine

#include "quire/engine/bundle_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"

namespace quire::engine {
namespace {

using kernels::WeightFormat;
using tensor::DType;
using testing::HasSubstr;

model::ModelConfig config_of(DType stored) {
  model::ModelConfig config;
  config.stored_dtype = stored;
  return config;
}

TEST(ChooseFormats, TheCpuComputesInTheTypeOfTheFiles) {
  const auto formats = choose_formats({}, config_of(DType::kFloat32));
  ASSERT_TRUE(formats.ok());
  EXPECT_EQ(formats->compute, DType::kFloat32);
  EXPECT_EQ(formats->kv, DType::kFloat32);
  EXPECT_EQ(formats->weights, WeightFormat::kF32);
  EXPECT_EQ(placement_of({}, *formats).dtype, DType::kFloat32);
}

TEST(ChooseFormats, QuantisedWeightsLeaveTheTypeToCompute) {
  const auto formats = choose_formats({.quantize = "q4g32"}, config_of(DType::kFloat16));
  ASSERT_TRUE(formats.ok());
  EXPECT_EQ(formats->compute, DType::kBFloat16);
  EXPECT_EQ(formats->kv, DType::kBFloat16);
  EXPECT_EQ(formats->weights, WeightFormat::kQ4g32);
}

TEST(ChooseFormats, TheCpuRefusesFormatsOfAGpuByName) {
  const auto refusal = [](const BundleOptions& options) {
    const auto formats = choose_formats(options, config_of(DType::kBFloat16));
    EXPECT_EQ(formats.error().code, ErrorCode::kUnsupported);
    return formats.error().message;
  };
  EXPECT_THAT(refusal({.dtype = "float16"}), HasSubstr("dtype \"float16\" needs a GPU"));
  EXPECT_THAT(refusal({.kv_dtype = "float16"}), HasSubstr("kv_dtype \"float16\" needs a GPU"));
  EXPECT_EQ(refusal({.quantize = "fp8"}),
            "quantize \"fp8\" needs a GPU; on the CPU use \"q8g32\", which is as small");
}

}  // namespace
}  // namespace quire::engine

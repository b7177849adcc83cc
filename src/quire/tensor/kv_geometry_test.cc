#include "quire/tensor/kv_geometry.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace quire::tensor {
namespace {

TEST(KVGeometry, BytesFollowTheStoredSizes) {
  const KVGeometry geometry = {.layers = 22,
                               .kv_heads = 4,
                               .head_dim = 64,
                               .dtype = DType::kBFloat16,
                               .block_tokens = 32,
                               .window_tokens = {}};
  EXPECT_EQ(geometry.head_block_bytes(), 2 * 64 * 32 * 2);
  EXPECT_EQ(geometry.block_bytes(), std::int64_t{22} * 4 * 8192);
}

TEST(KVGeometry, OddSizesAreRoundedUp) {
  KVGeometry geometry = {.layers = 1,
                         .kv_heads = 1,
                         .head_dim = 80,
                         .dtype = DType::kFloat32,
                         .block_tokens = 1,
                         .window_tokens = {}};
  EXPECT_EQ(geometry.stored_head_dim(), 96);
  EXPECT_EQ(geometry.stored_block_tokens(), 2);
  EXPECT_EQ(geometry.head_block_bytes(), 2 * 96 * 2 * 4);
  geometry.head_dim = 96;
  EXPECT_EQ(geometry.stored_head_dim(), 96);
}

TEST(KVGeometry, Int8HasScalesBehindItsCodes) {
  KVGeometry geometry = {.layers = 2,
                         .kv_heads = 3,
                         .head_dim = 64,
                         .dtype = DType::kBFloat16,
                         .block_tokens = 32,
                         .window_tokens = {},
                         .format = KVFormat::kInt8};
  EXPECT_EQ(geometry.v_offset(), 64 * 32);
  EXPECT_EQ(geometry.scale_offset(), 2 * 64 * 32);
  EXPECT_EQ(geometry.head_block_bytes(), 2 * 64 * 32 + 2 * 32 * 2);
  EXPECT_EQ(geometry.block_bytes(), 6 * geometry.head_block_bytes());
  geometry.block_tokens = 5;
  EXPECT_EQ(geometry.stored_block_tokens(), 8);
  EXPECT_STREQ(kv_format_name(geometry.format, geometry.dtype), "int8");
  EXPECT_STREQ(kv_format_name(KVFormat::kPlain, geometry.dtype), "bfloat16");
}

TEST(KVGeometry, Fp8HasTwoScalesInALineOfTheirOwn) {
  KVGeometry geometry = {.layers = 2,
                         .kv_heads = 3,
                         .head_dim = 64,
                         .dtype = DType::kBFloat16,
                         .block_tokens = 32,
                         .window_tokens = {},
                         .format = KVFormat::kFp8};
  EXPECT_EQ(geometry.v_offset(), 64 * 32);
  EXPECT_EQ(geometry.head_block_bytes(), 2 * 64 * 32 + 64);
  EXPECT_EQ(geometry.bits_per_value(), 8.125);
  geometry.block_tokens = 5;
  EXPECT_EQ(geometry.stored_block_tokens(), 8);
  EXPECT_EQ(geometry.bits_per_value(), 8.0 * (2 * 64 * 8 + 64) / (2 * 64 * 5)) << "padding counts";
  EXPECT_TRUE(geometry.fits_format());
  EXPECT_STREQ(kv_format_name(geometry.format, geometry.dtype), "fp8");
}

TEST(KVGeometry, Int4TakesFiveBitsInBlocksOfWholeRuns) {
  KVGeometry geometry = {.layers = 1,
                         .kv_heads = 1,
                         .head_dim = 64,
                         .dtype = DType::kBFloat16,
                         .block_tokens = 32,
                         .window_tokens = {},
                         .format = KVFormat::kInt4};
  for (const int block_tokens : {32, 64, 256}) {
    geometry.block_tokens = block_tokens;
    geometry.head_dim = 48;  // stored as 64
    EXPECT_EQ(geometry.bits_per_value(), 5.0 * 64 / 48);
    for (const int head_dim : {64, 128, 96, 256}) {
      geometry.head_dim = head_dim;
      EXPECT_EQ(geometry.v_offset(), head_dim * block_tokens / 2);
      EXPECT_EQ(geometry.bits_per_value(), 5.0);
      EXPECT_TRUE(geometry.fits_format());
    }
  }
  geometry.block_tokens = 48;
  EXPECT_FALSE(geometry.fits_format());
  EXPECT_STREQ(kv_format_name(geometry.format, geometry.dtype), "int4");
}

TEST(KVGeometry, LargeModelsDoNotOverflow) {
  const KVGeometry geometry = {.layers = 1000,
                               .kv_heads = 128,
                               .head_dim = 256,
                               .dtype = DType::kFloat32,
                               .block_tokens = 256,
                               .window_tokens = {}};
  EXPECT_EQ(geometry.block_bytes(), std::int64_t{2} * 256 * 256 * 4 * 128 * 1000);
}

TEST(KVGeometry, TokensAreForgottenOnlyIfEveryLayerHasAWindow) {
  KVGeometry geometry;
  EXPECT_EQ(geometry.forget_after_tokens(), 0);
  geometry.window_tokens = {4096, 1024, 4096};
  EXPECT_EQ(geometry.forget_after_tokens(), 4096);
  geometry.window_tokens = {4096, 0};
  EXPECT_EQ(geometry.forget_after_tokens(), 0);
}

}  // namespace
}  // namespace quire::tensor

// Codes and scales of int8 KV against their definition in double precision, and their places
// against the picture in paged_kv_view.h.
#include "quire/kernels/kv_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/kv_append.h"
#include "quire/kernels/kv_read.h"
#include "quire/kernels/test_util.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/float8.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::kernels {
namespace {

struct Coded {
  std::vector<std::int8_t> codes;
  std::uint16_t scale = 0;
  bool held = false;
};

Coded encode(const std::vector<float>& x) {
  Coded coded{.codes = std::vector<std::int8_t>(x.size(), 99)};
  coded.held = encode_int8(x, coded.codes, coded.scale);
  return coded;
}

// Returns the smallest fp16 number that is not below `x`, found by trying.
std::uint16_t fp16_above(double x) {
  std::uint16_t bits = 0;
  while (double{tensor::fp16_to_float(bits)} < x) {
    ++bits;
  }
  return bits;
}

TEST(KVCodes, FollowTheirDefinition) {
  for (const float range : {1e-6f, 3e-4f, 0.02f, 1.0f, 40.0f, 3e4f, 8e6f}) {
    for (std::uint32_t seed = 0; seed < 20; ++seed) {
      std::vector<float> x = test::random_floats(96, seed);
      const auto largest_of = [&] {
        return std::abs(*std::ranges::max_element(x, {}, [](float v) { return std::abs(v); }));
      };
      const float factor = range / largest_of();
      for (float& value : x) {
        value *= factor;
      }
      const Coded coded = encode(x);
      ASSERT_TRUE(coded.held);
      ASSERT_EQ(coded.scale, fp16_above(double{largest_of() / 127.0f}));
      const double scale = tensor::fp16_to_float(coded.scale);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double quotient = double{x[i] / static_cast<float>(scale)};
        ASSERT_EQ(coded.codes[i], std::nearbyint(quotient)) << x[i] << " " << scale;
        ASSERT_LE(std::abs(double{x[i]} - coded.codes[i] * scale), scale / 2 * (1 + 1e-4));
        ASSERT_LE(std::abs(int{coded.codes[i]}), 127);
      }
    }
  }
}

TEST(KVCodes, ZerosAreZeros) {
  const Coded coded = encode(std::vector<float>(64, -0.0f));
  EXPECT_TRUE(coded.held);
  EXPECT_EQ(coded.scale, 0);
  EXPECT_EQ(coded.codes, std::vector<std::int8_t>(64, 0));
}

TEST(KVCodes, HalvesGoToTheEvenCode) {
  std::vector<float> x(32, 0.0f);
  x[0] = 127.0f;  // a scale of 1
  x[1] = 0.5f;
  x[2] = 1.5f;
  x[3] = -2.5f;
  x[4] = -127.0f;
  const Coded coded = encode(x);
  EXPECT_EQ(coded.codes[0], 127);
  EXPECT_EQ(coded.codes[1], 0);
  EXPECT_EQ(coded.codes[2], 2);
  EXPECT_EQ(coded.codes[3], -2);
  EXPECT_EQ(coded.codes[4], -127);
}

TEST(KVCodes, WhatCannotBeHeldIsSaidAndBecomesZeros) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {kInfinity, -kInfinity, kNan, -kNan, 65505.0f * 127, 3e38f}) {
    std::vector<float> x(32, 1.0f);
    x[17] = bad;
    const Coded coded = encode(x);
    EXPECT_FALSE(coded.held) << bad;
    EXPECT_EQ(coded.scale, 0);
    EXPECT_EQ(coded.codes, std::vector<std::int8_t>(32, 0));
  }
  EXPECT_TRUE(encode(std::vector<float>(32, 65504.0f * 127)).held);  // the largest
}

TEST(KVCodes, AppendedTokensReadBackAsTheirCodesAndFlagOnlyTheirOwn) {
  for (const int block_tokens : {1, 2, 5, 32}) {
    const tensor::KVGeometry geometry = {.layers = 1,
                                         .kv_heads = 2,
                                         .head_dim = 40,
                                         .block_tokens = block_tokens,
                                         .format = tensor::KVFormat::kInt8};
    const int tokens = 9, blocks = tokens / block_tokens + 2;
    std::vector<std::byte> bytes(static_cast<std::size_t>(geometry.block_bytes() * blocks));
    const tensor::PagedKVView view = {.data = bytes.data(),
                                      .head_stride = geometry.head_block_bytes() * blocks,
                                      .block_stride = geometry.head_block_bytes(),
                                      .v_offset = geometry.v_offset(),
                                      .num_blocks = blocks,
                                      .kv_heads = 2,
                                      .head_dim = geometry.stored_head_dim(),
                                      .block_tokens = block_tokens,
                                      .format = geometry.format,
                                      .scale_offset = geometry.scale_offset()};
    std::vector<float> k = test::random_floats(std::size_t{9} * 80, 1);
    const std::vector<float> v = test::random_floats(k.size(), 2);
    k[4 * 80 + 41] = std::numeric_limits<float>::quiet_NaN();  // token 4, the second head
    std::vector<tensor::KVSlot> slots;
    for (int i = 0; i < tokens; ++i) {
      slots.push_back({i / block_tokens, i % block_tokens});
    }
    std::vector<std::uint8_t> refused(slots.size(), 0);
    device::ThreadPool pool(1);
    kv_append({&kernels_for(device::Isa::kPortable), &pool},
              {.k = k,
               .v = v,
               .k_stride = 80,
               .v_stride = 80,
               .head_dim = 40,
               .slots = slots,
               .refused = refused},
              view);
    for (std::size_t token = 0; token < slots.size(); ++token) {
      EXPECT_EQ(refused[token], token == 4 ? 1 : 0);
      for (int head = 0; head < 2; ++head) {
        for (const bool key : {true, false}) {
          const std::vector<float>& of = key ? k : v;
          const auto from = of.begin() + static_cast<std::ptrdiff_t>(token) * 80 + head * 40;
          const Coded coded = encode({from, from + 40});
          std::array<float, 64> read = {};
          (key ? read_key : read_value)(view, head, slots[token], read);
          for (std::size_t d = 0; d < read.size(); ++d) {
            const float want =
                d < 40 ? static_cast<float>(coded.codes[d]) * tensor::fp16_to_float(coded.scale)
                       : 0.0f;
            ASSERT_EQ(read[d], want) << token << " " << head << " " << key << " " << d;
          }
        }
      }
    }
  }
}

Int4Scale int4_of(const std::vector<float>& x, std::vector<std::uint8_t>& codes, bool held = true) {
  Int4Scale scale = {1, 1};
  codes.assign(x.size(), 99);
  EXPECT_EQ(encode_int4(x, codes, scale), held);
  return scale;
}

double int4_number(int code, Int4Scale scale) {
  return code * double{tensor::fp16_to_float(scale.scale)} +
         double{tensor::fp16_to_float(scale.minimum)};
}

TEST(KVCodes, Int4NumbersAreOffByHalfAScaleAtMost) {
  std::vector<std::uint8_t> codes;
  for (const float range : {1e-6f, 3e-4f, 0.02f, 1.0f, 40.0f, 1e3f}) {
    for (const float offset : {0.0f, 1.0f, -50.0f, 7.5f}) {
      for (std::uint32_t seed = 0; seed < 20; ++seed) {
        std::vector<float> x = test::random_floats(32, seed);
        for (float& value : x) {
          value = value * range + offset * range;
        }
        const Int4Scale scale = int4_of(x, codes);
        const double step = tensor::fp16_to_float(scale.scale);
        ASSERT_LE(double{tensor::fp16_to_float(scale.minimum)}, *std::ranges::min_element(x));
        for (std::size_t i = 0; i < x.size(); ++i) {
          ASSERT_LE(codes[i], 15);
          ASSERT_LE(std::abs(int4_number(codes[i], scale) - double{x[i]}), step / 2 * (1 + 1e-5));
        }
      }
    }
  }
}

TEST(KVCodes, Int4GroupsOfOneNumberOfBf16HaveNoError) {
  std::vector<std::uint8_t> codes;
  for (const float number : {0.0f, -0.0f, 1.0f, -3.140625f, 0.00390625f, 60000.0f, -512.0f}) {
    const float x = tensor::bf16_to_float(tensor::float_to_bf16(number));
    const Int4Scale scale = int4_of(std::vector<float>(32, x), codes);
    EXPECT_EQ(scale.scale, 0) << x;
    EXPECT_EQ(codes, std::vector<std::uint8_t>(32, 0));
    EXPECT_EQ(tensor::fp16_to_float(scale.minimum), x);
    EXPECT_NE(scale.minimum, 0x8000) << "-0 is stored as 0";
  }
}

TEST(KVCodes, Int4RefusesWhatFp16CannotHold) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::uint8_t> codes;
  for (const float bad :
       {kInfinity, -kInfinity, kNan, -kNan, -65505.0f, 3e38f, 65504.0f * 15 + 99}) {
    std::vector<float> x(32, 1.0f);
    x[17] = bad;
    const Int4Scale scale = int4_of(x, codes, false);
    EXPECT_EQ(scale.scale, 0) << bad;
    EXPECT_EQ(scale.minimum, 0);
    EXPECT_EQ(codes, std::vector<std::uint8_t>(32, 0));
  }
  std::vector<float> x(32, 0.0f);
  x[3] = 65504.0f * 15;  // the largest
  EXPECT_EQ(tensor::fp16_to_float(int4_of(x, codes).scale), 65504.0f);
  EXPECT_EQ(codes[3], 15);
  x[4] = -65504.0f;
  (void)int4_of(x, codes, false);
}

TEST(KVCodes, Fp8IsTheNearestE4m3OfTheLargestAs448) {
  for (const float range : {1e-30f, 3e-4f, 1.0f, 3e4f, 1e37f}) {
    std::vector<float> x = test::random_floats(512, 3);
    for (float& value : x) {
      value = std::clamp(value, -1.0f, 1.0f) * range;
    }
    x[5] = range;
    std::vector<std::uint8_t> codes(x.size());
    float scale = 0;
    ASSERT_TRUE(encode_fp8(x, codes, scale));
    EXPECT_EQ(scale, range / 448.0f);
    EXPECT_EQ(codes[5], 0x7e);
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(codes[i], tensor::float_to_e4m3(x[i] / scale));
      ASSERT_LE(std::abs(tensor::e4m3_to_float(codes[i]) * scale - x[i]),
                std::max(std::abs(x[i]) / 15, scale * 0x1p-9f));
    }
  }
}

TEST(KVCodes, Fp8OfZerosAndOfWhatItCannotHoldIsZeros) {
  std::vector<std::uint8_t> codes(32, 9);
  float scale = 1;
  for (const float tiny : {0.0f, -0.0f, 1e-37f}) {
    EXPECT_TRUE(encode_fp8(std::vector<float>(32, tiny), codes, scale));
    EXPECT_EQ(scale, 0);
    EXPECT_EQ(codes, std::vector<std::uint8_t>(32, 0));
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x(32, 1.0f);
    x[31] = bad;
    EXPECT_FALSE(encode_fp8(x, codes, scale)) << bad;
    EXPECT_EQ(scale, 0);
    EXPECT_EQ(codes, std::vector<std::uint8_t>(32, 0));
  }
}

// The picture in paged_kv_view.h, byte by byte.
TEST(KVCodes, LieWhereTheLayoutSays) {
  constexpr int kSlots = 8, kDim = 32;
  std::vector<std::byte> bytes(2 * kSlots * kDim + 4 * kSlots);
  const tensor::PagedKVView view = {.data = bytes.data(),
                                    .block_stride = std::ssize(bytes),
                                    .v_offset = kSlots * kDim,
                                    .num_blocks = 1,
                                    .kv_heads = 1,
                                    .head_dim = kDim,
                                    .block_tokens = 7,
                                    .format = tensor::KVFormat::kInt8,
                                    .scale_offset = 2 * kSlots * kDim};
  std::vector<float> k(kDim), v(kDim);
  for (int d = 0; d < kDim; ++d) {
    k[static_cast<std::size_t>(d)] = static_cast<float>(d - 100);
    v[static_cast<std::size_t>(d)] = static_cast<float>(127 - d);
  }
  k[0] = -127.0f;
  ASSERT_TRUE(store_int8(view, 0, {0, 6}, k, v));
  constexpr std::array<int, 4> kOrder = {0, 2, 1, 3};
  for (int d = 0; d < kDim; ++d) {
    const auto at = static_cast<std::size_t>(d);
    const int word = d / 4 * kSlots + 6, place = kOrder[at % 4];
    EXPECT_EQ(static_cast<std::int8_t>(bytes[static_cast<std::size_t>(4 * word + place)]), k[at]);
    const int value = kSlots * kDim + (kDim + d) * 4 + kOrder[2];
    EXPECT_EQ(static_cast<std::int8_t>(bytes[static_cast<std::size_t>(value)]), v[at]);
  }
  std::uint16_t scale = 0;
  std::memcpy(&scale, &bytes[2 * kSlots * kDim + 2 * 6], 2);
  EXPECT_EQ(tensor::fp16_to_float(scale), 1.0f);
  std::memcpy(&scale, &bytes[2 * kSlots * kDim + 2 * (kSlots + 6)], 2);
  EXPECT_EQ(tensor::fp16_to_float(scale), 1.0f);
}

}  // namespace
}  // namespace quire::kernels

// The self-test passes with the kernels as they are, and names each one that is broken.
#include "quire/kernels/self_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "quire/device/cpu/isa.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/packed_rows.h"
#include "quire/kernels/packed_weights.h"
#include "quire/kernels/test_util.h"
#include "quire/result.h"

namespace quire::kernels {
namespace {

class SelfTestOf : public test::OnEveryIsa {};

TEST_P(SelfTestOf, APresentInstructionSetPasses) {
  const Status status = self_test(GetParam());
  EXPECT_TRUE(status.ok()) << status.error().message;
}

INSTANTIATE_TEST_SUITE_P(All, SelfTestOf, test::every_isa(), test::isa_test_name);

TEST(SelfTest, NamesAnInstructionSetThatTheMachineLacks) {
  if (device::isa_supported(device::Isa::kAmx)) {
    GTEST_SKIP() << "this machine has every instruction set";
  }
  const Status status = self_test(device::Isa::kAmx);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(status.error().message, testing::HasSubstr("amx"));
}

// Rows without values, or with one number of a product far off, or not rounded to nearest.
template <RowFormat kFormat>
void pack_zeros(const PackTask& task) {
  portable_kernels().pack_rows[static_cast<std::size_t>(kFormat)](task);
  const auto values =
      static_cast<std::size_t>(task.rows) * static_cast<std::size_t>(task.steps) * kStepDepth;
  std::memset(task.values, 0, values * value_bytes(kFormat));
}
template <WeightFormat kFormat>
void multiply_badly(const MatmulTask& task) {
  portable_kernels().matmul[static_cast<std::size_t>(kFormat)](task);
  task.out[1] += 1.0f;
}
void cut_to_bf16(const float* x, std::int64_t count, std::uint16_t* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x[i]) >> 16);
  }
}
void turn_back(const RotateTask& task) {
  RotateTask other = task;
  std::vector<float> sin(task.sin, task.sin + task.half);
  for (float& value : sin) {
    value = -value;
  }
  other.sin = sin.data();
  portable_kernels().rotate(other);
}

TEST(SelfTest, NamesTheOneKernelThatIsBroken) {
  using enum WeightFormat;
  std::vector<std::pair<std::string, KernelTable>> broken;
  const auto table = [&](const std::string& name) -> KernelTable& {
    return broken.emplace_back(name, portable_kernels()).second;
  };
  table("rms_norm").rms_norm = [](const RmsNormTask&) {};
  table("pack_normed_rows").rms_factor = [](const float*, std::int64_t, double) { return 1.0f; };
  table("silu_mul").gate_mul[0] = [](const GateMulTask&) {};
  table("gelu_mul").gate_mul[1] = [](const GateMulTask&) {};
  table("soft_cap").soft_cap = [](const SoftCapTask&) {};
  table("round_bf16").round_bf16 = cut_to_bf16;
  table("rotate").rotate = turn_back;
  table("pack_rows for float32").pack_rows[0] = pack_zeros<RowFormat::kF32>;
  table("pack_rows for q8g32").pack_rows[2] = pack_zeros<RowFormat::kInt8>;
  table("linear float32").matmul[0] = multiply_badly<kF32>;
  table("linear bfloat16").matmul[1] = multiply_badly<kBf16>;
  table("linear q8g32").matmul[2] = multiply_badly<kQ8g32>;
  table("linear q4g32").matmul[3] = multiply_badly<kQ4g32>;
  table("linear q4m32").matmul[4] = multiply_badly<kQ4m32>;
  for (const auto& [name, kernels] : broken) {
    const Status status = self_test(kernels);
    ASSERT_FALSE(status.ok()) << name;
    EXPECT_EQ(status.error().code, ErrorCode::kDevice);
    EXPECT_THAT(status.error().message, testing::HasSubstr("kernel " + name + " of portable"));
  }
}

}  // namespace
}  // namespace quire::kernels

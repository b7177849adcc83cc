// Data and fixtures shared by the tests of this module.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/device_codes.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_weights.h"

namespace quire::kernels::test {

inline constexpr WeightFormat kFormats[] = {
    WeightFormat::kF32,   WeightFormat::kBf16,  WeightFormat::kQ8g32, WeightFormat::kQ4g32,
    WeightFormat::kQ4m32, WeightFormat::kT4g32, WeightFormat::kT4g16, WeightFormat::kQ2m16};
inline constexpr WeightFormat kQuantisedFormats[] = {WeightFormat::kQ8g32, WeightFormat::kQ4g32,
                                                     WeightFormat::kQ4m32, WeightFormat::kT4g32,
                                                     WeightFormat::kT4g16, WeightFormat::kQ2m16};

// A format of weights on the CPU, and that of its codes on a GPU.
struct CodedKind {
  WeightFormat packed;
  CodeFormat device;
};
inline constexpr CodedKind kCodedKinds[] = {{WeightFormat::kQ8g32, CodeFormat::kQ8},
                                            {WeightFormat::kQ4g32, CodeFormat::kQ4},
                                            {WeightFormat::kQ4m32, CodeFormat::kQ4Minimum},
                                            {WeightFormat::kF8, CodeFormat::kE4m3},
                                            {WeightFormat::kT4g32, CodeFormat::kTable},
                                            {WeightFormat::kT4g16, CodeFormat::kTableHalves},
                                            {WeightFormat::kQ2m16, CodeFormat::kTwoMinimum}};

inline std::vector<float> random_floats(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    value = normal(random);
  }
  return values;
}

inline std::vector<float> random_floats(std::int64_t rows, std::int64_t width, std::uint32_t seed) {
  return random_floats(rows * width, seed);
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Packs plain weights [columns, depth].
inline PackedWeights pack_plain(const KernelContext& context, WeightFormat format,
                                std::span<const float> weights, std::int64_t columns,
                                std::int64_t depth) {
  return PackedWeights::pack(context, format, columns, depth,
                             [&](std::int64_t first, std::int64_t rows, std::span<float> out) {
                               std::copy_n(weights.begin() + first * depth, rows * depth,
                                           out.begin());
                             });
}

// A test for every instruction set; skipped by name where the machine lacks it.
class OnEveryIsa : public testing::TestWithParam<device::Isa> {
 protected:
  void SetUp() override {
    if (!device::isa_supported(GetParam())) {
      GTEST_SKIP() << "this machine has no " << device::isa_name(GetParam());
    }
  }
  [[nodiscard]] KernelContext on(device::ThreadPool& pool) const {
    return {&kernels_for(GetParam()), &pool};
  }
};

inline std::string isa_test_name(const testing::TestParamInfo<device::Isa>& info) {
  return std::string(device::isa_name(info.param));
}

inline auto every_isa() {
  return testing::Values(device::Isa::kPortable, device::Isa::kAvx2, device::Isa::kAvx512Vnni,
                         device::Isa::kAvx512, device::Isa::kAmx);
}

}  // namespace quire::kernels::test

// Gated MLPs' activations on a GPU. Oracle: the CPU's, in fp32.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/gpu_test_util.h"
#include "quire/kernels/activation.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/cuda/products_test_util.h"
#include "quire/kernels/cuda/rows.h"
#include "quire/kernels/elementwise.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/test_util.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {
namespace {

using device::cuda::test::must;

class Gates : public device::cuda::test::GpuTest {
 protected:
  device::ThreadPool pool_{1};
  KernelContext cpu_{&kernels_for(device::Isa::kPortable), &pool_};
};

TEST_F(Gates, EqualTheCpusForEachActivation) {
  for (const tensor::DType dtype : test::kDTypes) {
    for (int activation = 0; activation < kActivations; ++activation) {
      for (const bool has_gates : {true, false}) {
        for (const std::int64_t width : {7, 1032}) {
          constexpr std::int64_t kRows = 3;
          auto x = test::random_floats(kRows * width * (has_gates ? 2 : 1), 1);
          for (float& value : x) {
            value *= 5;
          }
          std::vector<float> want(static_cast<std::size_t>(kRows * width));
          if (has_gates) {
            kernels::gate_mul(cpu_, Activation(activation), x, kRows, want);
          } else {
            gate_self(cpu_, Activation(activation), x, want);
          }
          const auto there = upload(x);
          const auto out = upload(std::vector<std::uint16_t>(want.size()));
          must(device::cuda::to_status(gate_mul({.dtype = dtype,
                                                 .activation = Activation(activation),
                                                 .has_gates = has_gates,
                                                 .gate_up = there.data(),
                                                 .rows = kRows,
                                                 .width = static_cast<std::int32_t>(width),
                                                 .out = out.data()},
                                                stream()),
                                       "gate_mul"));
          const auto got = download(out, want.size());
          for (std::size_t i = 0; i < want.size(); ++i) {
            const double value = test::widen(dtype, got[i]);
            ASSERT_TRUE(std::isnan(want[i])
                            ? std::isnan(value)
                            : std::abs(value - want[i]) <= 0.005 * std::abs(want[i]) + 1e-6)
                << "activation " << activation << ", width " << width << ", " << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::kernels::cuda

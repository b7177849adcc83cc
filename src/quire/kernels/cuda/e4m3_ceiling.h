// The most that the tensor cores multiply of 8-bit floats, by cuBLASLt: a floor for benchmarks.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/cuda/cublas_lt.h"
#include "quire/result.h"

namespace quire::kernels::cuda {

// Runs products of e4m3 numbers, size x size x size, with sums in fp32 of the speed that cuBLASLt
// calls fast, and results in bf16.
class E4m3Products {
 public:
  // Borrows `device` and `x`, which holds size * size codes and is both factors. `out` has room for
  // as many bf16 numbers. kDevice also where the device has no such products.
  [[nodiscard]] static Result<E4m3Products> make(device::cuda::DeviceContext& device,
                                                 const std::uint8_t* x, void* out,
                                                 std::int64_t size);
  // Queues one product on the compute stream.
  [[nodiscard]] Status run() const;

 private:
  E4m3Products() = default;

  device::cuda::DeviceContext* device_ = nullptr;
  const std::uint8_t* x_ = nullptr;
  void* out_ = nullptr;
  std::unique_ptr<CublasLt> lt_;
  Owned<cublasLtHandle_t> handle_{nullptr, nullptr};
  Owned<cublasLtMatmulDesc_t> product_{nullptr, nullptr};
  Owned<cublasLtMatrixLayout_t> factor_{nullptr, nullptr}, result_{nullptr, nullptr};
  device::cuda::DeviceBuffer<std::byte> workspace_;
  cublasLtMatmulAlgo_t algorithm_{};
};

}  // namespace quire::kernels::cuda

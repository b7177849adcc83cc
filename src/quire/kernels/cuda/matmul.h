// Matrix products on the device: of one row by gemv.h, of more by cuBLASLt, which is loaded when it
// is first needed. A program starts without it. No CUDA header.
//
// By default an algorithm is chosen for each number of rows. With `row_invariant` one algorithm
// serves every number of rows, so that a row's bits depend on that row alone. Where rows are few,
// the fastest of those that give its bits takes its place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {

// out [rows, outputs] fp32 = x [rows, inputs] times weights [outputs, inputs] transposed, both
// of the type of the MatMul; added to `out` where `accumulate`.
struct Product {
  const std::uint16_t* x = nullptr;
  const std::uint16_t* weights = nullptr;
  float* out = nullptr;
  std::int64_t rows = 0;
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
  bool accumulate = false;
  std::int64_t out_stride = 0;  // between rows of `out`; 0: outputs
};

class MatMul {
 public:
  // Creates a product on `device`, which is borrowed. `dtype` is bf16 or fp16. Returns kDevice
  // naming the library when it is not there.
  [[nodiscard]] static Result<MatMul> create(device::cuda::DeviceContext& device,
                                             bool row_invariant,
                                             tensor::DType dtype = tensor::DType::kBFloat16);
  MatMul(MatMul&&) noexcept;
  MatMul& operator=(MatMul&&) noexcept;
  ~MatMul();

  // Queues it on the compute stream. The first product of a shape asks cuBLASLt which algorithm to
  // use, for tens of microseconds. With `row_invariant` and up to 256 rows it tries some, for
  // milliseconds, and waits. The answers for a bounded number of shapes are kept.
  [[nodiscard]] Status run(const Product& product);

 private:
  struct Impl;
  explicit MatMul(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::kernels::cuda

// A short run of every attention kernel of one instruction set against dense double precision: what
// kernels/self_check.h is for the other kernels.
#pragma once

#include "quire/device/cpu/isa.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"

namespace quire::attention {

struct KernelTable;  // cpu/kernel_table.h

// Returns the largest ||kernel - double|| / ||double|| of a row's output, and error of its lse,
// over KV of this type. bf16: probabilities are rounded to 8 bits (2^-9 relative each, averaging
// out), and an lse shows what their sum is off by before that (9e-5). fp32: sums of up to some
// thousand products.
[[nodiscard]] constexpr double tolerance(tensor::DType dtype) {
  return dtype == tensor::DType::kFloat32 ? 2e-6 : 6e-3;
}
[[nodiscard]] constexpr double lse_tolerance(tensor::DType dtype) {
  return dtype == tensor::DType::kFloat32 ? 4e-6 : 1.5e-4;
}

// Returns Ok, or kDevice naming the kernel, the error and its bound. Precondition:
// device::isa_supported(isa) and, as keys are stored by them, kernels::self_test(isa). A few
// milliseconds. Any thread. Throws std::bad_alloc.
[[nodiscard]] Status self_test(device::Isa isa);

// Tests the functions of any table that this machine can run, with the errors above.
[[nodiscard]] Status self_test(const KernelTable& table);

}  // namespace quire::attention

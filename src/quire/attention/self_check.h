// A short run of every attention kernel of one instruction set against dense double precision: what
// kernels/self_check.h is for the other kernels.
#pragma once

#include "quire/device/cpu/isa.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"

namespace quire::attention {

struct KernelTable;  // cpu/kernel_table.h

// The KV that a kernel reads: plain numbers of a type, or codes.
struct KVKind {
  tensor::DType dtype = tensor::DType::kBFloat16;
  tensor::KVFormat format = tensor::KVFormat::kPlain;

  // NOLINTNEXTLINE(google-explicit-constructor): a type stands for its plain numbers
  constexpr KVKind(tensor::DType type, tensor::KVFormat stored_as = tensor::KVFormat::kPlain)
      : dtype(type), format(stored_as) {}
  [[nodiscard]] constexpr bool codes() const { return format != tensor::KVFormat::kPlain; }
  // Returns whether blocks are stored whole.
  [[nodiscard]] constexpr bool by_block() const { return tensor::is_written_by_block(format); }
  friend constexpr bool operator==(const KVKind&, const KVKind&) = default;
};
inline constexpr KVKind kInt8KV = {tensor::DType::kBFloat16, tensor::KVFormat::kInt8};
inline constexpr KVKind kFp8KV = {tensor::DType::kBFloat16, tensor::KVFormat::kFp8};
inline constexpr KVKind kInt4KV = {tensor::DType::kBFloat16, tensor::KVFormat::kInt4};

[[nodiscard]] constexpr bool rounds_to_int16(KVKind kind, device::Isa isa) {
  return kind == kInt8KV && isa != device::Isa::kAmx;
}
// Returns whether codes are multiplied as fp32.
[[nodiscard]] constexpr bool expands_codes(KVKind kind, device::Isa isa) {
  return kind.by_block() && isa != device::Isa::kAmx;
}
// Returns whether queries are rounded after each unit's scales, which the oracle knows nothing of.
[[nodiscard]] constexpr bool rounds_scaled_queries(KVKind kind, device::Isa isa) {
  return kind == kInt4KV && isa == device::Isa::kAmx;
}

// Largest ||kernel - double|| / ||double|| of a row's output, and error of its lse, over KV of this
// kind as it is stored. bf16: probabilities are rounded to 8 bits (2^-9 relative each, averaging
// out), and an lse shows what their sum is off by before that (9e-5). int8 rounds queries and
// weights to 16 bits of the largest, 5e-5 each where it is some six times the rest. Its exp2 is
// right to 9e-5, and a score's error of 5e-5 shows twice; on AMX it is as bf16. fp32: sums of up to
// some thousand products. fp8 and int4 are as fp32; on AMX fp8 is as bf16. On AMX, int4
// rounds each product of a query's element and a scale to 8 bits. So a score is off by a thousandth
// of what scores spread by.
[[nodiscard]] constexpr double tolerance(KVKind kind, device::Isa isa) {
  if (kind == KVKind(tensor::DType::kFloat32) || expands_codes(kind, isa)) {
    return 2e-6;
  }
  return rounds_to_int16(kind, isa) ? 3e-4 : 6e-3;
}
[[nodiscard]] constexpr double lse_tolerance(KVKind kind, device::Isa isa) {
  if (kind == KVKind(tensor::DType::kFloat32) || expands_codes(kind, isa)) {
    return 4e-6;
  }
  return rounds_to_int16(kind, isa) ? 1e-4 : rounds_scaled_queries(kind, isa) ? 1e-2 : 1.5e-4;
}

// Returns Ok, or kDevice naming the kernel, the error and its bound. Precondition:
// device::isa_supported(isa) and, as keys are stored by them, kernels::self_test(isa). A few
// milliseconds. Any thread. Throws std::bad_alloc.
[[nodiscard]] Status self_test(device::Isa isa);

// Tests the functions of any table that this machine can run, with the errors above.
[[nodiscard]] Status self_test(const KernelTable& table);

}  // namespace quire::attention

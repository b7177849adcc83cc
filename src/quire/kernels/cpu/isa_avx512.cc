// The avx512 kernels; compiled with the flags of that instruction set.
#include "quire/device/cpu/isa.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/cpu/quant_formats.h"
#include "quire/kernels/cpu/quant_vec.h"
#include "quire/kernels/cpu/vec_avx512_bf16.h"
#include "quire/kernels/cpu/vector_kernels.h"

namespace quire::kernels {
namespace {

constexpr KernelTable intel_table() {
  KernelTable table = bf16_dot_kernels<VecAvx512Bf16>(device::Isa::kAvx512);
  table.matmul[2] = matmul_quant<VecAvx512Bf16Intel, Q8g32>;
  table.matmul[3] = matmul_quant<VecAvx512Bf16Intel, Q4g32>;
  table.matmul[4] = matmul_quant<VecAvx512Bf16Intel, Q4m32>;  // the others add no exponents
  return table;
}

}  // namespace

const KernelTable& avx512_kernels() {
  static constexpr KernelTable kTable = bf16_dot_kernels<VecAvx512Bf16>(device::Isa::kAvx512);
  static constexpr KernelTable kIntel = intel_table();  // the same bits
  return __builtin_cpu_is("intel") != 0 ? kIntel : kTable;
}

}  // namespace quire::kernels

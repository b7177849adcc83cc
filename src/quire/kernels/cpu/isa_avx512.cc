// The avx512 kernels; compiled with the flags of that instruction set.
#include "quire/device/cpu/isa.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/cpu/vec_avx512_bf16.h"
#include "quire/kernels/cpu/vector_kernels.h"

namespace quire::kernels {

const KernelTable& avx512_kernels() {
  static constexpr KernelTable kTable = bf16_dot_kernels<VecAvx512Bf16>(device::Isa::kAvx512);
  return kTable;
}

}  // namespace quire::kernels

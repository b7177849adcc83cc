// The avx2 kernels; compiled with the flags of that instruction set.
#include "quire/device/cpu/isa.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/cpu/vec_avx2.h"
#include "quire/kernels/cpu/vector_kernels.h"

namespace quire::kernels {

const KernelTable& avx2_kernels() {
  static constexpr KernelTable kTable = vector_kernels<VecAvx2>(device::Isa::kAvx2);
  return kTable;
}

}  // namespace quire::kernels

// The avx512_vnni kernels; compiled with the flags of that instruction set.
#include "quire/device/cpu/isa.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/cpu/vec_avx512.h"
#include "quire/kernels/cpu/vector_kernels.h"

namespace quire::kernels {

const KernelTable& avx512_vnni_kernels() {
  static constexpr KernelTable kTable = vector_kernels<VecAvx512>(device::Isa::kAvx512Vnni);
  return kTable;
}

}  // namespace quire::kernels

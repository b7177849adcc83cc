// The portable kernels; compiled with the flags of that instruction set.
#include "quire/device/cpu/isa.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/cpu/vec_portable.h"
#include "quire/kernels/cpu/vector_kernels.h"

namespace quire::kernels {

const KernelTable& portable_kernels() {
  static constexpr KernelTable kTable = vector_kernels<VecPortable>(device::Isa::kPortable);
  return kTable;
}

}  // namespace quire::kernels

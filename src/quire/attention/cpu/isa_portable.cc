// The portable attention kernels (the compiler's baseline flags: any target).
#include "quire/attention/cpu/attend.h"
#include "quire/attention/cpu/kernel_table.h"
#include "quire/device/cpu/isa.h"
#include "quire/kernels/cpu/vec_portable.h"

namespace quire::attention {

const KernelTable& portable_kernels() {
  static constexpr KernelTable kTable = vector_table<kernels::VecPortable>(device::Isa::kPortable);
  return kTable;
}

}  // namespace quire::attention

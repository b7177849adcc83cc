// The avx512_vnni attention kernels (compiled with its own flags).
#include "quire/attention/cpu/attend.h"
#include "quire/attention/cpu/kernel_table.h"
#include "quire/device/cpu/isa.h"
#include "quire/kernels/cpu/vec_avx512.h"

namespace quire::attention {

const KernelTable& avx512_vnni_kernels() {
  static constexpr KernelTable kTable = vector_table<kernels::VecAvx512>(device::Isa::kAvx512Vnni);
  return kTable;
}

}  // namespace quire::attention

// The avx2 attention kernels (compiled with its own flags).
#include "quire/attention/cpu/attend.h"
#include "quire/attention/cpu/kernel_table.h"
#include "quire/device/cpu/isa.h"
#include "quire/kernels/cpu/vec_avx2.h"

namespace quire::attention {

const KernelTable& avx2_kernels() {
  static constexpr KernelTable kTable = vector_table<kernels::VecAvx2>(device::Isa::kAvx2);
  return kTable;
}

}  // namespace quire::attention

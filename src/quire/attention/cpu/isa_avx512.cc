// The avx512 attention kernels (compiled with its own flags).
#include "quire/attention/cpu/attend.h"
#include "quire/attention/cpu/kernel_table.h"
#include "quire/device/cpu/isa.h"
#include "quire/kernels/cpu/vec_avx512_bf16.h"

namespace quire::attention {

const KernelTable& avx512_kernels() {
  static constexpr KernelTable kTable =
      bf16_dot_table<kernels::VecAvx512Bf16>(device::Isa::kAvx512);
  return kTable;
}

}  // namespace quire::attention

#include "quire/attention/cpu/kernel_table.h"

#include "quire/device/cpu/isa.h"

namespace quire::attention {

const KernelTable& kernels_for(device::Isa isa) {
  switch (isa) {
    case device::Isa::kAmx:
      return amx_kernels();
    case device::Isa::kAvx512:
      return avx512_kernels();
    case device::Isa::kAvx512Vnni:
      return avx512_vnni_kernels();
    case device::Isa::kAvx2:
      return avx2_kernels();
    case device::Isa::kPortable:
      break;
  }
  return portable_kernels();
}

}  // namespace quire::attention

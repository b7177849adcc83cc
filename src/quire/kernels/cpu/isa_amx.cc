// The amx kernels: matrix products on tiles, everything else as on AVX-512.
#include "quire/device/cpu/isa.h"
#include "quire/kernels/cpu/amx_matmul.h"
#include "quire/kernels/cpu/amx_peak.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/cpu/quant_vec.h"
#include "quire/kernels/cpu/vec_avx512_bf16.h"
#include "quire/kernels/cpu/vector_kernels.h"

namespace quire::kernels {
namespace {

constexpr KernelTable make_table() {
  KernelTable table = bf16_dot_kernels<VecAvx512Bf16>(device::Isa::kAmx);
  table.matmul[1] = amx_matmul_bf16;
  table.matmul[2] = amx_matmul_quant<Q8g32>;
  table.matmul[3] = amx_matmul_quant<Q4g32>;
  table.matmul[4] = amx_matmul_quant<Q4m32>;
  table.peaks[1] = {amx_peak_bf16, kTilePeakProducts * 2 * 16 * 16 * 32};
  table.peaks[2] = {amx_peak_int8, kTilePeakProducts * 2 * 16 * 16 * 64};
  return table;
}

}  // namespace

const KernelTable& amx_kernels() {
  static constexpr KernelTable kTable = make_table();
  return kTable;
}

}  // namespace quire::kernels

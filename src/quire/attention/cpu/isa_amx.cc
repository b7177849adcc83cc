// The amx attention kernels: tile products for bf16 and codes, AVX-512 for everything around them
// and for fp32.
#include "quire/attention/cpu/amx_codes.h"
#include "quire/attention/cpu/amx_int4.h"
#include "quire/attention/cpu/amx_products.h"
#include "quire/attention/cpu/attend.h"
#include "quire/attention/cpu/kernel_table.h"
#include "quire/device/cpu/isa.h"
#include "quire/kernels/cpu/vec_avx512_bf16.h"

namespace quire::attention {
namespace {

constexpr KernelTable amx_table() {
  KernelTable table = bf16_dot_table<kernels::VecAvx512Bf16>(device::Isa::kAmx);
  table.attend_bf16 = amx_attend;
  table.load_queries_int8 = table.load_queries_bf16;
  table.attend_int8 = amx_attend_codes<Int8Units>;
  table.attend_fp8 = amx_attend_codes<Fp8Units>;
  table.attend_int4 = amx_attend_codes<Int4Units>;
  table.bf16_code_queries = true;
  return table;
}

}  // namespace

const KernelTable& amx_kernels() {
  static constexpr KernelTable kTable = amx_table();
  return kTable;
}

}  // namespace quire::attention

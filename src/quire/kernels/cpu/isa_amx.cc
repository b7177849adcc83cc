// The amx kernels: matrix products on tiles, everything else as on AVX-512.
#include "quire/device/cpu/isa.h"
#include "quire/kernels/cpu/amx_matmul.h"
#include "quire/kernels/cpu/amx_peak.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/cpu/quant_formats.h"
#include "quire/kernels/cpu/vec_avx512_bf16.h"
#include "quire/kernels/cpu/vector_kernels.h"

namespace quire::kernels {
namespace {

// Sets the matmul of a format that multiplies many rows by tiles. Few rows keep the product that
// vectors run.
constexpr void set_tile_matmul(KernelTable& table, int format, void (*matmul)(const MatmulTask&)) {
  table.matmul[format] = matmul;
  table.products[format].many = Product::kByteTiles;
  table.products[format].many_rows = kFewestTileRows;
}

constexpr KernelTable make_table() {
  KernelTable table = bf16_dot_kernels<VecAvx512Bf16>(device::Isa::kAmx);
  set_matmul(table, 1, amx_matmul_bf16, Product::kBf16Tiles);
  set_tile_matmul(table, 2, amx_matmul_quant<Q8g32>);
  set_tile_matmul(table, 3, amx_matmul_quant<Q4g32>);
  set_tile_matmul(table, 4, amx_matmul_quant<Q4m32>);
  set_tile_matmul(table, 5, amx_matmul_quant<T4g32>);
  table.peaks[static_cast<int>(Product::kBf16Pairs)] = {};
  table.peaks[static_cast<int>(Product::kInt16Pairs)] = {};
  set_peak(table, Product::kBf16Tiles, amx_peak_bf16, kTilePeakProducts * 2 * 16 * 16 * 32);
  set_peak(table, Product::kByteTiles, amx_peak_int8,
           kTilePeakProducts * 2 * 16 * 16 * kPeakGroupDepth);
  return table;
}

}  // namespace

const KernelTable& amx_kernels() {
  static constexpr KernelTable kTable = make_table();
  return kTable;
}

}  // namespace quire::kernels

// The table of one vector trait: every template instantiated.
#pragma once

#include "quire/kernels/cpu/dense_vec.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/cpu/pack_vec.h"
#include "quire/kernels/cpu/peak_vec.h"
#include "quire/kernels/cpu/quant_vec.h"
#include "quire/kernels/cpu/row_ops_vec.h"

namespace quire::kernels {
namespace {

template <class V>
constexpr KernelTable vector_kernels(device::Isa isa) {
  constexpr int kFlops = 2 * kPeakAccumulators * V::kLanes;
  return {.isa = isa,
          .matmul = {matmul_dense<V, F32Format<V>>, matmul_dense<V, WideBf16Format<V>>,
                     matmul_quant<V, Q8g32>, matmul_quant<V, Q4g32>, matmul_quant<V, Q4m32>},
          .row_formats = {RowFormat::kF32, RowFormat::kF32, RowFormat::kInt8, RowFormat::kInt8,
                          RowFormat::kInt8},
          .pack_rows = {pack_f32<V>, nullptr, pack_int8<V>},
          .rms_norm = rms_norm_rows<V>,
          .rms_factor = rms_factor<V>,
          .silu_mul = silu_mul<V>,
          .rotate = rotate<V>,
          .round_bf16 = round_bf16<V>,
          .read = read_bytes<V>,
          .peaks = {{peak_f32<V>, kFlops}, {peak_f32<V>, kFlops}, {peak_int8<V>, 4 * kFlops}}};
}

// Fills vector_kernels() for a trait that multiplies bf16 pairs: activations are rounded to bf16
// too.
template <class V>
constexpr KernelTable bf16_dot_kernels(device::Isa isa) {
  KernelTable table = vector_kernels<V>(isa);
  table.matmul[1] = matmul_dense<V, Bf16Format<V>>;
  table.row_formats[1] = RowFormat::kBf16;
  table.pack_rows[1] = pack_bf16<V>;
  table.peaks[1] = {peak_bf16<V>, table.peaks[0].flops_per_iteration * 2};
  return table;
}

}  // namespace
}  // namespace quire::kernels

// The table of one vector trait: every template instantiated.
#pragma once

#include "quire/kernels/cpu/dense_vec.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/cpu/pack_vec.h"
#include "quire/kernels/cpu/peak_vec.h"
#include "quire/kernels/cpu/quant_vec.h"
#include "quire/kernels/cpu/row_ops_vec.h"
#include "quire/kernels/cpu/state_vec.h"

namespace quire::kernels {
namespace {

// Sets a matmul and the kind of product that it runs for any number of rows.
constexpr void set_matmul(KernelTable& table, int format, void (*matmul)(const MatmulTask&),
                          Product product) {
  table.matmul[format] = matmul;
  table.products[format] = {.few = product, .many = product};
}

constexpr void set_peak(KernelTable& table, Product product, void (*run)(const PeakTask&),
                        std::int64_t flops_per_iteration) {
  table.peaks[static_cast<int>(product)] = {run, flops_per_iteration};
}

template <class V>
constexpr KernelTable vector_kernels(device::Isa isa) {
  constexpr int kFlops = 2 * kPeakSums * V::kLanes;
  KernelTable table = {
      .isa = isa,
      .row_formats = {RowFormat::kF32, RowFormat::kF32, RowFormat::kInt8, RowFormat::kInt8,
                      RowFormat::kInt8, RowFormat::kInt8, RowFormat::kInt8, RowFormat::kInt8},
      .pack_rows = {pack_f32<V>, nullptr, pack_int8<V>},
      .rms_norm = rms_norm_rows<V>,
      .rms_factor = rms_factor<V>,
      .gate_mul = {gate_mul<V, Silu<V>>, gate_mul<V, GeluTanh<V>>, gate_mul<V, Sigmoid<V>>,
                   gate_mul<V, ClampedSwiglu<V>>, gate_mul<V, Relu<V>>},
      .soft_cap = soft_cap<V>,
      .convolve = convolve<V>,
      .gated_delta = gated_delta<V>,
      .state_scan = state_scan<V>,
      .rotate = rotate<V>,
      .round_bf16 = round_bf16<V>,
      .read = read_bytes<V>};
  set_matmul(table, 0, matmul_dense<V, F32Format<V>>, F32Format<V>::kProduct);
  set_matmul(table, 1, matmul_dense<V, WideBf16Format<V>>, WideBf16Format<V>::kProduct);
  set_matmul(table, 2, matmul_quant<V, Q8g32>, Q8g32::kProduct);
  set_matmul(table, 3, matmul_quant<V, Q4g32>, Q4g32::kProduct);
  set_matmul(table, 4, matmul_quant<V, Q4m32>, Q4m32::kProduct);
  set_matmul(table, 5, matmul_quant<V, T4g32>, T4g32::kProduct);
  set_matmul(table, 6, matmul_quant<V, T4g16>, T4g16::kProduct);
  set_matmul(table, 7, matmul_quant<V, Q2m16>, Q2m16::kProduct);
  set_peak(table, Product::kFloats, peak_f32<V>, kFlops);
  set_peak(table, Product::kBytes, peak_quant<V, Q8g32>, 4 * kFlops);
  set_peak(table, Product::kInt16Pairs, peak_int16<V>, 2 * kFlops);
  set_peak(table, Product::kSmallBytes, peak_quant<V, Q4g32>, 4 * kFlops);
  return table;
}

// Fills vector_kernels() for a trait that multiplies bf16 pairs: activations are rounded to bf16
// too.
template <class V>
constexpr KernelTable bf16_dot_kernels(device::Isa isa) {
  KernelTable table = vector_kernels<V>(isa);
  set_matmul(table, 1, matmul_dense<V, Bf16Format<V>>, Bf16Format<V>::kProduct);
  table.row_formats[1] = RowFormat::kBf16;
  table.pack_rows[1] = pack_bf16<V>;
  set_peak(table, Product::kBf16Pairs, peak_bf16<V>, std::int64_t{2} * 2 * kPeakSums * V::kLanes);
  return table;
}

}  // namespace
}  // namespace quire::kernels

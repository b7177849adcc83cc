#include "quire/kernels/linear_tile.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/base/divide.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/epilogue.h"
#include "quire/kernels/packed_rows.h"
#include "quire/kernels/packed_weights.h"

namespace quire::kernels {
namespace {

void add_bias(std::span<const float> bias, float* values) {
  for (std::size_t i = 0; i < bias.size(); ++i) {
    values[i] = values[i] + bias[i];
  }
}

// Gates a tile, whose gate and up are [rows][stride] each, and writes it to its place in `gated`.
void gate_tile(const LinearCall& call, const OutputTile& tile, float* gate, float* up,
               const GatedRows& gated) {
  const std::ptrdiff_t stride = tile.panels * kPanelColumns;
  const auto first = static_cast<std::size_t>(tile.first_panel * kPanelColumns);
  const auto columns = static_cast<std::size_t>(stride);
  const std::span<const float> bias = call.epilogue.bias;
  const auto gate_mul = call.table.gate_mul[static_cast<std::uint8_t>(gated.activation)];
  for (std::int64_t block = 0; block < tile.rows; block += kBlockRows) {
    const std::int64_t end = std::min<std::int64_t>(block + kBlockRows, tile.rows);
    for (std::int64_t row = block; row < end; ++row) {
      float* gate_row = gate + row * stride;
      float* up_row = up + row * stride;
      if (!bias.empty()) {
        add_bias(bias.subspan(first, columns), gate_row);
        add_bias(bias.subspan(bias.size() / 2 + first, columns), up_row);
      }
      gate_mul({.gate = gate_row, .up = up_row, .count = stride, .out = gate_row});
    }
    pack_steps(call.table, {gate + block * stride, stride, stride},
               {tile.first_row + block, end - block, tile.first_panel}, gated.rows);
  }
}

}  // namespace

void multiply_tile(const LinearCall& call, const OutputTile& tile, float* sums,
                   std::ptrdiff_t stride, std::byte* scratch) {
  const PackedWeights& weights = call.weights;
  call.table.matmul[static_cast<std::uint8_t>(weights.format())](
      {.weights = panel_at(weights, tile.first_panel),
       .next_weights = tile.next,
       .panel_bytes = weights.panel_bytes(),
       .panels = static_cast<int>(tile.panels),
       .steps = static_cast<int>(weights.steps()),
       .values = call.packed.values(tile.first_row),
       .scales = call.packed.scales(tile.first_row),
       .offsets = call.packed.offsets(tile.first_row),
       .first_offsets = call.packed.first_offsets(tile.first_row),
       .rows = static_cast<int>(tile.rows),
       .out = sums,
       .out_stride = stride,
       .scratch = scratch});
}

void pack_steps(const KernelTable& table, const PackSource& from, const PackPlace& to,
                PackedRows& packed) {
  const std::int64_t group = to.step * to.rows;
  const bool int8 = packed.format() == RowFormat::kInt8;
  table.pack_rows[static_cast<std::uint8_t>(packed.format())](
      {.x = from.x,
       .x_stride = from.stride,
       .rows = static_cast<int>(to.rows),
       .depth = from.depth,
       .steps = static_cast<int>(base::divide_up(from.depth, kStepDepth)),
       .values = packed.values(to.row) + group * kStepDepth * value_bytes(packed.format()),
       .scales = int8 ? packed.scales(to.row) + group : nullptr,
       .offsets = int8 ? packed.offsets(to.row) + group : nullptr,
       .first_offsets = int8 ? packed.first_offsets(to.row) + group : nullptr,
       .norm_factors = from.norm_factors,
       .norm_weight = from.norm_weight});
}

void run_gated_tile(const LinearCall& call, const OutputTile& pairs, const GatedRows& gated,
                    std::byte* scratch) {
  auto* gate = reinterpret_cast<float*>(scratch);
  float* up = gate + kEpilogueFloats;
  scratch += 2 * kEpilogueFloats * sizeof(float);
  const std::int64_t half = call.weights.panels() / 2;
  const std::int64_t end = pairs.first_panel + pairs.panels;
  for (std::int64_t first = pairs.first_panel; first < end; first += kPanelQuantum) {
    OutputTile tile = pairs;
    tile.first_panel = first;
    tile.panels = std::min(kPanelQuantum, end - first);
    const std::ptrdiff_t stride = tile.panels * kPanelColumns;
    tile.next = panel_at(call.weights, half + first);
    multiply_tile(call, tile, gate, stride, scratch);
    tile.first_panel = half + first;
    tile.next =
        first + tile.panels < end ? panel_at(call.weights, first + tile.panels) : pairs.next;
    multiply_tile(call, tile, up, stride, scratch);
    tile.first_panel = first;
    gate_tile(call, tile, gate, up, gated);
  }
}

}  // namespace quire::kernels

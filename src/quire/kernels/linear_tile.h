// Tiles of products: what linear() and the products of groups of rows are both made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/epilogue.h"
#include "quire/kernels/packed_rows.h"
#include "quire/kernels/packed_weights.h"

namespace quire::kernels {

// Panels that are multiplied, or gated, at a time: a multiple of 4, the widest single-row tile.
inline constexpr std::int64_t kPanelQuantum = 4;
// Sums that wait for an epilogue, or for the other half of a gated product: 4 panels of
// kMaxTaskRows rows.
inline constexpr std::int64_t kEpilogueFloats = kPanelQuantum * kPanelColumns * kMaxTaskRows;
// Each panel reads all activations of its task again. In fp32, 512 KiB per 2048 of depth: what an
// L2 of 1 MiB keeps beside the panels.
inline constexpr std::int64_t kMaxF32TaskRows = 64;

// Returns the rows that a task of that format has at most.
[[nodiscard]] constexpr std::int64_t most_task_rows(RowFormat format) {
  return format == RowFormat::kF32 ? kMaxF32TaskRows : kMaxTaskRows;
}

// Everything of one call that its tasks share.
struct LinearCall {
  const KernelTable& table;
  const PackedWeights& weights;
  const PackedRows& packed;
  std::span<float> out;
  std::ptrdiff_t out_stride = 0;
  const Epilogue& epilogue;
};

// A rectangle of the output and where its sums go. `first_row` begins a block of the packed rows,
// and blocks within the tile are whole.
struct OutputTile {
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t first_panel = 0;
  std::int64_t panels = 0;
  const std::byte* next = nullptr;  // weights that the thread will probably read then, or null
};

// Returns the place of a panel, or null for a number below 0.
[[nodiscard]] inline const std::byte* panel_at(const PackedWeights& weights, std::int64_t panel) {
  return panel < 0 ? nullptr
                   : weights.data() + weights.panel_bytes() * static_cast<std::size_t>(panel);
}

// Sets sums [rows][stride] to the products of a tile.
void multiply_tile(const LinearCall& call, const OutputTile& tile, float* sums,
                   std::ptrdiff_t stride, std::byte* scratch);

// Some inputs of a block of rows, and where they begin in the packed rows.
struct PackSource {
  const float* x = nullptr;
  std::ptrdiff_t stride = 0;
  std::int64_t depth = 0;
  const float* norm_factors = nullptr;  // factors of the block's rows
  const float* norm_weight = nullptr;   // weight of these inputs; null: packed as they are
};
struct PackPlace {
  std::int64_t row = 0;   // the first of a block
  std::int64_t rows = 0;  // of the block
  std::int64_t step = 0;
};

void pack_steps(const KernelTable& table, const PackSource& from, const PackPlace& to,
                PackedRows& packed);

// Multiplies and gates the pairs of panels [first_panel, first_panel + panels), a few at a time,
// and packs them at their place in `gated`. `scratch` holds 2 * kEpilogueFloats floats, then what
// products need.
void run_gated_tile(const LinearCall& call, const OutputTile& pairs, const GatedRows& gated,
                    std::byte* scratch);

}  // namespace quire::kernels

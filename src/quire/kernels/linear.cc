#include "quire/kernels/linear.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "quire/base/check.h"
#include "quire/base/divide.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/linear_tile.h"
#include "quire/kernels/packed_rows.h"
#include "quire/kernels/packed_weights.h"
#include "quire/kernels/parallel.h"
#include "quire/kernels/work_ranges.h"

namespace quire::kernels {
namespace {

// Enough tasks to balance. With many rows a task reads them all once more, so that fewer are
// better. With few rows the weights' stream is all the work, and the last task's length is what the
// other threads wait for.
constexpr std::int64_t kTasksPerThread = 6;
constexpr std::int64_t kStreamTasksPerThread = 64;
constexpr std::int64_t kStreamRows = 32;
// Up to so many rows a tile may be several panels wide; with more of them a turn is long enough.
constexpr std::int64_t kSingleTileRows = 8;
constexpr std::int64_t kPanelsPerTurn = 2;
// Weight bytes that one thread reads in about the time of a hand-off.
constexpr std::int64_t kBytesPerTask = std::int64_t{64} << 10;
constexpr std::int64_t kPackSteps = 8;  // steps of a block of rows that are packed together

struct Grid {
  std::int64_t rows = 0;
  std::int64_t panels = 0;  // or pairs of them
  std::int64_t rows_per_task = 1;
  std::int64_t row_tasks = 1;
  std::int64_t panels_per_task = kPanelQuantum;
  std::int64_t panel_tasks = 1;
};

// Cuts `panels` panels, or pairs of them, that hold all weights, into tasks.
Grid make_grid(const PackedWeights& weights, std::int64_t panels, std::int64_t rows,
               RowFormat format, int threads) {
  Grid grid = {.rows = rows, .panels = panels};
  const std::int64_t shares = base::divide_up(rows, most_task_rows(format));
  grid.rows_per_task =
      base::divide_up(base::divide_up(rows, shares), 32) * 32;  // whole pairs of row blocks
  grid.row_tasks = base::divide_up(rows, grid.rows_per_task);
  const std::int64_t work =
      static_cast<std::int64_t>(weights.size_bytes()) * base::divide_up(rows, 8);
  const std::int64_t most =
      threads * (rows <= kStreamRows ? kStreamTasksPerThread : kTasksPerThread);
  const std::int64_t wanted =
      std::clamp<std::int64_t>(base::divide_up(work, kBytesPerTask), 1, most);
  const std::int64_t share = base::divide_up(panels, base::divide_up(wanted, grid.row_tasks));
  grid.panels_per_task = base::divide_up(share, kPanelQuantum) * kPanelQuantum;
  grid.panel_tasks = base::divide_up(panels, grid.panels_per_task);
  return grid;
}

// Writes sums [rows][stride] to their place in `out`, with bias and residual.
void finish(const LinearCall& call, const OutputTile& tile, const float* sums,
            std::ptrdiff_t stride) {
  const std::int64_t first = tile.first_panel * kPanelColumns;
  const std::int64_t columns =
      std::min(tile.panels * kPanelColumns, call.weights.columns() - first);
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const float* from = sums + r * stride;
    float* to = call.out.data() + (tile.first_row + r) * call.out_stride + first;
    const float* bias = call.epilogue.bias.empty() ? nullptr : call.epilogue.bias.data() + first;
    for (std::int64_t c = 0; c < columns; ++c) {
      const float value = bias == nullptr ? from[c] : from[c] + bias[c];
      to[c] = call.epilogue.accumulate ? to[c] + value : value;
    }
  }
}

// Multiplies one tile. Whole panels without epilogue are written in place; all others wait in the
// thread's scratch, a few panels at a time.
void run_tile(const LinearCall& call, OutputTile tile, std::byte* scratch) {
  const std::int64_t whole_panels = call.weights.columns() / kPanelColumns;
  const bool plain = call.epilogue.bias.empty() && !call.epilogue.accumulate;
  auto* sums = reinterpret_cast<float*>(scratch);
  scratch += kEpilogueFloats * sizeof(float);
  const std::int64_t end = tile.first_panel + tile.panels;
  const std::byte* later = tile.next;
  const auto take_until = [&](std::int64_t panel) {
    tile.panels = panel - tile.first_panel;
    tile.next = panel < end ? panel_at(call.weights, panel) : later;
  };
  if (plain && tile.first_panel < whole_panels) {
    take_until(std::min(end, whole_panels));
    float* to =
        call.out.data() + tile.first_row * call.out_stride + tile.first_panel * kPanelColumns;
    multiply_tile(call, tile, to, call.out_stride, scratch);
    tile.first_panel += tile.panels;
  }
  const std::int64_t room =
      kEpilogueFloats / (tile.rows * kPanelColumns) / kPanelQuantum * kPanelQuantum;
  for (; tile.first_panel < end; tile.first_panel += tile.panels) {
    take_until(std::min(tile.first_panel + room, end));
    const std::ptrdiff_t stride = tile.panels * kPanelColumns;
    multiply_tile(call, tile, sums, stride, scratch);
    finish(call, tile, sums, stride);
  }
}

// Packs all rows of `x`. `weight` and `factors` belong to a norm, or are null.
void pack_all(const KernelContext& context, const InputRows& x, const float* weight,
              const float* factors, PackedRows& packed) {
  const std::int64_t shares = base::divide_up(packed.steps(), kPackSteps);  // shares of a block
  const auto pack_share = [&](std::int64_t row, std::int64_t first_step) {
    const std::int64_t first = first_step * kStepDepth;
    pack_steps(*context.table,
               {.x = x.values.data() + row * x.stride + first,
                .stride = x.stride,
                .depth = std::min(x.depth - first, kPackSteps * kStepDepth),
                .norm_factors = weight == nullptr ? nullptr : factors + row,
                .norm_weight = weight == nullptr ? nullptr : weight + first},
               {row, std::min<std::int64_t>(kBlockRows, packed.rows() - row), first_step}, packed);
  };
  parallel_ranges(context, packed.blocks() * shares,
                  std::min(x.rows, std::int64_t{kBlockRows}) * kPackSteps * kStepDepth,
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t i = begin; i < end; ++i) {
                      pack_share(i / shares * kBlockRows, i % shares * kPackSteps);
                    }
                  });
}

void check_rows(const InputRows& x) {
  QUIRE_CHECK(x.stride >= x.depth, "rows of x overlap");
  QUIRE_CHECK(static_cast<std::int64_t>(x.values.size()) >= (x.rows - 1) * x.stride + x.depth,
              "x is short");
}

void check_input(const KernelContext& context, const PackedWeights& weights,
                 const PackedRows& packed, std::span<const float> bias) {
  QUIRE_CHECK(packed.format() == row_format_for(*context.table, weights.format()),
              "rows packed for another format");
  QUIRE_CHECK(packed.depth() == weights.depth(), "rows packed for another depth");
  QUIRE_CHECK(bias.empty() || static_cast<std::int64_t>(bias.size()) == weights.columns(),
              "bias must have one value per column");
}

// Calls fn(tile, thread) for the tasks of a grid over `panels` panels. With few rows the weights'
// stream is all the work: threads walk through ranges of it.
template <class Fn>
void for_each_tile(const KernelContext& context, const PackedWeights& weights, const Grid& grid,
                   LinearScratch& scratch, Fn fn) {
  const std::int64_t rows = grid.rows;
  const std::int64_t panels = grid.panels;
  if (rows <= kStreamRows && grid.panel_tasks > 1) {
    const std::int64_t most = rows <= kSingleTileRows ? grid.panels_per_task : kPanelsPerTurn;
    for_each_range(*context.pool, scratch.work_ranges(context.pool->threads()), panels, most,
                   [&](WorkRange::Items range, std::int64_t next, int thread) {
                     fn(OutputTile{.rows = rows,
                                   .first_panel = range.first,
                                   .panels = range.size(),
                                   .next = panel_at(weights, next)},
                        thread);
                   });
    return;
  }
  const auto tasks = static_cast<int>(grid.row_tasks * grid.panel_tasks);
  context.pool->run(tasks, [&](int task, int thread) {
    const std::int64_t row = task / grid.panel_tasks * grid.rows_per_task;
    const std::int64_t panel = task % grid.panel_tasks * grid.panels_per_task;
    const std::int64_t next =
        panel + context.pool->threads() * grid.panels_per_task;  // tasks go round
    fn(OutputTile{.first_row = row,
                  .rows = std::min(grid.rows_per_task, rows - row),
                  .first_panel = panel,
                  .panels = std::min(grid.panels_per_task, panels - panel),
                  .next = panel_at(weights, next < panels ? next : -1)},
       thread);
  });
}

}  // namespace

void LinearScratch::reserve(int threads, std::size_t bytes) {
  if (buffers_.size() < static_cast<std::size_t>(threads)) {
    buffers_.resize(static_cast<std::size_t>(threads));
  }
  for (auto& buffer : buffers_) {
    buffer.require(bytes);
  }
}

std::span<WorkRange> LinearScratch::work_ranges(int threads) {
  if (num_work_ranges_ < threads) {
    work_ranges_ = std::make_unique<WorkRange[]>(static_cast<std::size_t>(threads));
    num_work_ranges_ = threads;
  }
  return {work_ranges_.get(), static_cast<std::size_t>(threads)};
}

void pack_rows(const KernelContext& context, WeightFormat format, const InputRows& x,
               PackedRows& packed) {
  packed.reshape(row_format_for(*context.table, format), x.rows, x.depth);
  if (x.rows > 0) {
    check_rows(x);
    pack_all(context, x, nullptr, nullptr, packed);
  }
}

void pack_normed_rows(const KernelContext& context, WeightFormat format, const InputRows& x,
                      const RowNorm& norm, PackedRows& packed) {
  packed.reshape(row_format_for(*context.table, format), x.rows, x.depth);
  QUIRE_CHECK(std::ssize(norm.weight) == x.depth, "a norm of another width");
  if (x.rows == 0) {
    return;
  }
  check_rows(x);
  const std::span<float> factors = packed.row_factors();
  parallel_ranges(context, x.rows, x.depth, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      factors[static_cast<std::size_t>(row)] =
          context.table->rms_factor(x.values.data() + row * x.stride, x.depth, norm.epsilon);
    }
  });
  pack_all(context, x, norm.weight.data(), factors.data(), packed);
}

void linear(const KernelContext& context, const PackedWeights& weights, const PackedRows& packed,
            const OutputRows& out, const Epilogue& epilogue, LinearScratch& scratch) {
  const std::int64_t rows = packed.rows();
  if (rows == 0 || weights.columns() == 0) {
    return;
  }
  check_input(context, weights, packed, epilogue.bias);
  QUIRE_CHECK(out.stride >= weights.columns(), "rows of out overlap");
  QUIRE_CHECK(
      static_cast<std::int64_t>(out.values.size()) >= (rows - 1) * out.stride + weights.columns(),
      "out is short");
  const Grid grid =
      make_grid(weights, weights.panels(), rows, packed.format(), context.pool->threads());
  scratch.reserve(context.pool->threads(),
                  kEpilogueFloats * sizeof(float) +
                      static_cast<std::size_t>(weights.steps()) * kScratchBytesPerStep);
  const LinearCall call = {*context.table, weights, packed, out.values, out.stride, epilogue};
  for_each_tile(context, weights, grid, scratch, [&](const OutputTile& tile, int thread) {
    run_tile(call, tile, scratch.of_thread(thread));
  });
}

bool can_gate(const PackedWeights& weights) {
  return weights.columns() % (std::int64_t{2} * kPanelColumns) == 0;
}

void linear_gated(const KernelContext& context, const PackedWeights& weights,
                  const PackedRows& packed, std::span<const float> bias, const GatedRows& gated,
                  LinearScratch& scratch) {
  const std::int64_t rows = packed.rows();
  const std::int64_t pairs = weights.panels() / 2;
  check_input(context, weights, packed, bias);
  QUIRE_CHECK(can_gate(weights), "gate and up share a panel");
  gated.rows.reshape(row_format_for(*context.table, gated.next), rows, pairs * kPanelColumns);
  if (rows == 0) {
    return;
  }
  const Grid grid = make_grid(weights, pairs, rows, packed.format(), context.pool->threads());
  scratch.reserve(context.pool->threads(),
                  2 * kEpilogueFloats * sizeof(float) +
                      static_cast<std::size_t>(weights.steps()) * kScratchBytesPerStep);
  const Epilogue epilogue = {.bias = bias};
  const LinearCall call = {*context.table, weights, packed, {}, 0, epilogue};
  for_each_tile(context, weights, grid, scratch, [&](const OutputTile& tile, int thread) {
    run_gated_tile(call, tile, gated, scratch.of_thread(thread));
  });
}

}  // namespace quire::kernels

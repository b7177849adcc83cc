#include "quire/kernels/grouped_linear.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "quire/base/check.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/linear.h"
#include "quire/kernels/linear_tile.h"
#include "quire/kernels/packed_rows.h"
#include "quire/kernels/packed_weights.h"
#include "quire/kernels/parallel.h"
#include "quire/kernels/work_ranges.h"

namespace quire::kernels {
namespace {

// A thread takes that share of its range at a time, at most kPanelQuantum panels. The last ones
// decide how long the others wait.
constexpr std::int64_t kTurnsPerThread = 8;

std::int64_t panels_per_turn(std::int64_t panels, int threads) {
  return std::clamp<std::int64_t>(panels / (threads * kTurnsPerThread), 1, kPanelQuantum);
}

// Copies one block of rows. Its parts of 32 inputs lie side by side as in packed_rows.h.
template <class T>
struct BlockCopy {
  const T* from = nullptr;  // of the source's block
  std::int64_t from_rows = 0;
  std::int64_t from_row = 0;  // within that block
  T* to = nullptr;
  std::int64_t to_rows = 0;
  std::int64_t to_row = 0;

  void run(std::int64_t steps, std::int64_t values) const {
    for (std::int64_t step = 0; step < steps; ++step) {
      std::memcpy(to + (step * to_rows + to_row) * values,
                  from + (step * from_rows + from_row) * values,
                  static_cast<std::size_t>(values) * sizeof(T));
    }
  }
};

struct BlockPlace {
  std::int64_t first = 0;  // row of the packed rows
  std::int64_t rows = 0;
  std::int64_t row = 0;  // within the block
};

void copy_row(const PackedRows& from, const BlockPlace& source, const BlockPlace& target,
              PackedRows& to) {
  const auto copy = [&](const auto* read, auto* written, std::int64_t values) {
    using T = std::remove_pointer_t<decltype(written)>;
    BlockCopy<T>{read, source.rows, source.row, written, target.rows, target.row}.run(from.steps(),
                                                                                      values);
  };
  copy(from.values(source.first), to.values(target.first),
       std::int64_t{kStepDepth} * value_bytes(from.format()));
  if (from.format() == RowFormat::kInt8) {
    copy(from.scales(source.first), to.scales(target.first), 1);
    copy(from.offsets(source.first), to.offsets(target.first), 1);
    copy(from.first_offsets(source.first), to.first_offsets(target.first), 1);
  }
}

void gather_block(const PackedRows& from, std::span<const std::int32_t> sources, std::int64_t first,
                  std::int64_t rows, PackedRows& to) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t source = sources[static_cast<std::size_t>(first + row)];
    const std::int64_t block = source / kBlockRows * kBlockRows;
    copy_row(from, {block, std::min<std::int64_t>(kBlockRows, from.rows() - block), source - block},
             {first, rows, row}, to);
  }
}

void check_groups(const KernelContext& context, std::span<const RowGroup> groups,
                  const PackedRows& packed) {
  const PackedWeights& first = *groups.front().weights;
  QUIRE_CHECK(packed.format() == row_format_for(*context.table, first.format()),
              "rows packed for another format");
  QUIRE_CHECK(packed.depth() == first.depth(), "rows packed for another depth");
  for (const RowGroup& group : groups) {
    QUIRE_CHECK(group.weights->format() == first.format() &&
                    group.weights->columns() == first.columns() &&
                    group.weights->depth() == first.depth(),
                "groups have matrices of several kinds");
    QUIRE_CHECK(group.rows > 0 && group.first + group.rows <= packed.rows(),
                "a group has rows that are not there");
  }
}

std::size_t product_bytes(const PackedWeights& weights) {
  return static_cast<std::size_t>(weights.steps()) * kScratchBytesPerStep;
}

// Calls fn(group, first panel, panels, next weights, thread) for `panels` panels of each group.
// Threads walk through long runs of them.
template <class Fn>
void for_each_panel(const KernelContext& context, std::span<const RowGroup> groups,
                    std::int64_t panels, LinearScratch& scratch, Fn fn) {
  const int threads = context.pool->threads();
  const std::int64_t items = std::ssize(groups) * panels;
  const auto group_of = [&](std::int64_t item) -> const RowGroup& {
    return groups[static_cast<std::size_t>(item / panels)];
  };
  const auto place_of = [&](std::int64_t item) {
    return item < 0 ? nullptr : panel_at(*group_of(item).weights, item % panels);
  };
  for_each_range(*context.pool, scratch.work_ranges(threads), items,
                 panels_per_turn(items, threads),
                 [&](WorkRange::Items range, std::int64_t next, int thread) {
                   for (std::int64_t item = range.first; item < range.end;) {
                     const std::int64_t first = item % panels;
                     const std::int64_t count = std::min(range.end - item, panels - first);
                     item += count;
                     fn(group_of(item - count), first, count,
                        place_of(item < range.end ? item : next), thread);
                   }
                 });
}

// Calls fn(first row, rows) for the tasks of a group's rows.
template <class Fn>
void for_each_share(const RowGroup& group, RowFormat format, Fn fn) {
  const std::int64_t most = most_task_rows(format);
  for (std::int64_t row = 0; row < group.rows; row += most) {
    fn(group.first + row, std::min(most, group.rows - row));
  }
}

// Adds the bias to sums [rows][stride] of whole panels.
void add_group_bias(const RowGroup& group, const OutputTile& tile, float* sums,
                    std::ptrdiff_t stride) {
  if (group.bias.empty()) {
    return;
  }
  const std::int64_t first = tile.first_panel * kPanelColumns;
  const std::int64_t columns =
      std::min(tile.panels * kPanelColumns, group.weights->columns() - first);
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    for (std::int64_t i = 0; i < columns; ++i) {
      sums[row * stride + i] += group.bias[static_cast<std::size_t>(first + i)];
    }
  }
}

// Adds factor * from to `to`, each product rounded first.
void add_product(const float* from, float factor, std::int64_t count, float* to) {
  std::int64_t i = 0;
  for (; i + kPanelColumns <= count; i += kPanelColumns) {
    float sums[kPanelColumns];
    for (int lane = 0; lane < kPanelColumns; ++lane) {
      sums[lane] = to[i + lane] + factor * from[i + lane];
    }
    std::memcpy(to + i, sums, sizeof(sums));
  }
  for (; i < count; ++i) {
    to[i] = to[i] + factor * from[i];
  }
}

}  // namespace

void gather_packed_rows(const KernelContext& context, const PackedRows& from,
                        std::span<const std::int32_t> sources, std::span<const RowGroup> groups,
                        PackedRows& to) {
  to.reshape(from.format(), std::ssize(sources), from.depth());
  parallel_ranges(
      context, std::ssize(groups),
      std::ssize(sources) / std::max<std::int64_t>(1, std::ssize(groups)) * from.depth() / 8,
      [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const RowGroup& group = groups[static_cast<std::size_t>(i)];
          for (std::int64_t row = 0; row < group.rows; row += kBlockRows) {
            gather_block(from, sources, group.first + row,
                         std::min<std::int64_t>(kBlockRows, group.rows - row), to);
          }
        }
      });
}

void linear_gated_groups(const KernelContext& context, std::span<const RowGroup> groups,
                         const PackedRows& packed, const GatedRows& gated, LinearScratch& scratch) {
  if (groups.empty()) {
    return;
  }
  check_groups(context, groups, packed);
  const PackedWeights& shape = *groups.front().weights;
  QUIRE_CHECK(can_gate(shape), "gate and up share a panel");
  const std::int64_t pairs = shape.panels() / 2;
  gated.rows.reshape(row_format_for(*context.table, gated.next), packed.rows(),
                     pairs * kPanelColumns);
  scratch.reserve(context.pool->threads(),
                  2 * kEpilogueFloats * sizeof(float) + product_bytes(shape));
  for_each_panel(
      context, groups, pairs, scratch,
      [&](const RowGroup& group, std::int64_t first, std::int64_t panels, const std::byte* next,
          int thread) {
        const Epilogue epilogue = {.bias = group.bias};
        const LinearCall call = {*context.table, *group.weights, packed, {}, 0, epilogue};
        for_each_share(group, packed.format(), [&](std::int64_t row, std::int64_t rows) {
          run_gated_tile(call, {row, rows, first, panels, next}, gated, scratch.of_thread(thread));
        });
      });
}

void linear_groups(const KernelContext& context, std::span<const RowGroup> groups,
                   const PackedRows& packed, const OutputRows& out, LinearScratch& scratch) {
  if (groups.empty()) {
    return;
  }
  check_groups(context, groups, packed);
  const PackedWeights& shape = *groups.front().weights;
  const std::int64_t width = shape.panels() * kPanelColumns;
  QUIRE_CHECK(out.stride >= width, "rows of out have no room for whole panels");
  QUIRE_CHECK(std::ssize(out.values) >= (packed.rows() - 1) * out.stride + width, "out is short");
  scratch.reserve(context.pool->threads(), product_bytes(shape));
  for_each_panel(context, groups, shape.panels(), scratch,
                 [&](const RowGroup& group, std::int64_t first, std::int64_t panels,
                     const std::byte* next, int thread) {
                   const Epilogue epilogue;
                   const LinearCall call = {*context.table, *group.weights, packed, {}, 0,
                                            epilogue};
                   for_each_share(group, packed.format(), [&](std::int64_t row, std::int64_t rows) {
                     const OutputTile tile = {row, rows, first, panels, next};
                     float* sums = out.values.data() + row * out.stride + first * kPanelColumns;
                     multiply_tile(call, tile, sums, out.stride, scratch.of_thread(thread));
                     add_group_bias(group, tile, sums, out.stride);
                   });
                 });
}

void linear_groups_summed(const KernelContext& context, std::span<const RowGroup> groups,
                          const PackedRows& packed, const GroupedSum& sum, const OutputRows& sums,
                          LinearScratch& scratch) {
  if (groups.empty()) {
    return;
  }
  check_groups(context, groups, packed);
  const PackedWeights& shape = *groups.front().weights;
  QUIRE_CHECK(std::ssize(sums.values) >= (sum.rows - 1) * sums.stride + shape.columns(),
              "sums are short");
  const int threads = context.pool->threads();
  scratch.reserve(threads, kEpilogueFloats * sizeof(float) + product_bytes(shape));
  const auto add_group = [&](const RowGroup& group, const OutputTile& panels, std::int64_t columns,
                             std::byte* room) {
    const Epilogue epilogue;
    const LinearCall call = {*context.table, *group.weights, packed, {}, 0, epilogue};
    auto* products = reinterpret_cast<float*>(room);
    const std::ptrdiff_t stride = panels.panels * kPanelColumns;
    for_each_share(group, packed.format(), [&](std::int64_t row, std::int64_t count) {
      const OutputTile tile = {row, count, panels.first_panel, panels.panels, panels.next};
      multiply_tile(call, tile, products, stride, room + kEpilogueFloats * sizeof(float));
      add_group_bias(group, tile, products, stride);
      for (std::int64_t i = 0; i < count; ++i) {
        const auto from = static_cast<std::size_t>(row + i);
        add_product(products + i * stride, sum.factors[from], columns,
                    sums.values.data() + sum.targets[from] * sums.stride +
                        panels.first_panel * kPanelColumns);
      }
    });
  };
  for_each_range(
      *context.pool, scratch.work_ranges(threads), shape.panels(),
      panels_per_turn(shape.panels(), threads),
      [&](WorkRange::Items range, std::int64_t /*next*/, int thread) {
        const std::int64_t begin = range.first * kPanelColumns;
        const std::int64_t columns = std::min(range.end * kPanelColumns, shape.columns()) - begin;
        for (std::int64_t row = 0; row < sum.rows; ++row) {
          std::fill_n(sums.values.data() + row * sums.stride + begin, columns, 0.0f);
        }
        for (std::size_t i = 0; i < groups.size(); ++i) {
          const std::byte* next =
              i + 1 < groups.size() ? panel_at(*groups[i + 1].weights, range.first) : nullptr;
          add_group(groups[i], {0, 0, range.first, range.size(), next}, columns,
                    scratch.of_thread(thread));
        }
      });
}

}  // namespace quire::kernels

#include "quire/attention/item_kernel.h"

#include <algorithm>
#include <cstddef>

#include "quire/attention/attention_plan.h"
#include "quire/attention/cpu/kernel_table.h"
#include "quire/attention/entry.h"
#include "quire/attention/tile.h"
#include "quire/base/divide.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::attention {
namespace {

// Room for the queries of so many strips, on the stack.
template <int kStrips>
struct StripRows {
  alignas(64) std::byte queries[sizeof(float) * kStrips * kStripRows * kMaxHeadDim];
  float scales[kStrips * kStripRows];
  TokenRange visible[kStrips * kStripRows];
};

}  // namespace

void TileQueries::load(const WorkItem& strip, void (*load_rows)(const QueryTask&), std::byte* to,
                       float* scales) const {
  const int half = rows_.rotary->half;
  const std::ptrdiff_t angles = std::ptrdiff_t{first_angle(strip)} * half;
  const float* heads[kStripRows];
  for (int r = 0; r < strip.rows * strip.heads; ++r) {
    const int row = r / strip.heads, head = strip.first_head + r % strip.heads;
    heads[r] = rows_.q + entry_row(rows_.entries, strip, row).row * rows_.stride +
               std::ptrdiff_t{head} * rows_.head_dim;
  }
  load_rows({.heads = heads,
             .cos = rows_.rotary->cos.data() + angles,
             .sin = rows_.rotary->sin.data() + angles,
             .rows = strip.rows * strip.heads,
             .rows_per_angle = strip.heads,
             .half = half,
             .head_dim = rows_.head_dim,
             .padded_dim = rows_.padded_dim,
             .scale = rows_.scale,
             .out = to,
             .scales = scales});
}

void TileQueries::look_ahead(const WorkItem& item) const {
  constexpr int kLineFloats = 16;
  const std::ptrdiff_t half = rows_.rotary->half, first = first_angle(item) * half;
  for (std::ptrdiff_t at = first; at < first + item.rows * half; at += kLineFloats) {
    __builtin_prefetch(rows_.rotary->cos.data() + at, 0, 2);
    __builtin_prefetch(rows_.rotary->sin.data() + at, 0, 2);
  }
}

std::size_t ItemKernel::piece_bytes(const tensor::PagedKVView& view) {
  if (view.format == tensor::KVFormat::kPlain) {
    return scratch_bytes(view.head_dim, tensor::dtype_bytes(view.dtype));
  }
  constexpr int kCodeBytes = 1;  // at most; codes are gathered, and made numbers of up to 4 bytes
  return scratch_bytes(view.head_dim, kCodeBytes + tensor::dtype_bytes(tensor::DType::kFloat32));
}

void ItemKernel::attend(const WorkItem& item, const SoftmaxState& state, const WorkItem* next,
                        int thread) const {
  if (item.rows * item.heads > kStripRows) {
    attend_strips(item, state, next, thread);
    return;
  }
  StripRows<1> rows;
  AttentionTask task =
      strip_task(item, 0, {rows.queries, rows.scales, rows.visible, state}, thread);
  const std::size_t format = format_of(item);
  look_ahead(next);
  task.next = first_piece_of(next, format);
  inputs_.kernels[format].attend(task);
}

// Gives each piece to all strips in turn, while it is in the near caches. The first strip asks for
// what comes after it.
void ItemKernel::attend_strips(const WorkItem& item, const SoftmaxState& state,
                               const WorkItem* next, int thread) const {
  StripRows<kMaxStrips> rows;
  AttentionTask tasks[kMaxStrips];
  WidenedUnits widened;
  const int strips = base::divide_up(item.rows, kStripRows / item.heads);
  const int strip_rows = base::divide_up(item.rows, strips);
  for (int i = 0; i < strips; ++i) {
    WorkItem strip = item;
    strip.first_row += i * strip_rows;
    strip.rows = std::min(strip_rows, item.rows - i * strip_rows);
    tasks[i] = strip_task(strip, i * strip_rows * item.heads,
                          {rows.queries, rows.scales, rows.visible, state}, thread);
    tasks[i].widened = &widened;
  }
  const std::size_t format = format_of(item);
  look_ahead(next);
  for (int piece = item.first_piece; piece < item.last_piece; ++piece) {
    tasks[0].next =
        piece + 1 < item.last_piece ? piece_of(item, piece + 1) : first_piece_of(next, format);
    for (int i = 0; i < strips; ++i) {
      tasks[i].first_piece = piece;
      tasks[i].last_piece = piece + 1;
      inputs_.kernels[format].attend(tasks[i]);
    }
  }
}

// Returns all pieces for a strip whose first row is the `first`th of `to`. Loads its queries.
AttentionTask ItemKernel::strip_task(const WorkItem& strip, int first, const ItemRows& to,
                                     int thread) const {
  const Entry& entry = inputs_.entries[static_cast<std::size_t>(strip.entry)];
  const std::size_t format = format_of(strip);
  const tensor::PagedKVView& view = inputs_.views[format];
  const std::ptrdiff_t at = std::ptrdiff_t{first} * view.head_dim;
  std::byte* const queries = to.queries + at * std::ptrdiff_t{sizeof(float)};
  TokenRange* const visible = to.visible + first;
  queries_.load(strip, inputs_.kernels[format].load_queries, queries, to.scales + first);
  for (int r = 0; r < strip.rows * strip.heads; ++r) {
    visible[r] = visible_tokens(entry, entry_row(inputs_.entries, strip, r / strip.heads),
                                inputs_.window_tokens);
  }
  return {.q = queries,
          .kv = view.data + strip.kv_head * view.head_stride,
          .block_stride = view.block_stride,
          .v_offset = view.v_offset,
          .blocks = entry.blocks.data(),
          .num_blocks = static_cast<int>(entry.blocks.size()),
          .block_tokens = view.block_tokens,
          .visible = visible,
          .rows = strip.rows * strip.heads,
          .padded_dim = view.head_dim,
          .first_piece = strip.first_piece,
          .last_piece = strip.last_piece,
          .q_scales = to.scales + first,
          .scale_offset = view.scale_offset,
          .soft_cap = inputs_.soft_cap,
          .scratch = pieces_ + static_cast<std::size_t>(thread) * piece_bytes_,
          .state = {to.state.max + first, to.state.sum + first, to.state.acc + at}};
}

NextPiece ItemKernel::piece_of(const WorkItem& item, int piece) const {
  const Entry& entry = inputs_.entries[static_cast<std::size_t>(item.entry)];
  const tensor::PagedKVView& view = inputs_.views[format_of(item)];
  return {.kv = view.data + item.kv_head * view.head_stride,
          .blocks = entry.blocks.data(),
          .num_blocks = static_cast<int>(entry.blocks.size()),
          .piece = piece};
}

// Returns no hint for a piece of another format than the task's: a kernel finds blocks by its own
// format's strides.
NextPiece ItemKernel::first_piece_of(const WorkItem* item, std::size_t format) const {
  return item == nullptr || format_of(*item) != format ? NextPiece{}
                                                       : piece_of(*item, item->first_piece);
}

void ItemKernel::look_ahead(const WorkItem* next) const {
  if (next != nullptr) {
    queries_.look_ahead(*next);
  }
}

}  // namespace quire::attention

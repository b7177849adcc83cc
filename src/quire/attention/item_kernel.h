// How one work item is computed on the CPU: its queries are rotated, and its strips go through its
// pieces.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/attention/attention_plan.h"
#include "quire/attention/cpu/kernel_table.h"
#include "quire/attention/entry.h"
#include "quire/attention/tile.h"
#include "quire/kernels/rotary.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::attention {

// The query rows of a call, not rotated.
struct QueryRows {
  std::span<const Entry> entries;
  std::span<const std::int32_t> first_query;  // AttentionPlan::first_query
  const kernels::RotaryTable* rotary = nullptr;
  const float* q = nullptr;  // row r at q + r * stride, [heads, head_dim]
  std::ptrdiff_t stride = 0;
  int head_dim = 0;
  int padded_dim = 0;
  float scale = 0;  // factor that makes scores exponents of 2
};

// At most so many views in one call.
inline constexpr std::size_t kMaxViews = 8;

// The kernels for KV of one kind.
struct FormatKernels {
  void (*load_queries)(const QueryTask&) = nullptr;
  void (*attend)(const AttentionTask&) = nullptr;
};

// Brings query rows into tiles, each rotated for the entry of its item.
class TileQueries {
 public:
  explicit TileQueries(const QueryRows& rows) : rows_(rows) {}

  // Writes the rows of a strip as AttentionTask::q wants them, and of int8 their scales.
  // `load_rows` is the kernel of the strip's format.
  void load(const WorkItem& strip, void (*load_rows)(const QueryTask&), std::byte* to,
            float* scales) const;
  // Asks for the angles of the item's rows: keys and values have pushed them out of the caches that
  // are near.
  void look_ahead(const WorkItem& item) const;

 private:
  // Returns the row of the rotary table for the item's first row.
  [[nodiscard]] std::int32_t first_angle(const WorkItem& item) const {
    return rows_.first_query[static_cast<std::size_t>(item.entry)] + item.first_row;
  }

  QueryRows rows_;
};

// Attends with the rows of one item to all its pieces.
class ItemKernel {
 public:
  struct Inputs {
    std::span<const Entry> entries;
    std::int32_t window_tokens = 0;                     // 0 = none
    float soft_cap = 0;                                 // of exponents of 2; 0 = none
    std::span<const tensor::PagedKVView> views;         // by Entry::format; one: of all entries
    std::array<FormatKernels, kMaxViews> kernels = {};  // [views]
  };

  ItemKernel(const Inputs& inputs, const QueryRows& queries) : inputs_(inputs), queries_(queries) {
    for (const tensor::PagedKVView& view : inputs.views) {
      piece_bytes_ = std::max(piece_bytes_, piece_bytes(view));
    }
  }

  // Takes room for one piece of K and V for each thread. Before attend().
  void take_room(std::byte* pieces) { pieces_ = pieces; }
  // Returns the bytes of one piece of any of the views.
  [[nodiscard]] std::size_t piece_bytes() const { return piece_bytes_; }
  [[nodiscard]] int padded_dim() const { return inputs_.views.front().head_dim; }

  // Updates the state of the item's rows. `next` is what the thread will probably do after it, or
  // nullptr.
  void attend(const WorkItem& item, const SoftmaxState& state, const WorkItem* next,
              int thread) const;

  // Returns the bytes that each thread needs for pieces of this view.
  [[nodiscard]] static std::size_t piece_bytes(const tensor::PagedKVView& view);

 private:
  // The place for queries of an item's rows, one after the other, and the tokens that they see.
  struct ItemRows {
    std::byte* queries = nullptr;
    float* scales = nullptr;
    TokenRange* visible = nullptr;
    SoftmaxState state;
  };

  void attend_strips(const WorkItem& item, const SoftmaxState& state, const WorkItem* next,
                     int thread) const;
  [[nodiscard]] AttentionTask strip_task(const WorkItem& strip, int first, const ItemRows& to,
                                         int thread) const;
  [[nodiscard]] NextPiece piece_of(const WorkItem& item, int piece) const;
  [[nodiscard]] NextPiece first_piece_of(const WorkItem* item, std::size_t format) const;
  void look_ahead(const WorkItem* next) const;

  [[nodiscard]] std::size_t format_of(const WorkItem& item) const {
    return inputs_.views.size() == 1 ? 0
                                     : inputs_.entries[static_cast<std::size_t>(item.entry)].format;
  }

  Inputs inputs_;
  TileQueries queries_;
  std::size_t piece_bytes_ = 0;
  std::byte* pieces_ = nullptr;  // [threads] of piece_bytes_
};

}  // namespace quire::attention

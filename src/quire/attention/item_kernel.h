// How one work item is computed on the CPU: its queries are rotated, and its strips go through its
// pieces.
#pragma once

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

// Brings query rows into tiles, each rotated for the entry of its item.
class TileQueries {
 public:
  TileQueries(const QueryRows& rows, void (*load)(const QueryTask&)) : rows_(rows), load_(load) {}

  // Writes the rows of a strip as AttentionTask::q wants them, and of int8 their scales.
  void load(const WorkItem& strip, std::byte* to, float* scales) const;
  // Asks for the angles of the item's rows: keys and values have pushed them out of the caches that
  // are near.
  void look_ahead(const WorkItem& item) const;

 private:
  // Returns the row of the rotary table for the item's first row.
  [[nodiscard]] std::int32_t first_angle(const WorkItem& item) const {
    return rows_.first_query[static_cast<std::size_t>(item.entry)] + item.first_row;
  }

  QueryRows rows_;
  void (*load_)(const QueryTask&);
};

// Attends with the rows of one item to all its pieces.
class ItemKernel {
 public:
  struct Inputs {
    std::span<const Entry> entries;
    std::int32_t window_tokens = 0;  // 0 = none
    float soft_cap = 0;              // of exponents of 2; 0 = none
    const tensor::PagedKVView& view;
    std::byte* pieces = nullptr;  // [threads] one piece of K and V each
  };

  ItemKernel(const Inputs& inputs, const TileQueries& queries, void (*attend)(const AttentionTask&))
      : inputs_(inputs), queries_(queries), attend_(attend) {}

  // Updates the state of the item's rows. `next` is what the thread will probably do after it, or
  // nullptr.
  void attend(const WorkItem& item, const SoftmaxState& state, const WorkItem* next,
              int thread) const;

  // Returns the bytes that each thread needs of Inputs::pieces.
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
  [[nodiscard]] NextPiece first_piece_of(const WorkItem* item) const;
  void look_ahead(const WorkItem* next) const;

  Inputs inputs_;
  TileQueries queries_;
  void (*attend_)(const AttentionTask&);
};

}  // namespace quire::attention

// The softmax states of the rows of one call: where items put them between waves, and how they
// become outputs. CPU.
#pragma once

#include <cstddef>
#include <span>

#include "quire/attention/attention_plan.h"
#include "quire/attention/cpu/kernel_table.h"
#include "quire/attention/entry.h"
#include "quire/attention/tile.h"

namespace quire::attention {

// Softmax state of one tile, on the stack of the thread that works on it.
struct TileState {
  alignas(64) float acc[kItemRows * kMaxHeadDim];
  float max[kItemRows];
  float sum[kItemRows];
  [[nodiscard]] SoftmaxState view() { return {max, sum, acc}; }
};

// Arrays of one call, [rows, heads] each but for `out`.
struct RowArrays {
  float* max = nullptr;  // base-2 exponent
  float* sum = nullptr;
  std::span<float> out;               // [rows, heads, head_dim]: not yet divided by the sum
  std::span<float> lse;               // natural log; may be empty
  std::span<const float> sinks = {};  // [heads] or empty: logits without values
};

class RowStates {
 public:
  struct Shape {
    int heads = 0;
    int head_dim = 0;
    int padded_dim = 0;  // padded size of a tile's values
  };

  RowStates(std::span<const Entry> entries, const Shape& shape, const RowArrays& arrays)
      : entries_(entries), shape_(shape), arrays_(arrays) {}

  // Sets the states of [0, rows) to those of rows that have seen nothing.
  void clear(std::size_t rows) const;
  void load(const WorkItem& item, TileState& state) const;
  void save(const WorkItem& item, const TileState& state) const;
  // Makes the states of rows [first, end) outputs.
  void finish(std::size_t first, std::size_t end) const;

 private:
  [[nodiscard]] float with_sink(std::size_t head, float max, float sum) const;
  [[nodiscard]] std::size_t index_of(const WorkItem& item, int r) const;

  std::span<const Entry> entries_;
  Shape shape_;
  RowArrays arrays_;
};

}  // namespace quire::attention

// Query rows to their places in a tile: rotated and, where the format says so, rounded.
#pragma once

#include <cstdint>

#include "quire/attention/cpu/formats.h"
#include "quire/kernels/cpu/row_ops_vec.h"

namespace quire::attention {
namespace {

// Where element i of row `row` lies in the tile.
template <class E>
typename E::Element* element_at(const QueryTask& t, int row, int i) {
  constexpr int kChunkBytes = kChunkWords * kWordBytes;
  constexpr int kChunkValues = kChunkBytes / int{sizeof(typename E::Element)};
  std::byte* const chunk = t.out + (std::ptrdiff_t{i / kChunkValues} * t.rows + row) * kChunkBytes;
  return reinterpret_cast<typename E::Element*>(chunk) + i % kChunkValues;
}

// By way of memory, in pieces that need not fill a vector.
template <class V, class E>
void load_padded_query(const QueryTask& t, int row, const float* cos, const float* sin) {
  alignas(64) float x[kMaxHeadDim];
  kernels::rotate<V>(
      {.head = t.heads[row], .cos = cos, .sin = sin, .half = t.half, .size = t.head_dim, .out = x});
  for (int i = t.head_dim; i < t.padded_dim; ++i) {
    x[i] = 0;
  }
  for (int i = 0; i < t.padded_dim; i += V::kLanes) {
    E::store(element_at<E>(t, row, i), V::load(x + i));
  }
}

// With Elements of the format E. What is rotated goes from the registers to its place where whole
// vectors are: a quarter of the time.
template <class V, class E>
void load_queries(const QueryTask& t) {
  const bool whole = t.half % V::kLanes == 0 && 2 * t.half == t.padded_dim;
  for (int row = 0; row < t.rows; ++row) {
    const std::ptrdiff_t angles = std::ptrdiff_t{row / t.rows_per_angle} * t.half;
    const float* const cos = t.cos + angles;
    const float* const sin = t.sin + angles;
    if (!whole) {
      load_padded_query<V, E>(t, row, cos, sin);
      continue;
    }
    for (int i = 0; i < t.half; i += V::kLanes) {
      typename V::F first, second;
      kernels::rotate_lanes<V>(t.heads[row] + i, cos + i, sin + i, t.half, first, second);
      E::store(element_at<E>(t, row, i), first);
      E::store(element_at<E>(t, row, t.half + i), second);
    }
  }
}

}  // namespace
}  // namespace quire::attention

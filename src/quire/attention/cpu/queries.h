// Query rows to their places in a tile: rotated, scaled and, where the format says so, rounded.
#pragma once

#include <cstdint>

#include "quire/attention/cpu/formats.h"
#include "quire/kernels/cpu/row_ops_vec.h"

namespace quire::attention {
namespace {

// Returns where element i of row `row` lies in the tile.
template <class E>
typename E::Element* element_at(const QueryTask& t, int row, int i) {
  constexpr int kChunkBytes = kChunkWords * kWordBytes;
  constexpr int kChunkValues = kChunkBytes / int{sizeof(typename E::Element)};
  std::byte* const chunk = t.out + (std::ptrdiff_t{i / kChunkValues} * t.rows + row) * kChunkBytes;
  return reinterpret_cast<typename E::Element*>(chunk) + i % kChunkValues;
}

// Loads one query by way of memory, in pieces that need not fill a vector.
template <class V, class E>
void load_padded_query(const QueryTask& t, int row, const float* cos, const float* sin) {
  alignas(64) float x[kMaxHeadDim];
  kernels::rotate<V>(
      {.head = t.heads[row], .cos = cos, .sin = sin, .half = t.half, .size = t.head_dim, .out = x});
  for (int i = t.head_dim; i < t.padded_dim; ++i) {
    x[i] = 0;
  }
  for (int i = 0; i < t.padded_dim; i += V::kLanes) {
    E::store(element_at<E>(t, row, i), V::mul(V::load(x + i), V::set(t.scale)));
  }
}

// Stores lanes [i, i + kLanes) of both halves of all rows, from the registers to their places.
// Takes a quarter of the time of the way by memory.
template <class V, class E>
void load_query_lanes(const QueryTask& t, int i) {
  constexpr int kRowStep = kChunkWords * kWordBytes / int{sizeof(typename E::Element)};
  typename E::Element* to = element_at<E>(t, 0, i);
  typename E::Element* second_to = element_at<E>(t, 0, t.half + i);
  const typename V::F scale = V::set(t.scale);
  const float* cos = t.cos + i;
  const float* sin = t.sin + i;
  for (int row = 0, next_angle = t.rows_per_angle; row < t.rows; ++row) {
    if (row == next_angle) {
      next_angle += t.rows_per_angle;
      cos += t.half;
      sin += t.half;
    }
    typename V::F first, second;
    kernels::rotate_lanes<V>(t.heads[row] + i, cos, sin, t.half, first, second);
    E::store(to, V::mul(first, scale));
    E::store(second_to, V::mul(second, scale));
    to += kRowStep;
    second_to += kRowStep;
  }
}

// Writes the rotated and scaled queries as Elements of the format E.
template <class V, class E>
void load_queries(const QueryTask& t) {
  if (t.half % V::kLanes == 0 && 2 * t.half == t.padded_dim) {
    for (int i = 0; i < t.half; i += V::kLanes) {
      load_query_lanes<V, E>(t, i);
    }
    return;
  }
  for (int row = 0; row < t.rows; ++row) {
    const std::ptrdiff_t angles = std::ptrdiff_t{row / t.rows_per_angle} * t.half;
    load_padded_query<V, E>(t, row, t.cos + angles, t.sin + angles);
  }
}

}  // namespace
}  // namespace quire::attention

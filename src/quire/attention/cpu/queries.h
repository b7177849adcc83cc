// One query row to its place in a tile: rotated and, where the format says so, rounded.
#pragma once

#include <cstdint>

#include "quire/attention/cpu/formats.h"
#include "quire/kernels/cpu/row_ops_vec.h"

namespace quire::attention {
namespace {

// With Elements of the format E.
template <class V, class E>
void load_query(const QueryTask& t) {
  using Element = typename E::Element;
  constexpr int kChunkValues = kChunkWords * kWordBytes / int{sizeof(Element)};
  alignas(64) float x[kMaxHeadDim];
  kernels::rotate<V>(
      {.head = t.head, .cos = t.cos, .sin = t.sin, .half = t.half, .size = t.head_dim, .out = x});
  for (int i = t.head_dim; i < t.padded_dim; ++i) {
    x[i] = 0;
  }
  std::byte* chunk = t.out;
  for (int first = 0; first < t.padded_dim; first += kChunkValues, chunk += t.chunk_stride) {
    Element* to = reinterpret_cast<Element*>(chunk);
    for (int i = 0; i < kChunkValues; i += V::kLanes) {
      E::store(to + i, V::load(x + first + i));
    }
  }
}

}  // namespace
}  // namespace quire::attention

// Formats of quantised weights as the kernels see them, and what all kernels do with their codes.
// Layouts: packed_weights.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/kernels/cpu/kernel_table.h"

namespace quire::kernels {
namespace {

struct Q8g32 {
  static constexpr Product kProduct = Product::kBytes;
  static constexpr int kPlanes = 1;           // codes in a byte
  static constexpr bool kNibbles = false;     // two of them
  static constexpr bool kSmallCodes = false;  // below 16
  static constexpr bool kMinimum = false;
  static constexpr bool kTable = false;  // codes are places in the table of the panel's head
  static constexpr int kHalves = 1;      // groups of a step that have a scale of their own
  static constexpr int kHeadBytes = 0;   // bytes of a panel before its steps
  static constexpr int kScaleBytes = 2;
  static constexpr int kHeaderBytes = 64;  // scales
  static constexpr int kTileRows = 8;      // rows of 64 bytes
  static constexpr int kStepBytes = kHeaderBytes + 2 * 64 * kTileRows;
};
struct Q4g32 : Q8g32 {
  static constexpr Product kProduct = Product::kSmallBytes;
  static constexpr int kPlanes = 2;
  static constexpr bool kNibbles = true;
  static constexpr bool kSmallCodes = true;
  static constexpr int kTileRows = 4;
  static constexpr int kStepBytes = kHeaderBytes + 2 * 64 * kTileRows;
};
struct Q4m32 : Q4g32 {
  static constexpr bool kMinimum = true;
  static constexpr int kHeaderBytes = 128;  // scales, minimums
  static constexpr int kStepBytes = kHeaderBytes + 2 * 64 * kTileRows;
};
struct T4g32 : Q4g32 {
  static constexpr Product kProduct = Product::kBytes;
  static constexpr bool kSmallCodes = false;
  static constexpr bool kTable = true;
  static constexpr int kHeadBytes = 64;
  static constexpr int kScaleBytes = 4;
  static constexpr int kHeaderBytes = 128;  // fp32 scales
  static constexpr int kStepBytes = kHeaderBytes + 2 * 64 * kTileRows;
};
struct T4g16 : T4g32 {
  static constexpr int kHalves = 2;
  static constexpr int kHeaderBytes = 128 + 64;  // fp32 scales, multiples of both halves
  static constexpr int kStepBytes = kHeaderBytes + 2 * 64 * kTileRows;
};
struct Q2m16 : Q4g32 {
  static constexpr int kPlanes = 4;
  static constexpr bool kNibbles = false;
  static constexpr bool kMinimum = true;
  static constexpr int kHalves = 2;
  static constexpr int kHeaderBytes = 256;  // scales, minimums, multiples of each
  static constexpr int kTileRows = 2;
  static constexpr int kStepBytes = kHeaderBytes + 2 * 64 * kTileRows;
};

// A format's codes a byte each, scales and minimums in fp32.
template <class Q>
struct Unpacked : Q {
  static constexpr int kPlanes = 1;
  static constexpr bool kNibbles = false;
  static constexpr bool kTable = false;
  static constexpr int kHeadBytes = 0;
  static constexpr int kScaleBytes = 4;
  static constexpr int kHeaderBytes = (Q::kMinimum ? 2 : 1) * Q::kHalves * 32 * 4;
  static constexpr int kTileRows = 8;
  static constexpr int kStepBytes = kHeaderBytes + 2 * 64 * kTileRows;
  static_assert(kStepBytes <= kScratchBytesPerStep);
};

// Returns the byte offset, inside a step's tiles, of the 64-byte row `row` that holds column
// `column`.
template <class Q>
constexpr int quant_offset(int column, int row) {
  return (column / 16 * Q::kTileRows + row) * 64 + column % 16 * 4;
}

// Returns the codes of one plane of packed bytes, a byte each. A byte has 1, 2 or 4 planes, the
// first in the lowest bits. Codes of a table become its entries.
template <class V, class Q>
[[gnu::always_inline]] inline typename V::I code_plane(typename V::I bits, typename V::I table,
                                                       int plane) {
  if constexpr (Q::kPlanes == 1) {
    return bits;
  } else {
    const typename V::I nibbles =
        plane * 2 < Q::kPlanes ? V::low_nibbles(bits) : V::high_nibbles(bits);
    if constexpr (Q::kPlanes == 4) {
      return plane % 2 == 0 ? V::low_crumbs(nibbles) : V::high_crumbs(nibbles);
    } else if constexpr (Q::kTable) {
      return V::lookup(table, nibbles);
    } else {
      return nibbles;
    }
  }
}

// Returns the number that a row adds to the integer sum of a group. The sum is then a product with
// w, or with the code itself where there is a minimum.
template <class Q>
std::int32_t group_offset(std::int32_t offset) {
  return Q::kMinimum ? 0 : offset;
}

template <class V, class Q>
typename V::I group_start(std::int32_t offset) {
  return Q::kSmallCodes ? V::start_q4(group_offset<Q>(offset)) : V::start_q8(offset);
}

template <class V, class Q>
typename V::I group_end(typename V::I acc, std::int32_t offset) {
  return Q::kSmallCodes ? V::end_q4(acc, group_offset<Q>(offset)) : acc;
}

template <class V, class Q>
typename V::I group_dot(typename V::I acc, typename V::I w, typename V::I x) {
  return Q::kSmallCodes ? V::dot_q4(acc, w, x) : V::dot_q8(acc, w, x);
}

}  // namespace
}  // namespace quire::kernels

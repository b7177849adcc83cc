// q8g32, q4g32 and q4m32 matrix kernels as templates over a vector trait (vec_*.h) and a format Q.
//
// Row invariance: the integer sum of a group of 32 is exact, then acc = fma(float(sum), weight
// scale * row scale, acc) with the groups ascending; q4m32 adds acc = fma(minimum, sum of the row's
// inputs, acc) after each. Sets with fused multiply-add agree bit for bit.
//
// Few rows read the panel as it lies, line by line: that is as fast as memory. Many rows pass some
// steps at a time, which stay in the first-level cache, and what is made of them there first:
// bytes and fp32 scales, or, where V adds exponents, multiples of the scales alone.
//
// Row scales have two bits behind their leading one (packed_rows.h). So weight scale * row scale is
// one of four multiples of the weight scale times a power of two, and that is an addition of
// integers: exactly the product, without a multiplication in the place of a dot.
#pragma once

#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/cpu/kernel_util.h"

namespace quire::kernels {
namespace {

constexpr int kPanelSteps = 16;  // that many rows pass at a time

struct Q8g32 {
  static constexpr bool kNibbles = false;     // two codes in a byte
  static constexpr bool kSmallCodes = false;  // below 16
  static constexpr bool kMinimum = false;
  static constexpr int kScaleBytes = 2;
  static constexpr int kHeaderBytes = 64;  // scales
  static constexpr int kTileRows = 8;      // of 64 bytes
  static constexpr int kStepBytes = kHeaderBytes + 2 * 64 * kTileRows;
};
struct Q4g32 : Q8g32 {
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

// A format's codes a byte each, scales and minimums in fp32.
template <class Q>
struct Unpacked : Q {
  static constexpr bool kNibbles = false;
  static constexpr int kScaleBytes = 4;
  static constexpr int kHeaderBytes = Q::kHeaderBytes * 2;
  static constexpr int kTileRows = 8;
  static constexpr int kStepBytes = kHeaderBytes + 2 * 64 * kTileRows;
  static_assert(kStepBytes <= kScratchBytesPerStep);
};

// Multiple j of a weight scale is 1 + j / 4 of it. It lies there as its bits less those of
// 1 + j / 4, to which the bits of a row scale that is 1 + j / 4 times a power of two are added.
constexpr int kScaleMultiples = 4;
constexpr int kMultipleBytes = 32 * 4;  // of 32 columns
constexpr int kMultiplesBytes = kScaleMultiples * kMultipleBytes;
static_assert(kMultiplesBytes <= kScratchBytesPerStep);

// Byte offset, inside a step's tiles, of the 64-byte row `row` that holds column `column`.
template <class Q>
constexpr int quant_offset(int column, int row) {
  return (column / 16 * Q::kTileRows + row) * 64 + column % 16 * 4;
}

// What a row adds to the integer sum of a group, so that it is a product with w, or with the code
// itself where there is a minimum.
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

// Scales (or minimums, which follow them) of kLanes columns.
template <class V, class Q>
typename V::F load_scales(const std::byte* scales, int column) {
  if constexpr (Q::kScaleBytes == 2) {
    return V::load_fp16(scales + column * 2);
  } else {
    return V::load(reinterpret_cast<const float*>(scales) + column);
  }
}

// Operands of one register tile over some steps.
struct QuantTile {
  const std::byte* w = nullptr;  // of the panel's first step
  int column = 0;                // first column inside the panel
  int steps = 0;
  const std::int8_t* x = nullptr;  // of the first row and step: [steps][block_rows][32]
  const float* scales = nullptr;   // [steps][block_rows]
  const std::int32_t* offsets = nullptr;
  int block_rows = 0;
  const std::byte* multiples = nullptr;  // of the first step's scales; null: scales are multiplied
  bool resume = false;                   // start from the sums in `out`
  float* out = nullptr;
  std::ptrdiff_t out_stride = 0;
  Ahead* ahead = nullptr;
};

// Integer sums of one group, R rows x N registers. x: [block_rows][32]. A stream's weights are all
// loaded before the first is multiplied (add_rows in dense_vec.h says why).
template <class V, int R, int N, bool Stream, class Q>
[[gnu::always_inline]] inline void group_sums(const std::byte* tiles, const std::int8_t* x,
                                              const std::int32_t* offsets,
                                              typename V::I (&sums)[R][N]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      sums[r][n] = group_start<V, Q>(offsets[r]);
    }
  }
  constexpr bool kLoadFirst = Stream && V::kStreamLoads >= Q::kTileRows * N;
  typename V::I loaded[kLoadFirst ? Q::kTileRows * N : 1];
#pragma GCC unroll 8
  for (int i = 0; kLoadFirst && i < Q::kTileRows * N; ++i) {
    loaded[i] = unknown(V::load_bits(tiles + quant_offset<Q>(i % N * V::kLanes, i / N)));
  }
#pragma GCC unroll 8
  for (int i = 0; i < Q::kTileRows; ++i) {
    typename V::I first[N];
    typename V::I second[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      const std::byte* row = tiles + quant_offset<Q>(n * V::kLanes, i);
      if constexpr (Stream && V::kStreamAhead > 0) {
        __builtin_prefetch(row + V::kStreamAhead);
      }
      first[n] = kLoadFirst ? loaded[i * N + n] : V::load_bits(row);
      if constexpr (Q::kNibbles) {
        second[n] = V::high_nibbles(first[n]);
        first[n] = V::low_nibbles(first[n]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const typename V::I value = V::set_bits(word_at(x + r * 32 + i * 4));
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        sums[r][n] = group_dot<V, Q>(sums[r][n], first[n], value);
      }
      if constexpr (Q::kNibbles) {
        const typename V::I later = V::set_bits(word_at(x + r * 32 + 16 + i * 4));
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          sums[r][n] = group_dot<V, Q>(sums[r][n], second[n], later);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      sums[r][n] = group_end<V, Q>(sums[r][n], offsets[r]);
    }
  }
}

// acc += the group's sums times the product of scales that is had by addition.
template <class V, int R, int N>
[[gnu::always_inline]] inline void add_shifted(const std::byte* multiples, int column,
                                               const float* scales,
                                               const typename V::I (&sums)[R][N],
                                               typename V::F (&acc)[R][N]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    // Bits 21 and 22, by a load of their own: so all of them go from memory to all lanes.
    const int multiple = reinterpret_cast<const unsigned char*>(scales + r)[2] >> 5 & 3;
    const std::byte* from = multiples + multiple * kMultipleBytes + column * 4;
    const typename V::I row_bits = V::set_bits(word_at(scales + r));
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      const typename V::I product = V::add_bits(V::load_bits(from + n * V::kLanes * 4), row_bits);
      acc[r][n] = V::fma(V::to_float(sums[r][n]), V::as_float(product), acc[r][n]);
    }
  }
}

// acc += the group's sums times their scales.
template <class V, int R, int N, class Q>
[[gnu::always_inline]] inline void add_scaled(const std::byte* header, int column,
                                              const float* scales,
                                              const typename V::I (&sums)[R][N],
                                              typename V::F (&acc)[R][N]) {
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n) {
    const typename V::F weight_scale = load_scales<V, Q>(header, column + n * V::kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const typename V::F scale = V::mul(weight_scale, V::set(scales[r]));
      acc[r][n] = V::fma(V::to_float(sums[r][n]), scale, acc[r][n]);
    }
  }
}

// acc += what the minimums add.
template <class V, int R, int N, class Q>
[[gnu::always_inline]] inline void add_minimums(const std::byte* header, int column,
                                                const float* scales, const std::int32_t* offsets,
                                                typename V::F (&acc)[R][N]) {
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n) {
    const typename V::F minimum =
        load_scales<V, Q>(header + Q::kHeaderBytes / 2, column + n * V::kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const float inputs = scales[r] * (static_cast<float>(offsets[r]) * -0.125f);
      acc[r][n] = V::fma(minimum, V::set(inputs), acc[r][n]);
    }
  }
}

// R rows x N registers of columns, in each of `Turns` tiles of 16 columns one after the other.
// `Shift`: products of scales are had by addition.
template <class V, int R, int N, int Turns, class Q, bool Shift = false>
void quant_tile(const QuantTile& t) {
  typename V::F acc[Turns][R][N];
#pragma GCC unroll 2
  for (int turn = 0; turn < Turns; ++turn) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        acc[turn][r][n] =
            t.resume ? V::load(t.out + r * t.out_stride + turn * 16 + n * V::kLanes) : V::zero();
      }
    }
  }
  const std::byte* w = t.w;
  const std::int8_t* x = t.x;
  const float* scales = t.scales;
  const std::int32_t* offsets = t.offsets;
  const std::byte* multiples = t.multiples;
  for (int s = 0; s < t.steps; ++s) {
    if (t.ahead != nullptr) {
      t.ahead->ask();
    }
    if constexpr (Turns > 1 && V::kStreamAhead > 0) {
      for (int i = 0; i < Q::kHeaderBytes; i += 64) {
        __builtin_prefetch(w + i + V::kStreamAhead);
      }
    }
#pragma GCC unroll 2
    for (int turn = 0; turn < Turns; ++turn) {
      const int column = t.column + turn * 16;
      typename V::I sums[R][N];
      group_sums<V, R, N, (Turns > 1), Q>(w + Q::kHeaderBytes + quant_offset<Q>(column, 0), x,
                                          offsets, sums);
      if constexpr (Shift) {
        add_shifted<V, R, N>(multiples, column, scales, sums, acc[turn]);
      } else {
        add_scaled<V, R, N, Q>(w, column, scales, sums, acc[turn]);
      }
      if constexpr (Q::kMinimum) {
        add_minimums<V, R, N, Q>(w, column, scales, offsets, acc[turn]);
      }
    }
    w += Q::kStepBytes;
    multiples += Shift ? kMultiplesBytes : 0;
    x += t.block_rows * 32;
    scales += t.block_rows;
    offsets += t.block_rows;
  }
#pragma GCC unroll 2
  for (int turn = 0; turn < Turns; ++turn) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        V::store(t.out + r * t.out_stride + turn * 16 + n * V::kLanes, acc[turn][r][n]);
      }
    }
  }
}

// The rows of block `row` / 16, steps [first, first + count), as a tile's operands.
inline QuantTile block_operands(const MatmulTask& t, int row, int first, int count) {
  const int block_rows = min_int(kMaxBlockRows, t.rows - row);
  const std::ptrdiff_t group =
      static_cast<std::ptrdiff_t>(row) * t.steps + static_cast<std::ptrdiff_t>(first) * block_rows;
  return {.steps = count,
          .x = reinterpret_cast<const std::int8_t*>(t.values) + group * 32,
          .scales = t.scales + group,
          .offsets = t.offsets + group,
          .block_rows = block_rows,
          .resume = first > 0,
          .out_stride = t.out_stride};
}

inline QuantTile from_row(QuantTile tile, int row) {
  tile.x += row * 32;
  tile.scales += row;
  tile.offsets += row;
  tile.out += row * tile.out_stride;
  return tile;
}

// One panel x the rows of a task that has at most kQuantStreamRows.
template <class V, class Q>
void quant_stream(const MatmulTask& t, const std::byte* w, float* out) {
  QuantTile tile = block_operands(t, 0, 0, t.steps);
  tile.w = w;
  tile.out = out;
  with_row_count<V::kQuantStreamRows>(
      t.rows, [&](auto rows) { quant_tile<V, rows.kValue, 16 / V::kLanes, 2, Q>(tile); });
}

// `count` steps of a panel as Unpacked<Q>.
template <class V, class Q>
void unpack_steps(const std::byte* w, int count, std::byte* to) {
  using U = Unpacked<Q>;
  for (int s = 0; s < count; ++s, w += Q::kStepBytes, to += U::kStepBytes) {
    auto* header = reinterpret_cast<float*>(to);
    for (int i = 0; i < Q::kHeaderBytes / 2; i += V::kLanes) {
      V::store(header + i, V::load_fp16(w + i * 2));
    }
    const std::byte* from = w + Q::kHeaderBytes;
    std::byte* codes = to + U::kHeaderBytes;
    for (int i = 0; i < 2 * Q::kTileRows; ++i) {
      const int row = i / Q::kTileRows * U::kTileRows + i % Q::kTileRows;
      for (int lane = 0; lane < 64; lane += V::kLanes * 4) {
        const typename V::I bits = V::load_bits(from + i * 64 + lane);
        std::byte* at = codes + row * 64 + lane;
        if constexpr (Q::kNibbles) {
          V::store_bits(at, V::low_nibbles(bits));
          V::store_bits(at + Q::kTileRows * 64, V::high_nibbles(bits));
        } else {
          V::store_bits(at, bits);
        }
      }
    }
  }
}

// Can products with the row scales of a task be had by addition, whatever weights they meet? Not
// where they are huge or NaN.
inline bool shiftable_rows(const MatmulTask& t) {
  constexpr std::uint32_t kMost = (127u + 100) << 23;  // bits of 2^100
  const std::ptrdiff_t count = std::ptrdiff_t{t.rows} * t.steps;
  std::uint32_t largest = 0;
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    const auto bits = static_cast<std::uint32_t>(word_at(t.scales + i));
    largest = bits > largest ? bits : largest;
  }
  return largest < kMost;
}

// The multiples of the scales of `count` steps. False if there are scales that no exponents can be
// added to: zero has none, nor has what is not finite.
template <class V, class Q>
bool make_multiples(const std::byte* w, int count, std::byte* to) {
  constexpr std::int32_t kOne = 127 << 23;  // bits of 1 and of a quarter added to it
  constexpr std::int32_t kQuarter = 1 << 21;
  typename V::F smallest = V::set(-1.0f);  // magnitude, negative
  typename V::F broken = V::zero();        // x * 0 is zero only for finite x
  for (int s = 0; s < count; ++s, w += Q::kStepBytes, to += kMultiplesBytes) {
    for (int c = 0; c < 32; c += V::kLanes) {
      const typename V::F scale = load_scales<V, Q>(w, c);
      smallest = V::max(smallest, V::sub(V::zero(), V::abs(scale)));
      broken = V::fma(scale, V::zero(), broken);
#pragma GCC unroll 4
      for (int j = 0; j < kScaleMultiples; ++j) {
        const typename V::F multiple = V::mul(scale, V::set(1.0f + 0.25f * static_cast<float>(j)));
        V::store_bits(to + j * kMultipleBytes + c * 4,
                      V::add_bits(V::as_bits(multiple), V::set_bits(-kOne - j * kQuarter)));
      }
    }
  }
  return V::reduce_max(smallest) < 0 && V::reduce_add(broken) == 0;
}

// The rows of one block x some steps.
template <class V, class Q, bool Shift>
void quant_block(QuantTile block, float* out) {
  for (int c = 0; c < 32; c += V::kQuantRegisters * V::kLanes) {
    block.column = c;
    block.out = out + c;
    for (int r = 0, count = 0; r < block.block_rows; r += count) {
      count = even_rows<V::kQuantRows>(block.block_rows - r);
      with_row_count<V::kQuantRows>(count, [&](auto rows) {
        quant_tile<V, rows.kValue, V::kQuantRegisters, 1, Q, Shift>(from_row(block, r));
      });
    }
  }
}

// The rows of one block x `count` steps of a panel, whose scratch memory is ready.
template <class V, class Q>
void prepared_block(QuantTile block, const std::byte* w, const std::byte* scratch, bool shift,
                    float* out) {
  if constexpr (!V::kAddsExponents) {
    block.w = scratch;
    quant_block<V, Unpacked<Q>, false>(block, out);
  } else if (shift) {
    block.w = w;
    block.multiples = scratch;
    quant_block<V, Q, true>(block, out);
  } else {
    block.w = w;
    quant_block<V, Q, false>(block, out);
  }
}

// One panel x all rows, kPanelSteps steps at a time. While they are multiplied, the next ones are
// on their way.
template <class V, class Q>
void quant_panel(const MatmulTask& t, const std::byte* w, float* out, bool shiftable) {
  const std::byte* end = t.weights + static_cast<std::size_t>(t.panels) * t.panel_bytes;
  const int passes = tiles_of_panel<V, V::kQuantRows, V::kQuantRegisters>(t.rows);
  for (int s = 0; s < t.steps; s += kPanelSteps) {
    const int count = min_int(kPanelSteps, t.steps - s);
    const std::byte* steps = w + static_cast<std::ptrdiff_t>(s) * Q::kStepBytes;
    const std::byte* next = steps + static_cast<std::ptrdiff_t>(count) * Q::kStepBytes;
    Ahead ahead = Ahead::over(next == end ? t.next_weights : next, kPanelSteps * Q::kStepBytes,
                              passes * count);
    bool shift = false;
    if constexpr (V::kAddsExponents) {
      shift = make_multiples<V, Q>(steps, count, t.scratch) && shiftable;
    } else {
      unpack_steps<V, Q>(steps, count, t.scratch);
    }
    for (int row = 0; row < t.rows; row += kMaxBlockRows) {
      QuantTile block = block_operands(t, row, s, count);
      block.ahead = &ahead;
      prepared_block<V, Q>(block, steps, t.scratch, shift, out + row * t.out_stride);
    }
  }
}

template <class V, class Q>
void matmul_quant(const MatmulTask& t) {
  const bool few = t.rows <= V::kQuantStreamRows;
  const bool shiftable = V::kAddsExponents && !few && shiftable_rows(t);
  for (int panel = 0; panel < t.panels; ++panel) {
    const std::byte* w = t.weights + static_cast<std::size_t>(panel) * t.panel_bytes;
    float* out = t.out + static_cast<std::ptrdiff_t>(panel) * 32;
    if (few) {
      quant_stream<V, Q>(t, w, out);
    } else {
      quant_panel<V, Q>(t, w, out, shiftable);
    }
  }
}

}  // namespace
}  // namespace quire::kernels

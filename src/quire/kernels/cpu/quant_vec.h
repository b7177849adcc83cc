// Matrix kernels of quantised weights as templates over a vector trait (vec_*.h) and a format Q
// (quant_formats.h).
//
// Row invariance: the integer sum of a group of 32 is exact, then acc = fma(float(sum), weight
// scale * row scale, acc) with the groups ascending. Formats with minimums add acc = fma(minimum,
// sum of the row's inputs, acc) after each. Groups of 16 take their turns in the same way
// (quant_halves.h). Sets with fused multiply-add agree bit for bit.
//
// Few rows read the panel as it lies, line by line: that is as fast as memory. Many rows pass some
// steps at a time. These stay in the first-level cache, and so does what is made of them. Bytes and
// fp32 scales are made first or, where V adds exponents, multiples of the scales alone, beside the
// steps before.
//
// Row scales have two bits behind their leading one (packed_rows.h). So weight scale * row scale is
// one of four multiples of the weight scale times a power of two. That is an addition of integers:
// exactly the product, without a multiplication in the place of a dot.
#pragma once

#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/cpu/kernel_util.h"
#include "quire/kernels/cpu/quant_formats.h"
#include "quire/kernels/cpu/quant_halves.h"

namespace quire::kernels {
namespace {

constexpr int kPanelSteps = 16;  // steps of a panel that all rows pass before the next steps

// Multiple j of a weight scale is 1 + j / 4 of it. It lies there as its bits less those of
// 1 + j / 4. Added to it are the bits of a row scale that is 1 + j / 4 times a power of two.
constexpr int kScaleMultiples = 4;
constexpr int kMultipleBytes = 32 * 4;  // bytes of the multiples of 32 columns
constexpr int kMultiplesBytes = kScaleMultiples * kMultipleBytes;
static_assert(kMultiplesBytes <= kScratchBytesPerStep);

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
  const std::byte* w = nullptr;  // weights of the panel's first step
  int column = 0;                // first column inside the panel
  int steps = 0;
  const std::int8_t* x = nullptr;  // values of the first row and step: [steps][block_rows][32]
  const float* scales = nullptr;   // [steps][block_rows]
  const std::int32_t* offsets = nullptr;
  const std::int32_t* first_offsets = nullptr;  // offsets of the first 16 values of groups
  int block_rows = 0;
  const std::byte* table = nullptr;  // head of a panel of codes with a table
  // Multiples of the first step's scales; null: scales are multiplied.
  const std::byte* multiples = nullptr;
  bool resume = false;  // start from the sums in `out`
  float* out = nullptr;
  std::ptrdiff_t out_stride = 0;
  Ahead* ahead = nullptr;
};

// Computes the integer sums of one group, for R rows x N registers. x: [block_rows][32]. A stream's
// weights are all loaded before the first is multiplied (add_rows in dense_vec.h says why).
template <class V, int R, int N, bool Stream, class Q>
[[gnu::always_inline]] inline void group_sums(const std::byte* tiles, typename V::I table,
                                              const std::int8_t* x, const std::int32_t* offsets,
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
      first[n] = kLoadFirst ? loaded[i * N + n] : in_order<V>(V::load_bits(row));
      if constexpr (Q::kNibbles) {
        second[n] = V::high_nibbles(first[n]);
        first[n] = V::low_nibbles(first[n]);
      }
      if constexpr (Q::kTable) {
        first[n] = V::lookup(table, first[n]);
        second[n] = V::lookup(table, second[n]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const typename V::I value = in_order<V>(V::set_bits(word_at(x + r * 32 + i * 4)));
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        sums[r][n] = in_order<V>(group_dot<V, Q>(sums[r][n], first[n], value));
      }
      if constexpr (Q::kNibbles) {
        const typename V::I later = in_order<V>(V::set_bits(word_at(x + r * 32 + 16 + i * 4)));
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          sums[r][n] = in_order<V>(group_dot<V, Q>(sums[r][n], second[n], later));
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

// Adds the group's sums times their scales to `acc`. Adding integers gives the product of a
// weight's and a row's scale.
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

// Adds the group's sums times their scales to `acc`.
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

// Adds to `acc` what the minimums of a group contribute.
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

// Makes the multiples of the scales of some steps, one step at a time, beside other work.
template <class V, class Q>
class MultiplesMaker {
 public:
  // Prepares to make the multiples of `count` steps from `w` on, and to write them to `to`. Makes
  // none if `w` is null.
  MultiplesMaker(const std::byte* w, int count, std::byte* to)
      : w_(w), to_(to), left_(w == nullptr ? 0 : count) {}

  void make_step() {
    constexpr std::int32_t kOne = 127 << 23;  // bits of 1 and of a quarter added to it
    constexpr std::int32_t kQuarter = 1 << 21;
    if (left_ == 0) {
      return;
    }
    for (int c = 0; c < 32; c += V::kLanes) {
      const typename V::F scale = load_scales<V, Q>(w_, c);
      smallest_ = V::max(smallest_, V::sub(V::zero(), V::abs(scale)));
      broken_ = V::add(broken_, V::sub(scale, scale));
#pragma GCC unroll 4
      for (int j = 0; j < kScaleMultiples; ++j) {
        const typename V::F multiple = V::mul(scale, V::set(1.0f + 0.25f * static_cast<float>(j)));
        V::store_bits(to_ + j * kMultipleBytes + c * 4,
                      V::add_bits(V::as_bits(multiple), V::set_bits(-kOne - j * kQuarter)));
      }
    }
    w_ += Q::kStepBytes;
    to_ += kMultiplesBytes;
    --left_;
  }

  // Makes what is left. False if there are scales that no exponents can be added to: zero has none,
  // nor has what is not finite.
  bool finish() {
    while (left_ > 0) {
      make_step();
    }
    return V::reduce_max(smallest_) < 0 && V::reduce_add(broken_) == 0;
  }

 private:
  const std::byte* w_;
  std::byte* to_;
  int left_;
  typename V::F smallest_ = V::set(-1.0f);  // magnitude, negative
  typename V::F broken_ = V::zero();        // x - x is zero only for finite x
};

// Sets `acc` to the sums that a tile continues: those of `out` when it resumes, else zero.
template <class V, int Turns, int R, int N>
[[gnu::always_inline]] inline void start_sums(const QuantTile& t,
                                              typename V::F (&acc)[Turns][R][N]) {
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
}

template <class V, int Turns, int R, int N>
[[gnu::always_inline]] inline void store_sums(const QuantTile& t,
                                              const typename V::F (&acc)[Turns][R][N]) {
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

// Multiplies R rows by N registers of columns, in each of `Turns` tiles of 16 columns one after the
// other. With `Shift`, integer addition gives the products of scales.
template <class V, int R, int N, int Turns, class Q, bool Shift = false>
void quant_tile(const QuantTile& t, MultiplesMaker<V, Q>* maker = nullptr) {
  typename V::F acc[Turns][R][N];
  start_sums<V>(t, acc);
  const std::byte* w = t.w;
  const std::int8_t* x = t.x;
  const float* scales = t.scales;
  const std::int32_t* offsets = t.offsets;
  const std::int32_t* first_offsets = t.first_offsets;
  const std::byte* multiples = t.multiples;
  const typename V::I table = Q::kTable ? V::load_table(t.table) : V::set_bits(0);
  for (int s = 0; s < t.steps; ++s) {
    if (t.ahead != nullptr) {
      t.ahead->ask();
    }
    if constexpr (Shift) {
      if (maker != nullptr) {
        maker->make_step();
      }
    }
    if constexpr (Turns > 1 && V::kStreamAhead > 0) {
      for (int i = 0; i < Q::kHeaderBytes; i += 64) {
        __builtin_prefetch(w + i + V::kStreamAhead);
      }
    }
#pragma GCC unroll 2
    for (int turn = 0; turn < Turns; ++turn) {
      const int column = t.column + turn * 16;
      if constexpr (Q::kHalves == 2) {
        const HalfRows rows = {x, scales, offsets, first_offsets};
        add_half<V, R, N, 0, Q>(w, column, table, rows, acc[turn]);
        add_half<V, R, N, 1, Q>(w, column, table, rows, acc[turn]);
      } else {
        typename V::I sums[R][N];
        group_sums<V, R, N, (Turns > 1), Q>(w + Q::kHeaderBytes + quant_offset<Q>(column, 0), table,
                                            x, offsets, sums);
        if constexpr (Shift) {
          add_shifted<V, R, N>(multiples, column, scales, sums, acc[turn]);
        } else {
          add_scaled<V, R, N, Q>(w, column, scales, sums, acc[turn]);
        }
        if constexpr (Q::kMinimum) {
          add_minimums<V, R, N, Q>(w, column, scales, offsets, acc[turn]);
        }
      }
    }
    w += Q::kStepBytes;
    multiples += Shift ? kMultiplesBytes : 0;
    x += t.block_rows * 32;
    scales += t.block_rows;
    offsets += t.block_rows;
    first_offsets += t.block_rows;
  }
  store_sums<V>(t, acc);
}

// Returns the operands of a tile: the rows of block `row` / 16, steps [first, first + count).
inline QuantTile block_operands(const MatmulTask& t, int row, int first, int count) {
  const int block_rows = min_int(kMaxBlockRows, t.rows - row);
  const std::ptrdiff_t group =
      static_cast<std::ptrdiff_t>(row) * t.steps + static_cast<std::ptrdiff_t>(first) * block_rows;
  return {.steps = count,
          .x = reinterpret_cast<const std::int8_t*>(t.values) + group * 32,
          .scales = t.scales + group,
          .offsets = t.offsets + group,
          .first_offsets = t.first_offsets + group,
          .block_rows = block_rows,
          .resume = first > 0,
          .out_stride = t.out_stride};
}

inline QuantTile from_row(QuantTile tile, int row) {
  tile.x += row * 32;
  tile.scales += row;
  tile.offsets += row;
  tile.first_offsets += row;
  tile.out += row * tile.out_stride;
  return tile;
}

// Multiplies one panel by the rows of a task that has at most kQuantStreamRows.
template <class V, class Q>
void quant_stream(const MatmulTask& t, const std::byte* panel, float* out) {
  QuantTile tile = block_operands(t, 0, 0, t.steps);
  tile.table = panel;
  tile.w = panel + Q::kHeadBytes;
  tile.out = out;
  with_row_count<V::kQuantStreamRows>(
      t.rows, [&](auto rows) { quant_tile<V, rows.kValue, 16 / V::kLanes, 2, Q>(tile); });
}

// Unpacks `count` steps of a panel to the layout of Unpacked<Q>.
template <class V, class Q>
void unpack_steps(const std::byte* w, const std::byte* head, int count, std::byte* to) {
  using U = Unpacked<Q>;
  const typename V::I table = Q::kTable ? V::load_table(head) : V::set_bits(0);
  for (int s = 0; s < count; ++s, w += Q::kStepBytes, to += U::kStepBytes) {
    unpack_header<V, Q>(w, reinterpret_cast<float*>(to));
    const std::byte* from = w + Q::kHeaderBytes;
    std::byte* codes = to + U::kHeaderBytes;
    for (int i = 0; i < 2 * Q::kTileRows; ++i) {
      const int row = i / Q::kTileRows * U::kTileRows + i % Q::kTileRows;
      for (int lane = 0; lane < 64; lane += V::kLanes * 4) {
        const typename V::I bits = V::load_bits(from + i * 64 + lane);
        for (int plane = 0; plane < Q::kPlanes; ++plane) {
          V::store_bits(codes + (row + plane * Q::kTileRows) * 64 + lane,
                        code_plane<V, Q>(bits, table, plane));
        }
      }
    }
  }
}

// Tells whether addition can multiply the row scales of a task by any weight's scale. It cannot
// where a row scale is huge or NaN.
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

// Multiplies the rows of one block over some steps. The last tile has the maker make its steps.
template <class V, class Q, bool Shift>
void quant_block(QuantTile block, float* out, MultiplesMaker<V, Q>* maker) {
  for (int c = 0; c < 32; c += V::kQuantRegisters * V::kLanes) {
    block.column = c;
    block.out = out + c;
    for (int r = 0, count = 0; r < block.block_rows; r += count) {
      count = even_rows<V::kQuantRows>(block.block_rows - r);
      const bool last = c + V::kQuantRegisters * V::kLanes == 32 && r + count == block.block_rows;
      with_row_count<V::kQuantRows>(count, [&](auto rows) {
        quant_tile<V, rows.kValue, V::kQuantRegisters, 1, Q, Shift>(from_row(block, r),
                                                                    last ? maker : nullptr);
      });
    }
  }
}

// Steps of a panel that are multiplied at a time, and where those after them lie.
struct PanelSteps {
  const std::byte* head = nullptr;  // head of their panel
  const std::byte* w = nullptr;
  const std::byte* next = nullptr;  // null after the last of a task
  int first = 0, count = 0, next_count = 0;
  float* out = nullptr;  // output of the panel
};

// Calls fn(PanelSteps) for all steps of all panels, kPanelSteps at a time.
template <class Q, class Fn>
void for_each_steps(const MatmulTask& t, Fn fn) {
  const int most = min_int(kPanelSteps, t.steps);
  for (int panel = 0; panel < t.panels; ++panel) {
    const std::byte* head = t.weights + static_cast<std::size_t>(panel) * t.panel_bytes;
    PanelSteps p = {.head = head, .out = t.out + static_cast<std::ptrdiff_t>(panel) * 32};
    for (; p.first < t.steps; p.first += p.count) {
      p.count = min_int(kPanelSteps, t.steps - p.first);
      p.w = head + Q::kHeadBytes + static_cast<std::ptrdiff_t>(p.first) * Q::kStepBytes;
      const int left = t.steps - p.first - p.count;
      const bool ends = left == 0 && panel + 1 == t.panels;
      p.next = ends ? nullptr
                    : p.w + static_cast<std::ptrdiff_t>(p.count) * Q::kStepBytes +
                          (left == 0 ? Q::kHeadBytes : 0);
      p.next_count = ends ? 0 : left == 0 ? most : min_int(kPanelSteps, left);
      fn(p);
    }
  }
}

// Asks for the bytes after some steps, on their way while these are multiplied.
template <class V, class Q>
Ahead ask_for_next(const MatmulTask& t, const PanelSteps& p) {
  const int passes = tiles_of_panel<V, V::kQuantRows, V::kQuantRegisters>(t.rows);
  return Ahead::over(p.next == nullptr ? t.next_weights : p.next, kPanelSteps * Q::kStepBytes,
                     passes * p.count);
}

// Multiplies by multiples of the scales. The last tile of some steps makes the multiples of the
// next steps. Made there they fill idle pipes; made alone they would wait for their stores.
template <class V, class Q>
void multiply_by_multiples(const MatmulTask& t) {
  const bool shiftable = shiftable_rows(t);
  const int most = min_int(kPanelSteps, t.steps);
  std::byte* multiples = t.scratch;
  std::byte* next_multiples = t.scratch + std::ptrdiff_t{most} * kMultiplesBytes;
  bool shift = MultiplesMaker<V, Q>(t.weights, most, multiples).finish() && shiftable;
  for_each_steps<Q>(t, [&](const PanelSteps& p) {
    Ahead ahead = ask_for_next<V, Q>(t, p);
    MultiplesMaker<V, Q> maker(p.next, p.next_count, next_multiples);
    for (int row = 0; row < t.rows; row += kMaxBlockRows) {
      QuantTile block = block_operands(t, row, p.first, p.count);
      block.ahead = &ahead;
      block.w = p.w;
      block.multiples = multiples;
      float* out = p.out + row * t.out_stride;
      const bool last = row + kMaxBlockRows >= t.rows;
      shift ? quant_block<V, Q, true>(block, out, last ? &maker : nullptr)
            : quant_block<V, Q, false>(block, out, nullptr);
    }
    shift = maker.finish() && shiftable;
    std::byte* made = next_multiples;
    next_multiples = multiples;
    multiples = made;
  });
}

// Multiplies by panels that it has unpacked to bytes and fp32 scales.
template <class V, class Q>
void multiply_unpacked(const MatmulTask& t) {
  for_each_steps<Q>(t, [&](const PanelSteps& p) {
    Ahead ahead = ask_for_next<V, Q>(t, p);
    unpack_steps<V, Q>(p.w, p.head, p.count, t.scratch);
    for (int row = 0; row < t.rows; row += kMaxBlockRows) {
      QuantTile block = block_operands(t, row, p.first, p.count);
      block.ahead = &ahead;
      block.w = t.scratch;
      quant_block<V, Unpacked<Q>, false>(block, p.out + row * t.out_stride, nullptr);
    }
  });
}

// Multiplies few rows by the panels as they are stored.
template <class V, class Q>
void multiply_streams(const MatmulTask& t) {
  for (int panel = 0; panel < t.panels; ++panel) {
    quant_stream<V, Q>(t, t.weights + static_cast<std::size_t>(panel) * t.panel_bytes,
                       t.out + static_cast<std::ptrdiff_t>(panel) * 32);
  }
}

template <class V, class Q>
void matmul_quant(const MatmulTask& t) {
  if (t.rows <= V::kQuantStreamRows) {
    multiply_streams<V, Q>(t);
  } else if constexpr (V::kAddsExponents && !Q::kTable && Q::kHalves == 1) {
    multiply_by_multiples<V, Q>(t);
  } else {
    multiply_unpacked<V, Q>(t);
  }
}

}  // namespace
}  // namespace quire::kernels

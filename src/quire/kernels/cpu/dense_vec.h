// fp32 and bf16 matrix kernels as templates over a vector trait V (vec_*.h) and a format F. One
// file serves AVX-512, AVX2 and the portable build.
//
// Row invariance: every output has one accumulator and k ascends. A depth block ends by storing the
// sums and the next begins by loading them, which changes nothing. Tile shapes only choose which
// outputs are computed side by side.
#pragma once

#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/cpu/kernel_util.h"

namespace quire::kernels {
namespace {

constexpr int kPrefetchBytes = 2048;
// Rows of weights that are multiplied between two looks at what to ask memory for. Where registers
// are few, a look costs more instructions than there is room for beside the multiply-adds.
template <class V>
constexpr int kRowsPerAsk = V::kFewRegisters ? 16 : 2;

// A step of the format is rows of 16 outputs per tile, a row kRowBytes after the other. A row holds
// kParts operands; an activation row of a step is kDepthParts words, and one word meets one part.
template <class V>
struct F32Format {
  using Operand = typename V::F;
  static constexpr Product kProduct = Product::kFloats;
  static constexpr int kStepBytes = 4096;
  static constexpr int kTileBytes = 64;
  static constexpr int kRowBytes = 128;
  static constexpr int kParts = 1;
  static constexpr int kDepthParts = 32;
  static constexpr int kTurns = 1;  // 2: a step's tiles lie one after the other
  static Operand weights(const std::byte* row, int) {
    return V::load(reinterpret_cast<const float*>(row));
  }
  static Operand input(const std::byte* word) {
    return V::set(*reinterpret_cast<const float*>(word));
  }
  static typename V::F multiply_add(typename V::F acc, Operand w, Operand x) {
    return V::add_product(acc, w, x);
  }
};

// bf16 weights times bf16 activations: a word is a pair of inputs.
template <class V>
struct Bf16Format {
  using Operand = typename V::I;
  static constexpr Product kProduct = Product::kBf16Pairs;
  static constexpr int kStepBytes = 2048;
  static constexpr int kTileBytes = 1024;
  static constexpr int kRowBytes = 64;
  static constexpr int kParts = 1;
  static constexpr int kDepthParts = 16;
  static constexpr int kTurns = 2;
  static Operand weights(const std::byte* row, int) { return V::load_bits(row); }
  static Operand input(const std::byte* word) { return V::set_bits(word_at(word)); }
  static typename V::F multiply_add(typename V::F acc, Operand w, Operand x) {
    return V::dot_bf16(acc, w, x);
  }
};

// bf16 weights times fp32 activations: weights are widened in registers, once for all rows of a
// tile, and nothing is rounded.
template <class V>
struct WideBf16Format : F32Format<V> {
  static constexpr int kStepBytes = 2048;
  static constexpr int kTileBytes = 1024;
  static constexpr int kRowBytes = 64;
  static constexpr int kParts = 2;
  static constexpr int kTurns = 2;
  static typename V::F weights(const std::byte* row, int part) {
    return part == 0 ? V::low_half(V::load_bits(row)) : V::high_half(V::load_bits(row));
  }
};

// Returns the byte offset, inside a panel, of column `column` in row 0 of the step.
template <class F>
constexpr int column_offset(int column) {
  return column / 16 * F::kTileBytes + column % 16 * 4;
}

// Operands of one register tile.
struct DenseTile {
  const std::byte* w = nullptr;  // weights of the first column and step
  // Values of the first row and step: [steps][block_rows][kDepthParts] words.
  const std::byte* x = nullptr;
  int block_rows = 0;
  int steps = 0;
  bool resume = false;  // start from the sums in `out`
  float* out = nullptr;
  std::ptrdiff_t out_stride = 0;
  Ahead* ahead = nullptr;
};

// Multiplies Rows rows of weights, N registers of columns, by the words of R activation rows that
// meet them, and adds the products to `acc`. Asks for each row that will be needed `Ask` bytes
// later. Several rows are all loaded before the first is multiplied: loads that wait behind a chain
// of sums are sent to memory too late.
template <class V, class F, int Ask, int Rows, int R, int N>
void add_rows(typename V::F (&acc)[R][N], const std::byte* w, const std::byte* x) {
  typename F::Operand columns[Rows][F::kParts][N];
  const auto load_part = [&](int row, int part) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      const std::byte* from = w + row * F::kRowBytes + column_offset<F>(n * V::kLanes);
      if (part == 0 && Ask > 0 && n * V::kLanes % 16 == 0) {
        __builtin_prefetch(from + Ask);
      }
      columns[row][part][n] = F::weights(from, part);
      if constexpr (Rows > 1 || V::kFewRegisters) {
        columns[row][part][n] = unknown(columns[row][part][n]);
      }
    }
  };
  if constexpr (Rows > 1) {
#pragma GCC unroll 16
    for (int i = 0; i < Rows * F::kParts; ++i) {
      load_part(i / F::kParts, i % F::kParts);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < Rows * F::kParts; ++i) {
    if constexpr (Rows == 1) {
      load_part(0, i);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const typename F::Operand value = F::input(x + (r * F::kDepthParts + i) * 4);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        acc[r][n] = F::multiply_add(acc[r][n], columns[i / F::kParts][i % F::kParts][n], value);
      }
    }
  }
}

// Multiplies R rows by N registers of columns, in each of `Turns` tiles of 16 columns one after the
// other. Asks for each row of weights `Ask` bytes before it is needed, and loads `Rows` of them at
// a time.
template <class V, class F, int R, int N, int Turns, int Ask, int Rows = 1>
void dense_tile(const DenseTile& t) {
  typename V::F acc[Turns][R][N];
#pragma GCC unroll 2
  for (int turn = 0; turn < Turns; ++turn) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        acc[turn][r][n] =
            t.resume ? V::load(t.out + r * t.out_stride + turn * 16 + n * V::kLanes) : V::zero();
      }
    }
  }
  const std::byte* w = t.w;
  const std::byte* x = t.x;
  for (int s = 0; s < t.steps; ++s, w += F::kStepBytes, x += t.block_rows * F::kDepthParts * 4) {
#pragma GCC unroll 2
    for (int turn = 0; turn < Turns; ++turn) {
      constexpr int kRows = max_int(kRowsPerAsk<V>, Rows);
      for (int i = 0; i < F::kDepthParts / F::kParts; i += kRows) {
        if (t.ahead != nullptr) {
          t.ahead->ask();
        }
#pragma GCC unroll 2
        for (int row = i; row < i + kRows; row += Rows) {
          add_rows<V, F, Ask, Rows>(acc[turn], w + turn * F::kTileBytes + row * F::kRowBytes,
                                    x + row * F::kParts * 4);
        }
      }
    }
  }
#pragma GCC unroll 2
  for (int turn = 0; turn < Turns; ++turn) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        V::store(t.out + r * t.out_stride + turn * 16 + n * V::kLanes, acc[turn][r][n]);
      }
    }
  }
}

// Multiplies one panel by the rows of a task that has at most kDenseStreamRows.
template <class V, class F>
void dense_stream(const MatmulTask& t, const std::byte* w, float* out) {
  constexpr int kRegisters = 32 / V::kLanes / F::kTurns;
  constexpr int kRows = max_int(1, V::kStreamLoads / (kRegisters * F::kParts));
  with_row_count<V::kDenseStreamRows>(t.rows, [&](auto rows) {
    dense_tile<V, F, rows.kValue, kRegisters, F::kTurns, V::kStreamAhead, kRows>(
        {.w = w,
         .x = t.values,
         .block_rows = t.rows,
         .steps = t.steps,
         .out = out,
         .out_stride = t.out_stride});
  });
}

// Steps [first, first + count) of the depth.
struct StepRange {
  int first = 0;
  int count = 0;
};

// A block of rows from the first step of a depth range on.
struct RowBlock {
  const std::byte* values = nullptr;
  int rows = 0;
  float* out = nullptr;  // output of the panel's first column
};

// Multiplies one block of rows by one panel, N registers of columns at a time. `w` is at the
// range's first step.
template <class V, class F, int MaxRows, int N>
void dense_block(const MatmulTask& t, const std::byte* w, StepRange range, const RowBlock& block,
                 Ahead& ahead) {
  for (int c = 0; c < 32; c += N * V::kLanes) {
    const std::byte* tile_w = w + column_offset<F>(c);
    for (int r = 0, count = 0; r < block.rows; r += count) {
      count = even_rows<MaxRows>(block.rows - r);
      with_row_count<MaxRows>(count, [&](auto rows) {
        dense_tile<V, F, rows.kValue, N, 1, kPrefetchBytes>(
            {.w = tile_w,
             .x = block.values + r * F::kDepthParts * 4,
             .block_rows = block.rows,
             .steps = range.count,
             .resume = range.first > 0,
             .out = block.out + r * t.out_stride + c,
             .out_stride = t.out_stride,
             .ahead = &ahead});
      });
    }
  }
}

// Multiplies all rows of the task by one panel.
template <class V, class F>
void dense_panel(const MatmulTask& t, const std::byte* w, StepRange range, float* out,
                 Ahead ahead) {
  for (int row = 0; row < t.rows; row += kMaxBlockRows) {
    const int block_rows = min_int(kMaxBlockRows, t.rows - row);
    const std::ptrdiff_t group = static_cast<std::ptrdiff_t>(row) * t.steps +
                                 static_cast<std::ptrdiff_t>(range.first) * block_rows;
    const RowBlock block = {t.values + group * F::kDepthParts * 4, block_rows,
                            out + row * t.out_stride};
    dense_block<V, F, V::kDenseRows, V::kDenseRegisters>(t, w, range, block, ahead);
  }
}

template <class V, class F>
void matmul_dense(const MatmulTask& t) {
  if (t.rows <= V::kDenseStreamRows) {
    for (int panel = 0; panel < t.panels; ++panel) {
      dense_stream<V, F>(t, t.weights + static_cast<std::size_t>(panel) * t.panel_bytes,
                         t.out + static_cast<std::ptrdiff_t>(panel) * 32);
    }
    return;
  }
  const int block_steps = V::dense_block_bytes(t.rows) / F::kStepBytes;
  const int passes = tiles_of_panel<V, V::kDenseRows, V::kDenseRegisters>(t.rows);
  for (int s = 0; s < t.steps; s += block_steps) {
    const StepRange range = {s, min_int(block_steps, t.steps - s)};
    for (int panel = 0; panel < t.panels; ++panel) {
      const std::byte* w = t.weights + static_cast<std::size_t>(panel) * t.panel_bytes +
                           static_cast<std::size_t>(s) * F::kStepBytes;
      const int end = s + range.count;
      const std::byte* next = panel + 1 < t.panels ? w + t.panel_bytes
                              : end < t.steps
                                  ? t.weights + static_cast<std::size_t>(end) * F::kStepBytes
                                  : t.next_weights;
      const int asks = passes * range.count * (F::kDepthParts / F::kParts / kRowsPerAsk<V>);
      dense_panel<V, F>(t, w, range, t.out + static_cast<std::ptrdiff_t>(panel) * 32,
                        Ahead::over(next, std::ptrdiff_t{range.count} * F::kStepBytes, asks));
    }
  }
}

}  // namespace
}  // namespace quire::kernels

#include "quire/attention/self_check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <numbers>
#include <span>
#include <utility>
#include <vector>

#include "quire/attention/cpu/kernel_table.h"
#include "quire/attention/item_kernel.h"
#include "quire/attention/tile.h"
#include "quire/device/aligned_buffer.h"
#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/kv_append.h"
#include "quire/kernels/kv_read.h"
#include "quire/kernels/kv_seal.h"
#include "quire/kernels/reference.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::attention {
namespace {

using kernels::reference::numbers;
using kernels::reference::relative_l2;
using kernels::reference::within;
using tensor::DType;

constexpr int kHeadDim = 72;    // head size, of which 56 elements rotate
constexpr int kPaddedDim = 96;  // stored head size
constexpr int kHalf = 28;
constexpr int kTokens = 300;  // two pieces
constexpr int kBlockTokens = 32;
constexpr int kBlocks = 10;
// A row in units of a 32767th of its largest element is off by 1 / sqrt(12) of a unit in the mean
// of squares. That is 8.8e-6 of the element, which is less than 4.5 root mean squares here.
constexpr double kInt16Error = 4e-5;
constexpr float kScale = 0.577f;  // scale of queries, so that scores are exponents of 2

// Tokens that the rows of the tile see: all, from inside and to inside of units and pieces,
// nothing.
constexpr std::array<TokenRange, 9> kVisible = {{{0, kTokens},
                                                 {0, kTokens},
                                                 {0, kTokens},
                                                 {0, kTokens},
                                                 {7, 299},
                                                 {0, 1},
                                                 {200, 257},
                                                 {0, 0},
                                                 {260, 290}}};
constexpr int kRows = static_cast<int>(kVisible.size());

// The rows of a tile and the state that a kernel leaves.
struct CheckedTile {
  alignas(64) std::array<std::byte, std::size_t{4} * kRows * kPaddedDim> queries = {};
  std::array<float, kRows> scales = {};  // of int8
  std::vector<float> max, sum, acc;

  CheckedTile() : max(kRows, kLowest), sum(kRows), acc(std::size_t{kRows} * kPaddedDim) {}
  [[nodiscard]] SoftmaxState state() { return {max.data(), sum.data(), acc.data()}; }
};

// Returns the bytes of a number of the queries that attend takes over KV of this kind.
int query_bytes(const KernelTable& table, KVKind kind) {
  const bool bf16 = (kind == DType::kBFloat16 && table.bf16_queries) ||
                    (kind == kFp8KV && table.bf16_code_queries);
  return bf16 || kind == kInt8KV ? 2 : 4;
}

bool integer_queries(const KernelTable& table, KVKind kind) {
  return kind == kInt8KV && !table.bf16_code_queries;
}

// Returns element d of a row of the tile. The tile has chunks of 64 bytes of all rows, one after
// the other.
float query_at(const CheckedTile& tile, int row, int d, int bytes, bool integers) {
  const int per_chunk = kChunkWords * 4 / bytes;
  const std::byte* chunk =
      tile.queries.data() + (std::ptrdiff_t{d} / per_chunk * kRows + row) * kChunkWords * 4;
  if (bytes == 4) {
    float value = 0;
    std::memcpy(&value, chunk + std::ptrdiff_t{4} * (d % per_chunk), 4);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, chunk + std::ptrdiff_t{2} * (d % per_chunk), 2);
  return integers ? static_cast<float>(static_cast<std::int16_t>(bits)) *
                        tile.scales[static_cast<std::size_t>(row)]
                  : tensor::bf16_to_float(bits);
}

// The kernels of a table for KV of one kind, with their names.
struct KindKernels {
  const char* load_name;
  void (*load_queries)(const QueryTask&);
  const char* attend_name;
  void (*attend)(const AttentionTask&);
};

KindKernels kernels_of(const KernelTable& table, KVKind kind) {
  switch (kind.format) {
    case tensor::KVFormat::kPlain:
      break;
    case tensor::KVFormat::kInt8:
      return {"load_queries_int8", table.load_queries_int8, "attend_int8", table.attend_int8};
    case tensor::KVFormat::kFp8:
      if (table.bf16_code_queries) {
        return {"load_queries_bf16", table.load_queries_bf16, "attend_fp8", table.attend_fp8};
      }
      return {"load_queries_fp32", table.load_queries_fp32, "attend_fp8", table.attend_fp8};
    case tensor::KVFormat::kInt4:
      return {"load_queries_fp32", table.load_queries_fp32, "attend_int4", table.attend_int4};
  }
  if (kind == DType::kFloat32) {
    return {"load_queries_fp32", table.load_queries_fp32, "attend_fp32", table.attend_fp32};
  }
  return {"load_queries_bf16", table.load_queries_bf16, "attend_bf16", table.attend_bf16};
}

struct QueryShape {
  int half, head_dim, padded_dim;
};
constexpr QueryShape kOddQueries = {kHalf, kHeadDim, kPaddedDim};
constexpr QueryShape kWholeQueries = {32, 64, 64};  // whole vectors on every instruction set

Status load_queries(const KernelTable& table, KVKind kind, const QueryShape& shape,
                    CheckedTile& tile) {
  const auto head_dim = static_cast<std::size_t>(shape.head_dim);
  const std::vector<float> heads = numbers(kRows * head_dim, 1);
  std::vector<float> cos(static_cast<std::size_t>(shape.half)), sin(cos.size());
  for (std::size_t i = 0; i < cos.size(); ++i) {
    cos[i] = std::cos(static_cast<float>(i));
    sin[i] = std::sin(static_cast<float>(i));
  }
  std::vector<const float*> rows;
  rows.reserve(kRows);
  for (std::size_t row = 0; row < kRows; ++row) {
    rows.push_back(heads.data() + row * head_dim);
  }
  const KindKernels kernels = kernels_of(table, kind);
  kernels.load_queries({.heads = rows.data(),
                        .cos = cos.data(),
                        .sin = sin.data(),
                        .rows = kRows,
                        .rows_per_angle = kRows,
                        .half = shape.half,
                        .head_dim = shape.head_dim,
                        .padded_dim = shape.padded_dim,
                        .scale = kScale,
                        .out = tile.queries.data(),
                        .scales = tile.scales.data()});
  const int bytes = query_bytes(table, kind);
  std::vector<float> loaded;
  std::vector<double> wanted;
  for (int row = 0; row < kRows; ++row) {
    for (int d = 0; d < shape.padded_dim; ++d) {
      loaded.push_back(query_at(tile, row, d, bytes, integer_queries(table, kind)));
    }
    std::vector<double> padded = quire::kernels::reference::rotate(
        {rows[static_cast<std::size_t>(row)], head_dim}, cos, sin);
    padded.resize(static_cast<std::size_t>(shape.padded_dim));
    for (double& x : padded) {
      x *= double{kScale};
    }
    wanted.insert(wanted.end(), padded.begin(), padded.end());
  }
  using quire::kernels::reference::Tolerance;
  const double error = relative_l2(loaded, wanted);
  if (integer_queries(table, kind)) {
    return within(kernels.load_name, table.isa, error, kInt16Error);
  }
  return within(kernels.load_name, table.isa, error,
                bytes == 4 ? Tolerance::kRotate : Tolerance::kBf16Rows);
}

// One KV head of kTokens tokens in blocks that lie in another order than they are used.
class StoredRun {
 public:
  StoredRun(const kernels::KernelTable& table, KVKind kind)
      : bytes_(static_cast<std::size_t>(kBlocks * geometry_of(kind).head_block_bytes())) {
    const tensor::KVGeometry geometry = geometry_of(kind);
    view_ = {.data = bytes_.data(),
             .head_stride = kBlocks * geometry.head_block_bytes(),
             .block_stride = geometry.head_block_bytes(),
             .v_offset = geometry.v_offset(),
             .num_blocks = kBlocks,
             .kv_heads = 1,
             .head_dim = kPaddedDim,
             .block_tokens = kBlockTokens,
             .dtype = kind.dtype,
             .format = kind.format,
             .scale_offset = geometry.scale_offset()};
    if (bytes_.data() == nullptr) {
      throw std::bad_alloc();
    }
    for (int i = 0; i < kBlocks; ++i) {
      blocks_[static_cast<std::size_t>(i)] = i * 3 % kBlocks;
    }
    if (kind.by_block()) {
      seal(table);
    } else {
      append(table, kTokens);
    }
  }

  [[nodiscard]] const tensor::PagedKVView& view() const { return view_; }
  [[nodiscard]] const std::array<std::int32_t, kBlocks>& blocks() const { return blocks_; }
  [[nodiscard]] tensor::KVSlot slot(int token) const {
    return {blocks_[static_cast<std::size_t>(token) / kBlockTokens], token % kBlockTokens};
  }

 private:
  void append(const kernels::KernelTable& table, int tokens) {
    std::vector<tensor::KVSlot> slots;
    slots.reserve(static_cast<std::size_t>(tokens));
    for (int token = 0; token < tokens; ++token) {
      slots.push_back(slot(token));
    }
    const std::vector<float> k = numbers(slots.size() * kHeadDim, 2);
    const std::vector<float> v = numbers(slots.size() * kHeadDim, 3);
    device::ThreadPool alone(1);
    kernels::kv_append({&table, &alone}, {k, v, kHeadDim, kHeadDim, kHeadDim, nullptr, slots},
                       view_);
  }

  // Fills all blocks of a run of fp32, and seals them here.
  void seal(const kernels::KernelTable& table) {
    StoredRun plain(table, DType::kFloat32);
    plain.append(table, kBlocks * kBlockTokens);
    std::vector<kernels::BlockPair> pairs;
    pairs.reserve(kBlocks);
    for (const std::int32_t block : blocks_) {
      pairs.push_back({block, block});
    }
    device::ThreadPool alone(1);
    (void)kernels::seal_blocks({&table, &alone}, {.blocks = pairs, .head_dim = kHeadDim},
                               plain.view_, view_);
  }

  static tensor::KVGeometry geometry_of(KVKind kind) {
    return {.layers = 1,
            .kv_heads = 1,
            .head_dim = kPaddedDim,
            .dtype = kind.dtype,
            .block_tokens = kBlockTokens,
            .format = kind.format};
  }

  device::AlignedBuffer<std::byte> bytes_;
  tensor::PagedKVView view_;
  std::array<std::int32_t, kBlocks> blocks_ = {};
};

// A row's output over what it sees, and its lse.
struct Answer {
  std::vector<double> values;
  double lse = -std::numeric_limits<double>::infinity();
};

struct QueryKind {
  int bytes;
  bool integers;
};

Answer dense_attention(const StoredRun& run, const CheckedTile& tile, int row, QueryKind query) {
  Answer answer = {.values = std::vector<double>(kPaddedDim)};
  double sum = 0;
  std::array<float, kPaddedDim> k, v;  // NOLINT: filled by reading
  const TokenRange seen = kVisible[static_cast<std::size_t>(row)];
  for (int token = seen.begin; token < seen.end; ++token) {
    kernels::read_key(run.view(), 0, run.slot(token), k);
    kernels::read_value(run.view(), 0, run.slot(token), v);
    double score = 0;
    for (int d = 0; d < kPaddedDim; ++d) {
      score += double{query_at(tile, row, d, query.bytes, query.integers)} *
               double{k[static_cast<std::size_t>(d)]};
    }
    const double p = std::exp2(score);  // no overflow: scores are not large
    sum += p;
    for (std::size_t d = 0; d < kPaddedDim; ++d) {
      answer.values[d] += p * double{v[d]};
    }
  }
  if (sum > 0) {
    for (double& value : answer.values) {
      value /= sum;
    }
    answer.lse = std::log(sum);
  }
  return answer;
}

struct Limits {
  KVKind kind;
  device::Isa isa;
};

// Returns the larger error of one row, of its output and its lse, each as a share of what is
// allowed.
double share_of_tolerance(const Answer& wanted, CheckedTile& tile, int row, Limits limits) {
  const auto at = static_cast<std::size_t>(row);
  std::span<float> values = std::span(tile.acc).subspan(at * kPaddedDim, kPaddedDim);
  const bool sees_nothing = wanted.lse < -std::numeric_limits<double>::max();
  for (float& value : values) {
    value /= sees_nothing ? 1.0f : tile.sum[at];
  }
  const double lse = double{tile.max[at]} * std::numbers::ln2 + std::log(double{tile.sum[at]});
  const double lse_error = sees_nothing ? (tile.max[at] == kLowest ? 0 : 1) : lse - wanted.lse;
  return std::max(std::abs(lse_error) / lse_tolerance(limits.kind, limits.isa),
                  relative_l2(values, wanted.values) / tolerance(limits.kind, limits.isa));
}

Status test_attend(const KernelTable& table, KVKind kind) {
  const StoredRun run(kernels::kernels_for(table.isa), kind);
  CheckedTile tile;
  QUIRE_TRY_STATUS(load_queries(table, kind, kWholeQueries, tile));
  QUIRE_TRY_STATUS(load_queries(table, kind, kOddQueries, tile));  // queries that attention takes
  device::AlignedBuffer<std::byte> scratch;
  scratch.require(ItemKernel::piece_bytes(run.view()));
  const KindKernels kernels = kernels_of(table, kind);
  kernels.attend({.q = tile.queries.data(),
                  .kv = run.view().data,
                  .block_stride = run.view().block_stride,
                  .v_offset = run.view().v_offset,
                  .blocks = run.blocks().data(),
                  .num_blocks = kBlocks,
                  .block_tokens = kBlockTokens,
                  .visible = kVisible.data(),
                  .rows = kRows,
                  .padded_dim = kPaddedDim,
                  .first_piece = 0,
                  .last_piece = (kTokens + kPieceTokens - 1) / kPieceTokens,
                  .q_scales = tile.scales.data(),
                  .scale_offset = run.view().scale_offset,
                  .scratch = scratch.data(),
                  .state = tile.state()});
  for (int row = 0; row < kRows; ++row) {
    const Answer wanted =
        dense_attention(run, tile, row, {query_bytes(table, kind), integer_queries(table, kind)});
    QUIRE_TRY_STATUS(within(
        kernels.attend_name, table.isa,
        share_of_tolerance(wanted, tile, row, {kind, table.isa}) * tolerance(kind, table.isa),
        tolerance(kind, table.isa)));
  }
  return {};
}

// Checks merging. Row 1 of the state and row 2 of the piece have seen nothing.
Status test_merge(const KernelTable& table) {
  CheckedTile state, piece;
  for (auto& [tile, seed] : {std::pair{&state, 4}, std::pair{&piece, 5}}) {
    tile->acc = numbers(tile->acc.size(), static_cast<std::uint64_t>(seed));
    tile->max = numbers(kRows, static_cast<std::uint64_t>(seed) + 2);
    std::ranges::fill(tile->sum, 1.5f);
  }
  state.max[1] = kLowest;
  piece.max[2] = kLowest;
  std::vector<double> wanted;
  for (std::size_t row = 0; row < kRows; ++row) {
    const double old = state.max[row], next = piece.max[row], top = std::max(old, next);
    const double keep = std::exp2(old - top), take = std::exp2(next - top);
    wanted.push_back(top);
    wanted.push_back(double{state.sum[row]} * keep + double{piece.sum[row]} * take);
    for (std::size_t d = row * kPaddedDim; d < (row + 1) * kPaddedDim; ++d) {
      wanted.push_back(double{state.acc[d]} * keep + double{piece.acc[d]} * take);
    }
  }
  table.merge(
      {.state = state.state(), .piece = piece.state(), .rows = kRows, .padded_dim = kPaddedDim});
  std::vector<float> merged;
  for (std::size_t row = 0; row < kRows; ++row) {
    merged.push_back(state.max[row]);
    merged.push_back(state.sum[row]);
    const auto* const acc = state.acc.data() + row * kPaddedDim;
    merged.insert(merged.end(), acc, acc + kPaddedDim);
  }
  return within("merge", table.isa, relative_l2(merged, wanted),
                tolerance(DType::kFloat32, table.isa));
}

}  // namespace

Status self_test(const KernelTable& table) {
  QUIRE_TRY_STATUS(test_merge(table));
  QUIRE_TRY_STATUS(test_attend(table, DType::kFloat32));
  QUIRE_TRY_STATUS(test_attend(table, DType::kBFloat16));
  QUIRE_TRY_STATUS(test_attend(table, kInt8KV));
  QUIRE_TRY_STATUS(test_attend(table, kFp8KV));
  return test_attend(table, kInt4KV);
}

Status self_test(device::Isa isa) { return self_test(kernels_for(isa)); }

}  // namespace quire::attention

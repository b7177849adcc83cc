// The seam between drivers (compiled once, baseline) and kernels (compiled per instruction set).
//
// Only plain structs and function pointers cross it. An isa_*.cc file and the rest may share no
// inline function with code. The linker would keep one copy, perhaps with instructions that this
// machine lacks. So kernel files call no standard library function, and everything in them sits in
// unnamed namespaces.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/device/cpu/isa.h"
#include "quire/kernels/activation.h"  // IWYU pragma: export

namespace quire::kernels {

// rows [0, rows) x panels [0, panels): out[row][column] = sum over k of X[row][k] W[column][k].
// Panels are whole: `out` has room for 32 columns per panel. Layouts: packed_weights.h,
// packed_rows.h.
struct MatmulTask {
  const std::byte* weights = nullptr;       // weights of the first panel
  const std::byte* next_weights = nullptr;  // a hint: what the thread will probably read next
  std::size_t panel_bytes = 0;
  int panels = 0;
  int steps = 0;                      // depth / 32, rounded up
  const std::byte* values = nullptr;  // values of the first row, which begins a block of 16
  const float* scales = nullptr;      // int8 rows only
  const std::int32_t* offsets = nullptr;
  const std::int32_t* first_offsets = nullptr;  // of the first 16 values of each group
  int rows = 0;                   // 1..kMaxTaskRows; 16 per block, the last block may hold fewer
  float* out = nullptr;           // element (first row, first column) of the output
  std::ptrdiff_t out_stride = 0;  // floats between rows
  // Scratch of the calling thread: kScratchBytesPerStep * steps bytes, 64-byte aligned.
  std::byte* scratch = nullptr;
};
inline constexpr int kMaxTaskRows = 256;  // bf16 activations: 1 MiB per 2048 of depth, half an L2
// A panel as bytes, with fp32 scales and minimums of groups of 16.
inline constexpr int kScratchBytesPerStep = 1024 + 512;
inline constexpr int kMatmuls = 8;  // formats of weights that the CPU multiplies

// Packs the rows of one block from fp32, and normalises them if there is a weight for that. Value k
// of row r is then x[r][k] * norm_factors[r] * norm_weight[k], rounded twice as by rms_norm.
struct PackTask {
  const float* x = nullptr;  // values of the block's first row
  std::ptrdiff_t x_stride = 0;
  int rows = 0;  // 1..16
  std::int64_t depth = 0;
  int steps = 0;
  std::byte* values = nullptr;  // packed values of the block
  float* scales = nullptr;      // int8 rows only
  std::int32_t* offsets = nullptr;
  std::int32_t* first_offsets = nullptr;
  const float* norm_factors = nullptr;  // [rows]
  const float* norm_weight = nullptr;   // [depth]
};

// out[r] = x[r] / sqrt(mean(x[r]^2) + epsilon) * weight. x and out may be the same.
struct RmsNormTask {
  const float* x = nullptr;
  std::ptrdiff_t x_stride = 0;
  const float* weight = nullptr;  // [width]
  double epsilon = 0;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  float* out = nullptr;
  std::ptrdiff_t out_stride = 0;
};

// out[i] = sum over taps of weights[tap][i] * inputs[tap][i], plus bias[i]; then silu if asked for.
struct ConvTask {
  const float* const* inputs = nullptr;  // [taps] of [count]; the newest last
  const float* weights = nullptr;        // [taps][count]
  std::ptrdiff_t weight_stride = 0;      // from tap to tap
  const float* bias = nullptr;           // [count] or null
  int taps = 0;                          // at most kMaxConvTaps
  bool silu = false;
  std::int64_t count = 0;
  float* out = nullptr;
};
inline constexpr int kMaxConvTaps = 64;

// The gated delta rule of one head, row after row (Yang et al. 2025, in the order of its
// definition). S is a state of [key_dim][columns]. Per row: S *= decay; r = S^T key; S += key *
// (beta * (value - r))^T; out = S^T query.
struct DeltaTask {
  const float* query = nullptr;  // [rows][key_dim], normed and scaled
  const float* key = nullptr;    // [rows][key_dim], normed
  const float* value = nullptr;  // [rows][columns]
  const float* decay = nullptr;  // [rows]
  const float* beta = nullptr;   // [rows]
  std::ptrdiff_t query_stride = 0, key_stride = 0, value_stride = 0, gate_stride = 0;
  float* state = nullptr;
  std::ptrdiff_t state_stride = 0;
  std::int64_t rows = 0;
  int key_dim = 0;
  std::int64_t columns = 0;
  float* out = nullptr;  // [rows][columns]
  std::ptrdiff_t out_stride = 0;
  float skip = 0;  // of state_scan
};

// out[i] = activation(gate[i]) * up[i] for `count` elements.
struct GateMulTask {
  const float* gate = nullptr;
  const float* up = nullptr;
  std::int64_t count = 0;
  float* out = nullptr;
};

// values[i] = cap * tanh(values[i] / cap) for `count` elements; NaN stays NaN.
struct SoftCapTask {
  float* values = nullptr;
  std::int64_t count = 0;
  float cap = 1;  // above 0
};

// out = one head rotated: pairs (i, i + half) by the angles i; elements from 2 * half on are
// copied. head and out may be the same.
struct RotateTask {
  const float* head = nullptr;  // [size]
  const float* cos = nullptr;   // [half]
  const float* sin = nullptr;   // [half]
  int half = 0;
  int size = 0;
  float* out = nullptr;
};

// The kinds of multiply-adds that products are made of.
enum class Product : std::uint8_t {
  kFloats,      // fp32; also bf16 that is widened
  kBf16Pairs,   // dots of bf16 pairs
  kBytes,       // dots of bytes
  kSmallBytes,  // dots of bytes with codes below 16
  kBf16Tiles,   // AMX
  kByteTiles,   // AMX, groups of 32
  kInt16Pairs,  // dots of pairs of 16-bit integers, as attention over int8 codes runs them
};
inline constexpr int kProducts = 7;

// Runs one kind of product on registers, for measuring its peak.
struct PeakTask {
  const std::byte* operands = nullptr;  // kPeakOperandBytes, not zeros (they run too fast)
  std::int64_t iterations = 0;
  float* sink = nullptr;  // [16], receives a meaningless sum that keeps the loop alive
};
inline constexpr std::size_t kPeakOperandBytes = 4096;

struct PeakLoop {
  void (*run)(const PeakTask&) = nullptr;
  std::int64_t flops_per_iteration = 0;  // a multiply and an add count as two
};

// Format of the activations in a product; packed_rows.h says more.
enum class RowFormat : std::uint8_t { kF32, kBf16, kInt8 };

// Names the products of one matmul. Calls of at least `many_rows` rows run `many`, but for a few
// rows at their end; smaller ones run `few`.
struct MatmulProducts {
  Product few = Product::kFloats;
  Product many = Product::kFloats;
  int many_rows = 0;
};

// A row's bits depend on that row (and the weights) only, in every function.
struct KernelTable {
  device::Isa isa = device::Isa::kPortable;
  void (*matmul[kMatmuls])(const MatmulTask&) = {};  // by WeightFormat
  RowFormat row_formats[kMatmuls] = {};    // formats of the rows that matmul takes, by WeightFormat
  MatmulProducts products[kMatmuls] = {};  // products that matmul runs, by WeightFormat
  void (*pack_rows[3])(const PackTask&) = {};  // by RowFormat; null where no product takes it
  void (*rms_norm)(const RmsNormTask&) = nullptr;
  // Returns the factor of rms_norm for a row of `width` values: 1 / sqrt(mean(x^2) + epsilon).
  float (*rms_factor)(const float* x, std::int64_t width, double epsilon) = nullptr;
  void (*gate_mul[kActivations])(const GateMulTask&) = {};  // by Activation
  void (*soft_cap)(const SoftCapTask&) = nullptr;
  void (*convolve)(const ConvTask&) = nullptr;
  void (*gated_delta)(const DeltaTask&) = nullptr;
  // The state space update of one head, row after row (Mamba-2; Dao & Gu 2024), `beta` being the
  // length of a step. Per row: S *= decay; S += key * (beta * value)^T; out = S^T query + skip *
  // value.
  void (*state_scan)(const DeltaTask&) = nullptr;
  void (*rotate)(const RotateTask&) = nullptr;  // same bits on every instruction set
  // Nearest even; NaN stays NaN. Sets with bf16 instructions turn subnormals into zero.
  void (*round_bf16)(const float* x, std::int64_t count, std::uint16_t* out) = nullptr;
  // Loads every byte, a multiple of 256, and does nothing with them: the read ceiling.
  void (*read)(const std::byte* data, std::int64_t bytes) = nullptr;
  PeakLoop peaks[kProducts] = {};  // by Product; null where no kernel runs it
};

// Returns the kernels of `isa`. Precondition: device::isa_supported(isa).
[[nodiscard]] const KernelTable& kernels_for(device::Isa isa);

const KernelTable& portable_kernels();
const KernelTable& avx2_kernels();
const KernelTable& avx512_vnni_kernels();
const KernelTable& avx512_kernels();
const KernelTable& amx_kernels();

}  // namespace quire::kernels

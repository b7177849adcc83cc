#include "quire/kernels/self_check.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "quire/base/str.h"
#include "quire/device/aligned_buffer.h"
#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/elementwise.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/kv_append.h"
#include "quire/kernels/kv_codes.h"
#include "quire/kernels/kv_read.h"
#include "quire/kernels/linear.h"
#include "quire/kernels/packed_rows.h"
#include "quire/kernels/packed_weights.h"
#include "quire/kernels/reference.h"
#include "quire/kernels/rotary.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/types.h"

namespace quire::kernels {
namespace {

using reference::numbers;
using reference::Tolerance;
using reference::within;

constexpr std::int64_t kColumns = 128;  // whole panels, so that half of them may be a gate
constexpr std::int64_t kTail = 28;      // less columns, where panels need not be whole
constexpr std::int64_t kDepth = 200;
constexpr std::int64_t kRows = 35;                 // a full pair of AMX row blocks and a tail
constexpr std::int64_t kFewRows[] = {1, 2, 6, 7};  // other tiles, some of weights as they lie

// Returns 0 if all bits are the same, else 1.
double differ(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0 ? 0 : 1;
}

std::vector<float> plain_weights(std::int64_t columns) {
  return numbers(static_cast<std::size_t>(columns * kDepth), 1);
}

// Throws std::bad_alloc.
PackedWeights packed_weights(const KernelContext& context, WeightFormat format,
                             std::int64_t columns) {
  const std::vector<float> w = plain_weights(columns);
  PackedWeights weights =
      PackedWeights::pack(context, format, columns, kDepth,
                          [&](std::int64_t first, std::int64_t rows, std::span<float> out) {
                            std::memcpy(out.data(), w.data() + first * kDepth,
                                        static_cast<std::size_t>(rows * kDepth) * sizeof(float));
                          });
  if (weights.data() == nullptr) {
    throw std::bad_alloc();
  }
  return weights;
}

Status test_linear(const KernelContext& context, WeightFormat format) {
  constexpr std::int64_t kOutputs = kColumns - kTail;
  const device::Isa isa = context.table->isa;
  const std::vector<float> x = numbers(kRows * kDepth, 2);
  const std::vector<float> bias = numbers(kOutputs, 3);
  const PackedWeights weights = packed_weights(context, format, kOutputs);
  PackedRows packed;
  LinearScratch scratch;
  std::vector<float> all(kRows * kOutputs);
  pack_rows(context, format, {x, kDepth, kRows, kDepth}, packed);
  const std::vector<float> seen = reference::unpack_rows(packed);
  const std::string name = format_name(format);
  QUIRE_TRY_STATUS(within("pack_rows for " + name, isa,
                          reference::relative_l2(seen, std::vector<double>(x.begin(), x.end())),
                          Tolerance::kInt8Rows));
  linear(context, weights, packed, {all, kOutputs}, {.bias = bias}, scratch);
  QUIRE_TRY_STATUS(
      within("linear " + name, isa,
             reference::relative_l2(
                 all, reference::linear(seen, reference::unpack_weights(weights), kDepth, bias)),
             Tolerance::kLinear));
  for (const std::int64_t rows : kFewRows) {
    std::vector<float> few(static_cast<std::size_t>(rows * kOutputs));
    pack_rows(context, format, {x, kDepth, rows, kDepth}, packed);
    linear(context, weights, packed, {few, kOutputs}, {.bias = bias}, scratch);
    QUIRE_TRY_STATUS(within("linear " + name + " (few rows and the same in a batch)", isa,
                            differ(few, std::span(all).first(few.size())), 0));
  }
  return {};
}

Status test_linear_gated(const KernelContext& context, WeightFormat format) {
  constexpr std::int64_t kWidth = kColumns / 2;
  const std::vector<float> x = numbers(kRows * kDepth, 4);
  const PackedWeights weights = packed_weights(context, format, kColumns);
  PackedRows packed;
  PackedRows one_by_one;
  PackedRows at_once;
  LinearScratch scratch;
  std::vector<float> gate_up(kRows * kColumns);
  std::vector<float> gated(kRows * kWidth);
  pack_rows(context, format, {x, kDepth, kRows, kDepth}, packed);
  linear(context, weights, packed, {gate_up, kColumns}, {}, scratch);
  silu_mul(context, gate_up, kRows, kWidth, gated);
  pack_rows(context, format, {gated, kWidth, kRows, kWidth}, one_by_one);
  linear_gated(context, weights, packed, {}, {at_once, format}, scratch);
  return within(base::str_cat("linear_gated ", format_name(format)), context.table->isa,
                differ(reference::unpack_rows(at_once), reference::unpack_rows(one_by_one)), 0);
}

Status test_row_operations(const KernelContext& context) {
  const device::Isa isa = context.table->isa;
  const std::vector<float> x = numbers(2 * kDepth, 5);
  const std::vector<float> weight = numbers(2 * kDepth, 6);
  std::vector<float> out(2 * kDepth);
  rms_norm(context, x, weight, 1e-5, 1, out);
  QUIRE_TRY_STATUS(within("rms_norm", isa,
                          reference::relative_l2(out, reference::rms_norm(x, weight, 1e-5)),
                          Tolerance::kRmsNorm));
  PackedRows one_by_one;
  PackedRows at_once;
  constexpr auto kNormed = WeightFormat::kQ8g32;
  pack_rows(context, kNormed, {out, 2 * kDepth, 1, 2 * kDepth}, one_by_one);
  pack_normed_rows(context, kNormed, {x, 2 * kDepth, 1, 2 * kDepth}, {weight, 1e-5}, at_once);
  QUIRE_TRY_STATUS(
      within("pack_normed_rows", isa,
             differ(reference::unpack_rows(at_once), reference::unpack_rows(one_by_one)), 0));
  silu_mul(context, x, 1, kDepth, out);
  QUIRE_TRY_STATUS(within(
      "silu_mul", isa, reference::relative_l2(std::span(out).first(kDepth), reference::silu_mul(x)),
      Tolerance::kSiluMul));
  gate_mul(context, Activation::kGeluTanh, x, 1, std::span(out).first(kDepth));
  QUIRE_TRY_STATUS(within(
      "gelu_mul", isa, reference::relative_l2(std::span(out).first(kDepth), reference::gelu_mul(x)),
      Tolerance::kGeluMul));
  std::ranges::copy(x, out.begin());
  soft_cap(context, 0.5f, out);
  QUIRE_TRY_STATUS(within("soft_cap", isa, reference::relative_l2(out, reference::soft_cap(x, 0.5)),
                          Tolerance::kSoftCap));
  std::vector<std::uint16_t> rounded(x.size());
  context.table->round_bf16(x.data(), static_cast<std::int64_t>(x.size()), rounded.data());
  int wrong = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    wrong += rounded[i] == tensor::float_to_bf16(x[i]) ? 0 : 1;
  }
  return within("round_bf16", isa, wrong, 0);
}

Status test_embed(const KernelContext& context) {
  constexpr TokenId kId = 70;
  const PackedWeights table = packed_weights(context, WeightFormat::kF32, kColumns);
  const std::vector<float> rows = plain_weights(kColumns);
  std::vector<float> out(kDepth);
  embed(context, table, {&kId, 1}, out);
  return within("embed", context.table->isa,
                differ(out, std::span(rows).subspan(kId * kDepth, kDepth)), 0);
}

constexpr int kHeadDim = 72;  // stored as 96
constexpr int kStoredDim = 96;
constexpr int kHalf = 28;  // pairs that rotate; 16 elements stay

RotaryTable rotary_of(const KernelContext& context, std::span<const std::int32_t> positions) {
  RotaryConfig config;
  for (int i = 0; i < kHalf; ++i) {
    config.inverse_frequencies.push_back(1.0 / (1 + i));
  }
  RotaryTable rotary;
  rotary.fill(context, config, positions);
  return rotary;
}

Status test_rotate(const KernelContext& context) {
  const RotaryTable rotary = rotary_of(context, std::array{1000});
  const std::vector<float> head = numbers(kHeadDim, 7);
  std::vector<float> out(kHeadDim);
  rotate_head(context, rotary, 0, head, out);
  return within("rotate", context.table->isa,
                reference::relative_l2(out, reference::rotate(head, rotary.cos, rotary.sin)),
                Tolerance::kRotate);
}

// Rounds one head as the format stores it.
void store(const tensor::KVGeometry& geometry, std::span<float> head) {
  if (geometry.format == tensor::KVFormat::kInt8) {
    std::array<std::int8_t, kStoredDim> codes = {};
    std::uint16_t scale = 0;
    // The format holds all of these numbers.
    [[maybe_unused]] const bool held = encode_int8(head, codes, scale);
    for (std::size_t d = 0; d < head.size(); ++d) {
      head[d] = static_cast<float>(codes[d]) * tensor::fp16_to_float(scale);
    }
  } else if (geometry.dtype == tensor::DType::kBFloat16) {
    for (float& value : head) {
      value = tensor::bf16_to_float(tensor::float_to_bf16(value));
    }
  }
}

// Appends two heads of three tokens and reads them back slot by slot.
Status test_kv_append(const KernelContext& context, tensor::DType dtype, tensor::KVFormat format) {
  constexpr int kHeads = 2, kBlockTokens = 5, kBlocks = 2;  // slots come in pairs, or in fours
  const tensor::KVGeometry geometry = {.layers = 1,
                                       .kv_heads = kHeads,
                                       .head_dim = kStoredDim,
                                       .dtype = dtype,
                                       .block_tokens = kBlockTokens,
                                       .format = format};
  device::AlignedBuffer<std::byte> bytes;
  bytes.require(static_cast<std::size_t>(kBlocks * geometry.block_bytes()));
  const tensor::PagedKVView view = {.data = bytes.data(),
                                    .head_stride = kBlocks * geometry.head_block_bytes(),
                                    .block_stride = geometry.head_block_bytes(),
                                    .v_offset = geometry.v_offset(),
                                    .num_blocks = kBlocks,
                                    .kv_heads = kHeads,
                                    .head_dim = kStoredDim,
                                    .block_tokens = kBlockTokens,
                                    .dtype = dtype,
                                    .format = format,
                                    .scale_offset = geometry.scale_offset()};
  const std::array<tensor::KVSlot, 3> slots = {{{1, 4}, {0, 0}, {1, 1}}};
  const RotaryTable rotary = rotary_of(context, std::array{7, 0, 900});
  const std::ptrdiff_t stride = std::ptrdiff_t{kHeads} * kHeadDim;
  const std::vector<float> k = numbers(slots.size() * kHeads * kHeadDim, 8);
  const std::vector<float> v = numbers(slots.size() * kHeads * kHeadDim, 9);
  kv_append(context, {k, v, stride, stride, kHeadDim, &rotary, slots}, view);
  int wrong = 0;
  std::array<float, kStoredDim> got_key, got_value;  // NOLINT: filled by reading
  for (std::size_t i = 0; i < slots.size() * kHeads; ++i) {
    const std::size_t token = i / kHeads, at = i * kHeadDim;
    const int head = static_cast<int>(i % kHeads);
    std::array<float, kStoredDim> key = {}, value = {};  // zeros behind kHeadDim
    rotate_head(context, rotary, static_cast<std::int64_t>(token),
                std::span(k).subspan(at, kHeadDim), std::span(key).first(kHeadDim));
    std::copy_n(v.begin() + static_cast<std::ptrdiff_t>(at), kHeadDim, value.begin());
    store(geometry, key);
    store(geometry, value);
    read_key(view, head, slots[token], got_key);
    read_value(view, head, slots[token], got_value);
    for (std::size_t d = 0; d < kStoredDim; ++d) {
      wrong += got_key[d] == key[d] ? 0 : 1;
      wrong += got_value[d] == value[d] ? 0 : 1;
    }
  }
  return within(base::str_cat("kv_append ", tensor::kv_format_name(format, dtype)),
                context.table->isa, wrong, 0);
}

}  // namespace

Status self_test(const KernelTable& table) {
  device::ThreadPool pool(2);
  const KernelContext context = {&table, &pool};
  QUIRE_TRY_STATUS(test_row_operations(context));
  QUIRE_TRY_STATUS(test_embed(context));
  QUIRE_TRY_STATUS(test_rotate(context));
  for (const tensor::DType dtype : {tensor::DType::kFloat32, tensor::DType::kBFloat16}) {
    QUIRE_TRY_STATUS(test_kv_append(context, dtype, tensor::KVFormat::kPlain));
  }
  QUIRE_TRY_STATUS(test_kv_append(context, tensor::DType::kBFloat16, tensor::KVFormat::kInt8));
  for (int i = 0; i < kCpuWeightFormats; ++i) {
    const auto format = static_cast<WeightFormat>(i);
    QUIRE_TRY_STATUS(test_linear(context, format));
    QUIRE_TRY_STATUS(test_linear_gated(context, format));
  }
  return {};
}

Status self_test(device::Isa isa) {
  if (!device::isa_supported(isa)) {
    return {ErrorCode::kUnsupported,
            base::str_cat("this machine cannot run ", device::isa_name(isa),
                          " kernels; it runs up to ", device::isa_name(device::best_isa()))};
  }
  return self_test(kernels_for(isa));
}

}  // namespace quire::kernels

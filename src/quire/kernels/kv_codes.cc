#include "quire/kernels/kv_codes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kInfinityBits = 0x7f800000;  // as bits, above them NaN
constexpr std::uint16_t kFp16Infinity = 0x7c00;
constexpr float kRoundingBias = 0x1.8p23f;  // x + this - this is x as an integer, ties to even
constexpr std::size_t kMaxCodes = 256;
constexpr int kCodesPerWord = 4;

// max |x|, as bits: an infinity or a NaN is larger than every number.
std::uint32_t largest_bits(std::span<const float> x) {
  std::uint32_t largest = 0;
  for (const float value : x) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & 0x7fffffffU);
  }
  return largest;
}

// The places of one token in a head block: its words of K, its codes of V, its scales. The step
// goes from one word of K to the next, in bytes.
struct CodePlace {
  std::byte *k, *v;
  std::ptrdiff_t k_step;
  std::byte *k_scale, *v_scale;
};

CodePlace code_place(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot) {
  const std::ptrdiff_t slots = view.stored_block_tokens();
  std::byte* block = view.data + kv_head * view.head_stride + slot.block * view.block_stride;
  std::byte* scales = block + view.scale_offset + std::ptrdiff_t{2} * slot.offset;
  return {.k = block + std::ptrdiff_t{kCodesPerWord} * slot.offset,
          .v = block + view.v_offset +
               std::ptrdiff_t{slot.offset / kCodesPerWord} * view.head_dim * kCodesPerWord +
               tensor::int8_place(slot.offset % kCodesPerWord),
          .k_step = slots * kCodesPerWord,
          .k_scale = scales,
          .v_scale = scales + 2 * slots};
}

float scale_at(const std::byte* at) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  return tensor::fp16_to_float(bits);
}

}  // namespace

bool encode_int8(std::span<const float> x, std::span<std::int8_t> codes, std::uint16_t& scale) {
  const std::uint32_t largest = largest_bits(x);
  scale = 0;
  if (largest < kInfinityBits) {
    const float least = std::bit_cast<float>(largest) / 127.0F;
    scale = tensor::float_to_fp16(least);
    scale += tensor::fp16_to_float(scale) < least ? 1 : 0;
  }
  if (scale == 0 || scale >= kFp16Infinity) {
    const bool held = scale == 0 && largest < kInfinityBits;
    scale = 0;
    std::ranges::fill(codes, std::int8_t{0});
    return held;
  }
  const float divisor = tensor::fp16_to_float(scale);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float rounded = (x[i] / divisor + kRoundingBias) - kRoundingBias;
    codes[i] = static_cast<std::int8_t>(static_cast<std::int32_t>(rounded));
  }
  return true;
}

bool store_int8(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot,
                std::span<const float> k, std::span<const float> v) {
  const CodePlace place = code_place(view, kv_head, slot);
  std::array<std::int8_t, kMaxCodes> codes;  // NOLINT: filled by the next line
  std::uint16_t scale = 0;
  const bool key = encode_int8(k, codes, scale);
  std::memcpy(place.k_scale, &scale, sizeof(scale));
  for (int d = 0; d < view.head_dim; d += kCodesPerWord) {
    const auto* of = codes.data() + d;
    const std::array<std::int8_t, kCodesPerWord> word = {of[0], of[2], of[1], of[3]};
    std::memcpy(place.k + d / kCodesPerWord * place.k_step, word.data(), kCodesPerWord);
  }
  const bool value = encode_int8(v, codes, scale);
  std::memcpy(place.v_scale, &scale, sizeof(scale));
  for (int d = 0; d < view.head_dim; ++d) {
    place.v[std::ptrdiff_t{kCodesPerWord} * d] = std::byte(codes[static_cast<std::size_t>(d)]);
  }
  return key && value;
}

void add_errors(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot,
                std::span<const float> k, std::span<const float> v, KVErrorSums& sums) {
  std::array<float, kMaxCodes> stored;  // NOLINT: filled by reading
  const auto add = [&](std::span<const float> x, double& error, double& whole) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double difference = double{stored[i]} - double{x[i]};
      error += difference * difference;
      whole += double{x[i]} * double{x[i]};
    }
  };
  read_int8_key(view, kv_head, slot, std::span(stored).first(k.size()));
  add(k, sums.key_error, sums.key_whole);
  read_int8_value(view, kv_head, slot, std::span(stored).first(v.size()));
  add(v, sums.value_error, sums.value_whole);
}

void read_int8_key(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot,
                   std::span<float> out) {
  const CodePlace place = code_place(view, kv_head, slot);
  const float scale = scale_at(place.k_scale);
  for (std::ptrdiff_t d = 0; d < std::ssize(out); ++d) {
    const auto code =
        static_cast<std::int8_t>(place.k[d / kCodesPerWord * place.k_step +
                                         tensor::int8_place(static_cast<int>(d % kCodesPerWord))]);
    out[static_cast<std::size_t>(d)] = static_cast<float>(code) * scale;
  }
}

void read_int8_value(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot,
                     std::span<float> out) {
  const CodePlace place = code_place(view, kv_head, slot);
  const float scale = scale_at(place.v_scale);
  for (std::ptrdiff_t d = 0; d < std::ssize(out); ++d) {
    out[static_cast<std::size_t>(d)] =
        static_cast<float>(static_cast<std::int8_t>(place.v[d * kCodesPerWord])) * scale;
  }
}

}  // namespace quire::kernels

// KV as codes: the one definition of codes, scales and minimums, with the bits of every instruction
// set, and their places in a view. Arithmetic is fp32, one operation at a time, rounded to the
// nearest, ties to even.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::kernels {

inline constexpr int kMaxHeadDim = 576;  // of KV
inline constexpr int kWordBytes = 4;     // of codes that lie together

// Encodes one head. The scale is the smallest fp16 number that is not below max |x| / 127 (a
// division of fp32). A code is x / scale (another), rounded to the nearest integer, ties to even,
// so that |x - code * scale| <= scale / 2 and |code| <= 127. All are 0 where the scale is. Returns
// false where x has a NaN or an infinity or fp16 no such scale, up to 65504. All is 0 then.
[[nodiscard]] bool encode_int8(std::span<const float> x, std::span<std::int8_t> codes,
                               std::uint16_t& scale);

// Encodes K or V of one head of a block as e4m3. The scale is max |x| / 448, or 0 where that is
// below 2^-126. A code is x / scale, rounded to the nearest e4m3, ties to even; 448 is the largest.
// All are 0 where the scale is. Returns false where x has a NaN or an infinity, or 448 * scale
// overflows. All is 0 then.
[[nodiscard]] bool encode_fp8(std::span<const float> x, std::span<std::uint8_t> codes,
                              float& scale);

// Returns max |x| as bits: an infinity or a NaN is larger than every number.
[[nodiscard]] std::uint32_t largest_bits(std::span<const float> x);

// Says what the codes of a group stand for: code * scale + minimum. The product is exact in fp32.
struct Int4Scale {
  std::uint16_t scale = 0, minimum = 0;  // fp16
};

// Encodes one group. The minimum is the largest fp16 number that is not above min x. The scale is
// the smallest that is not below (max x - minimum) / 15. A code is (x - minimum) / scale, rounded
// to the nearest integer, ties to even, so that |x - number| <= scale / 2, up to fp32's rounding.
// Codes are 0 where the scale is. Returns false where x has a NaN or an infinity or fp16 no such
// minimum or scale. All is 0 then.
[[nodiscard]] bool encode_int4(std::span<const float> x, std::span<std::uint8_t> codes,
                               Int4Scale& scale);

// Sums of squares: of numbers, and of what storing them as codes has changed.
struct KVErrorSums {
  double key_error = 0, key_whole = 0;
  double value_error = 0, value_whole = 0;

  void add(const KVErrorSums& other) {
    key_error += other.key_error;
    key_whole += other.key_whole;
    value_error += other.value_error;
    value_whole += other.value_whole;
  }
};

// Adds the errors of one token and KV head, whose k and v were stored in a view of codes.
void add_errors(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot,
                std::span<const float> k, std::span<const float> v, KVErrorSums& sums);

// Stores the codes of one token's K and V of one KV head, each view.head_dim long. Returns false,
// with zeros stored, where one of them cannot be held.
[[nodiscard]] bool store_int8(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot,
                              std::span<const float> k, std::span<const float> v);

// Reads K or V of one token and KV head, out.size() numbers of it, from a view of any codes. int8
// and fp8: code * scale. int4: code * scale + minimum; behind the model's head size V is anything
// finite.
void read_coded_key(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot,
                    std::span<float> out);
void read_coded_value(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot,
                      std::span<float> out);

// Returns whether the scales, minimums and codes of a head block of fp8 or int4 stand for numbers
// that encode_fp8 or encode_int4 may have made. A stranger may have written the block.
[[nodiscard]] bool codes_are_numbers(const tensor::KVGeometry& geometry,
                                     std::span<const std::byte> head_block);

}  // namespace quire::kernels

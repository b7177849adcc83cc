// int8 KV: the one definition of its codes and scales, with the bits of every instruction set.
#pragma once

#include <cstdint>
#include <span>

#include "quire/tensor/paged_kv_view.h"

namespace quire::kernels {

// Encodes one head. The scale is the smallest fp16 number that is not below max |x| / 127 (a
// division of fp32). A code is x / scale (another), rounded to the nearest integer, ties to even,
// so that |x - code * scale| <= scale / 2 and |code| <= 127. All are 0 where the scale is. Returns
// false where x has a NaN or an infinity or fp16 no such scale, up to 65504. All is 0 then.
[[nodiscard]] bool encode_int8(std::span<const float> x, std::span<std::int8_t> codes,
                               std::uint16_t& scale);

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

// Adds the errors of one token and KV head, whose k and v were stored.
void add_errors(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot,
                std::span<const float> k, std::span<const float> v, KVErrorSums& sums);

// Stores the codes of one token's K and V of one KV head, each view.head_dim long. Returns false,
// with zeros stored, where one of them cannot be held.
[[nodiscard]] bool store_int8(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot,
                              std::span<const float> k, std::span<const float> v);

// Reads K or V of one token and KV head, out.size() numbers of it: code * scale.
void read_int8_key(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot,
                   std::span<float> out);
void read_int8_value(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot,
                     std::span<float> out);

}  // namespace quire::kernels

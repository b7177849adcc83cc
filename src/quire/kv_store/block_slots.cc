#include "quire/kv_store/block_slots.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::kv_store {
namespace {

constexpr int kWordBytes = 4;  // one fp32, two bf16 or fp16

// Copies the scales of slots, where the format has some.
void copy_scales(const tensor::KVGeometry& geometry, const SlotRange& range, const std::byte* from,
                 std::byte* to) {
  const std::ptrdiff_t bytes = geometry.scale_bytes();
  std::ptrdiff_t at = geometry.scale_offset();
  for (int part = 0; part < 2 && bytes > 0; ++part, at += geometry.stored_block_tokens() * bytes) {
    std::memcpy(to + at + range.to * bytes, from + at + range.from * bytes,
                static_cast<std::size_t>(range.count * bytes));
  }
}

// Copies K and V of the first `tokens` slots of one head block. A block is K [depth words][slots],
// then V [slots / tokens per word][head_dim], in words of 4 bytes, then scales.
void copy_words(const tensor::KVGeometry& geometry, int tokens, const std::byte* from,
                std::byte* to) {
  const int pack = tensor::kv_pack(geometry.format, geometry.dtype);
  const int dim = geometry.stored_head_dim(), slots = geometry.stored_block_tokens();
  const std::ptrdiff_t row_bytes = std::ptrdiff_t{slots} * kWordBytes;
  for (int word = 0; word < dim / pack; ++word) {
    std::memcpy(to + word * row_bytes, from + word * row_bytes,
                static_cast<std::size_t>(tokens) * kWordBytes);
  }
  const std::ptrdiff_t v_offset = dim / pack * row_bytes;
  const int value_rows = (tokens + pack - 1) / pack;
  std::memcpy(to + v_offset, from + v_offset,
              static_cast<std::size_t>(value_rows) * static_cast<std::size_t>(dim) * kWordBytes);
}

// Copies the scales of those groups of int4 that the first `tokens` slots have a part in.
void copy_int4_scales(const tensor::KVGeometry& geometry, int tokens, const std::byte* from,
                      std::byte* to) {
  constexpr int kRun = tensor::kInt4RunTokens;
  const std::ptrdiff_t k_bytes = std::ptrdiff_t{4} * geometry.stored_head_dim();
  std::ptrdiff_t at = geometry.scale_offset();
  for (int first = 0; first < tokens; first += kRun) {
    std::memcpy(to + at, from + at, static_cast<std::size_t>(k_bytes));
    at += k_bytes;
    const auto bytes = static_cast<std::size_t>(2 * std::min(kRun, tokens - first));
    // Scales and then minimums of V, for one group of channels after the other.
    for (const std::ptrdiff_t end = at + k_bytes; at != end; at += std::ptrdiff_t{2} * kRun) {
      std::memcpy(to + at, from + at, bytes);
    }
  }
}

// Copies the codes of the first `tokens` slots of a block that was written whole, and their scales.
void copy_codes(const tensor::KVGeometry& geometry, int tokens, const std::byte* from,
                std::byte* to) {
  copy_words(geometry, tokens, from, to);
  if (geometry.format == tensor::KVFormat::kInt4) {
    copy_int4_scales(geometry, tokens, from, to);
  } else {
    const std::ptrdiff_t at = geometry.scale_offset();
    std::memcpy(to + at, from + at, static_cast<std::size_t>(geometry.head_block_bytes() - at));
  }
}

// Returns the place of token `slot` in a word of V. int8 codes have an order of their own.
template <class T>
constexpr std::ptrdiff_t place_in_word(std::ptrdiff_t slot) {
  constexpr std::ptrdiff_t kPack = kWordBytes / static_cast<std::ptrdiff_t>(sizeof(T));
  const auto place = static_cast<int>(slot % kPack);
  return sizeof(T) == 1 ? tensor::int8_place(place) : place;
}

// Copies slots from any place to any place. `T`: an element.
template <class T>
void copy_elements(const tensor::KVGeometry& geometry, const SlotRange& range,
                   const std::byte* from, std::byte* to) {
  constexpr std::ptrdiff_t kPack = kWordBytes / static_cast<std::ptrdiff_t>(sizeof(T));
  const std::ptrdiff_t dim = geometry.stored_head_dim(), slots = geometry.stored_block_tokens();
  for (std::ptrdiff_t word = 0; word < dim / kPack; ++word) {
    std::memcpy(to + (word * slots + range.to) * kWordBytes,
                from + (word * slots + range.from) * kWordBytes,
                static_cast<std::size_t>(range.count) * kWordBytes);
  }
  const std::ptrdiff_t v_offset = dim / kPack * slots * kWordBytes;
  const auto* v_from = reinterpret_cast<const T*>(from + v_offset);
  auto* v_to = reinterpret_cast<T*>(to + v_offset);
  for (std::ptrdiff_t i = 0; i < range.count; ++i) {
    const std::ptrdiff_t source = range.from + i, target = range.to + i;
    const T* in = v_from + source / kPack * dim * kPack + place_in_word<T>(source);
    T* out = v_to + target / kPack * dim * kPack + place_in_word<T>(target);
    for (std::ptrdiff_t d = 0; d < dim; ++d) {
      out[d * kPack] = in[d * kPack];
    }
  }
  copy_scales(geometry, range, from, to);
}

}  // namespace

void copy_slots(const tensor::KVGeometry& geometry, int tokens, const std::byte* from,
                std::byte* to) {
  if (tokens == geometry.stored_block_tokens() || tensor::is_written_by_block(geometry.format)) {
    std::memcpy(to, from, static_cast<std::size_t>(geometry.head_block_bytes()));
    return;
  }
  copy_words(geometry, tokens, from, to);
  copy_scales(geometry, {.count = tokens}, from, to);
}

void copy_first_slots(const tensor::KVGeometry& geometry, int tokens,
                      std::span<const std::byte> from, std::span<std::byte> to) {
  std::fill(to.begin(), to.end(), std::byte{0});
  const bool by_block = tensor::is_written_by_block(geometry.format);
  if (by_block && tokens < geometry.block_tokens) {
    copy_codes(geometry, tokens, from.data(), to.data());
  } else {
    copy_slots(geometry, tokens, from.data(), to.data());
  }
  const int pack = tensor::kv_pack(geometry.format, geometry.dtype), bits = 32 / pack;
  if (tokens % pack == 0 || (by_block && tokens == geometry.block_tokens)) {
    return;
  }
  // The last words of V [head_dim] came whole; a part of each is other tokens'.
  std::uint32_t kept = 0;
  for (int slot = 0; slot < tokens % pack; ++slot) {
    const bool plain = geometry.format == tensor::KVFormat::kPlain;
    const int place = plain ? slot : tensor::code_place(pack, slot);
    kept |= ((std::uint32_t{1} << bits) - 1) << (place * bits);
  }
  const std::ptrdiff_t dim = geometry.stored_head_dim();
  std::byte* at = to.data() + geometry.v_offset() + tokens / pack * dim * kWordBytes;
  for (std::ptrdiff_t word = 0; word < dim; ++word, at += kWordBytes) {
    std::uint32_t bytes = 0;
    std::memcpy(&bytes, at, sizeof(bytes));
    bytes &= kept;
    std::memcpy(at, &bytes, sizeof(bytes));
  }
}

void copy_slot_range(const tensor::KVGeometry& geometry, const SlotRange& range,
                     const std::byte* from, std::byte* to) {
  const int bytes = tensor::kv_value_bytes(geometry.format, geometry.dtype);
  const auto copy = bytes == 4   ? copy_elements<std::uint32_t>
                    : bytes == 2 ? copy_elements<std::uint16_t>
                                 : copy_elements<std::uint8_t>;
  copy(geometry, range, from, to);
}

}  // namespace quire::kv_store

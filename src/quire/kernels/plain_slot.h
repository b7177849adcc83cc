// PlainSlot: where the numbers of one token and KV head lie in a view of plain numbers.
#pragma once

#include <cstddef>

#include "quire/tensor/paged_kv_view.h"

namespace quire::kernels {

// `T` is an element of 2 or 4 bytes. Steps are in elements. Keys of 2 bytes lie in pairs, so their
// step goes from pair to pair.
template <class T>
struct PlainSlot {
  T* k = nullptr;
  T* v = nullptr;
  std::ptrdiff_t k_step = 0;
  std::ptrdiff_t v_step = 0;

  [[nodiscard]] T& key(std::ptrdiff_t d) const {
    constexpr std::ptrdiff_t kPack = 4 / sizeof(T);
    return k[d / kPack * k_step + d % kPack];
  }
  [[nodiscard]] T& value(std::ptrdiff_t d) const { return v[d * v_step]; }
};

// Returns the place of a slot. Precondition: the view is plain, of elements T.
template <class T>
PlainSlot<T> plain_slot(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot) {
  constexpr std::ptrdiff_t kPack = 4 / sizeof(T);
  std::byte* block = view.data + kv_head * view.head_stride + slot.block * view.block_stride;
  T* k = reinterpret_cast<T*>(block);
  T* v = reinterpret_cast<T*>(block + view.v_offset);
  return {.k = k + kPack * slot.offset,
          .v = v + slot.offset / kPack * (kPack * view.head_dim) + slot.offset % kPack,
          .k_step = kPack * view.stored_block_tokens(),
          .v_step = kPack};
}

}  // namespace quire::kernels

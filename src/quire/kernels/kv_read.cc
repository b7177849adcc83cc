#include "quire/kernels/kv_read.h"

#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/base/check.h"
#include "quire/kernels/kv_codes.h"
#include "quire/kernels/plain_slot.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::kernels {
namespace {

void check_slot(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot,
                std::span<const float> out) {
  QUIRE_CHECK(kv_head >= 0 && kv_head < view.kv_heads && slot.block >= 0 &&
                  slot.block < view.num_blocks && slot.offset >= 0 &&
                  slot.offset < view.block_tokens && std::ssize(out) <= view.head_dim,
              "a KV slot outside of the view");
}

// Calls fn(place of the slot, conversion of an element to float).
template <class Fn>
void with_plain_slot(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot, Fn fn) {
  if (view.dtype == tensor::DType::kFloat32) {
    fn(plain_slot<float>(view, kv_head, slot), [](float x) { return x; });
  } else {
    fn(plain_slot<std::uint16_t>(view, kv_head, slot),
       view.dtype == tensor::DType::kFloat16 ? tensor::fp16_to_float : tensor::bf16_to_float);
  }
}

}  // namespace

void read_key(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot,
              std::span<float> out) {
  check_slot(view, kv_head, slot, out);
  if (view.format != tensor::KVFormat::kPlain) {
    read_coded_key(view, kv_head, slot, out);
    return;
  }
  with_plain_slot(view, kv_head, slot, [&](const auto& place, auto number) {
    for (std::size_t d = 0; d < out.size(); ++d) {
      out[d] = number(place.key(static_cast<std::ptrdiff_t>(d)));
    }
  });
}

void read_value(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot,
                std::span<float> out) {
  check_slot(view, kv_head, slot, out);
  if (view.format != tensor::KVFormat::kPlain) {
    read_coded_value(view, kv_head, slot, out);
    return;
  }
  with_plain_slot(view, kv_head, slot, [&](const auto& place, auto number) {
    for (std::size_t d = 0; d < out.size(); ++d) {
      out[d] = number(place.value(static_cast<std::ptrdiff_t>(d)));
    }
  });
}

}  // namespace quire::kernels

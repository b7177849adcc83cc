#include "quire/kernels/kv_read.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "quire/base/check.h"
#include "quire/kernels/kv_codes.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::kernels {
namespace {

// Element d of a token lies at `first + d * step` words of two bytes (bf16, fp16) or four (fp32).
// 16-bit keys are in pairs: `d / 2 * step + d % 2`.
struct Layout {
  std::ptrdiff_t first = 0;
  std::ptrdiff_t step = 1;
  bool pairs = false;
};

float load(const std::byte* data, tensor::DType dtype, std::ptrdiff_t index) {
  if (dtype == tensor::DType::kFloat32) {
    float value = 0;
    std::memcpy(&value, data + index * std::ptrdiff_t{sizeof(value)}, sizeof(value));
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, data + index * std::ptrdiff_t{sizeof(bits)}, sizeof(bits));
  return dtype == tensor::DType::kFloat16 ? tensor::fp16_to_float(bits)
                                          : tensor::bf16_to_float(bits);
}

void check_slot(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot,
                std::span<const float> out) {
  QUIRE_CHECK(kv_head >= 0 && kv_head < view.kv_heads && slot.block >= 0 &&
                  slot.block < view.num_blocks && slot.offset >= 0 &&
                  slot.offset < view.block_tokens && std::ssize(out) <= view.head_dim,
              "a KV slot outside of the view");
}

void read(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot, std::ptrdiff_t offset,
          const Layout& layout, std::span<float> out) {
  const std::byte* block =
      view.data + kv_head * view.head_stride + slot.block * view.block_stride + offset;
  for (std::ptrdiff_t d = 0; d < std::ssize(out); ++d) {
    const std::ptrdiff_t index = layout.pairs ? d / 2 * layout.step + d % 2 : d * layout.step;
    out[static_cast<std::size_t>(d)] = load(block, view.dtype, layout.first + index);
  }
}

}  // namespace

void read_key(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot,
              std::span<float> out) {
  check_slot(view, kv_head, slot, out);
  if (view.format == tensor::KVFormat::kInt8) {
    read_int8_key(view, kv_head, slot, out);
    return;
  }
  const std::ptrdiff_t slots = (std::ptrdiff_t{view.block_tokens} + 1) / 2 * 2;
  const bool wide = view.dtype == tensor::DType::kFloat32;
  read(view, kv_head, slot, 0,
       wide ? Layout{.first = slot.offset, .step = slots}
            : Layout{.first = std::ptrdiff_t{slot.offset} * 2, .step = slots * 2, .pairs = true},
       out);
}

void read_value(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot,
                std::span<float> out) {
  check_slot(view, kv_head, slot, out);
  if (view.format == tensor::KVFormat::kInt8) {
    read_int8_value(view, kv_head, slot, out);
    return;
  }
  const bool wide = view.dtype == tensor::DType::kFloat32;
  read(view, kv_head, slot, view.v_offset,
       wide ? Layout{.first = std::ptrdiff_t{slot.offset} * view.head_dim}
            : Layout{.first = std::ptrdiff_t{slot.offset / 2} * view.head_dim * 2 + slot.offset % 2,
                     .step = 2},
       out);
}

}  // namespace quire::kernels

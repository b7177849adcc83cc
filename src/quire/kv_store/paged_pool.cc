#include "quire/kv_store/paged_pool.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/device/accelerator.h"
#include "quire/device/host_buffer.h"
#include "quire/kv/format.h"
#include "quire/kv/types.h"
#include "quire/kv_store/device_paged_pool.h"
#include "quire/result.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::kv_store {
namespace {

constexpr int kMaxHeadDim = 576;
constexpr int kMaxBlockTokens = 256;
constexpr int kWordBytes = 4;  // one fp32, two bf16 or fp16

Status check_positive(const char* name, int value) {
  if (value >= 1) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat("kv store: ", name, " is ", value, ", must be at least 1")};
}

Status check_at_most(const char* name, int value, int limit) {
  QUIRE_TRY_STATUS(check_positive(name, value));
  if (value <= limit) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat("kv store: ", name, " is ", value, ", must be at most ", limit)};
}

// Refuses a size that formats of one pool have in common.
Status check_same(const char* name, int value, int own) {
  if (value == own) {
    return {};
  }
  return {ErrorCode::kInvalidArgument, base::str_cat("kv store: ", name, " of a format is ", value,
                                                     ", of the pool's own it is ", own)};
}

// Returns the bytes of `num_blocks` blocks, or nothing if they are no int64. Precondition: geometry
// checked.
std::optional<std::int64_t> total_bytes(const tensor::KVGeometry& geometry,
                                        std::int64_t num_blocks) {
  std::int64_t bytes = geometry.head_block_bytes();
  if (__builtin_mul_overflow(bytes, std::int64_t{geometry.kv_heads}, &bytes) ||
      __builtin_mul_overflow(bytes, std::int64_t{geometry.layers}, &bytes) ||
      __builtin_mul_overflow(bytes, num_blocks, &bytes)) {
    return std::nullopt;
  }
  return bytes;
}

std::int64_t machine_bytes() {
  const std::int64_t pages = ::sysconf(_SC_PHYS_PAGES), page_bytes = ::sysconf(_SC_PAGESIZE);
  return pages > 0 ? pages * page_bytes : std::numeric_limits<std::int64_t>::max();
}

Error too_large(const tensor::KVGeometry& geometry, std::int32_t num_blocks, std::int64_t bytes,
                std::int64_t limit) {
  return {.code = ErrorCode::kOutOfBlocks,
          .message = base::str_cat("kv store: ", num_blocks, " blocks of ", geometry.layers,
                                   " layers need ", base::format_bytes(bytes), ", the machine has ",
                                   base::format_bytes(limit), "; lower the kv budget"),
          .needed_bytes = bytes,
          .free_bytes = limit};
}

// Consecutive slots of two head blocks.
struct SlotRange {
  int from = 0, to = 0, count = 0;
};

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

// Copies the first `tokens` slots of one head block, or all of one that is written whole.
void copy_slots(const tensor::KVGeometry& geometry, int tokens, const std::byte* from,
                std::byte* to) {
  if (tokens == geometry.stored_block_tokens() || tensor::is_written_by_block(geometry.format)) {
    std::memcpy(to, from, static_cast<std::size_t>(geometry.head_block_bytes()));
    return;
  }
  copy_words(geometry, tokens, from, to);
  copy_scales(geometry, {.count = tokens}, from, to);
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
void copy_slot_range(const tensor::KVGeometry& geometry, const SlotRange& range,
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

// Returns whether the blocks of two geometries have one layout and one meaning. Windows of layers
// are compared where both say some.
bool stores_alike(const tensor::KVGeometry& a, const tensor::KVGeometry& b) {
  const auto sizes = [](const tensor::KVGeometry& of) {
    return std::tie(of.layers, of.kv_heads, of.head_dim, of.dtype, of.block_tokens, of.format);
  };
  const std::size_t layers = std::min(a.window_tokens.size(), b.window_tokens.size());
  return sizes(a) == sizes(b) &&
         std::equal(a.window_tokens.begin(), a.window_tokens.begin() + static_cast<long>(layers),
                    b.window_tokens.begin());
}

// Layers in order.
struct LayerRange {
  int first = 0, end = 0;
};

// Calls visit(bytes) for one block after the other, head by head, layer by layer.
template <class Store, class Visit>
void visit_blocks(Store& store, LayerRange layers, std::span<const BlockId> blocks,
                  kv::FormatId format, const Visit& visit) {
  for (int layer = layers.first; layer < layers.end; ++layer) {
    for (int head = 0; head < store.geometry().kv_heads; ++head) {
      for (const BlockId block : blocks) {
        visit(store.head_blocks(layer, head, block, 1, format));
      }
    }
  }
}

void write_layers(PagedPool& store, LayerRange layers, std::span<const BlockId> blocks,
                  std::span<const std::byte> from, kv::FormatId format) {
  visit_blocks(store, layers, blocks, format, [&](std::span<std::byte> to) {
    std::memcpy(to.data(), from.data(), to.size());
    from = from.subspan(to.size());
  });
}

}  // namespace

Status check_geometry(const tensor::KVGeometry& geometry) {
  QUIRE_TRY_STATUS(check_positive("layers", geometry.layers));
  QUIRE_TRY_STATUS(check_positive("kv_heads", geometry.kv_heads));
  QUIRE_TRY_STATUS(check_at_most("head_dim", geometry.head_dim, kMaxHeadDim));
  QUIRE_TRY_STATUS(check_at_most("block_tokens", geometry.block_tokens, kMaxBlockTokens));
  return {};
}

Result<PagedPool> PagedPool::create(const tensor::KVGeometry& geometry, std::int32_t num_blocks) {
  const PagedPool none;
  return create_in(geometry, num_blocks, none);
}

Result<PagedPool> PagedPool::create_beside(std::int32_t num_blocks, kv::FormatId format) const {
  return create_in(geometry(format), num_blocks, *this);
}

Result<kv::FormatId> PagedPool::add_format(const tensor::KVGeometry& geometry) {
  QUIRE_TRY_STATUS(check_geometry(geometry));
  if (more_.size() + 1 == kv::kMaxFormats) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("kv store: the pool has ", kv::kMaxFormats, " formats, and no more fit")};
  }
  QUIRE_TRY_STATUS(check_same("layers", geometry.layers, geometry_.layers));
  QUIRE_TRY_STATUS(check_same("kv_heads", geometry.kv_heads, geometry_.kv_heads));
  QUIRE_TRY_STATUS(check_same("head_dim", geometry.head_dim, geometry_.head_dim));
  QUIRE_TRY_STATUS(check_same("block_tokens", geometry.block_tokens, geometry_.block_tokens));
  if (plane_bytes() / geometry.head_block_bytes() > std::numeric_limits<std::int32_t>::max()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("kv store: ", base::format_bytes(plane_bytes()),
                          " are too many blocks of ", geometry.head_block_bytes(), " bytes")};
  }
  more_.push_back(geometry);
  if (device_ != nullptr) {
    device_->add_format(geometry);
  }
  return kv::FormatId{static_cast<std::uint8_t>(more_.size())};
}

const tensor::KVGeometry& PagedPool::geometry(kv::FormatId format) const {
  QUIRE_CHECK(format.value <= more_.size(), "no such format");
  return format == kv::kOwnFormat ? geometry_ : more_[format.value - 1U];
}

std::optional<kv::FormatId> PagedPool::find_format(const tensor::KVGeometry& geometry) const {
  const auto last = static_cast<std::uint8_t>(more_.size());
  for (std::uint8_t i = 0; i <= last; ++i) {
    if (stores_alike(geometry, this->geometry(kv::FormatId{i}))) {
      return kv::FormatId{i};
    }
  }
  return std::nullopt;
}

std::int32_t PagedPool::num_blocks(kv::FormatId format) const {
  return static_cast<std::int32_t>(plane_bytes() / geometry(format).head_block_bytes());
}

std::vector<kv::BlockFormat> PagedPool::block_formats() const {
  std::vector<kv::BlockFormat> formats = {{.block_bytes = geometry_.block_bytes()}};
  for (const tensor::KVGeometry& geometry : more_) {
    formats.push_back({.block_bytes = geometry.block_bytes()});
  }
  return formats;
}

device::HostBuffer PagedPool::host_buffer(std::size_t bytes) const {
  return device_ != nullptr ? device_->host_buffer(bytes) : device::HostBuffer(bytes);
}

Result<PagedPool> PagedPool::create_in(const tensor::KVGeometry& geometry, std::int32_t num_blocks,
                                       const PagedPool& beside) {
  QUIRE_TRY_STATUS(check_geometry(geometry));
  QUIRE_TRY_STATUS(check_positive("num_blocks", num_blocks));
  const std::int64_t limit = machine_bytes();
  const std::int64_t bytes =
      total_bytes(geometry, num_blocks).value_or(std::numeric_limits<std::int64_t>::max());
  if (bytes > limit) {
    return too_large(geometry, num_blocks, bytes, limit);
  }
  PagedPool store;
  store.geometry_ = geometry;
  store.num_blocks_ = num_blocks;
  store.bytes_ = beside.host_buffer(static_cast<std::size_t>(bytes));
  if (store.bytes_.size() == 0) {
    return too_large(geometry, num_blocks, bytes, limit);
  }
  return store;
}

Result<PagedPool> PagedPool::create_on(device::Accelerator& accelerator,
                                       const tensor::KVGeometry& geometry,
                                       std::int32_t num_blocks) {
  QUIRE_TRY_STATUS(check_geometry(geometry));
  QUIRE_TRY_STATUS(check_positive("num_blocks", num_blocks));
  if (!total_bytes(geometry, num_blocks)) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    return too_large(geometry, num_blocks, kMost, kMost);
  }
  PagedPool store;
  store.geometry_ = geometry;
  store.num_blocks_ = num_blocks;
  QUIRE_TRY(store.device_, make_device_paged_pool(accelerator, geometry, num_blocks));
  return store;
}

tensor::PagedKVView PagedPool::view(int layer, kv::FormatId format) const {
  QUIRE_CHECK(layer >= 0 && layer < geometry_.layers, "no such layer");
  const tensor::KVGeometry& geometry = this->geometry(format);
  const std::ptrdiff_t block_bytes = geometry.head_block_bytes();
  const std::ptrdiff_t head_bytes = plane_bytes();
  // A const store does not move; what its blocks hold is the ledger's matter.
  auto* data = device_ != nullptr ? device_->data() : const_cast<std::byte*>(bytes_.data());
  return {.data = data + layer * (geometry_.kv_heads * head_bytes),
          .head_stride = head_bytes,
          .block_stride = block_bytes,
          .v_offset = geometry.v_offset(),
          .num_blocks = num_blocks(format),
          .kv_heads = geometry.kv_heads,
          .head_dim = geometry.stored_head_dim(),
          .block_tokens = geometry.block_tokens,
          .dtype = geometry.dtype,
          .on_device = device_ != nullptr,
          .format = geometry.format,
          .scale_offset = geometry.scale_offset()};
}

Status PagedPool::copy(const kv::BlockCopy& copy) {
  const tensor::KVGeometry& geometry = this->geometry(copy.format);
  const std::int32_t num_blocks = this->num_blocks(copy.format);
  const auto exists = [&](BlockId id) { return id.value >= 0 && id.value < num_blocks; };
  QUIRE_CHECK(exists(copy.from) && exists(copy.to), "no such block");
  QUIRE_CHECK(copy.tokens >= 0 && copy.tokens <= geometry_.block_tokens,
              "more tokens than a block holds");
  if (copy.from == copy.to) {
    return {};
  }
  if (device_ != nullptr) {
    return device_->copy({.from = {&copy.from, 1},
                          .count = copy.tokens,
                          .to = {&copy.to, 1},
                          .format = copy.format});
  }
  const std::ptrdiff_t block_bytes = geometry.head_block_bytes();
  std::byte* head = bytes_.data();
  for (std::int64_t i = 0; i < std::int64_t{geometry_.layers} * geometry_.kv_heads; ++i) {
    copy_slots(geometry, copy.tokens, head + copy.from.value * block_bytes,
               head + copy.to.value * block_bytes);
    head += plane_bytes();
  }
  return {};
}

Status PagedPool::copy_run(std::span<const BlockId> from, std::int32_t first, std::int32_t count,
                           std::span<const BlockId> to, kv::FormatId format) {
  const tensor::KVGeometry& geometry = this->geometry(format);
  const std::int32_t block_tokens = geometry.block_tokens;
  QUIRE_CHECK(first >= 0 && count >= 0 &&
                  first + std::int64_t{count} <= std::ssize(from) * std::int64_t{block_tokens},
              "the run has no such slots");
  QUIRE_CHECK(count <= std::ssize(to) * std::int64_t{block_tokens}, "no room for the slots");
  QUIRE_CHECK(!tensor::is_written_by_block(geometry.format), "such blocks are copied whole");
  if (device_ != nullptr) {
    return device_->copy(
        {.from = from, .first = first, .count = count, .to = to, .format = format});
  }
  const int bytes = tensor::kv_value_bytes(geometry.format, geometry.dtype);
  const auto copy = bytes == 4   ? copy_slot_range<std::uint32_t>
                    : bytes == 2 ? copy_slot_range<std::uint16_t>
                                 : copy_slot_range<std::uint8_t>;
  for (int layer = 0; layer < geometry_.layers; ++layer) {
    for (int head = 0; head < geometry_.kv_heads; ++head) {
      for (std::int32_t done = 0; done < count;) {
        const std::int32_t source = first + done;
        SlotRange range{.from = source % block_tokens, .to = done % block_tokens};
        range.count = std::min({count - done, block_tokens - range.from, block_tokens - range.to});
        const BlockId in = from[static_cast<std::size_t>(source / block_tokens)];
        const BlockId out = to[static_cast<std::size_t>(done / block_tokens)];
        copy(geometry, range, head_blocks(layer, head, in, 1, format).data(),
             head_blocks(layer, head, out, 1, format).data());
        done += range.count;
      }
    }
  }
  return {};
}

Status PagedPool::read_blocks(std::span<const BlockId> blocks, std::span<std::byte> to,
                              kv::FormatId format) const {
  QUIRE_CHECK(std::ssize(to) == std::ssize(blocks) * geometry(format).block_bytes(),
              "not the size of the blocks");
  if (device_ != nullptr) {
    return device_->read({.count = geometry_.layers * geometry_.kv_heads}, blocks, to, format);
  }
  visit_blocks(*this, {.end = geometry_.layers}, blocks, format,
               [&](std::span<const std::byte> from) {
                 std::memcpy(to.data(), from.data(), from.size());
                 to = to.subspan(from.size());
               });
  return {};
}

Status PagedPool::write_blocks(std::span<const BlockId> blocks, std::span<const std::byte> from,
                               kv::FormatId format) {
  QUIRE_CHECK(std::ssize(from) == std::ssize(blocks) * geometry(format).block_bytes(),
              "not the size of the blocks");
  if (device_ != nullptr) {
    return device_->write({.count = geometry_.layers * geometry_.kv_heads}, blocks, from, format);
  }
  write_layers(*this, {.end = geometry_.layers}, blocks, from, format);
  return {};
}

Status PagedPool::write_layer(int layer, std::span<const BlockId> blocks,
                              std::span<const std::byte> from, kv::FormatId format) {
  QUIRE_CHECK(layer >= 0 && layer < geometry_.layers, "no such layer");
  QUIRE_CHECK(
      std::ssize(from) * geometry_.layers == std::ssize(blocks) * geometry(format).block_bytes(),
      "not the size of a layer of the blocks");
  if (device_ != nullptr) {
    return device_->write({.first = layer * geometry_.kv_heads, .count = geometry_.kv_heads},
                          blocks, from, format);
  }
  write_layers(*this, {layer, layer + 1}, blocks, from, format);
  return {};
}

std::size_t PagedPool::head_offset(int layer, int head, BlockId first, std::int32_t count,
                                   kv::FormatId format) const {
  QUIRE_CHECK(device_ == nullptr, "what lies on a device is read by read_blocks");
  QUIRE_CHECK(layer >= 0 && layer < geometry_.layers, "no such layer");
  QUIRE_CHECK(head >= 0 && head < geometry_.kv_heads, "no such head");
  QUIRE_CHECK(first.value >= 0 && count >= 0 && count <= num_blocks(format) - first.value,
              "no such block");
  const std::int64_t plane = std::int64_t{layer} * geometry_.kv_heads + head;
  return static_cast<std::size_t>(plane * plane_bytes() +
                                  first.value * geometry(format).head_block_bytes());
}

std::span<std::byte> PagedPool::head_blocks(int layer, int head, BlockId first, std::int32_t count,
                                            kv::FormatId format) {
  return bytes_.span().subspan(
      head_offset(layer, head, first, count, format),
      static_cast<std::size_t>(geometry(format).head_block_bytes() * count));
}

std::span<const std::byte> PagedPool::head_blocks(int layer, int head, BlockId first,
                                                  std::int32_t count, kv::FormatId format) const {
  return bytes_.span().subspan(
      head_offset(layer, head, first, count, format),
      static_cast<std::size_t>(geometry(format).head_block_bytes() * count));
}

Result<PagedPool> PagedPool::copy_of_layer(int layer, std::span<const BlockId> blocks,
                                           kv::FormatId format) const {
  QUIRE_CHECK(layer >= 0 && layer < geometry_.layers && !blocks.empty(), "nothing to copy");
  tensor::KVGeometry one_layer = geometry(format);
  one_layer.layers = 1;
  QUIRE_TRY(PagedPool copy, create_in(one_layer, static_cast<std::int32_t>(blocks.size()), *this));
  if (device_ != nullptr) {
    QUIRE_TRY_STATUS(
        device_->read({.first = layer * geometry_.kv_heads, .count = geometry_.kv_heads}, blocks,
                      copy.all_bytes(), format));
    return copy;
  }
  std::span<std::byte> to = copy.all_bytes();
  visit_blocks(*this, {layer, layer + 1}, blocks, format, [&](std::span<const std::byte> from) {
    std::memcpy(to.data(), from.data(), from.size());
    to = to.subspan(from.size());
  });
  return copy;
}

void PagedPool::read_slots(int layer, int head, BlockId block, int tokens, std::span<std::byte> to,
                           kv::FormatId format) const {
  const tensor::KVGeometry& geometry = this->geometry(format);
  const auto from = head_blocks(layer, head, block, 1, format);
  QUIRE_CHECK(tokens >= 0 && tokens <= geometry.block_tokens, "more tokens than a block holds");
  QUIRE_CHECK(to.size() == from.size(), "not the size of a head block");
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

std::int32_t blocks_in_budget(const tensor::KVGeometry& geometry, std::int64_t budget_bytes) {
  if (budget_bytes <= 0 || !check_geometry(geometry).ok()) {
    return 0;
  }
  const std::optional<std::int64_t> block_bytes = total_bytes(geometry, 1);
  if (!block_bytes.has_value()) {
    return 0;
  }
  return static_cast<std::int32_t>(std::min<std::int64_t>(
      budget_bytes / *block_bytes, std::numeric_limits<std::int32_t>::max()));
}

}  // namespace quire::kv_store

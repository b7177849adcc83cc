#include "quire/kv_store/paged_pool.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/device/accelerator.h"
#include "quire/device/aligned_buffer.h"
#include "quire/device/host_buffer.h"
#include "quire/kv/format.h"
#include "quire/kv/types.h"
#include "quire/kv_store/block_slots.h"
#include "quire/kv_store/device_paged_pool.h"
#include "quire/result.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::kv_store {
namespace {

constexpr int kMaxHeadDim = 576;
constexpr int kMaxBlockTokens = 256;
constexpr int kMaxLayerHeads = 1024;

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
  const bool is_mixed = !geometry.layer_sizes.empty();
  const std::int64_t layers = is_mixed ? 1 : geometry.layers;
  const std::int64_t heads = is_mixed ? geometry.all_stored_heads() : geometry.kv_heads;
  if (__builtin_mul_overflow(bytes, heads, &bytes) ||
      __builtin_mul_overflow(bytes, layers, &bytes) ||
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

// Returns whether the blocks of two geometries have one layout and one meaning. Windows of layers
// are compared where both say some.
bool stores_alike(const tensor::KVGeometry& a, const tensor::KVGeometry& b) {
  const auto sizes = [](const tensor::KVGeometry& of) {
    return std::tie(of.layers, of.kv_heads, of.head_dim, of.dtype, of.block_tokens, of.format,
                    of.layer_sizes);
  };
  const std::size_t layers = std::min(a.window_tokens.size(), b.window_tokens.size());
  return sizes(a) == sizes(b) &&
         std::equal(a.window_tokens.begin(), a.window_tokens.begin() + static_cast<long>(layers),
                    b.window_tokens.begin());
}

// Layers in order, those that have some of these parts.
struct LayerRange {
  int first = 0, end = 0;
  kv::BlockCopy::Parts parts = kv::BlockCopy::Parts::kAll;
};

// Returns whether a layer has some of these parts of a block.
bool has_parts(const tensor::KVGeometry& geometry, kv::BlockCopy::Parts parts, int layer) {
  using Parts = kv::BlockCopy::Parts;
  return parts == Parts::kAll || (parts == Parts::kWindow) == (geometry.window_of(layer) > 0);
}

// Calls visit(bytes) for one block after the other, head by head, layer by layer.
template <class Store, class Visit>
void visit_blocks(Store& store, LayerRange layers, std::span<const BlockId> blocks,
                  kv::FormatId format, const Visit& visit) {
  for (int layer = layers.first; layer < layers.end; ++layer) {
    if (!has_parts(store.geometry(), layers.parts, layer)) {
      continue;
    }
    for (int head = 0; head < store.geometry().stored_heads(layer); ++head) {
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

// Checks the sizes of layers that differ: stored heads divide the heads of each.
Status check_layer_sizes(const tensor::KVGeometry& geometry) {
  if (geometry.layer_sizes.empty()) {
    return {};
  }
  if (geometry.layer_sizes.size() != static_cast<std::size_t>(geometry.layers)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("kv store: sizes of ", geometry.layer_sizes.size(), " of ",
                          geometry.layers, " layers")};
  }
  for (int layer = 0; layer < geometry.layers; ++layer) {
    const tensor::KVGeometry one = geometry.of_layer(layer);
    QUIRE_TRY_STATUS(check_at_most("kv_heads of a layer", one.kv_heads, kMaxLayerHeads));
    QUIRE_TRY_STATUS(check_at_most("head_dim of a layer", one.head_dim, kMaxHeadDim));
    if (one.stored_head_dim() % geometry.stored_head_dim() != 0) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("kv store: head_dim of layer ", layer, " is ", one.head_dim,
                            ", no multiple of stored heads of ", geometry.stored_head_dim())};
    }
  }
  return {};
}

}  // namespace

Status check_geometry(const tensor::KVGeometry& geometry) {
  QUIRE_TRY_STATUS(check_positive("layers", geometry.layers));
  QUIRE_TRY_STATUS(check_positive("kv_heads", geometry.kv_heads));
  QUIRE_TRY_STATUS(check_at_most("head_dim", geometry.head_dim, kMaxHeadDim));
  QUIRE_TRY_STATUS(check_at_most("block_tokens", geometry.block_tokens, kMaxBlockTokens));
  return check_layer_sizes(geometry);
}

Result<PagedPool> PagedPool::create(const tensor::KVGeometry& geometry, std::int32_t num_blocks,
                                    std::int32_t whole_blocks) {
  const PagedPool none;
  QUIRE_TRY(PagedPool pool, create_in(geometry, num_blocks, none, whole_blocks));
  for (int layer = 0; whole_blocks > 0 && layer < geometry.layers; ++layer) {
    if (geometry.window_of(layer) > 0) {
      const std::span<std::byte> planes = pool.planes_of(layer);
      device::advise_small_pages(planes.data(), planes.size());
    }
  }
  return pool;
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
  if (geometry.layer_sizes != geometry_.layer_sizes) {
    return {ErrorCode::kInvalidArgument, "kv store: a format has other sizes of layers"};
  }
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
                                       const PagedPool& beside, std::int32_t whole_blocks) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  QUIRE_TRY_STATUS(check_geometry(geometry));
  QUIRE_TRY_STATUS(check_positive("num_blocks", num_blocks));
  const std::int32_t whole = whole_blocks > 0 ? whole_blocks : num_blocks;
  const std::int64_t limit = machine_bytes();
  const std::int64_t bytes = total_bytes(geometry, num_blocks).value_or(kMost);
  const std::int64_t used = total_bytes(geometry, whole).value_or(kMost);
  if (used > limit || bytes == kMost) {
    return too_large(geometry, whole, used, limit);
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
  const tensor::KVGeometry own = geometry.of_layer(layer);
  const std::ptrdiff_t per_head = geometry.stored_per_head(layer);
  const std::ptrdiff_t block_bytes = per_head * geometry.head_block_bytes();
  const std::ptrdiff_t head_bytes = plane_bytes();
  // A const store does not move; what its blocks hold is the ledger's matter.
  auto* data = device_ != nullptr ? device_->data() : const_cast<std::byte*>(bytes_.data());
  return {.data = data + geometry_.first_stored_head(layer) * head_bytes,
          .head_stride = per_head * head_bytes,
          .block_stride = block_bytes,
          .v_offset = own.v_offset(),
          .num_blocks = num_blocks(format),
          .kv_heads = own.kv_heads,
          .head_dim = own.stored_head_dim(),
          .block_tokens = geometry.block_tokens,
          .dtype = geometry.dtype,
          .on_device = device_ != nullptr,
          .format = geometry.format,
          .scale_offset = own.scale_offset()};
}

std::span<std::byte> PagedPool::planes_of(int layer) {
  return bytes_.span().subspan(
      static_cast<std::size_t>(geometry_.first_stored_head(layer) * plane_bytes()),
      static_cast<std::size_t>(geometry_.stored_heads(layer) * plane_bytes()));
}

void PagedPool::give_back(std::span<const BlockId> blocks, kv::BlockCopy::Parts parts,
                          const std::function<bool(BlockId)>& is_gone) {
  for (auto first = blocks.begin(); first != blocks.end();) {
    auto last = first;
    while (last + 1 != blocks.end() && (last + 1)->value == last->value + 1) {
      ++last;
    }
    for (int layer = 0; layer < geometry_.layers; ++layer) {
      if (has_parts(geometry_, parts, layer)) {
        give_back_of(layer, *first, last->value - first->value + 1, is_gone);
      }
    }
    first = last + 1;
  }
}

// Gives the pages of neighbouring blocks back, and those at either end if nobody else uses them.
void PagedPool::give_back_of(int layer, BlockId first, std::int32_t count,
                             const std::function<bool(BlockId)>& is_gone) {
  const std::ptrdiff_t per_head = geometry_.stored_per_head(layer);
  const std::ptrdiff_t block = per_head * geometry_.head_block_bytes();
  const std::ptrdiff_t plane = per_head * plane_bytes();
  const auto page = static_cast<std::ptrdiff_t>(device::page_bytes());
  const std::span<std::byte> planes = planes_of(layer);
  const auto all_gone = [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
    bool gone = begin >= 0 && end <= plane;
    for (std::ptrdiff_t i = begin / block; gone && i * block < end; ++i) {
      gone = is_gone(BlockId{static_cast<std::int32_t>(i)});
    }
    return gone;
  };
  for (std::byte* head = planes.data(); head != planes.data() + planes.size(); head += plane) {
    const auto base = static_cast<std::ptrdiff_t>(reinterpret_cast<std::uintptr_t>(head) %
                                                  static_cast<std::uintptr_t>(page));
    std::ptrdiff_t begin = (base + first.value * block) / page * page - base;
    std::ptrdiff_t end = (base + (first.value + count) * block + page - 1) / page * page - base;
    begin += all_gone(begin, first.value * block) ? 0 : page;
    end -= all_gone((first.value + count) * block, end) ? 0 : page;
    if (begin < end) {
      device::give_back_pages(head + begin, static_cast<std::size_t>(end - begin));
    }
  }
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
  const SlotRange range{.from = copy.from_slot, .to = copy.to_slot, .count = copy.tokens};
  const bool from_first = range.from == 0 && range.to == 0;
  QUIRE_CHECK(range.from >= 0 && range.to >= 0 &&
                  std::max(range.from, range.to) + range.count <= geometry_.block_tokens,
              "more slots than a block has");
  QUIRE_CHECK(from_first || !tensor::is_written_by_block(geometry.format),
              "such blocks are copied whole");
  if (device_ != nullptr) {
    return device_->copy({.from = {&copy.from, 1},
                          .first = range.from,
                          .count = copy.tokens,
                          .to = {&copy.to, 1},
                          .to_first = range.to,
                          .format = copy.format});
  }
  std::byte* head = bytes_.data();
  for (int layer = 0; layer < geometry_.layers; ++layer) {
    const tensor::KVGeometry own = geometry.of_layer(layer);
    const std::ptrdiff_t per_head = geometry.stored_per_head(layer);
    const std::ptrdiff_t block_bytes = per_head * geometry.head_block_bytes();
    if (!has_parts(geometry_, copy.parts, layer)) {
      head += own.kv_heads * per_head * plane_bytes();
      continue;
    }
    for (int i = 0; i < own.kv_heads; ++i) {
      const std::byte* from = head + copy.from.value * block_bytes;
      std::byte* to = head + copy.to.value * block_bytes;
      from_first ? copy_slots(own, copy.tokens, from, to) : copy_slot_range(own, range, from, to);
      head += per_head * plane_bytes();
    }
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
  for (int layer = 0; layer < geometry_.layers; ++layer) {
    const tensor::KVGeometry own = geometry.of_layer(layer);
    const int per_head = geometry.stored_per_head(layer);
    for (int head = 0; head < geometry.stored_heads(layer); head += per_head) {
      for (std::int32_t done = 0; done < count;) {
        const std::int32_t source = first + done;
        SlotRange range{.from = source % block_tokens, .to = done % block_tokens};
        range.count = std::min({count - done, block_tokens - range.from, block_tokens - range.to});
        const BlockId in = from[static_cast<std::size_t>(source / block_tokens)];
        const BlockId out = to[static_cast<std::size_t>(done / block_tokens)];
        copy_slot_range(own, range, head_blocks(layer, head, in, 1, format).data(),
                        head_blocks(layer, head, out, 1, format).data());
        done += range.count;
      }
    }
  }
  return {};
}

std::int64_t PagedPool::bytes_of(kv::BlockCopy::Parts parts, kv::FormatId format) const {
  std::int64_t heads = 0;
  for (int layer = 0; layer < geometry_.layers; ++layer) {
    heads += has_parts(geometry_, parts, layer) ? geometry_.stored_heads(layer) : 0;
  }
  return heads * geometry(format).head_block_bytes();
}

Status PagedPool::read_blocks(std::span<const BlockId> blocks, std::span<std::byte> to,
                              kv::FormatId format, kv::BlockCopy::Parts parts) const {
  QUIRE_CHECK(std::ssize(to) == std::ssize(blocks) * bytes_of(parts, format),
              "not the size of the blocks");
  if (device_ != nullptr) {
    QUIRE_CHECK(parts == kv::BlockCopy::Parts::kAll, "blocks have no parts on an accelerator");
    return device_->read({.count = geometry_.all_stored_heads()}, blocks, to, format);
  }
  visit_blocks(*this, {.end = geometry_.layers, .parts = parts}, blocks, format,
               [&](std::span<const std::byte> from) {
                 std::memcpy(to.data(), from.data(), from.size());
                 to = to.subspan(from.size());
               });
  return {};
}

Status PagedPool::write_blocks(std::span<const BlockId> blocks, std::span<const std::byte> from,
                               kv::FormatId format, kv::BlockCopy::Parts parts) {
  QUIRE_CHECK(std::ssize(from) == std::ssize(blocks) * bytes_of(parts, format),
              "not the size of the blocks");
  if (device_ != nullptr) {
    QUIRE_CHECK(parts == kv::BlockCopy::Parts::kAll, "blocks have no parts on an accelerator");
    return device_->write({.count = geometry_.all_stored_heads()}, blocks, from, format);
  }
  write_layers(*this, {.end = geometry_.layers, .parts = parts}, blocks, from, format);
  return {};
}

Status PagedPool::write_layer(int layer, std::span<const BlockId> blocks,
                              std::span<const std::byte> from, kv::FormatId format) {
  QUIRE_CHECK(layer >= 0 && layer < geometry_.layers, "no such layer");
  QUIRE_CHECK(std::ssize(from) == std::ssize(blocks) * geometry_.stored_heads(layer) *
                                      geometry(format).head_block_bytes(),
              "not the size of a layer of the blocks");
  if (device_ != nullptr) {
    return device_->write({.first = layer * geometry_.kv_heads, .count = geometry_.kv_heads},
                          blocks, from, format);
  }
  write_layers(*this, {.first = layer, .end = layer + 1}, blocks, from, format);
  return {};
}

std::size_t PagedPool::head_offset(int layer, int head, BlockId first, std::int32_t count,
                                   kv::FormatId format) const {
  QUIRE_CHECK(device_ == nullptr, "what lies on a device is read by read_blocks");
  QUIRE_CHECK(layer >= 0 && layer < geometry_.layers, "no such layer");
  QUIRE_CHECK(head >= 0 && head < geometry_.stored_heads(layer), "no such head");
  QUIRE_CHECK(first.value >= 0 && count >= 0 && count <= num_blocks(format) - first.value,
              "no such block");
  const std::int64_t per_head = geometry_.stored_per_head(layer), part = head % per_head;
  QUIRE_CHECK(per_head == 1 || count <= 1, "blocks of a part of a head are no neighbours");
  const std::int64_t plane = std::int64_t{geometry_.first_stored_head(layer)} + head - part;
  return static_cast<std::size_t>(plane * plane_bytes() + (first.value * per_head + part) *
                                                              geometry(format).head_block_bytes());
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
  const tensor::KVGeometry one_layer = geometry(format).of_layer(layer);
  QUIRE_TRY(PagedPool copy, create_in(one_layer, static_cast<std::int32_t>(blocks.size()), *this));
  if (device_ != nullptr) {
    QUIRE_TRY_STATUS(
        device_->read({.first = layer * geometry_.kv_heads, .count = geometry_.kv_heads}, blocks,
                      copy.all_bytes(), format));
    return copy;
  }
  const int per_head = geometry_.stored_per_head(layer);
  const auto bytes = static_cast<std::size_t>(one_layer.head_block_bytes());
  std::span<std::byte> to = copy.all_bytes();
  for (int head = 0; head < geometry_.stored_heads(layer); head += per_head) {
    for (const BlockId block : blocks) {
      std::memcpy(to.data(), head_blocks(layer, head, block, 1, format).data(), bytes);
      to = to.subspan(bytes);
    }
  }
  return copy;
}

void PagedPool::read_slots(int layer, int head, BlockId block, int tokens, std::span<std::byte> to,
                           kv::FormatId format) const {
  const tensor::KVGeometry& geometry = this->geometry(format);
  const auto from = head_blocks(layer, head, block, 1, format);
  QUIRE_CHECK(tokens >= 0 && tokens <= geometry.block_tokens, "more tokens than a block holds");
  QUIRE_CHECK(to.size() == from.size(), "not the size of a head block");
  const int per_head = geometry.stored_per_head(layer), part = head % per_head;
  if (per_head == 1) {
    copy_first_slots(geometry.of_layer(layer), tokens, from, to);
    return;
  }
  std::vector<std::byte> whole(to.size() * static_cast<std::size_t>(per_head));
  const std::byte* first = head_blocks(layer, head - part, block, 1, format).data();
  copy_first_slots(geometry.of_layer(layer), tokens, {first, whole.size()}, whole);
  std::memcpy(to.data(), whole.data() + static_cast<std::size_t>(part) * to.size(), to.size());
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

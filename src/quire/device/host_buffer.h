// HostBuffer: bytes in host memory; pinned where they go to and come from a device, which is
// several times as fast.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <variant>

#include "quire/device/aligned_buffer.h"
#include "quire/device/memory_pool.h"

namespace quire::device {

// Move only, uninitialised; not thread-safe.
class HostBuffer {
 public:
  HostBuffer() = default;
  // Allocates pageable memory. size() is 0 when the system refuses.
  explicit HostBuffer(std::size_t size) : bytes_(AlignedBuffer<std::byte>(size)) {}
  // Keeps a pinned block of `pool`, which lives as long as the buffer.
  HostBuffer(std::shared_ptr<MemoryPool> pool, PoolBlock block)
      : pool_(std::move(pool)), bytes_(std::move(block)) {}

  [[nodiscard]] std::byte* data() { return span().data(); }
  [[nodiscard]] const std::byte* data() const { return span().data(); }
  [[nodiscard]] std::size_t size() const { return span().size(); }
  [[nodiscard]] std::span<std::byte> span() {
    const auto bytes = std::as_const(*this).span();
    return {const_cast<std::byte*>(bytes.data()), bytes.size()};
  }
  [[nodiscard]] std::span<const std::byte> span() const {
    if (const auto* pinned = std::get_if<PoolBlock>(&bytes_)) {
      return {pinned->data(), static_cast<std::size_t>(pinned->bytes())};
    }
    return std::get<AlignedBuffer<std::byte>>(bytes_).span();
  }

 private:
  std::shared_ptr<MemoryPool> pool_;  // null when pageable; before what is of it
  std::variant<AlignedBuffer<std::byte>, PoolBlock> bytes_;
};

}  // namespace quire::device

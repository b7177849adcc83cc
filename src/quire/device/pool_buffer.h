// Typed memory of a pool: DeviceBuffer on a GPU, PinnedBuffer in host memory that a GPU reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "quire/device/memory_pool.h"
#include "quire/result.h"

namespace quire::device {

// Move only, 256-byte aligned, uninitialised. `Tag` keeps memory of different places apart.
template <class T, class Tag>
class PoolBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  PoolBuffer() = default;

  // Takes `size` elements of the pool. Returns kOutOfBlocks with needed and free bytes when the
  // pool has no room.
  [[nodiscard]] static Result<PoolBuffer> make(MemoryPool& pool, std::size_t size) {
    if (size > static_cast<std::size_t>(INT64_MAX) / sizeof(T)) {
      return {ErrorCode::kInvalidArgument, "a buffer is at most 2^63 - 1 bytes long"};
    }
    QUIRE_TRY(PoolBlock block, pool.allocate(static_cast<std::int64_t>(size * sizeof(T))));
    return PoolBuffer(std::move(block));
  }

  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(block_.data()); }
  [[nodiscard]] std::size_t size() const { return bytes() / sizeof(T); }
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(block_.bytes()); }
  // Shows addresses alone for a DeviceBuffer: its bytes lie on the device.
  [[nodiscard]] std::span<T> span() const { return {data(), size()}; }

 private:
  explicit PoolBuffer(PoolBlock block) : block_(std::move(block)) {}
  PoolBlock block_;
};

struct DeviceMemoryTag {};
struct PinnedMemoryTag {};

}  // namespace quire::device

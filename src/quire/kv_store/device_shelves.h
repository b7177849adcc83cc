// DeviceShelves: the bytes of a block pool that lies on an accelerator. What leaves it has the
// host's layout (tensor/paged_kv_view.h), so files, host memory and the CPU's pool never differ.
//
// Thread rule: any thread; a call returns when the work is done, or for copy() queued before
// whatever the engine computes next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "quire/base/ids.h"
#include "quire/device/accelerator.h"
#include "quire/device/host_buffer.h"
#include "quire/result.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::kv_store {

// Consecutive token slots of runs of blocks.
struct SlotCopy {
  std::span<const BlockId> from;
  std::int32_t first = 0;  // slot of `from`
  std::int32_t count = 0;
  std::span<const BlockId> to;  // from its first slot on
};

// Heads of layers, which count as one after the other: layer * kv_heads + head.
struct HeadRange {
  std::int32_t first = 0, count = 0;
};

class DeviceShelves {
 public:
  virtual ~DeviceShelves() = default;
  [[nodiscard]] virtual std::byte* data() const = 0;  // on the device
  [[nodiscard]] virtual Status copy(const SlotCopy& copy) = 0;
  // Host memory that read and write move fastest; pageable when no more can be pinned, and of size
  // 0 when the system refuses that too.
  [[nodiscard]] virtual device::HostBuffer host_buffer(std::size_t bytes) const = 0;
  // Head blocks [layer][head][block] of `blocks` and of these heads.
  [[nodiscard]] virtual Status read(HeadRange heads, std::span<const BlockId> blocks,
                                    std::span<std::byte> to) const = 0;
  [[nodiscard]] virtual Status write(HeadRange heads, std::span<const BlockId> blocks,
                                     std::span<const std::byte> from) = 0;
};

// kUnsupported for a KV dtype but bf16, kOutOfBlocks with both numbers when the device has no room,
// kDevice without CUDA.
[[nodiscard]] Result<std::unique_ptr<DeviceShelves>> make_device_shelves(
    device::Accelerator& accelerator, const tensor::KVGeometry& geometry, std::int32_t num_blocks);

}  // namespace quire::kv_store

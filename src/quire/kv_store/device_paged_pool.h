// DevicePagedPool: the bytes of a paged pool on an accelerator. Bytes that leave it have the host's
// layout (tensor/paged_kv_view.h), so files, host memory and the CPU's pool have one layout.
//
// Thread rule: any thread. read() and write() return when their work is done. copy() returns when
// its work is queued, before all that the engine computes next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "quire/base/ids.h"
#include "quire/device/accelerator.h"
#include "quire/device/host_buffer.h"
#include "quire/kv/format.h"
#include "quire/result.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::kv_store {

// A copy of consecutive token slots between two runs of blocks of one format.
struct SlotCopy {
  std::span<const BlockId> from;
  std::int32_t first = 0;  // first slot in `from`
  std::int32_t count = 0;
  std::span<const BlockId> to;
  std::int32_t to_first = 0;  // first slot in `to`
  kv::FormatId format = {};
};

// A range of KV heads over all layers. Head h of layer l has the number l * kv_heads + h.
struct HeadRange {
  std::int32_t first = 0, count = 0;
};

class DevicePagedPool {
 public:
  virtual ~DevicePagedPool() = default;
  // Returns the address of the pool on the device.
  [[nodiscard]] virtual std::byte* data() const = 0;
  // Lets the bytes be blocks of this geometry, too: the format with the next number. Before any
  // other thread calls.
  virtual void add_format(const tensor::KVGeometry& geometry) = 0;
  // Queues a copy between blocks of the pool. Blocks of a format that is written by block are
  // copied whole.
  [[nodiscard]] virtual Status copy(const SlotCopy& copy) = 0;
  // Returns host memory that read() and write() move fastest. It is pageable when no more can be
  // pinned, and has size 0 when the system refuses that too.
  [[nodiscard]] virtual device::HostBuffer host_buffer(std::size_t bytes) const = 0;
  // Reads head blocks [layer][head][block] of `blocks` and of these heads, in the host's layout;
  // write() writes them.
  [[nodiscard]] virtual Status read(HeadRange heads, std::span<const BlockId> blocks,
                                    std::span<std::byte> to, kv::FormatId format) const = 0;
  [[nodiscard]] virtual Status write(HeadRange heads, std::span<const BlockId> blocks,
                                     std::span<const std::byte> from, kv::FormatId format) = 0;
};

// Makes a pool of `num_blocks` blocks on the device. Fails with kUnsupported for KV of a model in
// float32, and with kDevice without CUDA. Fails with kOutOfBlocks and both numbers when the device
// has no room.
[[nodiscard]] Result<std::unique_ptr<DevicePagedPool>> make_device_paged_pool(
    device::Accelerator& accelerator, const tensor::KVGeometry& geometry, std::int32_t num_blocks);

}  // namespace quire::kv_store

#include "quire/kv_store/device_paged_pool.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/device/accelerator.h"
#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/cuda_stream.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/device/cuda/device_guard.h"
#include "quire/device/host_buffer.h"
#include "quire/kernels/cuda/blocks.h"
#include "quire/kernels/cuda/rows.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::kv_store {
namespace {

using device::cuda::copy_async;
using device::cuda::CudaStream;
using device::cuda::DeviceBuffer;
using device::cuda::DeviceContext;
using device::cuda::DeviceGuard;
using device::cuda::Event;

constexpr std::size_t kStagingBytes = std::size_t{4} << 20;  // bytes of a part; at least one head

class CudaPagedPool final : public DevicePagedPool {
 public:
  CudaPagedPool(DeviceContext& device, const tensor::KVGeometry& geometry, std::int32_t num_blocks,
                DeviceBuffer<std::byte> bytes, CudaStream second_stream)
      : device_(device),
        geometry_(geometry),
        bytes_(std::move(bytes)),
        second_stream_(std::move(second_stream)),
        pool_{.data = reinterpret_cast<kernels::cuda::Half*>(bytes_.data()),
              .heads = geometry.layers * geometry.kv_heads,
              .num_blocks = num_blocks,
              .slots = geometry.stored_block_tokens(),
              .head_dim = geometry.stored_head_dim(),
              .format = geometry.format} {}

  [[nodiscard]] std::byte* data() const override { return bytes_.data(); }

  [[nodiscard]] Status copy(const SlotCopy& copy) override {
    const std::int32_t tokens = geometry_.block_tokens;
    std::vector<kernels::cuda::Slot> slots;  // all sources, then all targets
    slots.reserve(2 * static_cast<std::size_t>(copy.count));
    const auto slot = [&](std::span<const BlockId> blocks, std::int32_t index) {
      const BlockId block = blocks[static_cast<std::size_t>(index / tokens)];
      return std::int64_t{block.value} * pool_.slots + index % tokens;
    };
    for (std::int32_t i = 0; i < copy.count; ++i) {
      slots.push_back(slot(copy.from, copy.first + i));
    }
    for (std::int32_t i = 0; i < copy.count; ++i) {
      slots.push_back(slot(copy.to, i));
    }
    // A caller's thread may run this, and its own device stays what it was.
    QUIRE_TRY(const DeviceGuard guard, DeviceGuard::enter(device_.properties().ordinal));
    const CudaStream& stream = device_.compute_stream();
    QUIRE_TRY(const auto on_device,
              DeviceBuffer<kernels::cuda::Slot>::make(device_.device_pool(), slots.size()));
    return device_.queue_unrecorded([&]() -> Status {
      QUIRE_TRY_STATUS(copy_async(on_device.data(), slots.data(),
                                  slots.size() * sizeof(kernels::cuda::Slot), stream.get()));
      return device::cuda::to_status(
          kernels::cuda::copy_slots(pool_, on_device.data(), on_device.data() + copy.count,
                                    copy.count, stream.get()),
          "copy_slots");
    });
  }

  [[nodiscard]] device::HostBuffer host_buffer(std::size_t bytes) const override {
    const auto& pool = device_.shared_pinned_pool();
    auto pinned = pool->allocate(static_cast<std::int64_t>(bytes));
    return pinned.ok() ? device::HostBuffer(pool, std::move(pinned).value())
                       : device::HostBuffer(bytes);
  }

  [[nodiscard]] Status read(HeadRange heads, std::span<const BlockId> blocks,
                            std::span<std::byte> to) const override {
    return move(heads, blocks, [&](const Part& part) -> Status {
      QUIRE_TRY_STATUS(device::cuda::to_status(
          kernels::cuda::pack_blocks(pool_, part.heads, part.staging, part.stream), "pack_blocks"));
      return copy_async(to.data() + part.offset, part.staging, part.bytes, part.stream);
    });
  }

  [[nodiscard]] Status write(HeadRange heads, std::span<const BlockId> blocks,
                             std::span<const std::byte> from) override {
    return move(heads, blocks, [&](const Part& part) -> Status {
      QUIRE_TRY_STATUS(
          copy_async(part.staging, from.data() + part.offset, part.bytes, part.stream));
      return device::cuda::to_status(
          kernels::cuda::unpack_blocks(pool_, part.heads, part.staging, part.stream),
          "unpack_blocks");
    });
  }

 private:
  // Some heads of all blocks of a call: consecutive bytes of the host's.
  struct Part {
    kernels::cuda::HeadBlocks heads;
    std::size_t offset = 0, bytes = 0;  // on the host
    kernels::cuda::Half* staging = nullptr;
    CUstream_st* stream = nullptr;
  };

  struct Staging {
    DeviceBuffer<std::byte> bytes;  // bytes of two parts
    DeviceBuffer<std::int32_t> ids;
    std::size_t head_bytes = 0;  // bytes of one head of all blocks
    std::int32_t heads = 0;      // heads of a part
  };

  [[nodiscard]] Result<Staging> make_staging(HeadRange heads,
                                             std::span<const BlockId> blocks) const {
    Staging made;
    made.head_bytes = blocks.size() * static_cast<std::size_t>(geometry_.head_block_bytes());
    made.heads = static_cast<std::int32_t>(std::clamp<std::size_t>(
        kStagingBytes / made.head_bytes, 1, static_cast<std::size_t>(heads.count)));
    const std::size_t part_bytes = made.head_bytes * static_cast<std::size_t>(made.heads);
    auto& memory = device_.device_pool();
    QUIRE_TRY(made.bytes, DeviceBuffer<std::byte>::make(memory, 2 * part_bytes));
    QUIRE_TRY(made.ids, DeviceBuffer<std::int32_t>::make(memory, blocks.size()));
    return made;
  }

  // Queues `move_part` for the heads of `blocks`, in turns on two streams. One part is on its way
  // while the layout of the other is changed.
  template <class MovePart>
  Status queue_parts(HeadRange range, std::span<const BlockId> blocks, const Staging& staging,
                     MovePart move_part) const {
    const std::array<const CudaStream*, 2> streams = {&device_.copy_stream(), &second_stream_};
    QUIRE_TRY_STATUS(device_.order_after_compute(*streams[0]));
    QUIRE_TRY_STATUS(
        copy_async(staging.ids.data(), blocks.data(), blocks.size_bytes(), streams[0]->get()));
    QUIRE_TRY(const auto begun, Event::create());
    QUIRE_TRY_STATUS(streams[0]->record(begun));
    QUIRE_TRY_STATUS(streams[1]->wait(begun));
    const std::size_t part_bytes = staging.head_bytes * static_cast<std::size_t>(staging.heads);
    std::size_t turn = 0;
    for (std::int32_t done = 0; done < range.count; done += staging.heads, turn = 1 - turn) {
      const std::int32_t heads = std::min(staging.heads, range.count - done);
      QUIRE_TRY_STATUS(move_part(Part{.heads = {.first_head = range.first + done,
                                                .heads = heads,
                                                .blocks = staging.ids.data(),
                                                .count = static_cast<std::int32_t>(blocks.size())},
                                      .offset = static_cast<std::size_t>(done) * staging.head_bytes,
                                      .bytes = static_cast<std::size_t>(heads) * staging.head_bytes,
                                      .staging = reinterpret_cast<kernels::cuda::Half*>(
                                          staging.bytes.data() + turn * part_bytes),
                                      .stream = streams[turn]->get()}));
    }
    return {};
  }

  template <class MovePart>
  Status move(HeadRange heads, std::span<const BlockId> blocks, MovePart move_part) const {
    if (blocks.empty()) {
      return {};
    }
    const std::lock_guard lock(moving_);
    QUIRE_TRY(const DeviceGuard guard, DeviceGuard::enter(device_.properties().ordinal));
    QUIRE_TRY(const Staging staging, make_staging(heads, blocks));
    const Status queued = queue_parts(heads, blocks, staging, move_part);
    // The streams are awaited after an error, too: the staging may not go while something moves.
    const Status first_done = device_.copy_stream().synchronize();
    Status second_done = second_stream_.synchronize();
    QUIRE_TRY_STATUS(queued);
    QUIRE_TRY_STATUS(first_done);
    return second_done;
  }

  DeviceContext& device_;
  const tensor::KVGeometry geometry_;
  const DeviceBuffer<std::byte> bytes_;
  const CudaStream second_stream_;
  const kernels::cuda::KVPool pool_;
  mutable std::mutex moving_;
};

static_assert(sizeof(BlockId) == sizeof(std::int32_t));

}  // namespace

Result<std::unique_ptr<DevicePagedPool>> make_device_paged_pool(device::Accelerator& accelerator,
                                                                const tensor::KVGeometry& geometry,
                                                                std::int32_t num_blocks) {
  if (geometry.dtype == tensor::DType::kFloat32) {
    return {ErrorCode::kUnsupported,
            base::str_cat("kv_dtype ", tensor::dtype_name(geometry.dtype),
                          " is not supported on a GPU yet; use bfloat16 or float16")};
  }
  DeviceContext& device = accelerator.context();
  QUIRE_TRY_STATUS(device.make_current());
  QUIRE_TRY(auto bytes, DeviceBuffer<std::byte>::make(
                            device.device_pool(),
                            static_cast<std::size_t>(geometry.block_bytes() * num_blocks)));
  QUIRE_TRY(auto second, CudaStream::create());
  return std::unique_ptr<DevicePagedPool>(std::make_unique<CudaPagedPool>(
      device, geometry, num_blocks, std::move(bytes), std::move(second)));
}

}  // namespace quire::kv_store

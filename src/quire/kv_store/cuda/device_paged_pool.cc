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
#include "quire/kv/format.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::kv_store {
namespace {

using device::cuda::copy_async;
using device::cuda::CudaStream;
using device::cuda::DeviceBuffer;
using device::cuda::DeviceContext;
using device::cuda::DeviceGuard;
using device::cuda::Event;

constexpr std::int64_t kWordBytes = sizeof(kernels::cuda::Half);
constexpr std::size_t kStagingBytes = std::size_t{4} << 20;  // bytes of a part; at least one head

class CudaPagedPool final : public DevicePagedPool {
 public:
  CudaPagedPool(DeviceContext& device, const tensor::KVGeometry& geometry, std::int32_t num_blocks,
                DeviceBuffer<std::byte> bytes, CudaStream second_stream)
      : device_(device),
        head_words_(geometry.head_block_bytes() * num_blocks / kWordBytes),
        bytes_(std::move(bytes)),
        second_stream_(std::move(second_stream)) {
    formats_.push_back(format_of(geometry));
  }

  [[nodiscard]] std::byte* data() const override { return bytes_.data(); }

  void add_format(const tensor::KVGeometry& geometry) override {
    formats_.push_back(format_of(geometry));
  }

  [[nodiscard]] Status copy(const SlotCopy& copy) override {
    const Format& format = formats_[copy.format.value];
    if (tensor::is_written_by_block(format.geometry.format)) {
      return copy_whole(copy, format);
    }
    const std::int32_t tokens = format.geometry.block_tokens;
    std::vector<kernels::cuda::Slot> slots;  // all sources, then all targets
    slots.reserve(2 * static_cast<std::size_t>(copy.count));
    const auto slot = [&](std::span<const BlockId> blocks, std::int32_t index) {
      const BlockId block = blocks[static_cast<std::size_t>(index / tokens)];
      return std::int64_t{block.value} * format.pool.slots + index % tokens;
    };
    for (std::int32_t i = 0; i < copy.count; ++i) {
      slots.push_back(slot(copy.from, copy.first + i));
    }
    for (std::int32_t i = 0; i < copy.count; ++i) {
      slots.push_back(slot(copy.to, copy.to_first + i));
    }
    return queue_copy(slots, [&](const kernels::cuda::Slot* on_device) {
      return kernels::cuda::copy_slots(format.pool, on_device, on_device + copy.count, copy.count,
                                       device_.compute_stream().get());
    });
  }

  [[nodiscard]] device::HostBuffer host_buffer(std::size_t bytes) const override {
    const auto& pool = device_.shared_pinned_pool();
    auto pinned = pool->allocate(static_cast<std::int64_t>(bytes));
    return pinned.ok() ? device::HostBuffer(pool, std::move(pinned).value())
                       : device::HostBuffer(bytes);
  }

  [[nodiscard]] Status read(HeadRange heads, std::span<const BlockId> blocks,
                            std::span<std::byte> to, kv::FormatId format) const override {
    const Format& how = formats_[format.value];
    return move(heads, blocks, how, [&](const Part& part) -> Status {
      QUIRE_TRY_STATUS(device::cuda::to_status(
          kernels::cuda::pack_blocks(how.pool, part.heads, part.staging, part.stream),
          "pack_blocks"));
      return copy_async(to.data() + part.offset, part.staging, part.bytes, part.stream);
    });
  }

  [[nodiscard]] Status write(HeadRange heads, std::span<const BlockId> blocks,
                             std::span<const std::byte> from, kv::FormatId format) override {
    const Format& how = formats_[format.value];
    return move(heads, blocks, how, [&](const Part& part) -> Status {
      QUIRE_TRY_STATUS(
          copy_async(part.staging, from.data() + part.offset, part.bytes, part.stream));
      return device::cuda::to_status(
          kernels::cuda::unpack_blocks(how.pool, part.heads, part.staging, part.stream),
          "unpack_blocks");
    });
  }

 private:
  // A format: the pool as blocks of it.
  struct Format {
    tensor::KVGeometry geometry;
    kernels::cuda::KVPool pool;
  };

  [[nodiscard]] Format format_of(const tensor::KVGeometry& geometry) const {
    return {geometry,
            {.data = reinterpret_cast<kernels::cuda::Half*>(bytes_.data()),
             .heads = geometry.layers * geometry.kv_heads,
             .head_words = head_words_,
             .slots = geometry.stored_block_tokens(),
             .head_dim = geometry.stored_head_dim(),
             .format = geometry.format}};
  }

  // Copies whole blocks.
  [[nodiscard]] Status copy_whole(const SlotCopy& copy, const Format& format) {
    const std::int32_t tokens = format.geometry.block_tokens;
    const auto count = static_cast<std::size_t>((copy.count + tokens - 1) / tokens);
    const auto first = static_cast<std::size_t>(copy.first / tokens);
    std::vector<std::int32_t> blocks;  // all sources, then all targets
    for (const BlockId block : copy.from.subspan(first, count)) {
      blocks.push_back(block.value);
    }
    for (const BlockId block : copy.to.first(count)) {
      blocks.push_back(block.value);
    }
    return queue_copy(blocks, [&](const std::int32_t* on_device) {
      return kernels::cuda::copy_blocks(format.pool, on_device, on_device + count,
                                        static_cast<std::int32_t>(count),
                                        device_.compute_stream().get());
    });
  }

  // Queues a copy of `places` to the device, and what `launch` does with them there.
  template <class T, class Launch>
  [[nodiscard]] Status queue_copy(const std::vector<T>& places, const Launch& launch) {
    // A caller's thread may run this, and its own device stays what it was.
    QUIRE_TRY(const DeviceGuard guard, DeviceGuard::enter(device_.properties().ordinal));
    QUIRE_TRY(const auto on_device, DeviceBuffer<T>::make(device_.device_pool(), places.size()));
    return device_.queue_unrecorded([&]() -> Status {
      QUIRE_TRY_STATUS(copy_async(on_device.data(), places.data(), places.size() * sizeof(T),
                                  device_.compute_stream().get()));
      return device::cuda::to_status(launch(on_device.data()), "copy of KV");
    });
  }

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

  [[nodiscard]] Result<Staging> make_staging(HeadRange heads, std::span<const BlockId> blocks,
                                             const Format& format) const {
    Staging made;
    made.head_bytes = blocks.size() * static_cast<std::size_t>(format.geometry.head_block_bytes());
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
  Status move(HeadRange heads, std::span<const BlockId> blocks, const Format& format,
              MovePart move_part) const {
    if (blocks.empty()) {
      return {};
    }
    const std::lock_guard lock(moving_);
    QUIRE_TRY(const DeviceGuard guard, DeviceGuard::enter(device_.properties().ordinal));
    QUIRE_TRY(const Staging staging, make_staging(heads, blocks, format));
    const Status queued = queue_parts(heads, blocks, staging, move_part);
    // The streams are awaited after an error, too: the staging may not go while something moves.
    const Status first_done = device_.copy_stream().synchronize();
    Status second_done = second_stream_.synchronize();
    QUIRE_TRY_STATUS(queued);
    QUIRE_TRY_STATUS(first_done);
    return second_done;
  }

  DeviceContext& device_;
  const std::int64_t head_words_;  // words of 16 bits from a head of a layer to the next
  const DeviceBuffer<std::byte> bytes_;
  const CudaStream second_stream_;
  std::vector<Format> formats_;  // the pool's own first
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

#include "quire/kv_store/device_shelves.h"

#include <algorithm>
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
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/device/cuda/stream.h"
#include "quire/kernels/cuda/blocks.h"
#include "quire/kernels/cuda/rows.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::kv_store {
namespace {

using device::cuda::copy_async;
using device::cuda::DeviceBuffer;
using device::cuda::DeviceContext;
using device::cuda::PinnedBuffer;
using device::cuda::Stream;

constexpr std::int64_t kStagingBytes = std::int64_t{32} << 20;

class CudaShelves final : public DeviceShelves {
 public:
  CudaShelves(DeviceContext& device, const tensor::KVGeometry& geometry, std::int32_t num_blocks,
              DeviceBuffer<std::byte> bytes)
      : device_(device),
        geometry_(geometry),
        bytes_(std::move(bytes)),
        pool_{.data = reinterpret_cast<kernels::cuda::Bf16*>(bytes_.data()),
              .heads = geometry.layers * geometry.kv_heads,
              .num_blocks = num_blocks,
              .slots = geometry.stored_block_tokens(),
              .head_dim = geometry.stored_head_dim()} {}

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
    QUIRE_TRY_STATUS(device_.make_current());
    const Stream& stream = device_.compute_stream();
    QUIRE_TRY(const auto on_device,
              DeviceBuffer<kernels::cuda::Slot>::make(device_.device_pool(), slots.size()));
    QUIRE_TRY_STATUS(copy_async(on_device.data(), slots.data(),
                                slots.size() * sizeof(kernels::cuda::Slot), stream.get()));
    return device::cuda::to_status(
        kernels::cuda::copy_slots(pool_, on_device.data(), on_device.data() + copy.count,
                                  copy.count, stream.get()),
        "copy_slots");
  }

  [[nodiscard]] Status read(std::span<const BlockId> blocks,
                            std::span<std::byte> to) const override {
    return move(blocks,
                [&](const Piece& piece, const Staging& staging, const Stream& stream) -> Status {
                  QUIRE_TRY_STATUS(device::cuda::to_status(
                      kernels::cuda::pack_blocks(pool_, staging.ids.data(), piece.count,
                                                 staging.kv(), stream.get()),
                      "pack_blocks"));
                  QUIRE_TRY_STATUS(copy_async(staging.pinned.data(), staging.device.data(),
                                              bytes_of(piece), stream.get()));
                  QUIRE_TRY_STATUS(stream.synchronize());
                  each_head(piece, blocks.size(),
                            [&](std::size_t ours, std::size_t theirs, std::size_t size) {
                              std::copy_n(staging.pinned.data() + ours, size, to.data() + theirs);
                            });
                  return Status();
                });
  }

  [[nodiscard]] Status write(std::span<const BlockId> blocks,
                             std::span<const std::byte> from) override {
    return move(blocks,
                [&](const Piece& piece, const Staging& staging, const Stream& stream) -> Status {
                  each_head(piece, blocks.size(),
                            [&](std::size_t ours, std::size_t theirs, std::size_t size) {
                              std::copy_n(from.data() + theirs, size, staging.pinned.data() + ours);
                            });
                  QUIRE_TRY_STATUS(copy_async(staging.device.data(), staging.pinned.data(),
                                              bytes_of(piece), stream.get()));
                  QUIRE_TRY_STATUS(device::cuda::to_status(
                      kernels::cuda::unpack_blocks(pool_, staging.ids.data(), piece.count,
                                                   staging.kv(), stream.get()),
                      "unpack_blocks"));
                  return stream.synchronize();
                });
  }

 private:
  // Blocks [first, first + count) of a call.
  struct Piece {
    std::int32_t first = 0, count = 0;
  };
  struct Staging {
    DeviceBuffer<std::int32_t> ids;
    DeviceBuffer<std::byte> device;
    PinnedBuffer<std::byte> pinned;
    [[nodiscard]] kernels::cuda::Bf16* kv() const {
      return reinterpret_cast<kernels::cuda::Bf16*>(device.data());
    }
  };

  [[nodiscard]] std::size_t bytes_of(const Piece& piece) const {
    return static_cast<std::size_t>(piece.count * geometry_.block_bytes());
  }

  // Calls visit(place in the staging buffer, place in the caller's, bytes) for every head.
  template <class Visit>
  void each_head(const Piece& piece, std::size_t all_blocks, Visit visit) const {
    const auto head_block = static_cast<std::size_t>(geometry_.head_block_bytes());
    const std::size_t size = static_cast<std::size_t>(piece.count) * head_block;
    for (std::size_t head = 0; head < static_cast<std::size_t>(pool_.heads); ++head) {
      visit(head * size, (head * all_blocks + static_cast<std::size_t>(piece.first)) * head_block,
            size);
    }
  }

  // Runs `move_piece` over `blocks`, as many at a time as the staging buffers hold.
  template <class Move>
  Status move(std::span<const BlockId> blocks, Move move_piece) const {
    if (blocks.empty()) {
      return {};
    }
    const std::lock_guard lock(moving_);
    QUIRE_TRY_STATUS(device_.make_current());
    const auto count = static_cast<std::int32_t>(
        std::clamp<std::int64_t>(kStagingBytes / geometry_.block_bytes(), 1, std::ssize(blocks)));
    const auto bytes = static_cast<std::size_t>(count * geometry_.block_bytes());
    Staging staging;
    QUIRE_TRY(staging.ids, DeviceBuffer<std::int32_t>::make(device_.device_pool(), blocks.size()));
    QUIRE_TRY(staging.device, DeviceBuffer<std::byte>::make(device_.device_pool(), bytes));
    QUIRE_TRY(staging.pinned, PinnedBuffer<std::byte>::make(device_.pinned_pool(), bytes));
    // Memory of the pools may still be in use by what was computed last.
    QUIRE_TRY_STATUS(device_.compute_stream().synchronize());
    const Stream& stream = device_.copy_stream();
    for (Piece piece{.first = 0}; piece.first < std::ssize(blocks); piece.first += count) {
      piece.count = std::min(count, static_cast<std::int32_t>(blocks.size()) - piece.first);
      const auto ids = blocks.subspan(static_cast<std::size_t>(piece.first),
                                      static_cast<std::size_t>(piece.count));
      QUIRE_TRY_STATUS(copy_async(staging.ids.data(), ids.data(), ids.size_bytes(), stream.get()));
      QUIRE_TRY_STATUS(move_piece(piece, staging, stream));
    }
    return {};
  }

  DeviceContext& device_;
  const tensor::KVGeometry geometry_;
  const DeviceBuffer<std::byte> bytes_;
  const kernels::cuda::KVPool pool_;
  mutable std::mutex moving_;
};

static_assert(sizeof(BlockId) == sizeof(std::int32_t));

}  // namespace

Result<std::unique_ptr<DeviceShelves>> make_device_shelves(device::Accelerator& accelerator,
                                                           const tensor::KVGeometry& geometry,
                                                           std::int32_t num_blocks) {
  if (geometry.dtype != tensor::DType::kBFloat16) {
    return {ErrorCode::kUnsupported, base::str_cat("kv_dtype ", tensor::dtype_name(geometry.dtype),
                                                   " is not supported on a GPU yet; use bfloat16")};
  }
  DeviceContext& device = accelerator.context();
  QUIRE_TRY_STATUS(device.make_current());
  QUIRE_TRY(auto bytes, DeviceBuffer<std::byte>::make(
                            device.device_pool(),
                            static_cast<std::size_t>(geometry.block_bytes() * num_blocks)));
  return std::unique_ptr<DeviceShelves>(
      std::make_unique<CudaShelves>(device, geometry, num_blocks, std::move(bytes)));
}

}  // namespace quire::kv_store

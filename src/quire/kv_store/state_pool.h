// StatePool: one allocation that holds states, each of one history at one position, in host memory
// or on an accelerator. In host memory the KV of the block that its position ends in is beside
// each.
//
// Thread rule: the engine thread calls; kernels write through the view on pool threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "quire/device/accelerator.h"
#include "quire/device/aligned_buffer.h"
#include "quire/kv_store/device_states.h"
#include "quire/result.h"
#include "quire/tensor/state_view.h"

namespace quire::kv_store {

class StatePool {
 public:
  // Makes a pool without states.
  StatePool() = default;
  // Reserves address space, as PagedPool does; the system provides pages at first write.
  // kOutOfBlocks with both numbers when it refuses. `block_bytes`: of the KV beside a state.
  [[nodiscard]] static Result<StatePool> create(const tensor::StateGeometry& geometry,
                                                std::int32_t num_states, std::int64_t block_bytes);

  // Makes the pool on `accelerator`, which outlives it. The KV beside states is in host memory.
  // Errors of create() and of make_device_states().
  [[nodiscard]] static Result<StatePool> create_on(device::Accelerator& accelerator,
                                                   const tensor::StateGeometry& geometry,
                                                   std::int32_t num_states,
                                                   std::int64_t block_bytes);

  // Returns the bytes that one state takes, with the KV beside it.
  [[nodiscard]] static std::int64_t bytes_of(const tensor::StateGeometry& geometry,
                                             std::int64_t block_bytes) {
    return geometry.state_bytes + block_bytes;
  }

  // Valid while the pool lives.
  [[nodiscard]] tensor::StateView view() const { return view_; }
  // Returns the bytes of a state. Preconditions (QUIRE_CHECK): the pool is in host memory, and the
  // state exists.
  [[nodiscard]] std::span<std::byte> state(std::int32_t index);
  // Returns the bytes of a state where they lie, or a copy in `room`, which goes with it.
  // Precondition (QUIRE_CHECK): the state exists. Fails only on an accelerator, as write() does.
  [[nodiscard]] Result<std::span<const std::byte>> read(std::int32_t index,
                                                        std::vector<std::byte>& room) const;
  // Preconditions (QUIRE_CHECK): the state exists, and `from` is as large.
  [[nodiscard]] Status write(std::int32_t index, std::span<const std::byte> from);
  // Returns the KV beside a state. Precondition (QUIRE_CHECK): the state exists.
  [[nodiscard]] std::span<std::byte> block_beside(std::int32_t state);

 private:
  [[nodiscard]] Status allocate(std::int64_t bytes, std::int32_t num_states);

  device::AlignedBuffer<std::byte> bytes_;  // with device_ only the KV beside states
  std::unique_ptr<DeviceStates> device_;
  tensor::StateView view_;
  std::int64_t state_bytes_ = 0;
  std::int64_t block_bytes_ = 0;
};

}  // namespace quire::kv_store

// StatePool: one allocation that holds states, each of one history at one position. Beside each
// lies the KV of the block that its position ends in.
//
// Thread rule: the engine thread calls; kernels write through the view on pool threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/device/aligned_buffer.h"
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

  // Returns the bytes that one state takes, with the KV beside it.
  [[nodiscard]] static std::int64_t bytes_of(const tensor::StateGeometry& geometry,
                                             std::int64_t block_bytes) {
    return geometry.state_bytes + block_bytes;
  }

  // Valid while the pool lives.
  [[nodiscard]] tensor::StateView view() const { return view_; }
  // Returns the bytes of a state. Precondition (QUIRE_CHECK): the state exists.
  [[nodiscard]] std::span<std::byte> state(std::int32_t index);
  // Returns the KV beside a state. Precondition (QUIRE_CHECK): the state exists.
  [[nodiscard]] std::span<std::byte> block_beside(std::int32_t state);

 private:
  device::AlignedBuffer<std::byte> bytes_;
  tensor::StateView view_;
  std::int64_t state_bytes_ = 0;
  std::int64_t block_bytes_ = 0;
};

}  // namespace quire::kv_store

#include "quire/kv_store/state_pool.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/str.h"
#include "quire/device/accelerator.h"
#include "quire/device/aligned_buffer.h"
#include "quire/kv_store/device_states.h"
#include "quire/result.h"
#include "quire/tensor/state_view.h"

namespace quire::kv_store {

// Reserves host memory for so many states.
Status StatePool::allocate(std::int64_t bytes, std::int32_t num_states) {
  bytes_ = device::AlignedBuffer<std::byte>(static_cast<std::size_t>(bytes));
  if (bytes_.size() == 0 && bytes > 0) {
    return Error{.code = ErrorCode::kOutOfBlocks,
                 .message = base::str_cat("no memory for ", num_states, " states of ",
                                          base::format_bytes(bytes / num_states),
                                          "; lower kv_budget or state_share"),
                 .needed_bytes = bytes};
  }
  return {};
}

Result<StatePool> StatePool::create(const tensor::StateGeometry& geometry, std::int32_t num_states,
                                    std::int64_t block_bytes) {
  StatePool pool;
  if (geometry.state_bytes == 0 || num_states == 0) {
    return pool;
  }
  const std::int64_t stride = bytes_of(geometry, block_bytes);
  QUIRE_TRY_STATUS(pool.allocate(stride * num_states, num_states));
  pool.state_bytes_ = geometry.state_bytes;
  pool.block_bytes_ = block_bytes;
  pool.view_ = {.data = pool.bytes_.data(), .stride = stride, .num_states = num_states};
  return pool;
}

Result<StatePool> StatePool::create_on(device::Accelerator& accelerator,
                                       const tensor::StateGeometry& geometry,
                                       std::int32_t num_states, std::int64_t block_bytes) {
  StatePool pool;
  if (geometry.state_bytes == 0 || num_states == 0) {
    return pool;
  }
  QUIRE_TRY_STATUS(pool.allocate(block_bytes * num_states, num_states));
  QUIRE_TRY(pool.device_, make_device_states(accelerator, geometry.state_bytes * num_states));
  pool.state_bytes_ = geometry.state_bytes;
  pool.block_bytes_ = block_bytes;
  pool.view_ = {
      .data = pool.device_->data(), .stride = geometry.state_bytes, .num_states = num_states};
  return pool;
}

std::span<std::byte> StatePool::state(std::int32_t index) {
  QUIRE_CHECK(device_ == nullptr, "states of an accelerator are read and written");
  QUIRE_CHECK(index >= 0 && index < view_.num_states, "a state outside of its pool");
  return bytes_.span().subspan(static_cast<std::size_t>(index * view_.stride),
                               static_cast<std::size_t>(state_bytes_));
}

Result<std::span<const std::byte>> StatePool::read(std::int32_t index,
                                                   std::vector<std::byte>& room) const {
  QUIRE_CHECK(index >= 0 && index < view_.num_states, "a state outside of its pool");
  if (device_ == nullptr) {
    return std::span<const std::byte>(view_.data + index * view_.stride,
                                      static_cast<std::size_t>(state_bytes_));
  }
  room.resize(static_cast<std::size_t>(state_bytes_));
  QUIRE_TRY_STATUS(device_->read(index * view_.stride, room));
  return std::span<const std::byte>(room);
}

Status StatePool::write(std::int32_t index, std::span<const std::byte> from) {
  QUIRE_CHECK(std::cmp_equal(from.size(), state_bytes_), "a state has one size");
  if (device_ == nullptr) {
    std::ranges::copy(from, state(index).begin());
    return {};
  }
  QUIRE_CHECK(index >= 0 && index < view_.num_states, "a state outside of its pool");
  return device_->write(index * view_.stride, from);
}

std::span<std::byte> StatePool::block_beside(std::int32_t state) {
  QUIRE_CHECK(state >= 0 && state < view_.num_states, "a state outside of its pool");
  const std::int64_t at =
      device_ == nullptr ? state * view_.stride + state_bytes_ : state * block_bytes_;
  return bytes_.span().subspan(static_cast<std::size_t>(at),
                               static_cast<std::size_t>(block_bytes_));
}

}  // namespace quire::kv_store

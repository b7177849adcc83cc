#include "quire/kv_store/state_pool.h"

#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/base/check.h"
#include "quire/base/str.h"
#include "quire/device/aligned_buffer.h"
#include "quire/result.h"
#include "quire/tensor/state_view.h"

namespace quire::kv_store {

Result<StatePool> StatePool::create(const tensor::StateGeometry& geometry, std::int32_t num_states,
                                    std::int64_t block_bytes) {
  StatePool pool;
  if (geometry.state_bytes == 0 || num_states == 0) {
    return pool;
  }
  const std::int64_t stride = bytes_of(geometry, block_bytes);
  const std::int64_t bytes = stride * num_states;
  pool.bytes_ = device::AlignedBuffer<std::byte>(static_cast<std::size_t>(bytes));
  if (pool.bytes_.size() == 0) {
    return Error{
        .code = ErrorCode::kOutOfBlocks,
        .message = base::str_cat("no memory for ", num_states, " states of ",
                                 base::format_bytes(stride), "; lower kv_budget or state_share"),
        .needed_bytes = bytes};
  }
  pool.state_bytes_ = geometry.state_bytes;
  pool.block_bytes_ = block_bytes;
  pool.view_ = {.data = pool.bytes_.data(), .stride = stride, .num_states = num_states};
  return pool;
}

std::span<std::byte> StatePool::state(std::int32_t index) {
  QUIRE_CHECK(index >= 0 && index < view_.num_states, "a state outside of its pool");
  return bytes_.span().subspan(static_cast<std::size_t>(index * view_.stride),
                               static_cast<std::size_t>(state_bytes_));
}

std::span<std::byte> StatePool::block_beside(std::int32_t state) {
  QUIRE_CHECK(state >= 0 && state < view_.num_states, "a state outside of its pool");
  return bytes_.span().subspan(static_cast<std::size_t>(state * view_.stride + state_bytes_),
                               static_cast<std::size_t>(block_bytes_));
}

}  // namespace quire::kv_store

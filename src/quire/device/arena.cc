#include "quire/device/arena.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "quire/device/aligned_buffer.h"

namespace quire::device {

std::shared_ptr<std::byte> Arena::allocate(std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  if (chunk_ == nullptr || bytes > chunk_->size() - used_) {
    auto chunk = std::make_shared<AlignedBuffer<std::byte>>(std::max(bytes, chunk_bytes_));
    if (chunk->size() == 0) {
      chunk = std::make_shared<AlignedBuffer<std::byte>>(bytes);
    }
    if (chunk->size() == 0) {
      return nullptr;
    }
    chunk_ = std::move(chunk);
    used_ = 0;
  }
  std::byte* const begin = chunk_->data() + used_;
  used_ = std::min(chunk_->size(), (used_ + bytes + kAlignment - 1) / kAlignment * kAlignment);
  return {chunk_, begin};
}

}  // namespace quire::device

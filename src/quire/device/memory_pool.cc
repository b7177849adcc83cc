#include "quire/device/memory_pool.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>

#include "quire/base/check.h"
#include "quire/base/str.h"
#include "quire/device/memory_source.h"
#include "quire/result.h"

namespace quire::device {
namespace {

constexpr std::int64_t kMaxBytes = std::numeric_limits<std::int64_t>::max() / 4;

std::int64_t round_up(std::int64_t bytes, std::int64_t step) {
  return (bytes + step - 1) / step * step;
}

Error over_budget(std::int64_t bytes, std::int64_t left) {
  return {.code = ErrorCode::kOutOfBlocks,
          .message = base::str_cat("cannot allocate ", base::format_bytes(bytes), ": ",
                                   base::format_bytes(left),
                                   " left of the pool's budget; free buffers or raise the budget"),
          .needed_bytes = bytes,
          .free_bytes = left};
}

}  // namespace

PoolBlock::PoolBlock(PoolBlock&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      reserved_bytes_(std::exchange(other.reserved_bytes_, 0)) {}

PoolBlock& PoolBlock::operator=(PoolBlock&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(reserved_bytes_, other.reserved_bytes_);
  return *this;
}

PoolBlock::~PoolBlock() {
  if (data_ != nullptr) {
    pool_->give_back(data_, reserved_bytes_);
  }
}

MemoryPool::MemoryPool(std::unique_ptr<MemorySource> source, AllocationBudget budget)
    : source_(std::move(source)), budget_(budget) {}

MemoryPool::~MemoryPool() {
  QUIRE_CHECK(stats_.used_bytes == 0, "a pool must outlive its blocks");
  // A driver that refuses here has lost the device, and with it the memory.
  (void)shrink_locked(0).ok();
}

std::int64_t MemoryPool::rounded(std::int64_t bytes) {
  return round_up(bytes, bytes < kLargeFrom ? kAlignment : kLargeStep);
}

Result<PoolBlock> MemoryPool::allocate(std::int64_t bytes) {
  if (bytes < 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("cannot allocate ", bytes, " bytes; a size is at least 0")};
  }
  if (bytes > kMaxBytes) {
    return over_budget(bytes, kMaxBytes);
  }
  PoolBlock block;
  if (bytes == 0) {
    return block;
  }
  const std::int64_t size = rounded(bytes);
  const std::scoped_lock lock(mutex_);
  const auto fit = unused_.lower_bound(size);
  if (fit != unused_.end() && fit->first <= 2 * size) {
    block.reserved_bytes_ = fit->first;
    block.data_ = fit->second;
    unused_.erase(fit);
  } else {
    QUIRE_TRY(block.data_, take_new(size));
    block.reserved_bytes_ = size;
  }
  block.pool_ = this;
  block.bytes_ = bytes;
  stats_.used_bytes += block.reserved_bytes_;
  stats_.peak_used_bytes = std::max(stats_.peak_used_bytes, stats_.used_bytes);
  ++stats_.requests;
  return block;
}

Result<std::byte*> MemoryPool::take_new(std::int64_t bytes) {
  auto data = ask_source(bytes);
  if (!data.ok() && data.error().code == ErrorCode::kOutOfBlocks && !unused_.empty()) {
    QUIRE_TRY_STATUS(shrink_locked(0));
    data = ask_source(bytes);
  }
  return data;
}

Result<std::byte*> MemoryPool::ask_source(std::int64_t bytes) {
  if (stats_.driver_allocations >= budget_.allocations) {
    return over_budget(bytes, 0);
  }
  if (bytes > budget_.bytes - stats_.reserved_bytes) {
    return over_budget(bytes, std::max<std::int64_t>(0, budget_.bytes - stats_.reserved_bytes));
  }
  QUIRE_TRY(std::byte* const data, source_->allocate(bytes));
  stats_.reserved_bytes += bytes;
  ++stats_.driver_allocations;
  return data;
}

void MemoryPool::give_back(std::byte* data, std::int64_t reserved_bytes) {
  const std::scoped_lock lock(mutex_);
  unused_.emplace(reserved_bytes, data);
  stats_.used_bytes -= reserved_bytes;
}

Status MemoryPool::shrink(std::int64_t keep_bytes) {
  const std::scoped_lock lock(mutex_);
  return shrink_locked(keep_bytes);
}

Status MemoryPool::shrink_locked(std::int64_t keep_bytes) {
  while (!unused_.empty() && stats_.reserved_bytes > keep_bytes) {
    const auto largest = std::prev(unused_.end());
    QUIRE_TRY_STATUS(source_->release(largest->second, largest->first));
    stats_.reserved_bytes -= largest->first;
    ++stats_.driver_releases;
    unused_.erase(largest);
  }
  return {};
}

void MemoryPool::set_budget(const AllocationBudget& budget) {
  const std::scoped_lock lock(mutex_);
  budget_ = budget;
}

PoolStats MemoryPool::stats() const {
  const std::scoped_lock lock(mutex_);
  return stats_;
}

}  // namespace quire::device

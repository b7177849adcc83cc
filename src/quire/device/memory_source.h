// Where a pool gets its memory: a driver's allocator, or one that a test controls. No CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "quire/result.h"

namespace quire::device {

class MemorySource {
 public:
  MemorySource() = default;
  MemorySource(const MemorySource&) = delete;
  MemorySource& operator=(const MemorySource&) = delete;
  virtual ~MemorySource() = default;

  // Returns memory that is at least 256-byte aligned and uninitialised. kOutOfBlocks with needed
  // and free bytes when there is not enough; kDevice for everything else.
  [[nodiscard]] virtual Result<std::byte*> allocate(std::int64_t bytes) = 0;
  // Gives back `data` and `bytes` as given by allocate. No work on them may be in flight.
  [[nodiscard]] virtual Status release(std::byte* data, std::int64_t bytes) = 0;
};

// How much a pool may take from its source over its whole life (allocations) and at one time
// (bytes). Beyond it allocating fails like a full device, which is how tests make it fail.
struct AllocationBudget {
  std::int64_t bytes = std::numeric_limits<std::int64_t>::max();
  std::int64_t allocations = std::numeric_limits<std::int64_t>::max();
};

}  // namespace quire::device

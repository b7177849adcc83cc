// Keeps memory that was given back for the next user, because asking a driver costs a
// synchronisation of the whole device.
//
// Invariants:
// 1. used <= reserved <= budget; used is the sum of the blocks handed out, each counted as
// reserved.
// 2. A block is reused whole, never split: what is not in use can always be returned to the driver.
// 3. A failed call changes nothing, apart from unused blocks that it returned to the driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "quire/device/memory_source.h"
#include "quire/result.h"

namespace quire::device {

struct PoolStats {
  std::int64_t reserved_bytes = 0;      // held from the source, in use or not
  std::int64_t used_bytes = 0;          // handed out
  std::int64_t peak_used_bytes = 0;     // the most that was ever handed out
  std::int64_t driver_allocations = 0;  // calls of the source that succeeded
  std::int64_t driver_releases = 0;     // blocks returned to it
  std::int64_t requests = 0;            // successful calls of allocate
  friend bool operator==(const PoolStats&, const PoolStats&) = default;
};

class MemoryPool;

// Memory on loan from a pool; gives itself back. Move only. The pool must outlive it.
class PoolBlock {
 public:
  PoolBlock() = default;
  PoolBlock(PoolBlock&& other) noexcept;
  PoolBlock& operator=(PoolBlock&& other) noexcept;
  PoolBlock(const PoolBlock&) = delete;
  PoolBlock& operator=(const PoolBlock&) = delete;
  ~PoolBlock();

  [[nodiscard]] std::byte* data() const { return data_; }
  // Returns the bytes that were asked for, 0 when empty.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  friend class MemoryPool;
  MemoryPool* pool_ = nullptr;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  std::int64_t reserved_bytes_ = 0;
};

// Any thread may call. The pool reuses memory in the order of the calls. So the users of one pool
// work on one stream, or wait for their work before they give a block back.
class MemoryPool {
 public:
  static constexpr std::int64_t kAlignment = 256;
  // From 1 MiB on blocks are whole multiples of what drivers map at once, so that the figures here
  // are the driver's.
  static constexpr std::int64_t kLargeFrom = std::int64_t{1} << 20;
  static constexpr std::int64_t kLargeStep = std::int64_t{2} << 20;

  explicit MemoryPool(std::unique_ptr<MemorySource> source, AllocationBudget budget = {});
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;
  // Returns all memory to the source. Precondition: no block is on loan.
  ~MemoryPool();

  // Returns the smallest unused block of `bytes` to twice that, else a new one. Fails with
  // kInvalidArgument for negative sizes, and with kOutOfBlocks when source or budget are used up
  // even after unused blocks were returned. Zero bytes give an empty block.
  [[nodiscard]] Result<PoolBlock> allocate(std::int64_t bytes);

  // Returns unused blocks to the source, largest first, until at most `keep_bytes` are reserved or
  // only blocks in use are left.
  [[nodiscard]] Status shrink(std::int64_t keep_bytes);

  // Sets the budget from now on. Blocks on loan beyond it stay.
  void set_budget(const AllocationBudget& budget);

  [[nodiscard]] PoolStats stats() const;

  // Returns the bytes that allocate(bytes) takes from the source when nothing fits.
  [[nodiscard]] static std::int64_t rounded(std::int64_t bytes);

 private:
  friend class PoolBlock;
  void give_back(std::byte* data, std::int64_t reserved_bytes);
  // Does the work of shrink(). Call this and the next two with mutex_ held.
  Status shrink_locked(std::int64_t keep_bytes);
  Result<std::byte*> take_new(std::int64_t bytes);
  Result<std::byte*> ask_source(std::int64_t bytes);

  std::unique_ptr<MemorySource> source_;
  mutable std::mutex mutex_;  // guards what follows
  AllocationBudget budget_;
  std::multimap<std::int64_t, std::byte*> unused_;  // by size
  PoolStats stats_;
};

}  // namespace quire::device

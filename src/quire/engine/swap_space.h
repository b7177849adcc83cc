// SwapSpace: KV of preempted requests in host memory, from where it comes back bit for bit. Where
// layers carry a state, the one at the sequence's length is kept with it. Where some layers have a
// window and others none, window parts that the sequence has let go are not kept.
//
// Plain sequences alone are swapped, whose KV is in blocks of the pool's own format. Compositions,
// windows of all layers, states on an accelerator and formats that are written block by block are
// not. On a CPU the pool is in host memory too. A swap is a copy within it, which frees the blocks.
//
// Thread rule: the engine thread.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "quire/base/ids.h"
#include "quire/device/host_buffer.h"
#include "quire/kv/ledger.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/state_pool.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::engine {

class SwapSpace {
 public:
  // Copies the KV of a sequence that is to lose it. Returns how many tokens it has copied; 0 where
  // it cannot, or where the space has no room for it. Never more than the pool's bytes are kept,
  // states included.
  [[nodiscard]] std::int32_t keep(RequestId id, SeqId sequence, const kv::Ledger& ledger,
                                  const kv_store::PagedPool& pool,
                                  const kv_store::StatePool& states);
  // Returns the tokens of the request's KV that is kept; 0 for none.
  [[nodiscard]] std::int32_t kept(RequestId id) const;
  // Returns how many leading blocks of it are kept without their window part.
  [[nodiscard]] std::int32_t without_part(RequestId id) const;
  // Writes the KV of the tokens from `first` on into the sequence's blocks, where there is room for
  // them. Writes the state into the place for the next one. The first block is written as a whole.
  // Blocks that are kept without their window part have none there either. Forgets it all then.
  // Fails only on an accelerator.
  [[nodiscard]] Status restore(RequestId id, SeqId sequence, std::int32_t first, kv::Ledger& ledger,
                               kv_store::PagedPool& pool, kv_store::StatePool& states);
  // Forgets a request that has ended, if its KV is kept.
  void forget(RequestId id);

  // Returns the bytes that keep() would copy of a sequence.
  [[nodiscard]] static std::int64_t bytes_of(SeqId sequence, const kv::Ledger& ledger,
                                             const kv_store::PagedPool& pool,
                                             const kv_store::StatePool& states);
  // Returns the seconds to copy a block, as measured by the last keep(); nullopt before the first.
  [[nodiscard]] std::optional<double> block_seconds() const { return block_seconds_; }
  // Measures them by copying one block to host memory, some times.
  void measure(const kv_store::PagedPool& pool);

 private:
  struct Kept {
    device::HostBuffer bytes;  // [blocks], then the state
    std::int32_t tokens = 0;
    std::int32_t without_part = 0;  // leading blocks of which `bytes` has the full part alone
    std::int64_t state_bytes = 0;
    std::int64_t size = 0;  // bytes of all of it
  };

  std::unordered_map<std::uint64_t, Kept> kept_;
  std::int64_t bytes_ = 0;  // of all of them
  std::optional<double> block_seconds_;
};

}  // namespace quire::engine

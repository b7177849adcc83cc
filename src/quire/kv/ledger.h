// Ledger: owner of who uses which block for which tokens, and of what may be evicted. It knows
// numbers (blocks, tokens), never a tensor. The paged pool (kv_store) holds the bytes.
//
// A ledger is one state with views, each in a header of its own. A plain request needs this
// header and sequences() alone.
//
// Thread rule: one thread, the engine's, owns it. The README has the numbered invariants.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/coalescing.h"
#include "quire/kv/format.h"
#include "quire/kv/lost_bytes.h"
#include "quire/kv/preemption.h"
#include "quire/kv/prefix_cache.h"
#include "quire/kv/restore_points.h"
#include "quire/kv/restored_kv.h"
#include "quire/kv/segments.h"
#include "quire/kv/sequences.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::kv {

struct LedgerState;

class Ledger {
 public:
  // Makes a ledger whose blocks are all free. Precondition: config.validate().ok().
  explicit Ledger(const LedgerConfig& config);
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  [[nodiscard]] const LedgerConfig& config() const;

  // Returns a view. It is valid as long as the ledger.
  [[nodiscard]] Sequences& sequences() { return sequences_; }
  [[nodiscard]] const Sequences& sequences() const { return sequences_; }
  [[nodiscard]] Preemption& preemption() { return preemption_; }
  [[nodiscard]] const Preemption& preemption() const { return preemption_; }
  [[nodiscard]] RestoredKV& restored_kv() { return restored_kv_; }
  [[nodiscard]] RestorePoints& points() { return points_; }
  [[nodiscard]] const RestorePoints& points() const { return points_; }
  [[nodiscard]] Segments& segments() { return segments_; }
  [[nodiscard]] const Segments& segments() const { return segments_; }
  [[nodiscard]] Coalescing& coalescing() { return coalescing_; }
  [[nodiscard]] LostBytes& lost() { return lost_; }
  [[nodiscard]] PrefixCache& cache() { return cache_; }
  [[nodiscard]] const PrefixCache& cache() const { return cache_; }

  // Returns how many blocks Sequences::extend could obtain now: free plus evictable. For another
  // format it returns how many Segments::reserve could obtain, with all slabs that the pool's own
  // format can lend. Cost for other formats than the pool's own: O(all blocks).
  [[nodiscard]] std::int32_t blocks_available(FormatId format = kOwnFormat) const;
  // Returns how many blocks of the pool's own format there are at most: all but those whose slabs
  // stay with open blocks.
  [[nodiscard]] std::int32_t blocks_at_most() const;
  // Returns how many open blocks of LedgerConfig::lent_open_format() can be had without lending a
  // slab. Precondition: there is such a format.
  [[nodiscard]] std::int32_t open_blocks_free() const;
  // Returns how many bytes the pool lacks for so many blocks of each format at once. 0: it has
  // them, and Segments::reserve succeeds. Cost: as blocks_available of each format.
  [[nodiscard]] std::int64_t bytes_lacking(const BlockCounts& wanted) const;
  // Returns the fewest blocks with which a plain sequence of `num_tokens` tokens can be computed,
  // one token at a time. With a window these are the blocks that the window touches.
  [[nodiscard]] std::int64_t min_blocks(std::int64_t num_tokens,
                                        BehindWindow past = BehindWindow::kFrees) const;
  // Returns a handle to the block as it is now; it differs once the block has been free.
  [[nodiscard]] BlockRef current(BlockId id, FormatId format = {}) const;
  // Returns the copies ordered since the last call. The caller makes them in this order before it
  // writes KV. If a copy fails, the caller forgets the cache, since cached KV may be wrong then.
  [[nodiscard]] std::vector<BlockCopy> take_copies();
  // Returns whether some are to be made.
  [[nodiscard]] bool owes_copies() const;

  // Returns the present moment.
  [[nodiscard]] LedgerMark mark() const;
  [[nodiscard]] LedgerCounts counts() const;
  // Returns kInternal that names the first broken invariant (README.md of this module). For tests.
  // Cost: O(all blocks and tokens).
  [[nodiscard]] Status check() const;

 private:
  std::unique_ptr<LedgerState> state_;
  Sequences sequences_;
  Preemption preemption_;
  RestorePoints points_;
  RestoredKV restored_kv_;
  Segments segments_;
  Coalescing coalescing_;
  LostBytes lost_;
  PrefixCache cache_;
};

}  // namespace quire::kv

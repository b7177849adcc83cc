// Coalescing: tails of runs that do not go on share blocks, so that whole blocks become free. A
// view: Ledger::coalescing() lends it.
//
// The tail of a run is its tokens in a last block that is not full. A coalesced one begins at a
// slot of its block behind another's tail. Attention does not read it there, since the bits of a
// row follow from the places of the tokens before it. So Sequences::extend first copies it to the
// beginning of a block of its own, and so does whatever uses a segment. That is a copy on write, as
// of a block that a fork shares.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::kv {

struct LedgerState;

// A tail that moves: `tokens` slots. It is that of a sequence or of a segment; the other id is 0.
struct TailMove {
  SeqId sequence;
  SegmentId segment;
  BlockRef from;
  BlockRef to;
  std::int32_t from_slot = 0;
  std::int32_t to_slot = 0;
  std::int32_t tokens = 0;
};

struct CoalescingPlan {
  std::vector<TailMove> moves;  // each frees its `from`
};

class Coalescing {
 public:
  // Borrows `state`.
  explicit Coalescing(LedgerState& state) : state_(&state) {}

  // Returns moves of tails in the pool's own format that nobody writes and nobody shares. It leaves
  // sequences with room or with reserved blocks, and blocks that the prefix index knows. The
  // fullest blocks stay where they are. Cost: O(sequences * log(sequences)).
  [[nodiscard]] CoalescingPlan plan() const;
  // Returns at most so many moves of tails of these segments, in every format whose rows are
  // stored one by one. It leaves segments that are used or whose last block somebody else holds,
  // and unknown ones. Cost: O(segments * log(segments)).
  [[nodiscard]] CoalescingPlan plan(
      std::span<const SegmentId> segments,
      std::int32_t most_moves = std::numeric_limits<std::int32_t>::max()) const;
  // Makes the moves, which orders copies (Ledger::take_copies). Returns the number of blocks that
  // become free: those of the plan. Precondition (QUIRE_CHECK): the ledger is as it was planned
  // for.
  std::int32_t apply(const CoalescingPlan& plan);

  // Copies the tails of these segments to the beginning of blocks of their own, where they are not
  // there already, and orders copies. Segments does that with whatever it composes, derives or
  // slices. Others who read a segment's blocks call it before. Unknown segments are left out. Fails
  // with kOutOfBlocks and changes nothing then.
  [[nodiscard]] Status take_out(std::span<const SegmentId> segments);
  // Returns whether some segment's tail is not at the beginning of its block.
  [[nodiscard]] bool is_moved(SegmentId segment) const;
  // Returns the bytes of a segment's last block if it is not full and somebody else holds it, too.
  // So much stays in use where the segment is dropped alone.
  [[nodiscard]] std::int64_t shared_bytes(SegmentId segment) const;
  // Returns the segments whose tails the last copies that were taken have moved. Where such a copy
  // fails, their KV is lost.
  [[nodiscard]] std::span<const SegmentId> last_moved() const;

 private:
  void move_sequence(const TailMove& move);
  void move_segment(const TailMove& move);

  LedgerState* state_;
};

}  // namespace quire::kv

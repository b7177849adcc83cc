// LostBytes: blocks whose memory nobody needs. A view: Ledger::lost() lends it.
#pragma once

#include <vector>

#include "quire/base/ids.h"

namespace quire::kv {

struct LedgerState;

class LostBytes {
 public:
  // Borrows `state`.
  explicit LostBytes(LedgerState& state) : state_(&state) {}

  // Blocks in order.
  struct Blocks {
    std::vector<BlockId> windows;  // these have no window part
    std::vector<BlockId> all;      // these have nothing
  };
  // Returns the blocks that have lost bytes since the last call. None where blocks have no window
  // part.
  [[nodiscard]] Blocks take();
  // Returns whether nobody has the block.
  [[nodiscard]] bool is_free(BlockId id) const;
  // Returns whether its window part is there, or its bytes are another format's.
  [[nodiscard]] bool has_window_part(BlockId id) const;

 private:
  LedgerState* state_;
};

}  // namespace quire::kv

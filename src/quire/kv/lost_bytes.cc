#include "quire/kv/lost_bytes.h"

#include <algorithm>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/ledger_state.h"
#include "quire/kv/window_parts.h"

namespace quire::kv {

LostBytes::Blocks LostBytes::take() {
  std::vector<BlockId> lost = state_->shared.parts().take_lost();
  std::ranges::sort(lost, {}, &BlockId::value);
  Blocks blocks;
  for (const BlockId block : lost) {
    if (!has_window_part(block)) {
      blocks.windows.push_back(block);
    }
    if (is_free(block)) {
      blocks.all.push_back(block);
    }
  }
  return blocks;
}

bool LostBytes::is_free(BlockId id) const { return state_->shared.pool().is_free(id); }

bool LostBytes::has_window_part(BlockId id) const {
  const BlockPool& pool = state_->shared.pool();
  return pool.references(id) > 0 ? state_->shared.parts().is_there(id) : !is_free(id);
}

}  // namespace quire::kv

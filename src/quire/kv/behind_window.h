// How much of a run lies behind its model's window, so that no later row sees it.
#pragma once

#include <cstdint>

#include "quire/kv/types.h"

namespace quire::kv {

// Returns how many leading blocks of a run of `num_tokens` tokens no later row sees any more. All
// their tokens are older than num_tokens - window + 1. 0 without a window.
[[nodiscard]] std::int32_t blocks_behind_window(const LedgerConfig& config,
                                                std::int32_t num_tokens);

// Returns how many leading blocks of a run of `num_tokens` tokens no later row sees in layers with
// a window, where others have none. 0 without such layers.
[[nodiscard]] std::int32_t parts_behind_window(const LedgerConfig& config, std::int32_t num_tokens);

// Returns how many blocks of blocks_behind_window() a sequence gives up. Where KV is stored block
// by block, it keeps what the rows of its last full block see. Taking back a token of that block
// computes all of it again.
[[nodiscard]] std::int32_t blocks_to_give_up(const LedgerConfig& config, std::int32_t num_tokens);

// Returns how many window parts of parts_behind_window() a sequence lets go. It keeps what it needs
// to take back its last token.
[[nodiscard]] std::int32_t parts_to_let_go(const LedgerConfig& config, std::int32_t num_tokens);

}  // namespace quire::kv

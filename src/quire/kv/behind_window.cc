#include "quire/kv/behind_window.h"

#include <algorithm>
#include <cstdint>

#include "quire/kv/types.h"

namespace quire::kv {

std::int32_t blocks_behind_window(const LedgerConfig& config, std::int32_t num_tokens) {
  if (config.window_tokens == 0) {
    return 0;
  }
  const std::int32_t first_seen = std::max(0, num_tokens - config.window_tokens + 1);
  return first_seen / config.block_tokens;
}

std::int32_t parts_behind_window(const LedgerConfig& config, std::int32_t num_tokens) {
  const std::int32_t window = config.window_group.tokens;
  return window == 0 ? 0 : std::max(0, num_tokens - window + 1) / config.block_tokens;
}

std::int32_t blocks_to_give_up(const LedgerConfig& config, std::int32_t num_tokens) {
  const std::int32_t kept = config.open_format() ? config.block_tokens : 0;
  return blocks_behind_window(config, std::max(0, num_tokens - kept));
}

std::int32_t parts_to_let_go(const LedgerConfig& config, std::int32_t num_tokens) {
  const std::int32_t kept = config.open_format() ? config.block_tokens : 1;
  return parts_behind_window(config, std::max(0, num_tokens - kept));
}

}  // namespace quire::kv

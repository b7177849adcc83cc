#include "quire/kv/ledger.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/ledger_state.h"
#include "quire/kv/sequence.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::kv {
namespace {

constexpr std::int32_t kMaxBlockTokens = 256;
constexpr std::int64_t kMaxSlots = std::int64_t{1} << 30;  // so that no slot number overflows

std::unique_ptr<LedgerState> make_state(const LedgerConfig& config) {
  QUIRE_CHECK(config.validate().ok(), "the ledger's configuration was not validated");
  return std::make_unique<LedgerState>(config);
}

}  // namespace

Status LedgerConfig::validate() const {
  if (block_tokens < 1 || block_tokens > kMaxBlockTokens) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("block_tokens is ", block_tokens, "; give 1 to ", kMaxBlockTokens)};
  }
  if (num_blocks < 1 || std::int64_t{num_blocks} * block_tokens > kMaxSlots) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("num_blocks is ", num_blocks, "; give 1 to ", kMaxSlots / block_tokens,
                          " blocks of ", block_tokens, " tokens")};
  }
  if (window_tokens < 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("window_tokens is ", window_tokens, "; give 0 (no window) or more")};
  }
  if (extent_blocks < 1) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("extent_blocks is ", extent_blocks, "; give 1 (anywhere) or more")};
  }
  return {};
}

Ledger::Ledger(const LedgerConfig& config)
    : state_(make_state(config)),
      sequences_(*state_),
      preemption_(*state_),
      restored_kv_(*state_),
      segments_(*state_),
      cache_(*state_) {}

Ledger::~Ledger() = default;

const LedgerConfig& Ledger::config() const { return state_->shared.config(); }

std::int32_t Ledger::blocks_available() const { return state_->shared.num_available(); }

std::int64_t Ledger::min_blocks(std::int64_t num_tokens) const {
  const std::int64_t block_tokens = config().block_tokens;
  const std::int64_t whole = (num_tokens + block_tokens - 1) / block_tokens;
  if (config().window_tokens == 0) {
    return whole;
  }
  // Worst alignment: the oldest token that is seen is the last one of its block.
  return std::min(whole, std::int64_t{blocks_for_tokens(config(), config().window_tokens - 1)} + 1);
}

BlockRef Ledger::current(BlockId id) const { return state_->shared.pool().current(id); }

std::vector<BlockCopy> Ledger::take_copies() { return state_->shared.take_copies(); }

LedgerMark Ledger::mark() const { return {state_->last_id}; }

LedgerCounts Ledger::counts() const { return state_->counts(); }

}  // namespace quire::kv

#include "quire/kv/ledger.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger_state.h"
#include "quire/kv/sequence.h"
#include "quire/kv/types.h"

namespace quire::kv {
namespace {

std::unique_ptr<LedgerState> make_state(const LedgerConfig& config) {
  QUIRE_CHECK(config.validate().ok(), "the ledger's configuration was not validated");
  return std::make_unique<LedgerState>(config);
}

}  // namespace

Ledger::Ledger(const LedgerConfig& config)
    : state_(make_state(config)),
      sequences_(*state_),
      preemption_(*state_),
      points_(*state_),
      restored_kv_(*state_),
      segments_(*state_),
      coalescing_(*state_),
      lost_(*state_),
      cache_(*state_) {}

Ledger::~Ledger() = default;

const LedgerConfig& Ledger::config() const { return state_->shared.config(); }

std::int32_t Ledger::blocks_available(FormatId format) const {
  return state_->shared.num_available(format);
}

std::int64_t Ledger::bytes_lacking(const BlockCounts& wanted) const {
  return config().bytes_of(state_->shared.lacking(wanted));
}

std::int32_t Ledger::blocks_at_most() const {
  return config().num_blocks - state_->shared.lent().blocks_kept();
}

std::int32_t Ledger::open_blocks_free() const {
  return state_->shared.pool(config().lent_open_format().value_or(kOwnFormat)).num_free();
}

std::int64_t Ledger::min_blocks(std::int64_t num_tokens, BehindWindow past) const {
  const std::int64_t block_tokens = config().block_tokens;
  const std::int64_t whole = (num_tokens + block_tokens - 1) / block_tokens;
  if (const WindowGroup& group = config().window_group;
      group.tokens > 0 && past == BehindWindow::kFrees) {
    const std::int64_t more = config().open_format() ? 2 : 1;  // parts_to_let_go() keeps one
    const std::int64_t parts = std::min(whole, blocks_for_tokens(config(), group.tokens) + more);
    const std::int64_t bytes = whole * config().full_bytes() + parts * group.block_bytes;
    const std::int64_t block_bytes = config().block_bytes(kOwnFormat);
    return (bytes + block_bytes - 1) / block_bytes;
  }
  if (config().window_tokens == 0 || past == BehindWindow::kKeeps) {
    return whole;
  }
  // Worst alignment: the oldest token that is seen is the last one of its block.
  const std::int64_t more = config().open_format() ? 2 : 1;  // blocks_to_give_up() keeps one
  return std::min(whole, blocks_for_tokens(config(), config().window_tokens - 1) + more);
}

BlockRef Ledger::current(BlockId id, FormatId format) const {
  return state_->shared.pool(format).current(id);
}

std::vector<BlockCopy> Ledger::take_copies() {
  std::vector<BlockCopy> copies = state_->shared.copies().take();
  std::swap(state_->tails_moved, state_->tails_moving);
  state_->tails_moving.clear();
  return copies;
}

bool Ledger::owes_copies() const { return !state_->shared.copies().empty(); }

LedgerMark Ledger::mark() const { return {state_->last_id}; }

LedgerCounts Ledger::counts() const { return state_->counts(); }

}  // namespace quire::kv

#include "quire/chunks/opened_blocks.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/chunks/blend_rows.h"
#include "quire/chunks/recomputed_runs.h"
#include "quire/chunks/stored_again.h"
#include "quire/kernels/kv_codes.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/block_table.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/segment.h"
#include "quire/kv/segments.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::chunks {
namespace {

constexpr std::size_t kOpenBlocks = 64;  // at once, at most

}  // namespace

// Returns whether the token's block is full, and stored as a whole.
bool OpenedBlocks::is_reopened(TokenRef token) const {
  const kv::RunView& run = runs_[static_cast<std::size_t>(token.run)];
  const std::int32_t end = (token.local / block_tokens() + 1) * block_tokens();
  return ledger_.config().formats[run.format.value].open && end <= run.num_tokens;
}

bool OpenedBlocks::same_block(TokenRef a, TokenRef b) const {
  return a.run == b.run && a.local / block_tokens() == b.local / block_tokens();
}

std::size_t OpenedBlocks::tokens_of_pass(std::span<const TokenRef> tokens,
                                         std::int32_t max_rows) const {
  const auto most = static_cast<std::size_t>(max_rows);
  std::size_t count = 0, blocks = 0;
  while (count < tokens.size()) {
    const bool opens = is_reopened(tokens[count]);
    std::size_t end = count + 1;
    while (opens && end < tokens.size() && same_block(tokens[count], tokens[end])) {
      ++end;
    }
    if (end > most || (opens && ++blocks > kOpenBlocks)) {
      return count == 0 ? most : count;
    }
    count = end;
  }
  return count;
}

Result<std::span<const ReopenedBlock>> OpenedBlocks::open(std::span<const TokenRef> pass,
                                                          std::span<const TokenRef> rest) {
  close(true);
  std::vector<StoredAgain> blocks;
  for (const TokenRef token : pass) {
    const bool known = !blocks_.empty() && same_block(last_, token);
    if (!is_reopened(token) || known) {
      continue;
    }
    QUIRE_TRY_STATUS(open_one(token, blocks));
  }
  for (ReopenedBlock& block : blocks_) {
    block.completes = true;
  }
  if (!blocks_.empty()) {
    blocks_.back().completes = rest.empty() || !same_block(last_, rest.front());
  }
  QUIRE_TRY_STATUS(copy_blocks(ledger_, store_.pool));
  kernels::KVErrorSums sums;
  QUIRE_TRY_STATUS(store_again(store_, blocks, sums));
  return std::span<const ReopenedBlock>(blocks_);
}

// Takes an open block, which is to have the KV of the token's block.
Status OpenedBlocks::open_one(TokenRef token, std::vector<StoredAgain>& blocks) {
  const auto run = static_cast<std::size_t>(token.run);
  const std::int32_t index = token.local / block_tokens();
  const std::vector<TokenId> tokens(static_cast<std::size_t>(block_tokens()));
  const auto format = ledger_.config().formats[runs_[run].format.value].open;
  QUIRE_TRY(const kv::SegmentId id,
            ledger_.segments().reserve(tokens, 0, format.value_or(kv::kOwnFormat)));
  segments_.push_back(id);
  const kv::BlockRef block = ledger_.segments().find(id)->blocks().ref(0);
  blocks_.push_back({.run = token.run, .index = index, .block = block, .completes = true});
  last_ = token;
  const RecomputedRuns::Source& source = made_.sources[run];
  const kv::BlockTable& from = ledger_.segments().find(source.segment)->blocks();
  blocks.push_back(
      {.from = from.ref(source.first_block + index), .to = block, .tokens = block_tokens()});
  return {};
}

// Gives the blocks back. With `keeps` one that lacks rows stays.
void OpenedBlocks::close(bool keeps) {
  const bool last = keeps && !blocks_.empty() && !blocks_.back().completes;
  while (segments_.size() > (last ? 1U : 0U)) {
    ledger_.segments().drop(segments_.front());
    segments_.erase(segments_.begin());
    blocks_.erase(blocks_.begin());
  }
}

}  // namespace quire::chunks

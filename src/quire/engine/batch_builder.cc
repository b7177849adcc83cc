#include "quire/engine/batch_builder.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/engine/entry_list.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/model/forward_batch.h"
#include "quire/sched/types.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

constexpr std::size_t kPlaced = ~std::size_t{0};  // instead of a run: it stands in a group

}  // namespace

void BatchBuilder::clear() {
  token_ids_.clear();
  positions_.clear();
  use_positions_.clear();
  entries_.clear();
  sealed_.clear();
  open_rows_.clear();
  open_.clear();
  logit_rows_.clear();
  logit_ranges_.clear();
}

void BatchBuilder::add_run(const sched::ScheduledRun& run, std::span<const TokenId> assumed,
                           const kv::Ledger& ledger) {
  const std::int32_t block_tokens = ledger.config().block_tokens;
  views_.clear();
  ledger.sequences().append_runs(run.sequence, views_);
  kv::RunView& open = views_.back();
  open.num_tokens = run.first;  // the one before may still be on its way, in a step that runs
  const RowRange rows = {.first = static_cast<std::int32_t>(token_ids_.size()),
                         .count = run.count,
                         .position = open.start_position + open.num_tokens};
  const auto all = ledger.sequences().tokens(run.sequence);
  const auto known = all.subspan(std::min(all.size(), static_cast<std::size_t>(run.first)));
  const auto tokens = known.first(std::min(known.size(), static_cast<std::size_t>(run.count)));
  token_ids_.insert(token_ids_.end(), tokens.begin(), tokens.end());
  token_ids_.insert(token_ids_.end(), assumed.begin(), assumed.end());
  token_ids_.resize(static_cast<std::size_t>(rows.first) + static_cast<std::size_t>(rows.count));
  for (std::int32_t local = open.num_tokens; local < open.num_tokens + run.count; ++local) {
    positions_.push_back(local);
    use_positions_.push_back(open.start_position + local);
  }
  slots_.add(open, rows);
  sealed_.add(std::span(views_).first(views_.size() - 1), rows, block_tokens);
  open_.push_back(open);
  open_rows_.push_back(rows);
}

// Returns the first block of a run's canonical piece if all of the piece was computed before this
// step. Returns none if not, or if nothing is to be shared. Runs in other formats than the pool's
// own share nothing, and their numbers of blocks mean other bytes.
BlockId BatchBuilder::shared_block(std::size_t run, std::int32_t piece,
                                   std::int32_t block_tokens) const {
  if (!share_ || open_[run].format != kv::kOwnFormat || shared_tokens_ % block_tokens != 0 ||
      open_[run].num_tokens < (piece + 1) * shared_tokens_) {
    return {};
  }
  const std::int32_t first = piece * (shared_tokens_ / block_tokens);
  return open_[run].blocks[static_cast<std::size_t>(first)];
}

// Returns whether two open runs have the same KV in this canonical piece, in the same blocks.
bool BatchBuilder::share_piece(std::size_t a, std::size_t b, std::int32_t piece,
                               std::int32_t block_tokens) const {
  const BlockId first = shared_block(a, piece, block_tokens);
  if (first.value < 0 || first != shared_block(b, piece, block_tokens) ||
      open_[a].start_position != open_[b].start_position) {
    return false;
  }
  const auto count = static_cast<std::size_t>(shared_tokens_ / block_tokens);
  const std::size_t begin = static_cast<std::size_t>(piece) * count;
  return std::ranges::equal(open_[a].blocks.subspan(begin, count),
                            open_[b].blocks.subspan(begin, count));
}

// Takes those of `range` from the place `lead` on that share the piece with the run there. They
// become a range of their own, behind all others.
BatchBuilder::OpenRange BatchBuilder::take_group(std::size_t lead, OpenRange range,
                                                 std::int32_t piece, std::int32_t block_tokens) {
  const OpenPlace first = open_order_[lead];
  const std::size_t begin = open_order_.size();
  open_order_.push_back(first);
  for (std::size_t i = lead + 1; first.block.value >= 0 && i < range.end; ++i) {
    const OpenPlace other = open_order_[i];
    if (other.block == first.block && other.run != kPlaced &&
        share_piece(first.run, other.run, piece, block_tokens)) {
      open_order_[i].run = kPlaced;
      open_order_.push_back(other);
    }
  }
  return {begin, open_order_.size()};
}

// Adds entries of open runs (ascending) that share everything before `piece`. The pieces that
// several share become one entry with the rows of all, the rest one for each.
void BatchBuilder::add_open(OpenRange range, std::int32_t piece, std::int32_t block_tokens) {
  for (std::size_t i = range.begin; i < range.end; ++i) {
    open_order_[i].block = shared_block(open_order_[i].run, piece, block_tokens);
  }
  for (std::size_t i = range.begin; i < range.end; ++i) {
    const std::size_t lead = open_order_[i].run;
    if (lead == kPlaced) {
      continue;
    }
    const OpenRange group = take_group(i, range, piece, block_tokens);
    if (group.end - group.begin == 1) {
      add_alone(lead, piece * shared_tokens_, block_tokens);
    } else {
      add_shared(group, piece, block_tokens);
    }
    open_order_.resize(group.begin);
  }
}

// Adds the pieces that the runs of a group share from `piece` on, and then those that they do not.
void BatchBuilder::add_shared(OpenRange group, std::int32_t piece, std::int32_t block_tokens) {
  const std::size_t lead = open_order_[group.begin].run;
  const auto all_share = [&](std::int32_t next) {
    for (std::size_t i = group.begin + 1; i < group.end; ++i) {
      if (!share_piece(lead, open_order_[i].run, next, block_tokens)) {
        return false;
      }
    }
    return true;
  };
  std::int32_t end = piece + 1;
  while (all_share(end)) {
    ++end;
  }
  entries_.add(open_[lead], end * shared_tokens_, piece * shared_tokens_);
  for (std::size_t i = group.begin; i < group.end; ++i) {
    entries_.add_rows(open_[lead], open_rows_[open_order_[i].run], true);
  }
  add_open(group, end, block_tokens);
}

// Adds an entry for one open run alone, from `first_token` on.
void BatchBuilder::add_alone(std::size_t run, std::int32_t first_token, std::int32_t block_tokens) {
  const std::int32_t end = open_[run].num_tokens + open_rows_[run].count;
  if (!slots_.opens(open_[run].format)) {
    entries_.add(open_[run], end, first_token);
    entries_.add_rows(open_[run], open_rows_[run], true);
    return;
  }
  const std::int32_t stored = (end - 1) / block_tokens * block_tokens;
  if (stored > first_token) {
    entries_.add(open_[run], stored, first_token);
    entries_.add_rows_behind_blocks(open_[run], open_rows_[run], block_tokens);
  }
}

// Adds the blocks in which rows lie as they were computed. They stand behind all else of a row.
void BatchBuilder::add_own_blocks() {
  for (const RowSlots::OwnBlock& own : slots_.own_blocks()) {
    entries_.add(own.view(), own.num_tokens);
    entries_.add_rows(own.view(), own.rows, true);
  }
}

const model::ForwardBatch& BatchBuilder::build(std::span<const sched::ScheduledRun> runs,
                                               std::span<const std::int32_t> logit_rows,
                                               const kv::Ledger& ledger,
                                               const AssumedRows& assumed) {
  clear();
  slots_.begin(ledger.config());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto first_row = static_cast<std::int32_t>(token_ids_.size());
    const auto first_logit = static_cast<std::int32_t>(logit_rows_.size());
    add_run(runs[i], assumed.tokens.empty() ? std::span<const TokenId>() : assumed.tokens[i],
            ledger);
    if (!assumed.ancestors.empty()) {
      slots_.add_copies(open_.back(), assumed.ancestors[i]);
    }
    for (std::int32_t row = runs[i].count - logit_rows[i]; row < runs[i].count; ++row) {
      logit_rows_.push_back(first_row + row);
    }
    logit_ranges_.push_back({.first = first_logit, .count = logit_rows[i]});
  }
  sealed_.list(share_, entries_);
  open_order_.clear();
  for (std::size_t run = 0; run < open_.size(); ++run) {
    open_order_.push_back({.run = run});
  }
  add_open({0, open_.size()}, 0, ledger.config().block_tokens);
  add_own_blocks();
  batch_ = {.token_ids = token_ids_,
            .positions = positions_,
            .use_positions = use_positions_,
            .slots = slots_.slots(),
            .num_formats = std::max(entries_.num_formats(), slots_.num_formats()),
            .slot_formats = slots_.formats(),
            .kept = slots_.kept(),
            .seals = slots_.seals(),
            .copies = slots_.copies(),
            .entries = entries_.entries(),
            .logit_rows = logit_rows_};
  return batch_;
}

}  // namespace quire::engine

#include "quire/engine/batch_builder.h"

#include <algorithm>

#include "quire/base/check.h"

namespace quire::engine {

void BatchBuilder::clear() {
  token_ids_.clear();
  positions_.clear();
  slots_.clear();
  blocks_.clear();
  rows_.clear();
  spans_.clear();
  entries_.clear();
  logit_rows_.clear();
  logit_ranges_.clear();
}

// An entry over `view`; its rows are added by the caller.
void BatchBuilder::add_entry(const kv::RunView& view, std::int32_t num_tokens) {
  spans_.push_back({blocks_.size(), view.blocks.size(), rows_.size(), 0, num_tokens});
  for (const BlockId block : view.blocks) {
    blocks_.push_back(block.value);
  }
}

void BatchBuilder::add_run(const sched::ScheduledRun& run, const kv::Ledger& ledger) {
  const std::int32_t block_tokens = ledger.config().block_tokens;
  const auto first_row = static_cast<std::int32_t>(token_ids_.size());
  const std::vector<kv::RunView> views = ledger.runs(run.sequence);
  const kv::RunView& open = views.back();
  const std::int32_t first_local = open.num_tokens;
  const auto tokens =
      ledger.tokens(run.sequence)
          .subspan(static_cast<std::size_t>(run.first), static_cast<std::size_t>(run.count));
  token_ids_.insert(token_ids_.end(), tokens.begin(), tokens.end());
  for (std::int32_t i = 0; i < run.count; ++i) {
    const std::int32_t local = first_local + i;
    const BlockId block = open.blocks[static_cast<std::size_t>(local / block_tokens)];
    QUIRE_CHECK(block.value >= 0, "a token to be computed has no block");
    positions_.push_back(local);
    slots_.push_back({.block = block.value, .offset = local % block_tokens});
  }
  for (const kv::RunView& view : views) {  // earlier runs are seen whole, the open one causally
    const bool is_open = &view == &views.back();
    add_entry(view, is_open ? first_local + run.count : view.num_tokens);
    spans_.back().num_rows = static_cast<std::size_t>(run.count);
    for (std::int32_t i = 0; i < run.count; ++i) {
      const std::int32_t local = first_local + i;
      rows_.push_back({.row = first_row + i,
                       .query_position = open.start_position + local - view.start_position,
                       .visible_end = is_open ? local + 1 : view.num_tokens});
    }
  }
}

const model::ForwardBatch& BatchBuilder::build(std::span<const sched::ScheduledRun> runs,
                                               std::span<const LogitRows> logit_rows,
                                               const kv::Ledger& ledger) {
  clear();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto first_row = static_cast<std::int32_t>(token_ids_.size());
    const auto first_logit = static_cast<std::int32_t>(logit_rows_.size());
    add_run(runs[i], ledger);
    const std::int32_t wanted = logit_rows[i] == LogitRows::kAll    ? runs[i].count
                                : logit_rows[i] == LogitRows::kLast ? 1
                                                                    : 0;
    for (std::int32_t row = runs[i].count - wanted; row < runs[i].count; ++row) {
      logit_rows_.push_back(first_row + row);
    }
    logit_ranges_.push_back({.first = first_logit, .count = wanted});
  }
  for (const EntrySpan& span : spans_) {
    entries_.push_back({.blocks = std::span(blocks_).subspan(span.first_block, span.num_blocks),
                        .num_tokens = span.num_tokens,
                        .rows = std::span(rows_).subspan(span.first_row, span.num_rows)});
  }
  batch_ = {.token_ids = token_ids_,
            .positions = positions_,
            .slots = slots_,
            .entries = entries_,
            .logit_rows = logit_rows_};
  return batch_;
}

}  // namespace quire::engine

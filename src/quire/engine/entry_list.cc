#include "quire/engine/entry_list.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>

#include "quire/attention/entry.h"
#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/kv/types.h"

namespace quire::engine {

void EntryList::clear() {
  blocks_.clear();
  rows_.clear();
  spans_.clear();
  num_formats_ = 1;
}

void EntryList::add(const kv::RunView& view, std::int32_t num_tokens, std::int32_t first_token) {
  QUIRE_CHECK(view.format == view.last_format, "a run of several formats has several entries");
  spans_.push_back({.first_block = blocks_.size(),
                    .num_blocks = view.blocks.size(),
                    .first_row = rows_.size(),
                    .num_tokens = num_tokens,
                    .first_token = first_token,
                    .format = view.format,
                    .stored_from = view.stored_from});
  num_formats_ = std::max(num_formats_, static_cast<std::uint8_t>(view.format.value + 1));
  blocks_.resize(blocks_.size() + view.blocks.size());
  std::ranges::transform(view.blocks, blocks_.end() - std::ssize(view.blocks), &BlockId::value);
}

// Adds row `i` of a range.
void EntryList::add_row(const kv::RunView& view, RowRange rows, std::int32_t i,
                        std::int32_t visible_end) {
  rows_.push_back({.row = rows.first + i,
                   .query_position = rows.position + i - view.start_position + view.stored_from,
                   .visible_end = visible_end});
  ++spans_.back().num_rows;
}

void EntryList::add_rows(const kv::RunView& view, RowRange rows, bool causal) {
  for (std::int32_t i = 0; i < rows.count; ++i) {
    const std::int32_t token = rows.position + i - view.start_position;
    add_row(view, rows, i, causal ? token + 1 : view.num_tokens);
  }
}

void EntryList::add_rows_behind_blocks(const kv::RunView& view, RowRange rows,
                                       std::int32_t block_tokens) {
  for (std::int32_t i = 0; i < rows.count; ++i) {
    const std::int32_t token = rows.position + i - view.start_position;
    const std::int32_t block = token / block_tokens * block_tokens;
    if (block > spans_.back().first_token) {
      add_row(view, rows, i, block);
    }
  }
}

std::span<const attention::Entry> EntryList::entries() {
  entries_.clear();
  for (const Span& span : spans_) {
    entries_.push_back({.blocks = std::span(blocks_).subspan(span.first_block, span.num_blocks),
                        .num_tokens = span.num_tokens,
                        .rows = std::span(rows_).subspan(span.first_row, span.num_rows),
                        .first_token = span.first_token,
                        .format = span.format.value,
                        .stored_from = span.stored_from});
  }
  return entries_;
}

}  // namespace quire::engine

#include "quire/chunks/blend_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "quire/attention/entry.h"
#include "quire/base/ids.h"
#include "quire/kv/format.h"
#include "quire/kv/types.h"
#include "quire/model/forward_batch.h"
#include "quire/types.h"

namespace quire::chunks {

// Notes that the batch names a format.
void BlendRows::name(kv::FormatId format) {
  formats_ = std::max(formats_, static_cast<std::uint8_t>(format.value + 1));
}

const ReopenedBlock* BlendRows::reopened(TokenRef token) const {
  const auto found = std::ranges::find_if(reopened_, [&](const ReopenedBlock& block) {
    return block.run == token.run && block.index == token.local / block_tokens_;
  });
  return found == reopened_.end() ? nullptr : &*found;
}

void BlendRows::add(TokenId id, TokenRef token) {
  const kv::RunView& run = run_of(token);
  const auto index = static_cast<std::size_t>(token.local / block_tokens_);
  const ReopenedBlock* const open = reopened(token);
  kv::FormatId format = index + 1 == run.blocks.size() ? run.last_format : run.format;
  BlockId block = run.blocks[index];
  if (open != nullptr) {
    format = open->block.format();
    block = open->block.id;
  }
  ids_.push_back(id);
  tokens_.push_back(token);
  positions_.push_back(run.stored_from + token.local);
  use_positions_.push_back(run.start_position + token.local);
  slots_.push_back({.block = block.value, .offset = token.local % block_tokens_});
  slot_formats_.push_back(format.value);
  name(format);
}

std::int32_t BlendRows::visible_end(TokenRef row, std::int32_t run, const RunPart& part) const {
  if (row.run != run) {
    return row.run < run ? 0 : part.tokens;
  }
  const std::int32_t end =
      reopened(row) != nullptr ? row.local / block_tokens_ * block_tokens_ : row.local + 1;
  return std::clamp(end - part.first, 0, part.tokens);
}

// Adds an entry of all rows that see some of a part.
void BlendRows::add_part(std::int32_t run, const RunPart& part) {
  const kv::RunView& view = runs_[static_cast<std::size_t>(run)];
  std::vector<attention::EntryRow> rows;
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    if (const std::int32_t end = visible_end(tokens_[i], run, part); end > 0) {
      rows.push_back({.row = static_cast<std::int32_t>(i),
                      .query_position = query_position(i, view),
                      .visible_end = end});
    }
  }
  if (rows.empty()) {
    return;
  }
  auto& blocks = entry_blocks_.emplace_back();
  std::ranges::transform(part.blocks, std::back_inserter(blocks), &BlockId::value);
  entries_.push_back({.blocks = blocks,
                      .num_tokens = part.tokens,
                      .rows = entry_rows_.emplace_back(std::move(rows)),
                      .format = part.format.value,
                      .stored_from = view.stored_from + part.first});
  covered_.push_back({.run = run, .first = part.first, .count = part.tokens});
  name(part.format);
}

// Adds the parts of a run. Its own rows may be the first of its tokens.
void BlendRows::add_run(std::int32_t run) {
  const kv::RunView& view = runs_[static_cast<std::size_t>(run)];
  std::int32_t tokens = view.num_tokens;
  for (const TokenRef token : tokens_) {
    tokens = token.run == run ? std::max(tokens, token.local + 1) : tokens;
  }
  const bool differs = !view.blocks.empty() && view.format != view.last_format;
  const std::size_t alike = view.blocks.size() - (differs ? 1 : 0);
  const std::int32_t first = static_cast<std::int32_t>(alike) * block_tokens_;
  add_part(run, {.blocks = view.blocks.first(alike),
                 .format = view.format,
                 .tokens = std::min(tokens, first)});
  if (differs) {
    add_part(run, {.blocks = view.blocks.last(1),
                   .format = view.last_format,
                   .first = first,
                   .tokens = tokens - first});
  }
}

// Adds an entry of the rows that lie in a reopened block, and its seal.
void BlendRows::add_reopened(const ReopenedBlock& block) {
  const kv::RunView& run = runs_[static_cast<std::size_t>(block.run)];
  const std::int32_t first = block.index * block_tokens_;
  auto& rows = entry_rows_.emplace_back();
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    if (reopened(tokens_[i]) == &block) {
      rows.push_back({.row = static_cast<std::int32_t>(i),
                      .query_position = query_position(i, run),
                      .visible_end = tokens_[i].local - first + 1});
    }
  }
  if (rows.empty()) {
    return;
  }
  entries_.push_back({.blocks = entry_blocks_.emplace_back(1, block.block.id.value),
                      .num_tokens = block_tokens_,
                      .rows = rows,
                      .format = block.block.format().value,
                      .stored_from = run.stored_from + first});
  covered_.push_back({.run = block.run, .first = first, .count = block_tokens_});
  if (block.completes) {
    seals_.push_back({.from_format = block.block.format().value,
                      .to_format = run.format.value,
                      .from = block.block.id.value,
                      .to = run.blocks[static_cast<std::size_t>(block.index)].value,
                      .last_row = rows.back().row});
    name(run.format);
  }
}

model::ForwardBatch& BlendRows::build() {
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    add_run(static_cast<std::int32_t>(run));
  }
  std::ranges::for_each(reopened_, [&](const ReopenedBlock& block) { add_reopened(block); });
  batch_ = {.token_ids = ids_,
            .positions = positions_,
            .use_positions = use_positions_,
            .slots = slots_,
            .num_formats = formats_,
            .slot_formats = slot_formats_,
            .seals = seals_,
            .entries = entries_};
  return batch_;
}

}  // namespace quire::chunks

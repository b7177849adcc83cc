#include "quire/engine/sealed_uses.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>

#include "quire/engine/entry_list.h"
#include "quire/kv/types.h"

namespace quire::engine {
namespace {

// Tells whether two views are of one run, with one rank. Rows of one entry stand in one order, so a
// run at two ranks is read for each.
bool same_run(const kv::RunView& a, const kv::RunView& b) {
  return a.num_tokens == b.num_tokens && a.rank == b.rank && a.format == b.format &&
         std::ranges::equal(a.blocks, b.blocks);
}

// Returns the key by which a row's sealed runs are merged. No two of one row have the same rank,
// tokens and occurrence, so where blocks lie decides only which rows of several requests stand
// together.
auto merge_key(const kv::RunView& view, std::int32_t occurrence) {
  return std::tuple(view.rank, view.num_tokens, occurrence, view.blocks.front());
}

}  // namespace

// Adds a sealed run of a sequence whose runs begin at `first`.
void SealedUses::add_run(const kv::RunView& view, RowRange rows, std::size_t first) {
  const auto alike = [&](const Use& use) {
    return use.view.rank == view.rank && use.view.num_tokens == view.num_tokens;
  };
  const auto occurrence =
      std::count_if(uses_.begin() + static_cast<std::ptrdiff_t>(first), uses_.end(), alike);
  uses_.push_back(
      {.view = view, .occurrence = static_cast<std::int32_t>(occurrence), .rows = rows});
}

// Adds the sealed runs of a sequence. A run whose last block has another format is two runs, since
// an entry has one.
void SealedUses::add(std::span<const kv::RunView> views, RowRange rows, std::int32_t block_tokens) {
  const std::size_t first = uses_.size();
  for (const kv::RunView& view : views) {
    if (view.format == view.last_format) {
      add_run(view, rows, first);
      continue;
    }
    const std::size_t full = view.blocks.size() - 1;
    const std::int32_t full_tokens = static_cast<std::int32_t>(full) * block_tokens;
    kv::RunView part = view;
    part.blocks = view.blocks.first(full);
    part.num_tokens = full_tokens;
    part.last_format = view.format;
    add_run(part, rows, first);
    part.blocks = view.blocks.subspan(full);
    part.num_tokens = view.num_tokens - full_tokens;
    part.start_position = view.start_position + full_tokens;
    part.stored_from = view.stored_from + full_tokens;
    part.format = part.last_format = view.last_format;
    add_run(part, rows, first);
  }
}

// Makes one entry for each run in use, whoever uses it.
void SealedUses::list(bool share, EntryList& entries) {
  std::ranges::sort(uses_, {}, [](const Use& use) {
    return std::pair(merge_key(use.view, use.occurrence), use.rows.first);
  });
  const Use* previous = nullptr;
  for (const Use& use : uses_) {
    if (!share || previous == nullptr || previous->occurrence != use.occurrence ||
        !same_run(previous->view, use.view)) {
      entries.add(use.view, use.view.num_tokens);
    }
    entries.add_rows(use.view, use.rows, false);
    previous = &use;
  }
}

}  // namespace quire::engine

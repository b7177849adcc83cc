// The entries of a batch: runs of blocks, each with the rows that see it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/attention/entry.h"
#include "quire/kv/format.h"
#include "quire/kv/types.h"

namespace quire::engine {

// Consecutive rows of a batch.
struct RowRange {
  std::int32_t first = 0;
  std::int32_t count = 0;
  std::int32_t position = 0;  // use position of the first one
};

// Keeps its arrays between batches, so that a steady batch allocates nothing.
class EntryList {
 public:
  void clear();
  // Adds an entry over the first `num_tokens` tokens of a run. Its rows see nothing before
  // `first_token`, and are added next.
  void add(const kv::RunView& view, std::int32_t num_tokens, std::int32_t first_token = 0);
  // Adds rows of the last entry. They see all of the run, or, as tokens of the run, all that is not
  // behind them.
  void add_rows(const kv::RunView& view, RowRange rows, bool causal);
  // Adds rows of the last entry that are tokens of the run. They see its blocks before their own.
  // Rows that see nothing of the entry are left out.
  void add_rows_behind_blocks(const kv::RunView& view, RowRange rows, std::int32_t block_tokens);

  // Returns all entries. Valid until the next change.
  [[nodiscard]] std::span<const attention::Entry> entries();
  // Returns how many formats the entries name: one more than the last.
  [[nodiscard]] std::uint8_t num_formats() const { return num_formats_; }

 private:
  struct Span {
    std::size_t first_block = 0, num_blocks = 0, first_row = 0, num_rows = 0;
    std::int32_t num_tokens = 0;
    std::int32_t first_token = 0;
    kv::FormatId format;
    std::int32_t stored_from = 0;
  };

  void add_row(const kv::RunView& view, RowRange rows, std::int32_t i, std::int32_t visible_end);

  std::vector<std::int32_t> blocks_;
  std::vector<attention::EntryRow> rows_;
  std::vector<Span> spans_;
  std::vector<attention::Entry> entries_;
  std::uint8_t num_formats_ = 1;
};

}  // namespace quire::engine

// BlendRows: tokens of a composition's runs as a batch of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "quire/attention/entry.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/format.h"
#include "quire/kv/types.h"
#include "quire/model/forward_batch.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/types.h"

namespace quire::chunks {

// One token of a composition: which run it stands in, and where.
struct TokenRef {
  std::int32_t run = 0;
  std::int32_t local = 0;
};

// A block of a run whose format is written block by block. Its rows that are computed again go to
// an open block, which has the others already, and from there to the run's.
struct ReopenedBlock {
  std::int32_t run = 0;
  std::int32_t index = 0;  // of the block in its run
  kv::BlockRef block;      // the open one
  bool completes = false;  // true: no later batch has a row of it
};

// Borrows the runs and the reopened blocks.
class BlendRows {
 public:
  BlendRows(std::span<const kv::RunView> runs, std::span<const ReopenedBlock> reopened,
            std::int32_t block_tokens)
      : runs_(runs), reopened_(reopened), block_tokens_(block_tokens) {}

  // Adds a row. Rows must ascend by run and token.
  void add(TokenId id, TokenRef token);

  // Builds the batch. A row sees all runs before its own, and its own up to itself. Where its block
  // was reopened, it sees that block as it was computed, and those before it as they are stored.
  model::ForwardBatch& build();
  // Returns the views that the batch names among those of all formats. After build().
  [[nodiscard]] std::span<const tensor::PagedKVView> views(std::span<const tensor::PagedKVView> all,
                                                           int layers) const {
    return all.first(static_cast<std::size_t>(layers) * formats_);
  }

  // Tokens of a run that an entry covers.
  struct Covered {
    std::int32_t run = 0;
    std::int32_t first = 0, count = 0;
  };
  // Returns what the entries of the batch cover. After build().
  [[nodiscard]] std::span<const Covered> covered() const { return covered_; }

  [[nodiscard]] std::size_t size() const { return ids_.size(); }

 private:
  // Blocks of a run that have one format.
  struct RunPart {
    std::span<const BlockId> blocks;
    kv::FormatId format;
    std::int32_t first = 0, tokens = 0;
  };

  [[nodiscard]] const ReopenedBlock* reopened(TokenRef token) const;
  [[nodiscard]] const kv::RunView& run_of(TokenRef token) const {
    return runs_[static_cast<std::size_t>(token.run)];
  }
  // Returns how many tokens of a part a row sees.
  [[nodiscard]] std::int32_t visible_end(TokenRef row, std::int32_t run, const RunPart& part) const;
  // Returns the position at which a row asks for keys of a run.
  [[nodiscard]] std::int32_t query_position(std::size_t row, const kv::RunView& run) const {
    return use_positions_[row] - run.start_position + run.stored_from;
  }
  void name(kv::FormatId format);
  void add_run(std::int32_t run);
  void add_part(std::int32_t run, const RunPart& part);
  void add_reopened(const ReopenedBlock& block);

  std::span<const kv::RunView> runs_;
  std::span<const ReopenedBlock> reopened_;
  std::int32_t block_tokens_;
  std::vector<TokenId> ids_;
  std::vector<TokenRef> tokens_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> use_positions_;
  std::vector<tensor::KVSlot> slots_;
  std::vector<std::uint8_t> slot_formats_;
  std::uint8_t formats_ = 1;  // named by slots, entries and seals
  std::deque<std::vector<attention::EntryRow>> entry_rows_;
  std::deque<std::vector<std::int32_t>> entry_blocks_;
  std::vector<attention::Entry> entries_;
  std::vector<Covered> covered_;
  std::vector<model::BlockSeal> seals_;
  model::ForwardBatch batch_;
};

}  // namespace quire::chunks

// Step 4 of a request's way: scheduled runs to the flat arrays that the model reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/attention/tile.h"
#include "quire/base/ids.h"
#include "quire/engine/entry_list.h"
#include "quire/engine/row_slots.h"
#include "quire/engine/sealed_uses.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/model/forward_batch.h"
#include "quire/sched/types.h"

namespace quire::engine {

// The place of a run's logits in the batch's result.
struct LogitRange {
  std::int32_t first = 0;
  std::int32_t count = 0;
};

// Rows whose tokens the ledger does not know. Views, each empty or [runs].
struct AssumedRows {
  // Tokens behind those that the ledger knows.
  std::span<const std::span<const TokenId>> tokens = {};
  // Rows of other runs that are the last tokens before a run's own, whose KV it needs in its
  // blocks.
  std::span<const std::span<const std::int32_t>> ancestors = {};
};

// Makes every sealed run (a segment in use) one entry with the rows of all sequences that see it.
// Does the same with every stretch of whole canonical pieces that open runs have in common. The
// step reads it once whoever shares it with whom (cascade attention of any number of levels).
// Entries stand in an order that only depends on the runs, so a row's result does not depend on who
// else is in the batch.
//
// Where the pool's own format is written block by block, a row sees earlier blocks as they are
// stored. It sees its own block as it was computed (row_slots.h).
//
// Keeps its arrays between steps, so that a steady batch allocates nothing.
class BatchBuilder {
 public:
  // Makes a builder. Without `share`, each use gets an entry, for comparison. Open runs share
  // multiples of `shared_tokens`, itself a multiple of kPieceTokens, so that no row's bits tell who
  // shares.
  explicit BatchBuilder(bool share = true, std::int32_t shared_tokens = attention::kPieceTokens)
      : share_(share), shared_tokens_(shared_tokens) {}

  // Builds a batch. The last `logit_rows[i]` rows of run i have their logits computed. A token that
  // neither the ledger nor `assumed` knows is 0. The batch borrows from this object and is valid
  // until the next call. Cost: O(rows + blocks of the sequences).
  [[nodiscard]] const model::ForwardBatch& build(std::span<const sched::ScheduledRun> runs,
                                                 std::span<const std::int32_t> logit_rows,
                                                 const kv::Ledger& ledger,
                                                 const AssumedRows& assumed = {});

  // Returns the ranges of logits [runs] of the last build.
  [[nodiscard]] std::span<const LogitRange> logit_ranges() const { return logit_ranges_; }

 private:
  void clear();
  void add_run(const sched::ScheduledRun& run, std::span<const TokenId> assumed,
               const kv::Ledger& ledger);
  [[nodiscard]] bool share_piece(std::size_t a, std::size_t b, std::int32_t piece,
                                 std::int32_t block_tokens) const;
  // Open runs [begin, end) of open_order_.
  struct OpenRange {
    std::size_t begin = 0, end = 0;
  };
  [[nodiscard]] BlockId shared_block(std::size_t run, std::int32_t piece,
                                     std::int32_t block_tokens) const;
  [[nodiscard]] OpenRange take_group(std::size_t lead, OpenRange range, std::int32_t piece,
                                     std::int32_t block_tokens);
  void add_open(OpenRange range, std::int32_t piece, std::int32_t block_tokens);
  void add_shared(OpenRange group, std::int32_t piece, std::int32_t block_tokens);
  void add_alone(std::size_t run, std::int32_t first_token, std::int32_t block_tokens);
  void add_own_blocks();

  bool share_;
  std::int32_t shared_tokens_;
  std::vector<TokenId> token_ids_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> use_positions_;
  RowSlots slots_;
  EntryList entries_;
  SealedUses sealed_;
  std::vector<RowRange> open_rows_;  // [runs]
  std::vector<kv::RunView> open_;    // [runs]
  std::vector<kv::RunView> views_;   // views of the run that is being added
  struct OpenPlace {
    std::size_t run = 0;
    BlockId block;  // shared_block of the piece in hand
  };
  std::vector<OpenPlace> open_order_;  // all runs, and behind them groups of them
  std::vector<std::int32_t> logit_rows_;
  std::vector<LogitRange> logit_ranges_;
  model::ForwardBatch batch_;
};

}  // namespace quire::engine

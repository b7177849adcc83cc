// OpenedBlocks: blocks whose rows are computed again where KV is stored block by block. Each is
// opened for a pass, and stored as a whole when its last row is there.
//
// Thread rule: the engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/chunks/blend_rows.h"
#include "quire/chunks/recomputed_runs.h"
#include "quire/chunks/stored_again.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::chunks {

class OpenedBlocks {
 public:
  // Borrows all but `store`. `runs` are those of `made`.
  OpenedBlocks(kv::Ledger& ledger, const StoreContext& store, const RecomputedRuns& made,
               std::span<const kv::RunView> runs)
      : ledger_(ledger), store_(store), made_(made), runs_(runs) {}
  ~OpenedBlocks() { close(false); }
  OpenedBlocks(const OpenedBlocks&) = delete;
  OpenedBlocks& operator=(const OpenedBlocks&) = delete;

  // Returns how many of the tokens the next pass computes. It ends where a block does, unless one
  // block has more of them than there are rows. Precondition: there are tokens and rows.
  [[nodiscard]] std::size_t tokens_of_pass(std::span<const TokenRef> tokens,
                                           std::int32_t max_rows) const;

  // Opens the blocks of a pass, and closes those of the pass before. `rest` is computed later.
  // Fails with kOutOfBlocks and as store_again() does. Valid until the next call.
  [[nodiscard]] Result<std::span<const ReopenedBlock>> open(std::span<const TokenRef> pass,
                                                            std::span<const TokenRef> rest);

 private:
  [[nodiscard]] std::int32_t block_tokens() const { return ledger_.config().block_tokens; }
  [[nodiscard]] bool is_reopened(TokenRef token) const;
  [[nodiscard]] bool same_block(TokenRef a, TokenRef b) const;
  [[nodiscard]] Status open_one(TokenRef token, std::vector<StoredAgain>& blocks);
  void close(bool keeps);

  kv::Ledger& ledger_;
  const StoreContext store_;
  const RecomputedRuns& made_;
  std::span<const kv::RunView> runs_;
  std::vector<kv::SegmentId> segments_;  // of one block each
  std::vector<ReopenedBlock> blocks_;
  TokenRef last_;  // of the last block
};

}  // namespace quire::chunks

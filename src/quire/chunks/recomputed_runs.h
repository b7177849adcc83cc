// RecomputedRuns: the segments of a composition in which chosen tokens may be stored once more.
//
// Thread rule: the engine thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quire/chunks/blend_rows.h"
#include "quire/chunks/stored_again.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::chunks {

// MergeRank::variant of a composition's first own run: beyond all distances from an anchor.
inline constexpr std::uint32_t kOwnVariants = std::uint32_t{1} << 31;

struct RecomputedRuns {
  std::vector<kv::SegmentUse> uses;  // of the whole composition
  std::vector<kv::SegmentId> own;    // segments that were made for it
  std::vector<TokenRef> tokens;      // the chosen tokens, as tokens of `uses`
  // Where the KV of a use comes from: a segment, and its block that is the first one here.
  struct Source {
    kv::SegmentId segment;
    std::int32_t first_block = 0;
  };
  std::vector<Source> sources;  // [uses]
};

// Makes the segments for the chosen `tokens` (ascending) of a composition's runs, which are `uses`.
// Blocks without a chosen token stay as they are and are shared. The others become blocks of the
// request's own in the pool's own format, each stretch of them a run. Their other tokens have the
// KV that they had. Blocks that are written as a whole hold nothing yet.
// Fails with kOutOfBlocks and as store_again() does, and drops what it has made. The caller drops
// `own`.
[[nodiscard]] Result<RecomputedRuns> recomputed_runs(kv::Ledger& ledger, const StoreContext& store,
                                                     std::span<const kv::SegmentUse> uses,
                                                     std::span<const TokenRef> tokens);

// Makes the copies that the ledger has ordered.
[[nodiscard]] Status copy_blocks(kv::Ledger& ledger, kv_store::PagedPool& pool);

}  // namespace quire::chunks

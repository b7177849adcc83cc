#include "quire/chunks/recomputed_runs.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "quire/chunks/blend_rows.h"
#include "quire/chunks/stored_again.h"
#include "quire/kernels/kv_codes.h"
#include "quire/kv/block_table.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/segment.h"
#include "quire/kv/segments.h"
#include "quire/kv/types.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::chunks {
namespace {

class Splitter {
 public:
  Splitter(kv::Ledger& ledger, const StoreContext& store)
      : ledger_(ledger),
        store_(store),
        block_tokens_(ledger.config().block_tokens),
        by_block_(ledger.config().open_format().has_value()) {}

  Result<RecomputedRuns> run(std::span<const kv::SegmentUse> uses,
                             std::span<const TokenRef> tokens) {
    Status status = add_all(uses, tokens);
    // Orders must not outlive this call.
    const Status copied = copy_blocks(ledger_, store_.pool);
    status = status.ok() ? copied : status;
    if (status.ok()) {
      kernels::KVErrorSums sums;
      status = store_again(store_, blocks_, sums);
    }
    if (!status.ok()) {
      for (const kv::SegmentId own : made_.own) {
        ledger_.segments().drop(own);
      }
      return status.error();
    }
    return std::move(made_);
  }

 private:
  Status add_all(std::span<const kv::SegmentUse> uses, std::span<const TokenRef> tokens) {
    auto next = tokens.begin();
    for (std::size_t run = 0; run < uses.size(); ++run) {
      chosen_.clear();
      for (; next != tokens.end() && std::cmp_equal(next->run, run); ++next) {
        chosen_.push_back(next->local);
      }
      if (chosen_.empty()) {
        add_use(uses[run], uses[run].segment, 0);
      } else if (is_stored_in_place(uses[run].segment)) {
        QUIRE_TRY_STATUS(add_derived(uses[run]));
      } else {
        QUIRE_TRY_STATUS(add_stretches(uses[run]));
      }
    }
    return {};
  }

  void add_use(kv::SegmentUse use, kv::SegmentId source, std::int32_t first_block) {
    made_.uses.push_back(use);
    made_.sources.push_back({.segment = source, .first_block = first_block});
  }

  void own(kv::SegmentUse& use) {
    use.rank.variant = kOwnVariants + static_cast<std::uint32_t>(made_.uses.size());
    made_.own.push_back(use.segment);
  }

  // Returns whether single tokens of the blocks may be written, in the pool's own format.
  [[nodiscard]] bool is_stored_in_place(kv::SegmentId id) const {
    const kv::BlockTable& blocks = ledger_.segments().find(id)->blocks();
    return !by_block_ && std::ranges::all_of(chosen_, [&](std::int32_t token) {
      return blocks.ref(token / block_tokens_).format() == kv::kOwnFormat;
    });
  }

  Status add_derived(kv::SegmentUse use) {
    const kv::SegmentId source = use.segment;
    QUIRE_TRY(use.segment, ledger_.segments().derive(source, chosen_));
    own(use);
    for (const std::int32_t token : chosen_) {
      made_.tokens.push_back({static_cast<std::int32_t>(made_.uses.size()), token});
    }
    add_use(use, source, 0);
    return {};
  }

  [[nodiscard]] bool touches(std::int32_t block) const {
    const auto first = std::ranges::lower_bound(chosen_, block * block_tokens_);
    return first != chosen_.end() && *first < (block + 1) * block_tokens_;
  }

  // Adds the blocks of a segment: stretches that are shared, and stretches of own ones.
  Status add_stretches(const kv::SegmentUse& use) {
    const std::int32_t blocks = ledger_.segments().num_blocks(use.segment);
    for (std::int32_t first = 0; first < blocks;) {
      std::int32_t end = first + 1;
      while (end < blocks && touches(end) == touches(first)) {
        ++end;
      }
      QUIRE_TRY_STATUS(add_stretch(use, first, end));
      first = end;
    }
    return {};
  }

  Status add_stretch(kv::SegmentUse use, std::int32_t first_block, std::int32_t end_block) {
    kv::Segments& segments = ledger_.segments();
    const kv::SegmentId source = use.segment;
    const kv::Segment& base = *segments.find(source);
    const std::int32_t first = first_block * block_tokens_;
    const std::int32_t count = std::min(end_block * block_tokens_, base.num_tokens()) - first;
    use.position += first;
    if (!touches(first_block)) {
      QUIRE_TRY(use.segment, segments.slice(source, first, count));
      made_.own.push_back(use.segment);
      add_use(use, source, first_block);
      return {};
    }
    const std::span<const TokenId> tokens =
        base.tokens().subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
    QUIRE_TRY(use.segment,
              segments.reserve({tokens.begin(), tokens.end()}, base.stored_from() + first));
    own(use);
    for (const std::int32_t token : chosen_) {
      if (token >= first && token < first + count) {
        made_.tokens.push_back({static_cast<std::int32_t>(made_.uses.size()), token - first});
      }
    }
    keep_others(base, *segments.find(use.segment), first_block);
    add_use(use, source, first_block);
    return {};
  }

  // Notes the blocks whose other tokens keep their KV. Blocks that are written as a whole get it
  // when they are complete.
  void keep_others(const kv::Segment& base, const kv::Segment& own, std::int32_t first_block) {
    for (std::int32_t i = 0; i < own.blocks().size(); ++i) {
      const std::int32_t first = (first_block + i) * block_tokens_;
      const std::int32_t tokens = std::min(block_tokens_, base.num_tokens() - first);
      const auto chosen = std::ranges::lower_bound(chosen_, first + tokens) -
                          std::ranges::lower_bound(chosen_, first);
      if (chosen < tokens && !(by_block_ && tokens == block_tokens_)) {
        blocks_.push_back({.from = base.blocks().ref(first_block + i),
                           .to = own.blocks().ref(i),
                           .tokens = tokens});
      }
    }
  }

  kv::Ledger& ledger_;
  const StoreContext& store_;
  const std::int32_t block_tokens_;
  const bool by_block_;               // the pool's own format is written block by block
  std::vector<std::int32_t> chosen_;  // of the run in hand
  std::vector<StoredAgain> blocks_;
  RecomputedRuns made_;
};

}  // namespace

Result<RecomputedRuns> recomputed_runs(kv::Ledger& ledger, const StoreContext& store,
                                       std::span<const kv::SegmentUse> uses,
                                       std::span<const TokenRef> tokens) {
  return Splitter(ledger, store).run(uses, tokens);
}

Status copy_blocks(kv::Ledger& ledger, kv_store::PagedPool& pool) {
  Status status;
  for (const kv::BlockCopy& copy : ledger.take_copies()) {
    if (const Status copied = pool.copy(copy); !copied.ok()) {
      status = copied;
    }
  }
  if (!status.ok()) {
    (void)ledger.cache().clear();  // some of it was to be moved
  }
  return status;
}

}  // namespace quire::chunks

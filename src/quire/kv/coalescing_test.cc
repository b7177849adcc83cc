// Tails of sequences that stand still move together. The KV of a token is its number; each slot of
// a pool of numbers holds one.
#include "quire/kv/coalescing.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/ledger.h"
#include "quire/kv/test_support.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

class Rows {
 public:
  explicit Rows(const LedgerConfig& config)
      : ledger(config),
        block_tokens_(config.block_tokens),
        slots_(static_cast<std::size_t>(config.num_blocks * config.block_tokens)) {}

  SeqId open() { return ledger.sequences().open({}, false); }

  // Appends `count` rows with new numbers. False where the ledger has no room.
  bool append(SeqId id, std::int32_t count) {
    if (!ledger.sequences().extend(id, count).ok()) {
      return false;
    }
    copy_blocks();
    const RunView run = ledger.sequences().runs(id).back();
    EXPECT_EQ(run.tail_slot, 0) << "a run that goes on begins its blocks";
    for (std::int32_t i = 0; i < count; ++i) {
      const TokenId number = ++last_number_;
      ledger.sequences().append(id, number);
      slot(run, run.num_tokens + i) = number;
    }
    ledger.sequences().advance(id, count);
    return true;
  }

  // Returns the rows of a sequence, as they lie in the pool.
  [[nodiscard]] Tokens look_up(SeqId id) {
    const RunView run = ledger.sequences().runs(id).back();
    Tokens rows;
    for (std::int32_t i = 0; i < run.num_tokens; ++i) {
      rows.push_back(slot(run, i));
    }
    return rows;
  }

  [[nodiscard]] Tokens rows_of(SeqId id) const {
    const auto tokens = ledger.sequences().tokens(id);
    return {tokens.begin(), tokens.begin() + ledger.sequences().num_computed(id)};
  }

  std::int32_t coalesce() {
    const std::int32_t freed = ledger.coalescing().apply(ledger.coalescing().plan());
    copy_blocks();
    return freed;
  }

  void copy_blocks() {
    for (const BlockCopy& copy : ledger.take_copies()) {
      for (std::int32_t i = 0; i < copy.tokens; ++i) {
        at(copy.to, copy.to_slot + i) = at(copy.from, copy.from_slot + i);
      }
    }
  }

  Ledger ledger;

 private:
  TokenId& at(BlockId block, std::int32_t slot) {
    return slots_[static_cast<std::size_t>(block.value * block_tokens_ + slot)];
  }
  TokenId& slot(const RunView& run, std::int32_t row) {
    const std::int32_t block = row / block_tokens_;
    const bool last = block + 1 == static_cast<std::int32_t>(run.blocks.size());
    return at(run.blocks[static_cast<std::size_t>(block)],
              row % block_tokens_ + (last ? run.tail_slot : 0));
  }

  std::int32_t block_tokens_;
  Tokens slots_;
  TokenId last_number_ = 0;
};

TEST(Coalescing, TailsOfSequencesThatStandStillShareBlocks) {
  Rows rows({.num_blocks = 20, .block_tokens = 8, .prefix_cache = false});
  std::vector<SeqId> ids;
  for (const std::int32_t length : {3, 10, 5, 8, 6, 1}) {
    ids.push_back(rows.open());
    ASSERT_TRUE(rows.append(ids.back(), length));
  }
  const CoalescingPlan plan = rows.ledger.coalescing().plan();
  EXPECT_EQ(plan.moves.size(), 2U) << "tails of 6 and 2, of 5 and 3; one of 1 finds no room";
  const std::int32_t free = rows.ledger.counts().blocks_free;
  EXPECT_EQ(rows.coalesce(), 2);
  EXPECT_EQ(rows.ledger.counts().blocks_free, free + 2);
  expect_consistent(rows.ledger);
  for (const SeqId id : ids) {
    EXPECT_EQ(rows.look_up(id), rows.rows_of(id));
  }
  EXPECT_EQ(rows.coalesce(), 0);
}

TEST(Coalescing, ASequenceThatGoesOnTakesItsTailOutAgain) {
  Rows rows({.num_blocks = 4, .block_tokens = 8, .prefix_cache = false});
  const SeqId a = rows.open(), b = rows.open();
  ASSERT_TRUE(rows.append(a, 5));
  ASSERT_TRUE(rows.append(b, 3));
  ASSERT_EQ(rows.coalesce(), 1);
  EXPECT_EQ(rows.ledger.sequences().runs(b).back().tail_slot, 5);
  EXPECT_FALSE(rows.ledger.segments().seal(b).ok());
  ASSERT_TRUE(rows.ledger.sequences().extend(b, 0).ok());
  rows.copy_blocks();
  EXPECT_EQ(rows.ledger.sequences().runs(b).back().tail_slot, 0);
  EXPECT_EQ(rows.look_up(b), rows.rows_of(b));
  ASSERT_EQ(rows.coalesce(), 1);
  ASSERT_TRUE(rows.append(b, 1));
  ASSERT_TRUE(rows.append(a, 1));
  expect_consistent(rows.ledger);
  EXPECT_EQ(rows.ledger.counts().blocks_in_use, 2);
  EXPECT_EQ(rows.look_up(a), rows.rows_of(a));
  EXPECT_EQ(rows.look_up(b), rows.rows_of(b));
}

TEST(Coalescing, LeavesWhatIsWrittenSharedOrReserved) {
  Rows rows({.num_blocks = 12, .block_tokens = 8, .prefix_cache = false});
  const SeqId written = rows.open(), forked = rows.open(), reserved = rows.open();
  for (const SeqId id : {written, forked, reserved}) {
    ASSERT_TRUE(rows.append(id, 2));
  }
  ASSERT_TRUE(rows.ledger.sequences().extend(written, 2).ok());
  const SeqId fork = rows.ledger.sequences().fork(forked);
  ASSERT_TRUE(rows.ledger.sequences().reserve(reserved, 9).ok());
  EXPECT_TRUE(rows.ledger.coalescing().plan().moves.empty());
  rows.ledger.sequences().close(fork);
  const SeqId other = rows.open();
  ASSERT_TRUE(rows.append(other, 1));
  EXPECT_EQ(rows.coalesce(), 1);
}

TEST(Coalescing, RandomSequencesLookUpTheirRowsAndThePlanCountsWhatIsFreed) {
  std::int32_t all_freed = 0;
  for (std::uint32_t seed = 0; seed < 24; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](std::uint32_t bound) {
      return static_cast<std::int32_t>(random() % bound);
    };
    Rows rows({.num_blocks = 24,
               .block_tokens = 1 + static_cast<std::int32_t>(seed % 9),
               .prefix_cache = seed % 2 == 0});
    std::map<SeqId, int> held;
    for (int step = 0; step < 300; ++step) {
      const int kind = below(10);
      if (held.empty() || (kind == 0 && held.size() < 12)) {
        held.emplace(rows.open(), 0);
      }
      const SeqId id =
          std::next(held.begin(), below(static_cast<std::uint32_t>(held.size())))->first;
      if (kind < 5) {
        (void)rows.append(id, below(12));
      } else if (kind == 5) {
        held.emplace(rows.ledger.sequences().fork(id), 0);
      } else if (kind == 6) {
        const auto length = static_cast<std::uint32_t>(rows.rows_of(id).size());
        ASSERT_TRUE(rows.ledger.sequences().rollback(id, below(length + 1)).ok());
      } else if (kind == 7) {
        rows.ledger.sequences().close(id);
        held.erase(id);
      } else {
        const std::int32_t available = rows.ledger.blocks_available();
        const std::int32_t freed = rows.coalesce();
        ASSERT_EQ(rows.ledger.blocks_available(), available + freed);
        all_freed += freed;
      }
      expect_consistent(rows.ledger);
      for (const auto& [sequence, unused] : held) {
        ASSERT_EQ(rows.look_up(sequence), rows.rows_of(sequence)) << "seed " << seed;
      }
      ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed << " step " << step;
    }
  }
  EXPECT_GT(all_freed, 200);
}

}  // namespace
}  // namespace quire::kv

// Tails of sequences and segments that rest move together. The KV of a token is its number; each
// slot of a pool of numbers holds one.
#include "quire/kv/coalescing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/segment.h"
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

// Segments in a pool of three formats, and the numbers that their slots hold.
class Tails {
 public:
  explicit Tails(std::int32_t num_blocks) : ledger(mixed_formats(num_blocks)) {}

  // Returns a segment with new numbers; nothing where there is no room.
  std::optional<SegmentId> add(std::int32_t tokens, FormatId format) {
    const auto made = ledger.segments().reserve(tokens_of(tokens, last_number_ + 1), 0, format);
    if (!made.ok()) {
      return std::nullopt;
    }
    copy_blocks();
    last_number_ += tokens;
    const Segment& segment = *ledger.segments().find(*made);
    for (std::int32_t i = 0; i < tokens; ++i) {
      at(segment.blocks().ref(i / kTokens), i % kTokens) =
          segment.tokens()[static_cast<std::size_t>(i)];
    }
    return *made;
  }

  // Expects that the segment's slots hold its numbers.
  void expect_rows(SegmentId id) {
    const Segment& segment = *ledger.segments().find(id);
    for (std::int32_t i = 0; i < segment.num_tokens(); ++i) {
      const bool last = i / kTokens + 1 == segment.blocks().size();
      ASSERT_EQ(
          at(segment.blocks().ref(i / kTokens), i % kTokens + (last ? segment.tail_slot() : 0)),
          segment.tokens()[static_cast<std::size_t>(i)]);
    }
  }

  std::int32_t coalesce(const std::vector<SegmentId>& ids, std::int32_t most = 1000) {
    const std::int32_t freed = ledger.coalescing().apply(ledger.coalescing().plan(ids, most));
    copy_blocks();
    return freed;
  }

  void copy_blocks() {
    for (const BlockCopy& copy : ledger.take_copies()) {
      for (std::int32_t i = 0; i < copy.tokens; ++i) {
        slots_[{copy.format.value, copy.to.value, copy.to_slot + i}] =
            slots_[{copy.format.value, copy.from.value, copy.from_slot + i}];
      }
    }
  }

  static constexpr std::int32_t kTokens = 4;
  Ledger ledger;

 private:
  TokenId& at(BlockRef block, std::int32_t slot) {
    return slots_[{block.format().value, block.id.value, slot}];
  }

  std::map<std::tuple<std::uint8_t, std::int32_t, std::int32_t>, TokenId> slots_;
  TokenId last_number_ = 0;
};

TEST(CoalescedSegments, ShareLastBlocksUntilTheyAreUsed) {
  Tails tails(20);
  const SegmentId a = *tails.add(7, kOwnFormat), b = *tails.add(5, kOwnFormat);
  const std::int32_t free = tails.ledger.counts().blocks_free;
  EXPECT_EQ(tails.coalesce({a, b}), 1);
  EXPECT_EQ(tails.ledger.counts().blocks_free, free + 1);
  EXPECT_EQ(tails.ledger.segments().find(b)->tail_slot(), 3);
  EXPECT_EQ(tails.ledger.coalescing().shared_bytes(a), 100);
  const SegmentUse uses[] = {{.segment = a}, {.segment = b, .position = 7}};
  const SeqId sequence = tails.ledger.segments().compose(uses).value();
  tails.copy_blocks();
  EXPECT_THAT(tails.ledger.coalescing().last_moved(), testing::ElementsAre(b));
  EXPECT_EQ(tails.ledger.segments().find(b)->tail_slot(), 0) << "attention reads it from slot 0 on";
  EXPECT_EQ(tails.ledger.counts().blocks_free, free);
  EXPECT_EQ(tails.coalesce({a, b}), 0) << "they are in use";
  tails.ledger.sequences().close(sequence);
  EXPECT_EQ(tails.coalesce({a, b}, 0), 0) << "no move is allowed";
  EXPECT_EQ(tails.coalesce({a, b}), 1);
  expect_consistent(tails.ledger);
  EXPECT_TRUE(tails.ledger.segments().drop(a));
  tails.expect_rows(b);
}

TEST(CoalescedSegments, AreRefusedWithoutABlockToBeReadIn) {
  Tails tails(3);
  const SegmentId a = *tails.add(3, kOwnFormat), b = *tails.add(1, kOwnFormat);
  ASSERT_EQ(tails.coalesce({a, b}), 1);
  ASSERT_TRUE(tails.add(8, kOwnFormat).has_value());
  const SegmentUse use{.segment = b};
  EXPECT_EQ(tails.ledger.segments().compose({&use, 1}).error().code, ErrorCode::kOutOfBlocks);
  EXPECT_EQ(tails.ledger.segments().derive(b, {}).error().code, ErrorCode::kOutOfBlocks);
  EXPECT_EQ(tails.ledger.segments().slice(b, 0, 1).error().code, ErrorCode::kOutOfBlocks);
  const SegmentUse other{.segment = a};
  EXPECT_TRUE(tails.ledger.segments().compose({&other, 1}).ok()) << "it begins the block";
  expect_consistent(tails.ledger);
  tails.expect_rows(a);
  tails.expect_rows(b);
}

TEST(CoalescedSegments, OfRandomOperationsHoldTheirRowsAndThePlanCountsWhatIsFreed) {
  std::int32_t all_freed = 0, taken_out = 0;
  for (std::uint32_t seed = 0; seed < 24; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](std::size_t bound) {
      return static_cast<std::int32_t>(random() % bound);
    };
    Tails tails(40);
    std::vector<SegmentId> held;
    std::vector<SeqId> users;
    for (int step = 0; step < 300; ++step) {
      const int kind = below(10);
      const auto any = static_cast<std::size_t>(below(held.size() + 1));
      if (kind < 3 || any == held.size()) {
        if (const auto made =
                tails.add(1 + below(11), FormatId{static_cast<std::uint8_t>(below(3))})) {
          held.push_back(*made);
        }
      } else if (kind == 3) {
        EXPECT_TRUE(tails.ledger.segments().drop(held[any]));
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(any));
      } else if (kind < 6) {
        const bool moved = tails.ledger.coalescing().is_moved(held[any]);
        const SegmentUse use{.segment = held[any]};
        if (const auto user = tails.ledger.segments().compose({&use, 1}); user.ok()) {
          users.push_back(*user);
          taken_out += moved ? 1 : 0;
          EXPECT_FALSE(tails.ledger.coalescing().is_moved(held[any]));
        }
      } else if (kind == 6 && !users.empty()) {
        tails.ledger.sequences().close(users.back());
        users.pop_back();
      } else if (kind == 7) {
        if (const auto made = tails.ledger.segments().derive(held[any], {}); made.ok()) {
          held.push_back(*made);
        }
      } else {
        const std::int64_t bytes = tails.ledger.counts().bytes_in_use;
        const CoalescingPlan plan = tails.ledger.coalescing().plan(held, 1 + below(4));
        std::int64_t expected = 0;
        for (const TailMove& move : plan.moves) {
          expected += tails.ledger.config().block_bytes(move.from.format());
        }
        all_freed += tails.ledger.coalescing().apply(plan);
        EXPECT_EQ(tails.ledger.counts().bytes_in_use, bytes - expected);
      }
      tails.copy_blocks();
      expect_consistent(tails.ledger);
      for (const SegmentId id : held) {
        tails.expect_rows(id);
      }
      ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed << " step " << step;
    }
  }
  EXPECT_GT(all_freed, 200);
  EXPECT_GT(taken_out, 100);
}

}  // namespace
}  // namespace quire::kv

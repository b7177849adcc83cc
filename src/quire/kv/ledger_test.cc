#include "quire/kv/ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/test_support.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

TEST(LedgerConfig, NumbersOutOfRangeAreRefused) {
  EXPECT_TRUE((LedgerConfig{.num_blocks = 1, .block_tokens = 256}.validate().ok()));
  for (const LedgerConfig& config :
       {LedgerConfig{.num_blocks = 0}, LedgerConfig{.num_blocks = -1},
        LedgerConfig{.num_blocks = 1, .block_tokens = 0},
        LedgerConfig{.num_blocks = 1, .block_tokens = 257},
        LedgerConfig{.num_blocks = 1, .window_tokens = -1},
        LedgerConfig{.num_blocks = std::numeric_limits<std::int32_t>::max()}}) {
    EXPECT_EQ(config.validate().error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(Ledger, OpenAllocatesNothing) {
  Ledger ledger({.num_blocks = 4, .block_tokens = 4});
  const SeqId id = ledger.sequences().open(tokens_of(9), true);
  EXPECT_EQ(ledger.counts().blocks_free, 4);
  EXPECT_EQ(ledger.sequences().num_computed(id), 0);
  EXPECT_EQ(ledger.sequences().tokens(id).size(), 9U);
  EXPECT_EQ(ledger.sequences().runs(id).size(), 1U);
  EXPECT_TRUE(ledger.sequences().runs(id).back().blocks.empty());
}

TEST(Ledger, BlocksNeededAtOneLessExactlyAndOneMoreThanABlock) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  const SeqId id = ledger.sequences().open(tokens_of(9), true);
  EXPECT_EQ(ledger.sequences().needs(id, 0).own, 0);
  EXPECT_EQ(ledger.sequences().needs(id, 3).own, 1);
  EXPECT_EQ(ledger.sequences().needs(id, 4).own, 1);
  EXPECT_EQ(ledger.sequences().needs(id, 5).own, 2);
  compute(ledger, id, 3);
  EXPECT_EQ(ledger.sequences().needs(id, 1).own, 0);
  EXPECT_EQ(ledger.sequences().needs(id, 2).own, 1);
}

TEST(Ledger, ExtendTwiceReservesOnce) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  const SeqId id = ledger.sequences().open(tokens_of(9), true);
  ASSERT_TRUE(ledger.sequences().extend(id, 5).ok());
  ASSERT_TRUE(ledger.sequences().extend(id, 5).ok());
  ASSERT_TRUE(ledger.sequences().extend(id, 2).ok());
  EXPECT_EQ(ledger.sequences().num_blocks_held(id), 2);
  expect_consistent(ledger);
}

TEST(Ledger, PlainSequenceIsOneRunAtPositionZeroOverConsecutiveBlocks) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  const SeqId first = computed(ledger, tokens_of(8));
  const SeqId second = computed(ledger, tokens_of(12));
  const std::vector<RunView> runs = ledger.sequences().runs(second);
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].num_tokens, 12);
  EXPECT_EQ(runs[0].start_position, 0);
  EXPECT_EQ(block_ids(ledger, first), (Ids{0, 1}));
  EXPECT_EQ(block_ids(ledger, second), (Ids{0, 1, 2}));
}

TEST(Ledger, ClosedSequenceIsFoundAgainUpToTheLastToken) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  ledger.sequences().close(computed(ledger, tokens_of(10)));
  EXPECT_EQ(ledger.counts().blocks_cached, 2) << "the partly filled block is free";
  EXPECT_EQ(ledger.cache().match(tokens_of(10)), 8);
  EXPECT_EQ(ledger.cache().match(tokens_of(9)), 8);
  EXPECT_EQ(ledger.cache().match(tokens_of(8)), 4) << "the last token is always computed";
  EXPECT_EQ(ledger.cache().match(tokens_of(4)), 0);
  EXPECT_EQ(ledger.cache().match({}), 0);
  EXPECT_EQ(ledger.cache().match(tokens_of(10, 1)), 0);
}

TEST(Ledger, RunningSequenceSharesItsFullBlocks) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  const SeqId first = computed(ledger, tokens_of(9));
  const PrefixMatch match = ledger.cache().probe(tokens_of(9));
  EXPECT_EQ(match.tokens, 8);
  EXPECT_EQ(match.blocks, 2);
  EXPECT_EQ(match.evictable_blocks, 0);
  const SeqId second = ledger.sequences().open(tokens_of(9), true);
  EXPECT_EQ(ledger.sequences().num_computed(second), 8);
  EXPECT_EQ(ledger.counts().tokens_reused, 8);
  EXPECT_EQ(ledger.counts().blocks_in_use, 3);
  ledger.sequences().close(first);
  expect_consistent(ledger);
}

TEST(Ledger, ProbeTellsWhatAttachingTakesFromTheAvailable) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  ledger.sequences().close(computed(ledger, tokens_of(8)));
  EXPECT_EQ(ledger.blocks_available(), 8);
  EXPECT_EQ(ledger.cache().probe(tokens_of(9)).evictable_blocks, 2);
  (void)ledger.sequences().open(tokens_of(9), true);
  EXPECT_EQ(ledger.blocks_available(), 6);
}

TEST(Ledger, SecondComputationOfABlockGivesItsOwnBack) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  const SeqId first = ledger.sequences().open(tokens_of(8), true);
  const SeqId second = ledger.sequences().open(tokens_of(8), true);
  compute(ledger, first, 6);
  compute(ledger, second, 6);
  EXPECT_EQ(ledger.counts().blocks_in_use, 3) << "one shared, one partly filled each";
  EXPECT_EQ(block_ids(ledger, first)[0], block_ids(ledger, second)[0]);
  EXPECT_NE(block_ids(ledger, first)[1], block_ids(ledger, second)[1]);
  expect_consistent(ledger);
}

TEST(Ledger, WithoutReuseBlocksOfOthersAreNeverUsed) {
  Ledger ledger({.num_blocks = 16, .block_tokens = 4});
  const SeqId first = computed(ledger, tokens_of(12));
  const SeqId cold = computed(ledger, tokens_of(12), false);
  for (const std::int32_t block : block_ids(ledger, cold)) {
    EXPECT_FALSE(std::ranges::count(block_ids(ledger, first), block));
  }
  ledger.preemption().drop_kv(cold);
  EXPECT_EQ(ledger.preemption().reattach(cold), 0);
  expect_consistent(ledger);
}

TEST(Ledger, WithoutPrefixCacheNothingIsFoundAndAllBlocksReturn) {
  Ledger ledger({.num_blocks = 4, .block_tokens = 4, .prefix_cache = false});
  ledger.sequences().close(computed(ledger, tokens_of(8)));
  EXPECT_EQ(ledger.cache().match(tokens_of(9)), 0);
  EXPECT_EQ(ledger.counts().blocks_free, 4);
}

TEST(Ledger, EvictionIsLeastRecentlyUsedAndFromTheEndOfAPath) {
  Ledger ledger({.num_blocks = 4, .block_tokens = 2});
  ledger.sequences().close(computed(ledger, tokens_of(4)));
  ledger.sequences().close(computed(ledger, tokens_of(4, 50)));
  EXPECT_EQ(ledger.counts().blocks_cached, 4);
  ledger.sequences().close(
      ledger.sequences().open(tokens_of(5), true));  // the older one is used again
  const SeqId id = computed(ledger, tokens_of(2, 90));
  EXPECT_EQ(ledger.counts().evictions, 1);
  EXPECT_EQ(ledger.cache().match(tokens_of(5)), 4);
  EXPECT_EQ(ledger.cache().match(tokens_of(5, 50)), 2);
  ledger.sequences().close(id);
}

TEST(Ledger, OutOfBlocksLeavesTheStateUnchangedAndTellsTheNumbers) {
  Ledger ledger({.num_blocks = 4, .block_tokens = 2});
  const SeqId held = computed(ledger, tokens_of(5));
  const SeqId id = ledger.sequences().open(tokens_of(4, 50), true);
  const Status status = ledger.sequences().extend(id, 4);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kOutOfBlocks);
  EXPECT_EQ(status.error().message,
            "cannot make room for 4 tokens: needs 2 blocks, 1 free and 0 evictable of 4; close "
            "sequences or raise kv_budget");
  EXPECT_EQ(ledger.sequences().num_blocks_held(id), 0);
  EXPECT_EQ(ledger.counts().blocks_free, 1);
  EXPECT_TRUE(ledger.take_copies().empty());
  ledger.sequences().close(held);
  EXPECT_TRUE(ledger.sequences().extend(id, 4).ok());
}

TEST(Ledger, ForkSharesTheOpenBlockUntilOneOfThemWrites) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  const SeqId first = computed(ledger, tokens_of(6));
  const SeqId second = ledger.sequences().fork(first);
  EXPECT_EQ(ledger.counts().blocks_in_use, 2);
  EXPECT_EQ(block_ids(ledger, second), block_ids(ledger, first));
  ledger.sequences().append(first, 100);
  ledger.sequences().append(second, 200);
  EXPECT_EQ(ledger.sequences().needs(second, 1).own, 1);
  const std::int32_t open_block = block_ids(ledger, first)[1];
  compute(ledger, second, 1);
  const std::vector<BlockCopy> copies = ledger.take_copies();
  ASSERT_EQ(copies.size(), 1U);
  EXPECT_EQ(copies[0].from.value, open_block);
  EXPECT_EQ(copies[0].to.value, block_ids(ledger, second)[1]);
  EXPECT_EQ(copies[0].tokens, 2);
  EXPECT_TRUE(ledger.take_copies().empty());
  EXPECT_EQ(ledger.sequences().needs(first, 1).own, 0) << "it has the block to itself again";
  compute(ledger, first, 1);
  EXPECT_TRUE(ledger.take_copies().empty());
  EXPECT_EQ(ledger.sequences().tokens(first).back(), 100);
  EXPECT_EQ(ledger.sequences().tokens(second).back(), 200);
  expect_consistent(ledger);
}

TEST(Ledger, ForkAtABlockBorderCopiesNothing) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  const SeqId first = computed(ledger, tokens_of(8));
  const SeqId second = ledger.sequences().fork(first);
  ledger.sequences().append(second, 5);
  compute(ledger, second, 1);
  EXPECT_TRUE(ledger.take_copies().empty());
  EXPECT_EQ(ledger.counts().blocks_in_use, 3);
}

TEST(Ledger, RoomStaysWithTheOriginalOfAFork) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  const SeqId first = computed(ledger, tokens_of(3));
  ledger.sequences().append(first, 7);
  ASSERT_TRUE(ledger.sequences().extend(first, 1).ok());
  const SeqId second = ledger.sequences().fork(first);
  EXPECT_EQ(ledger.sequences().needs(first, 1).own, 0);
  EXPECT_EQ(ledger.sequences().needs(second, 1).own, 1);
  ledger.sequences().advance(first, 1);
  expect_consistent(ledger);
}

TEST(Ledger, ForksExchangeTheBlocksThatTheyWrite) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  kv::Sequences sequences = ledger.sequences();
  const SeqId first = computed(ledger, tokens_of(6));
  sequences.append(first, 6);
  ASSERT_TRUE(sequences.extend(first, 3).ok());
  const SeqId second = sequences.fork(first);
  ASSERT_TRUE(sequences.extend(second, 2).ok());
  EXPECT_EQ(ledger.take_copies().size(), 1U) << "of the block that both would write";
  const Ids own = block_ids(ledger, first);
  const Ids other = block_ids(ledger, second);
  sequences.exchange_kv(first, second);
  EXPECT_EQ(block_ids(ledger, first), other);
  EXPECT_EQ(block_ids(ledger, second), own);
  sequences.close(second);
  sequences.append(first, 7);
  sequences.advance(first, 2);
  expect_consistent(ledger);
  EXPECT_EQ(ledger.counts().blocks_in_use, 2);
  sequences.close(first);
  const SeqId later = sequences.open(tokens_of(9), true);
  EXPECT_EQ(block_ids(ledger, later), other) << "what it wrote is found";
}

TEST(Ledger, RollbackReturnsBlocksAndKeepsThePrefix) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  const SeqId id = computed(ledger, tokens_of(14));
  ASSERT_TRUE(ledger.sequences().rollback(id, 5).ok());
  EXPECT_EQ(ledger.sequences().num_computed(id), 5);
  EXPECT_EQ(ledger.sequences().tokens(id).size(), 5U);
  EXPECT_EQ(ledger.sequences().num_blocks_held(id), 2);
  EXPECT_EQ(ledger.counts().blocks_cached, 1) << "the third block stays findable";
  expect_consistent(ledger);
}

TEST(Ledger, WritingAfterARollbackIntoAFindableBlockCopiesIt) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  const SeqId id = computed(ledger, tokens_of(8));
  ASSERT_TRUE(ledger.sequences().rollback(id, 6).ok());
  ledger.sequences().append(id, 77);
  compute(ledger, id, 1);
  ASSERT_EQ(ledger.take_copies().size(), 1U);
  EXPECT_EQ(ledger.cache().match(tokens_of(9)), 8) << "the cached block still holds what it held";
  expect_consistent(ledger);
}

TEST(Ledger, RollbackBehindTheLengthCutsOnlyTokens) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  const SeqId id = ledger.sequences().open(tokens_of(9), true);
  compute(ledger, id, 4);
  ASSERT_TRUE(ledger.sequences().rollback(id, 6).ok());
  EXPECT_EQ(ledger.sequences().num_computed(id), 4);
  EXPECT_EQ(ledger.sequences().tokens(id).size(), 6U);
  EXPECT_EQ(ledger.sequences().rollback(id, 7).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(ledger.sequences().rollback(id, -1).error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(ledger.sequences().rollback(id, 0).ok());
  EXPECT_EQ(ledger.sequences().num_blocks_held(id), 0);
}

TEST(Ledger, DroppedKvIsFoundAgainByReattach) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  const SeqId id = computed(ledger, tokens_of(11));
  const std::array ids = {id};
  EXPECT_EQ(ledger.preemption().blocks_freed_by_drop(ids), 3);
  ledger.preemption().drop_kv(id);
  EXPECT_EQ(ledger.sequences().num_computed(id), 0);
  EXPECT_EQ(ledger.sequences().tokens(id).size(), 11U);
  EXPECT_EQ(ledger.blocks_available(), 8);
  EXPECT_EQ(ledger.preemption().reattach(id), 8);
  EXPECT_EQ(ledger.preemption().reattach(id), 0) << "it has KV already";
  expect_consistent(ledger);
}

TEST(Ledger, BlocksSharedByTwoAreFreedOnlyIfBothDrop) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  const SeqId first = computed(ledger, tokens_of(10));
  const SeqId second = ledger.sequences().fork(first);
  EXPECT_EQ(ledger.preemption().blocks_freed_by_drop(std::array{first}), 0);
  EXPECT_EQ(ledger.preemption().blocks_freed_by_drop(std::array{first, second}), 3);
  EXPECT_EQ(ledger.preemption().blocks_freed_by_drop({}), 0);
}

// Opens a sequence that frees KV behind a window.
SeqId freeing(Ledger& ledger, const std::vector<TokenId>& tokens) {
  return ledger.sequences().open(tokens, true, {}, {}, BehindWindow::kFrees);
}

TEST(Ledger, BlocksBehindTheWindowAreFreed) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4, .window_tokens = 6, .prefix_cache = false});
  const SeqId id = freeing(ledger, tokens_of(30));
  compute(ledger, id, 8);
  EXPECT_EQ(block_ids(ledger, id), (Ids{0, 1})) << "the row at 8 sees 3 to 8";
  compute(ledger, id, 1);
  EXPECT_EQ(block_ids(ledger, id), (Ids{-1, 1, 2})) << "the row at 9 sees 4 to 9";
  EXPECT_EQ(ledger.sequences().num_blocks_held(id), 2);
  EXPECT_EQ(ledger.sequences().runs(id).back().num_tokens, 9);
  compute(ledger, id, 21);
  EXPECT_EQ(ledger.sequences().num_blocks_held(id), 2);
  EXPECT_EQ(ledger.counts().blocks_free, 6);
  expect_consistent(ledger);
}

TEST(Ledger, WindowedHitHoldsOnlyWhatTheNextRowSees) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4, .window_tokens = 6});
  ledger.sequences().close(computed(ledger, tokens_of(16), true, BehindWindow::kFrees));
  const PrefixMatch match = ledger.cache().probe(tokens_of(17), "", BehindWindow::kFrees);
  EXPECT_EQ(match.tokens, 16);
  EXPECT_EQ(match.blocks, 2);
  EXPECT_EQ(match.evictable_blocks, 2);
  const SeqId id = freeing(ledger, tokens_of(17));
  EXPECT_EQ(ledger.sequences().num_computed(id), 16);
  EXPECT_EQ(ledger.sequences().num_blocks_held(id), 2);
  EXPECT_EQ(block_ids(ledger, id)[0], -1);
  expect_consistent(ledger);
}

// KV that a user composes later is all kept, and blocks of others are adopted as they are.
TEST(Ledger, ASequenceThatKeepsItsKvCanBeSealedBehindAWindow) {
  Ledger ledger({.num_blocks = 12, .block_tokens = 4, .window_tokens = 6});
  ledger.sequences().close(computed(ledger, tokens_of(12), true, BehindWindow::kFrees));
  const SeqId keeps = ledger.sequences().open(tokens_of(21), true);
  EXPECT_EQ(ledger.sequences().num_blocks_held(keeps), 3) << "what is cached";
  compute(ledger, keeps, 9);
  EXPECT_EQ(ledger.sequences().num_blocks_held(keeps), 6);
  EXPECT_EQ(ledger.min_blocks(21, BehindWindow::kKeeps), 6);
  const Result<SegmentId> segment = ledger.segments().seal(keeps);
  ASSERT_TRUE(segment.ok()) << segment.error().message;
  expect_consistent(ledger);
  const SeqId fork = ledger.sequences().fork(keeps);
  EXPECT_TRUE(ledger.sequences().set_behind_window(fork, BehindWindow::kFrees));
  EXPECT_EQ(ledger.sequences().num_blocks_held(fork), 2);
  EXPECT_FALSE(ledger.sequences().set_behind_window(fork, BehindWindow::kKeeps)) << "it is gone";
  expect_consistent(ledger);
}

TEST(Ledger, RollbackToWhereTheWindowHasFreedIsRefused) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4, .window_tokens = 6, .prefix_cache = false});
  const SeqId id = computed(ledger, tokens_of(9), true, BehindWindow::kFrees);
  const Status status = ledger.sequences().rollback(id, 8);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(ledger.sequences().num_computed(id), 9);
  EXPECT_TRUE(ledger.sequences().rollback(id, 9).ok());
  EXPECT_TRUE(ledger.sequences().rollback(id, 0).ok()) << "nothing of it is needed";
}

// A saved sequence whose window has freed what comes first is stored so.
TEST(Ledger, StoredKvBeginsBehindTheBlocksThatTheWindowHasFreed) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4, .window_tokens = 6});
  const SeqId id = freeing(ledger, tokens_of(30));
  ledger.restored_kv().begin_behind_window(id, 17);
  EXPECT_EQ(ledger.sequences().num_computed(id), 12) << "the row at 17 sees 12 to 17";
  EXPECT_EQ(ledger.sequences().needs(id, 5).own, 2);
  ASSERT_TRUE(ledger.sequences().extend(id, 5).ok());
  expect_consistent(ledger);
  ledger.sequences().advance(id, 5);
  EXPECT_EQ(block_ids(ledger, id), (Ids{-1, -1, -1, 0, 1}));
  const SeqId fork = ledger.sequences().fork(id);
  EXPECT_EQ(ledger.sequences().rollback(id, 16).error().code, ErrorCode::kInvalidArgument)
      << "the row at 16 sees 11";
  compute(ledger, id, 13);
  EXPECT_EQ(ledger.sequences().num_blocks_held(id), 2);
  EXPECT_EQ(block_ids(ledger, fork), (Ids{-1, -1, -1, 0, 1}));
  expect_consistent(ledger);
  ledger.sequences().close(id);
  ledger.sequences().close(fork);
  EXPECT_EQ(ledger.counts().blocks_free, 8) << "nothing of it was published";
}

TEST(Ledger, WhatStandsBehindBlocksThatNeverWereHereIsNoPromptsBeginning) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4, .window_tokens = 6});
  const SeqId id = freeing(ledger, tokens_of(30));
  ledger.restored_kv().begin_behind_window(id, 17);
  compute(ledger, id, 18);
  for (const TokenId first : {0, 12, 16, 20, 24}) {
    EXPECT_EQ(ledger.cache().match(tokens_of(18, first)), 0) << first;
  }
}

TEST(Ledger, StoredKvThatIsCachedUpToTheWindowIsTakenFromThere) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4, .window_tokens = 6});
  ledger.sequences().close(computed(ledger, tokens_of(12), true, BehindWindow::kFrees));
  const SeqId id = freeing(ledger, tokens_of(18));
  ledger.restored_kv().begin_behind_window(id, 17);
  EXPECT_EQ(ledger.sequences().num_computed(id), 12);
  compute(ledger, id, 5);
  EXPECT_EQ(ledger.cache().match(tokens_of(18)), 16) << "the path is whole, so it goes on";
  const SeqId longer = freeing(ledger, tokens_of(29));
  ledger.restored_kv().begin_behind_window(longer, 28);
  EXPECT_EQ(ledger.sequences().num_computed(longer), 20)
      << "of what is cached nothing is seen any more";
  compute(ledger, longer, 8);
  EXPECT_EQ(ledger.cache().match(tokens_of(29)), 16);
  expect_consistent(ledger);
}

TEST(Ledger, WithoutAWindowStoredKvBeginsAtTheBeginning) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  const SeqId id = ledger.sequences().open(tokens_of(18), true);
  ledger.restored_kv().begin_behind_window(id, 17);
  EXPECT_EQ(ledger.sequences().num_computed(id), 0);
}

TEST(Ledger, MinBlocksIsWhatTheWindowTouches) {
  const Ledger plain({.num_blocks = 8, .block_tokens = 4});
  EXPECT_EQ(plain.min_blocks(9), 3);
  EXPECT_EQ(plain.min_blocks(std::int64_t{1} << 40), std::int64_t{1} << 38);
  const Ledger windowed({.num_blocks = 8, .block_tokens = 4, .window_tokens = 6});
  EXPECT_EQ(windowed.min_blocks(9), 3);
  EXPECT_EQ(windowed.min_blocks(1000), 3);
  EXPECT_EQ(windowed.min_blocks(4), 1);
  const Ledger narrow({.num_blocks = 8, .block_tokens = 4, .window_tokens = 1});
  EXPECT_EQ(narrow.min_blocks(1000), 1);
}

TEST(Ledger, MinBlocksSufficeAtEveryAlignment) {
  for (std::int32_t window = 1; window <= 20; ++window) {
    for (const std::int32_t block_tokens : {1, 2, 3, 4, 7}) {
      const LedgerConfig any = {
          .num_blocks = 1, .block_tokens = block_tokens, .window_tokens = window};
      const auto blocks = static_cast<std::int32_t>(Ledger(any).min_blocks(100));
      Ledger ledger({.num_blocks = blocks, .block_tokens = block_tokens, .window_tokens = window});
      const SeqId id = freeing(ledger, tokens_of(100));
      for (int i = 0; i < 100; ++i) {
        compute(ledger, id, 1);
      }
      EXPECT_EQ(ledger.sequences().num_computed(id), 100);
    }
  }
}

TEST(Ledger, ClearCacheKeepsWhatIsInUse) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  const SeqId used = computed(ledger, tokens_of(8));
  ledger.sequences().close(computed(ledger, tokens_of(8, 50)));
  EXPECT_EQ(ledger.cache().clear(), 2);
  EXPECT_EQ(ledger.cache().clear(), 0);
  EXPECT_EQ(ledger.cache().match(tokens_of(9)), 8);
  EXPECT_EQ(ledger.cache().match(tokens_of(9, 50)), 0);
  ledger.sequences().close(used);
}

TEST(Ledger, CloseOfAnUnknownIdDoesNothing) {
  Ledger ledger({.num_blocks = 1, .block_tokens = 4});
  ledger.sequences().close({99});
  EXPECT_FALSE(ledger.sequences().contains({99}));
}

TEST(Ledger, NobodyFindsKvBeforeItIsPublished) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  const SeqId loading = ledger.sequences().open(tokens_of(10), true);
  ASSERT_TRUE(ledger.sequences().extend(loading, 10).ok());
  ledger.restored_kv().advance_unpublished(loading, 10);
  EXPECT_EQ(ledger.sequences().num_computed(loading), 10) << "it is there for the sequence itself";
  EXPECT_EQ(ledger.cache().match(tokens_of(10)), 0);
  const SeqId other = ledger.sequences().open(tokens_of(10), true);
  EXPECT_EQ(ledger.sequences().num_computed(other), 0);
  expect_consistent(ledger);
  ledger.restored_kv().publish(loading);
  EXPECT_EQ(ledger.cache().match(tokens_of(10)), 8) << "the full blocks";
  const SeqId late = ledger.sequences().open(tokens_of(10), true);
  EXPECT_EQ(block_ids(ledger, late), (Ids{0, 1}));
  expect_consistent(ledger);
}

TEST(Ledger, BlocksBehindAnUnpublishedOneAreNotPublished) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  const SeqId loading = ledger.sequences().open(tokens_of(4), true);
  ASSERT_TRUE(ledger.sequences().extend(loading, 4).ok());
  ledger.restored_kv().advance_unpublished(loading, 4);
  const SeqId user = ledger.sequences().fork(loading);
  for (const TokenId token : tokens_of(8, 4)) {
    ledger.sequences().append(user, token);
  }
  compute(ledger, user, 8);
  EXPECT_EQ(ledger.cache().match(tokens_of(12)), 0);
  expect_consistent(ledger);
  ledger.restored_kv().publish(loading);
  EXPECT_EQ(ledger.cache().match(tokens_of(12)), 4)
      << "what stands behind is not known to be right";
  ledger.restored_kv().publish(user);
  EXPECT_EQ(ledger.cache().match(tokens_of(13)), 12);
  expect_consistent(ledger);
}

TEST(Ledger, KvThatIsNeverPublishedIsForgottenWithItsSequence) {
  Ledger ledger({.num_blocks = 4, .block_tokens = 4});
  const SeqId loading = ledger.sequences().open(tokens_of(8), true);
  ASSERT_TRUE(ledger.sequences().extend(loading, 8).ok());
  ledger.restored_kv().advance_unpublished(loading, 8);
  const SeqId fork = ledger.sequences().fork(loading);
  ledger.sequences().close(loading);
  EXPECT_EQ(ledger.counts().blocks_in_use, 2);
  ledger.sequences().close(fork);
  EXPECT_EQ(ledger.counts().blocks_free, 4);
  EXPECT_EQ(ledger.cache().match(tokens_of(8)), 0);
  expect_consistent(ledger);
}

TEST(Ledger, IdsAreNotReused) {
  Ledger ledger({.num_blocks = 1, .block_tokens = 4});
  const SeqId first = ledger.sequences().open(tokens_of(1), true);
  ledger.sequences().close(first);
  EXPECT_NE(ledger.sequences().open(tokens_of(1), true), first);
}

TEST(LedgerDeathTest, BrokenPreconditionsAbort) {
  Ledger ledger({.num_blocks = 2, .block_tokens = 4});
  const SeqId id = ledger.sequences().open(tokens_of(2), true);
  EXPECT_DEATH(ledger.sequences().advance(id, 1), "room that nobody made");
  ASSERT_TRUE(ledger.sequences().extend(id, 3).ok());
  EXPECT_DEATH(ledger.sequences().advance(id, 3), "tokens that are not there");
  EXPECT_DEATH((void)ledger.sequences().needs(id, -1).own, "negative");
  EXPECT_DEATH((void)ledger.sequences().tokens({99}), "no such sequence");
  EXPECT_DEATH(Ledger({.num_blocks = 0}), "not validated");
  Ledger windowed({.num_blocks = 2, .block_tokens = 4, .window_tokens = 4});
  EXPECT_DEATH(windowed.restored_kv().advance_unpublished(freeing(windowed, tokens_of(2)), 0),
               "a window");
}

// A block stands behind one parent in the index. Here a fork has another block before it.
TEST(Ledger, BlocksOfForksAreNotPublishedBehindATwinOfTheBlockBeforeThem) {
  Ledger ledger({.num_blocks = 20, .block_tokens = 4});
  const SeqId loaded = ledger.sequences().open(tokens_of(12), true);
  ASSERT_TRUE(ledger.sequences().extend(loaded, 12).ok());
  ledger.restored_kv().advance_unpublished(loaded, 12);
  const SeqId fork = ledger.sequences().fork(loaded);
  const SeqId twin = computed(ledger, tokens_of(4));
  ledger.restored_kv().publish(loaded);
  expect_consistent(ledger);
  EXPECT_EQ(block_ids(ledger, loaded)[0], block_ids(ledger, twin)[0]);
  EXPECT_EQ(ledger.cache().match(tokens_of(13)), 4);
  ledger.sequences().close(fork);
  ledger.restored_kv().publish(loaded);
  expect_consistent(ledger);
  EXPECT_EQ(ledger.cache().match(tokens_of(13)), 12) << "nobody else has its blocks now";
}

}  // namespace
}  // namespace quire::kv

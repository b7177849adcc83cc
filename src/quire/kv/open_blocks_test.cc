// Open runs of a pool whose format is written block by block: which blocks they hold, and what
// forks, rollbacks and preemption leave.
#include "quire/kv/open_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/block_table.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/segment.h"
#include "quire/kv/sequences.h"
#include "quire/kv/test_support.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::kv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr FormatId kOpen{1};

// Blocks of four tokens: 100 bytes stored, 300 while they are open. A slab has 600 bytes.
LedgerConfig by_block(std::int32_t num_blocks = 30) {
  return {.num_blocks = num_blocks,
          .block_tokens = 4,
          .formats = {{.block_bytes = 100, .open = kOpen}, {.block_bytes = 300}},
          .slab_blocks = 6};
}

std::vector<std::int32_t> open_indices(const Ledger& ledger, SeqId id) {
  std::vector<std::int32_t> indices;
  const RunView run = ledger.sequences().runs(id).back();
  for (const OpenBlock& open : run.open_blocks) {
    indices.push_back(open.index);
  }
  return indices;
}

TEST(OpenBlocksOfARun, ARunHasFullBlocksInItsTableAndOneOpenBlockWhereItEnds) {
  Ledger ledger(by_block());
  const SeqId id = computed(ledger, tokens_of(10));
  EXPECT_EQ(block_ids(ledger, id).size(), 2U);
  EXPECT_THAT(open_indices(ledger, id), ElementsAre(2));
  EXPECT_EQ(ledger.counts().bytes_in_use, 2 * 100 + 300);
  expect_consistent(ledger);
  ledger.sequences().close(id);
  EXPECT_EQ(ledger.counts().bytes_in_use, 0);
  EXPECT_EQ(ledger.counts().bytes_cached, 200) << "full blocks are found again";
  EXPECT_EQ(ledger.counts().bytes_lent, 0) << "the slab has come back";
}

TEST(OpenBlocksOfARun, ABlockThatTheRoomBeginsAndFillsHasNone) {
  Ledger ledger(by_block());
  const SeqId id = ledger.sequences().open(tokens_of(20), true);
  compute(ledger, id, 3);
  ASSERT_TRUE(ledger.sequences().extend(id, 12).ok());
  EXPECT_THAT(open_indices(ledger, id), ElementsAre(0, 3)) << "it fills 0, 1 and 2, and begins 3";
  EXPECT_EQ(block_ids(ledger, id).size(), 3U);
  expect_consistent(ledger);
  ledger.sequences().advance(id, 12);
  EXPECT_THAT(open_indices(ledger, id), ElementsAre(3));
  expect_consistent(ledger);
  compute(ledger, id, 1);
  EXPECT_THAT(open_indices(ledger, id), ElementsAre());
  EXPECT_EQ(ledger.counts().bytes_in_use, 400);
}

TEST(OpenBlocksOfARun, AForkSharesTheOpenBlockUntilOneOfThemWrites) {
  Ledger ledger(by_block());
  const SeqId id = computed(ledger, tokens_of(6));
  ledger.sequences().append(id, 7);
  const SeqId fork = ledger.sequences().fork(id);
  EXPECT_EQ(ledger.counts().bytes_in_use, 400);
  EXPECT_TRUE(ledger.sequences().shares_open_block(id));
  EXPECT_EQ(ledger.sequences().needs(id, 1).own, 0);
  EXPECT_EQ(ledger.sequences().needs(id, 1).open, 1) << "a copy";
  compute(ledger, id, 1);
  const std::vector<BlockCopy> copies = ledger.take_copies();
  ASSERT_EQ(copies.size(), 1U);
  EXPECT_EQ(copies.front().format, kOpen);
  EXPECT_EQ(copies.front().tokens, 2);
  EXPECT_EQ(copies.front().from, ledger.sequences().runs(fork).back().open_blocks.front().block.id);
  EXPECT_EQ(copies.front().to, ledger.sequences().runs(id).back().open_blocks.front().block.id);
  EXPECT_FALSE(ledger.sequences().shares_open_block(fork));
  expect_consistent(ledger);
}

TEST(OpenBlocksOfARun, RollingBackKeepsTheOpenBlockOrEndsBeforeTheStoredOne) {
  Ledger ledger(by_block());
  const SeqId id = computed(ledger, tokens_of(11));
  ASSERT_TRUE(ledger.sequences().rollback(id, 9).ok());
  EXPECT_EQ(ledger.sequences().num_computed(id), 9) << "its rows are still there as computed";
  EXPECT_THAT(open_indices(ledger, id), ElementsAre(2));
  ASSERT_TRUE(ledger.sequences().rollback(id, 8).ok());
  EXPECT_EQ(ledger.sequences().num_computed(id), 8);
  EXPECT_THAT(open_indices(ledger, id), ElementsAre());
  ASSERT_TRUE(ledger.sequences().rollback(id, 7).ok());
  EXPECT_EQ(ledger.sequences().tokens(id).size(), 7U);
  EXPECT_EQ(ledger.sequences().num_computed(id), 4) << "three tokens are computed again";
  EXPECT_EQ(ledger.counts().bytes_in_use, 100);
  expect_consistent(ledger);
}

TEST(OpenBlocksOfARun, ASegmentHasTheOpenBlockLast) {
  Ledger ledger(by_block());
  const SeqId id = computed(ledger, tokens_of(10));
  const SegmentId segment = ledger.segments().seal(id).value();
  ledger.sequences().close(id);
  const BlockTable& blocks = ledger.segments().find(segment)->blocks();
  EXPECT_EQ(blocks.format(), kOwnFormat);
  EXPECT_EQ(blocks.last_format(), kOpen);
  EXPECT_EQ(ledger.segments().num_bytes(segment), 500);
  expect_consistent(ledger);
}

TEST(OpenBlocksOfARun, PreemptionGivesBothBack) {
  Ledger ledger(by_block());
  const SeqId id = computed(ledger, tokens_of(10), false);
  EXPECT_EQ(ledger.preemption().blocks_freed_by_drop(std::array{id}), 2);
  EXPECT_EQ(ledger.preemption().open_blocks_freed_by_drop(std::array{id}), 1);
  ledger.preemption().drop_kv(id);
  EXPECT_EQ(ledger.counts().bytes_in_use, 0);
  expect_consistent(ledger);
}

TEST(OpenBlocksOfARun, SeveralSequencesGetRoomTogetherOrNoneDoes) {
  Ledger ledger(by_block(12));  // two slabs, of two open blocks each
  std::vector<Growth> growths;
  for (int i = 0; i < 3; ++i) {
    growths.push_back(
        {.sequence = ledger.sequences().open(tokens_of(3, 10 * i), true), .count = 3});
  }
  const Status refused = ledger.sequences().extend(std::vector<Growth>{
      growths[0],
      growths[1],
      growths[2],
      {.sequence = ledger.sequences().open(tokens_of(9, 50), true), .count = 9}});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBlocks);
  EXPECT_THAT(refused.error().message, HasSubstr("of open blocks"));
  EXPECT_EQ(ledger.counts().bytes_in_use, 0);
  ASSERT_TRUE(ledger.sequences().extend(growths).ok());
  EXPECT_EQ(ledger.counts().bytes_in_use, 900);
  expect_consistent(ledger);
}

TEST(OpenBlocksOfARun, StandingSlabsStayAndAreFree) {
  LedgerConfig config = by_block();
  config.standing_open_blocks = 3;
  ASSERT_TRUE(config.validate().ok());
  Ledger ledger(config);
  EXPECT_EQ(ledger.counts().bytes_lent, 1200);
  EXPECT_EQ(ledger.open_blocks_free(), 4);
  EXPECT_EQ(ledger.counts().bytes_free, 3000);
  const SeqId id = computed(ledger, tokens_of(2));
  EXPECT_EQ(ledger.open_blocks_free(), 3);
  ledger.sequences().close(id);
  EXPECT_EQ(ledger.open_blocks_free(), 4);
  expect_consistent(ledger);
}

}  // namespace
}  // namespace quire::kv

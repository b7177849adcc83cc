// Sequences whose own run has another format than the pool's own, until it is sealed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/block_table.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/open_blocks.h"
#include "quire/kv/segment.h"
#include "quire/kv/test_support.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::kv {
namespace {

using testing::HasSubstr;

SeqId composed_in(Ledger& ledger, FormatId format, const Tokens& tokens) {
  return ledger.segments().compose_in(format, {}, {.tokens = tokens}).value();
}

TEST(ComposedFormat, ARunHasRoomForAllItsTokensAndIsSealedInItsFormat) {
  Ledger ledger(mixed_formats());
  const SeqId id = composed_in(ledger, kHalf, tokens_of(10));
  EXPECT_EQ(ledger.counts().bytes_in_use, 150);
  EXPECT_EQ(ledger.sequences().needs(id, 10).own, 0);
  const RunView before = ledger.sequences().runs(id).back();
  EXPECT_EQ(before.format, kHalf);
  EXPECT_EQ(before.last_format, kHalf);
  for (const std::int32_t count : {3, 7}) {
    ASSERT_TRUE(ledger.sequences().extend(id, count).ok());
    ledger.sequences().advance(id, count);
    expect_consistent(ledger);
  }
  const SegmentId segment = ledger.segments().seal(id).value();
  ledger.sequences().close(id);
  EXPECT_EQ(ledger.segments().find(segment)->format(), kHalf);
  EXPECT_EQ(ledger.segments().num_bytes(segment), 150);
  EXPECT_EQ(ledger.counts().blocks_cached, 0) << "nothing of it is published";
  expect_consistent(ledger);
  EXPECT_TRUE(ledger.segments().drop(segment));
  EXPECT_EQ(ledger.counts().bytes_lent, 0);
  EXPECT_EQ(ledger.blocks_available(), 20);
}

TEST(ComposedFormat, ARunStandsBehindSegmentsOfAnyFormat) {
  Ledger ledger(mixed_formats());
  const SegmentId before = ledger.segments().reserve(tokens_of(6), 0, kHalf).value();
  const SegmentUse use{.segment = before};
  const Tokens tokens = tokens_of(4);
  const SeqId id = ledger.segments().compose_in(kHalf, {&use, 1}, {.tokens = tokens}).value();
  EXPECT_EQ(ledger.sequences().runs(id).back().start_position, 6);
  EXPECT_EQ(ledger.segments().blocks_before(id), 1) << "two blocks of half the bytes";
  expect_consistent(ledger);
  ledger.sequences().close(id);
  ledger.segments().drop(before);
  EXPECT_EQ(ledger.counts().bytes_in_use, 0);
}

TEST(ComposedFormat, GivingUpItsKVKeepsItsRoomAndFreesNothing) {
  Ledger ledger(mixed_formats());
  const SeqId id = composed_in(ledger, kHalf, tokens_of(10));
  ledger.sequences().advance(id, 7);
  EXPECT_EQ(ledger.preemption().blocks_freed_by_drop({&id, 1}), 0);
  ledger.preemption().drop_kv(id);
  EXPECT_EQ(ledger.sequences().num_computed(id), 0);
  EXPECT_EQ(ledger.sequences().needs(id, 10).own, 0);
  EXPECT_EQ(ledger.counts().bytes_in_use, 150);
  expect_consistent(ledger);
  ledger.sequences().advance(id, 10);
  EXPECT_EQ(ledger.segments().find(ledger.segments().seal(id).value())->num_tokens(), 10);
  expect_consistent(ledger);
}

TEST(ComposedFormat, WithoutRoomOrFormatNothingIsOpened) {
  Ledger ledger(mixed_formats());
  const auto refusal = [&](FormatId format, const Tokens& tokens) {
    const auto refused = ledger.segments().compose_in(format, {}, {.tokens = tokens});
    EXPECT_FALSE(refused.ok());
    EXPECT_EQ(ledger.counts().bytes_in_use, 0);
    expect_consistent(ledger);
    return refused.ok() ? Error{} : refused.error();
  };
  const Error full = refusal(kHalf, tokens_of(41 * 4));
  EXPECT_EQ(full.code, ErrorCode::kOutOfBlocks);
  EXPECT_EQ(full.needed_bytes, 41 * 50);
  EXPECT_EQ(refusal(FormatId{3}, tokens_of(4)).code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refusal(FormatId{7}, tokens_of(4)).message,
              HasSubstr("cannot be computed in format 7"));
  EXPECT_EQ(refusal(kHalf, {}).code, ErrorCode::kInvalidArgument);
}

TEST(ComposedFormat, ARunThatIsWrittenBlockByBlockHasOpenBlocksWhereItEnds) {
  Ledger ledger(mixed_formats());
  const SeqId id = composed_in(ledger, kBlockwise, tokens_of(10));
  EXPECT_EQ(ledger.counts().bytes_in_use, 2 * 30) << "of its full blocks";
  EXPECT_EQ(ledger.sequences().needs(id, 3).own, 1) << "an open one, of the pool's own format";
  compute(ledger, id, 3);
  RunView run = ledger.sequences().runs(id).back();
  ASSERT_EQ(run.open_blocks.size(), 1U);
  EXPECT_EQ(run.open_blocks.front().index, 0);
  EXPECT_EQ(run.open_blocks.front().block.format(), kOwnFormat);
  EXPECT_EQ(ledger.sequences().needs(id, 5).own, 0) << "it fills two blocks, and needs no third";
  compute(ledger, id, 5);
  EXPECT_EQ(ledger.counts().bytes_in_use, 2 * 30);
  compute(ledger, id, 2);
  EXPECT_EQ(ledger.counts().bytes_in_use, 2 * 30 + 100);
  expect_consistent(ledger);
  const SegmentId segment = ledger.segments().seal(id).value();
  ledger.sequences().close(id);
  const BlockTable& blocks = ledger.segments().find(segment)->blocks();
  EXPECT_EQ(blocks.size(), 3);
  EXPECT_EQ(blocks.format(), kBlockwise);
  EXPECT_EQ(blocks.last_format(), kOwnFormat);
  expect_consistent(ledger);
}

}  // namespace
}  // namespace quire::kv

// Segments and compositions of the ledger.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/ledger.h"
#include "quire/kv/segment.h"
#include "quire/kv/test_support.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

TEST(Ledger, ComposedSegmentsAreRunsAtTheirPositionsOverTheSameBlocks) {
  Ledger ledger({.num_blocks = 16, .block_tokens = 4});
  const SeqId source = computed(ledger, tokens_of(6));
  const Result<SegmentId> segment = ledger.segments().seal(source);
  ASSERT_TRUE(segment.ok());
  const Ids blocks = block_ids(ledger, source);
  ledger.sequences().close(source);
  const std::array uses = {SegmentUse{*segment, 10}, SegmentUse{*segment, 0}};
  const Result<SeqId> id = ledger.segments().compose(uses);
  ASSERT_TRUE(id.ok());
  EXPECT_EQ(ledger.counts().blocks_in_use, 2) << "one copy";
  EXPECT_EQ(ledger.segments().tokens_before(*id), 12);
  EXPECT_EQ(ledger.sequences().num_computed(*id), 0) << "of its own";
  ledger.sequences().append(*id, 99);
  compute(ledger, *id, 1);
  EXPECT_TRUE(ledger.take_copies().empty()) << "the open run has its own block";
  const std::vector<RunView> runs = ledger.sequences().runs(*id);
  ASSERT_EQ(runs.size(), 3U);
  EXPECT_EQ(runs[0].start_position, 10);
  EXPECT_EQ(runs[1].start_position, 0);
  EXPECT_EQ(runs[2].start_position, 16);
  EXPECT_EQ(runs[0].blocks[1].value, blocks[1]);
  EXPECT_EQ(runs[1].blocks[1].value, blocks[1]);
  EXPECT_EQ(runs[2].num_tokens, 1);
  EXPECT_TRUE(ledger.segments().drop(*segment));
  EXPECT_FALSE(ledger.segments().drop(*segment));
  EXPECT_EQ(ledger.counts().blocks_in_use, 3) << "the sequence still holds the blocks";
  ledger.sequences().close(*id);
  EXPECT_EQ(ledger.counts().blocks_in_use, 0);
  expect_consistent(ledger);
}

TEST(Ledger, AComposedSequenceGoesOnWhereItIsTold) {
  Ledger ledger({.num_blocks = 16, .block_tokens = 4});
  const Result<SegmentId> segment = ledger.segments().seal(computed(ledger, tokens_of(6)));
  ASSERT_TRUE(segment.ok());
  EXPECT_EQ(ledger.segments().num_blocks(*segment), 2);
  EXPECT_EQ(ledger.segments().num_blocks({77}), 0);
  const std::array uses = {SegmentUse{*segment, 10, 5}, SegmentUse{*segment, 0, 9}};
  const Tokens tail = {70, 71, 72};
  const Result<SeqId> id = ledger.segments().compose(uses, {.tokens = tail, .position = 30});
  ASSERT_TRUE(id.ok());
  EXPECT_TRUE(std::ranges::equal(ledger.sequences().tokens(*id), tail));
  compute(ledger, *id, 3);
  for (const SeqId sequence : {*id, ledger.sequences().fork(*id)}) {
    const std::vector<RunView> runs = ledger.sequences().runs(sequence);
    EXPECT_EQ(runs[0].rank.chunk, 5U);
    EXPECT_EQ(runs[1].rank.chunk, 9U);
    EXPECT_EQ(runs[2].start_position, 30);
    EXPECT_EQ(runs[2].num_tokens, 3);
  }
  EXPECT_EQ(ledger.segments().compose(uses, {.tokens = tail, .position = -1}).error().code,
            ErrorCode::kInvalidArgument);
  expect_consistent(ledger);
}

TEST(Ledger, ASealedOpenBlockIsCopiedBeforeItsSourceGrows) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  const SeqId id = computed(ledger, tokens_of(6));
  ASSERT_TRUE(ledger.segments().seal(id).ok());
  ledger.sequences().append(id, 9);
  compute(ledger, id, 1);
  EXPECT_EQ(ledger.take_copies().size(), 1U);
  expect_consistent(ledger);
}

TEST(Ledger, ASegmentOfTheTailOfACompositionStartsAtZero) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  const Result<SegmentId> system = ledger.segments().seal(computed(ledger, tokens_of(4)));
  const Result<SeqId> id = ledger.segments().compose(std::array{SegmentUse{*system, 0}});
  ASSERT_TRUE(id.ok());
  EXPECT_EQ(ledger.segments().seal(*id).error().code, ErrorCode::kInvalidArgument)
      << "nothing computed";
  ledger.sequences().append(*id, 50);
  ledger.sequences().append(*id, 51);
  compute(ledger, *id, 2);
  const Result<SegmentId> chunk = ledger.segments().seal(*id);
  ASSERT_TRUE(chunk.ok());
  const Result<SeqId> alone = ledger.segments().compose(std::array{SegmentUse{*chunk, 100}});
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(ledger.segments().tokens_before(*alone), 2);
  EXPECT_EQ(ledger.sequences().runs(*alone).front().start_position, 100);
}

TEST(Ledger, CompositionsAreNeverFoundByTheirTokens) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 2});
  const Result<SegmentId> segment = ledger.segments().seal(computed(ledger, tokens_of(2, 50)));
  const Result<SeqId> id = ledger.segments().compose(std::array{SegmentUse{*segment, 7}});
  ASSERT_TRUE(id.ok());
  for (const TokenId token : {60, 61, 62, 63}) {
    ledger.sequences().append(*id, token);
  }
  compute(ledger, *id, 4);
  EXPECT_EQ(ledger.cache().match(Tokens{50, 51, 60, 61, 62, 63, 0}), 2) << "only the plain source";
}

TEST(Ledger, BadCompositionsAreRefused) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  EXPECT_EQ(ledger.segments().compose(std::array{SegmentUse{{77}, 0}}).error().code,
            ErrorCode::kNotFound);
  const Result<SegmentId> segment = ledger.segments().seal(computed(ledger, tokens_of(4)));
  for (const std::int32_t position : {-1, std::numeric_limits<std::int32_t>::max() - 3}) {
    EXPECT_EQ(ledger.segments().compose(std::array{SegmentUse{*segment, position}}).error().code,
              ErrorCode::kInvalidArgument);
  }
  expect_consistent(ledger);
}

TEST(Ledger, APartOfASegmentSharesItsBlocks) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  const SeqId source = computed(ledger, tokens_of(10));
  const Result<SegmentId> segment = ledger.segments().seal(source);
  ledger.sequences().close(source);
  const SegmentUse use{.segment = *segment, .position = 3, .tokens = 6};
  const Tokens tail = {6};
  const Result<SeqId> id = ledger.segments().compose({&use, 1}, {.tokens = tail});
  ASSERT_TRUE(id.ok());
  EXPECT_EQ(ledger.segments().joined_tokens(*id), tokens_of(7));
  EXPECT_EQ(ledger.segments().tokens_before(*id), 6);
  EXPECT_EQ(ledger.segments().blocks_before(*id), 2);
  EXPECT_EQ(ledger.sequences().runs(*id).back().start_position, 9);
  compute(ledger, *id, 1);
  expect_consistent(ledger);
  EXPECT_TRUE(ledger.segments().drop(*segment));
  EXPECT_EQ(ledger.counts().blocks_in_use, 3) << "the third block of the segment is free";
  for (const std::int32_t tokens : {0, -1, 11}) {
    const SegmentUse bad{.segment = *segment, .tokens = tokens};
    EXPECT_FALSE(ledger.segments().compose({&bad, 1}).ok());
  }
}

TEST(Ledger, SealedRunsComposeToTheSameSequence) {
  Ledger ledger({.num_blocks = 16, .block_tokens = 4});
  const Result<SegmentId> first = ledger.segments().seal(computed(ledger, tokens_of(6)));
  const SegmentUse use{.segment = *first, .position = 5, .rank = {7, 1}};
  const Tokens tail = tokens_of(5, 50);
  const Result<SeqId> id = ledger.segments().compose({&use, 1}, {.tokens = tail, .position = 20});
  compute(ledger, *id, 5);
  const Result<std::vector<SegmentUse>> runs = ledger.segments().seal_runs(*id);
  ASSERT_TRUE(runs.ok());
  ASSERT_EQ(runs->size(), 2U);
  EXPECT_EQ(runs->front().position, 5);
  EXPECT_EQ(runs->front().rank, (MergeRank{7, 1}));
  EXPECT_EQ(runs->back().position, 20);
  const Result<SeqId> again = ledger.segments().compose(*runs);
  EXPECT_EQ(ledger.segments().joined_tokens(*again), ledger.segments().joined_tokens(*id));
  for (const SegmentUse& run : *runs) {
    EXPECT_TRUE(ledger.segments().drop(run.segment));
  }
  EXPECT_FALSE(ledger.sequences().is_plain(*id));
  expect_consistent(ledger);
}

TEST(Ledger, AReservedSegmentIsThereForItsTokens) {
  Ledger ledger({.num_blocks = 4, .block_tokens = 4});
  const Result<SegmentId> segment = ledger.segments().reserve(tokens_of(9));
  ASSERT_TRUE(segment.ok());
  EXPECT_EQ(ledger.segments().num_blocks(*segment), 3);
  EXPECT_TRUE(std::ranges::equal(ledger.segments().find(*segment)->tokens(), tokens_of(9)));
  EXPECT_EQ(ledger.segments().reserve(tokens_of(5)).error().code, ErrorCode::kOutOfBlocks);
  EXPECT_EQ(ledger.segments().reserve({}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(ledger.counts().blocks_in_use, 3);
  EXPECT_TRUE(ledger.segments().drop(*segment));
  EXPECT_EQ(ledger.segments().find(*segment), nullptr);
  expect_consistent(ledger);
}

TEST(Ledger, SealRefusesWhatTheWindowHasFreed) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4, .window_tokens = 4});
  const SeqId id = computed(ledger, tokens_of(12), true, BehindWindow::kFrees);
  EXPECT_EQ(ledger.segments().seal(id).error().code, ErrorCode::kInvalidArgument);
}

TEST(Ledger, PreemptedCompositionKeepsItsSegments) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  const Result<SegmentId> segment = ledger.segments().seal(computed(ledger, tokens_of(5)));
  const Result<SeqId> id = ledger.segments().compose(std::array{SegmentUse{*segment, 0}});
  ledger.sequences().append(*id, 9);
  compute(ledger, *id, 1);
  ledger.preemption().drop_kv(*id);
  EXPECT_EQ(ledger.sequences().num_computed(*id), 0);
  EXPECT_EQ(ledger.segments().tokens_before(*id), 5);
  EXPECT_EQ(ledger.preemption().reattach(*id), 0);
  EXPECT_EQ(ledger.sequences().tokens(*id).size(), 1U);
}

TEST(Ledger, ASliceSharesBlocksAndOutlivesItsSegment) {
  Ledger ledger(mixed_formats());
  const SegmentId base = ledger.segments().reserve(tokens_of(14), 3, kBlockwise).value();
  const std::int64_t bytes = ledger.counts().bytes_in_use;
  const SegmentId middle = ledger.segments().slice(base, 4, 8).value();
  const SegmentId rest = ledger.segments().slice(base, 12, 2).value();
  EXPECT_EQ(ledger.counts().bytes_in_use, bytes);
  const Segment& slice = *ledger.segments().find(middle);
  EXPECT_EQ(slice.stored_from(), 7);
  EXPECT_EQ(slice.num_tokens(), 8);
  EXPECT_EQ(slice.tokens().front(), 4);
  EXPECT_EQ(slice.blocks().size(), 2);
  EXPECT_EQ(slice.blocks().ref(0), ledger.segments().find(base)->blocks().ref(1));
  EXPECT_EQ(ledger.segments().find(rest)->blocks().format(), kOwnFormat) << "it is not full";
  expect_consistent(ledger);
  EXPECT_TRUE(ledger.segments().drop(base));
  EXPECT_EQ(ledger.counts().bytes_in_use, bytes - 30) << "the first block";
  EXPECT_TRUE(ledger.segments().drop(middle));
  EXPECT_TRUE(ledger.segments().drop(rest));
  EXPECT_EQ(ledger.counts().bytes_in_use, 0);
  expect_consistent(ledger);
}

TEST(Ledger, ASliceBeginsAndEndsWhereBlocksDo) {
  Ledger ledger(mixed_formats());
  const SegmentId base = ledger.segments().reserve(tokens_of(14)).value();
  EXPECT_EQ(ledger.segments().slice(SegmentId{99}, 0, 4).error().code, ErrorCode::kNotFound);
  for (const auto& [first, count] : {std::pair{1, 4}, std::pair{0, 3}, std::pair{8, 5},
                                     std::pair{-4, 4}, std::pair{4, 0}, std::pair{12, 4}}) {
    EXPECT_EQ(ledger.segments().slice(base, first, count).error().code, ErrorCode::kInvalidArgument)
        << first << " " << count;
  }
  expect_consistent(ledger);
}

}  // namespace
}  // namespace quire::kv

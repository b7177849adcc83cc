// Blocks of several formats in the bytes of one pool: what is borrowed, what is given back, what is
// counted and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/block_table.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/segment.h"
#include "quire/kv/test_support.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::kv {
namespace {

using testing::HasSubstr;

SegmentId reserved(Ledger& ledger, std::int32_t tokens, FormatId format) {
  const Result<SegmentId> segment = ledger.segments().reserve(tokens_of(tokens), 0, format);
  EXPECT_TRUE(segment.ok()) << segment.error().message;
  return segment.ok() ? *segment : SegmentId{};
}

Ids ids_of(const Ledger& ledger, SegmentId segment) {
  Ids ids;
  for (const BlockId block : ledger.segments().find(segment)->blocks().ids()) {
    ids.push_back(block.value);
  }
  return ids;
}

TEST(LedgerFormats, ASegmentBorrowsASlabAndGivesItBackWithItsLastBlock) {
  Ledger ledger(mixed_formats());
  const SegmentId first = reserved(ledger, 16, kHalf);
  EXPECT_EQ(ids_of(ledger, first), (Ids{32, 33, 34, 35})) << "the last slab has blocks 32 to 39";
  EXPECT_EQ(ledger.counts().bytes_lent, 400);
  EXPECT_EQ(ledger.counts().bytes_in_use, 200);
  EXPECT_EQ(ledger.counts().bytes_free, 1800);
  EXPECT_EQ(ledger.counts().blocks_in_use, 2);
  EXPECT_EQ(ledger.blocks_available(), 16);
  const SegmentId second = reserved(ledger, 15, kHalf);
  EXPECT_EQ(ids_of(ledger, second), (Ids{36, 37, 38, 39})) << "the slab is filled first";
  EXPECT_EQ(ledger.counts().bytes_lent, 400);
  EXPECT_TRUE(ledger.segments().drop(first));
  EXPECT_EQ(ledger.counts().bytes_lent, 400);
  EXPECT_TRUE(ledger.segments().drop(second));
  EXPECT_EQ(ledger.counts().bytes_lent, 0);
  EXPECT_EQ(ledger.blocks_available(), 20);
  expect_consistent(ledger);
}

TEST(LedgerFormats, RunViewsAndCopiesSayTheirFormats) {
  Ledger ledger(mixed_formats());
  const SegmentId segment = reserved(ledger, 14, kBlockwise);
  EXPECT_EQ(ledger.segments().num_blocks(segment), 4);
  EXPECT_EQ(ledger.segments().num_bytes(segment), 3 * 30 + 100) << "the last block is not full";
  EXPECT_EQ(ledger.segments().find(segment)->format(), kBlockwise);
  const SegmentUse use{.segment = segment, .position = 3};
  const SeqId sequence = ledger.segments().compose({&use, 1}, {.tokens = tokens_of(2)}).value();
  compute(ledger, sequence, 2);
  const std::vector<RunView> runs = ledger.sequences().runs(sequence);
  EXPECT_EQ(runs[0].format, kBlockwise);
  EXPECT_EQ(runs[0].last_format, kOwnFormat);
  EXPECT_EQ(runs[1].format, kOwnFormat);
  EXPECT_EQ(ledger.counts().bytes_in_use, 290);
  const std::vector<std::int32_t> again = {5, 13};
  const SegmentId derived = ledger.segments().derive(segment, again).value();
  const std::vector<BlockCopy> copies = ledger.take_copies();
  ASSERT_EQ(copies.size(), 2U);
  EXPECT_EQ(copies[0].format, kBlockwise);
  EXPECT_EQ(copies[0].tokens, 4);
  EXPECT_EQ(copies[1].format, kOwnFormat);
  EXPECT_EQ(copies[1].tokens, 2);
  EXPECT_EQ(ledger.segments().num_bytes(derived), 190);
  EXPECT_EQ(ledger.counts().bytes_in_use, 290 + 130);
  expect_consistent(ledger);
}

TEST(LedgerFormats, ASequenceKeepsTheBlocksOfADroppedSegment) {
  Ledger ledger(mixed_formats());
  const SegmentId segment = reserved(ledger, 8, kHalf);
  const SegmentUse part{.segment = segment, .tokens = 3};
  const SeqId sequence = ledger.segments().compose({&part, 1}).value();
  EXPECT_TRUE(ledger.segments().forget(segment));
  EXPECT_EQ(ledger.counts().bytes_in_use, 50) << "one block has the first three tokens";
  EXPECT_EQ(ledger.counts().bytes_lent, 400);
  expect_consistent(ledger);
  const SeqId fork = ledger.sequences().fork(sequence);
  ledger.sequences().close(sequence);
  EXPECT_EQ(ledger.counts().bytes_in_use, 50);
  ledger.sequences().close(fork);
  EXPECT_EQ(ledger.counts().bytes_in_use, 0);
  EXPECT_EQ(ledger.counts().bytes_lent, 0);
}

TEST(LedgerFormats, CachedBlocksMoveOutOfASlabWhileThereIsRoom) {
  Ledger ledger(mixed_formats(8));
  const SeqId cached = computed(ledger, tokens_of(12));
  const SeqId used = computed(ledger, tokens_of(4, 100));
  const Ids before = block_ids(ledger, cached);
  EXPECT_EQ(before, (Ids{0, 1, 2}));
  EXPECT_EQ(block_ids(ledger, used), (Ids{5}));
  ledger.sequences().close(cached);
  reserved(ledger, 8, kHalf);
  EXPECT_EQ(ledger.counts().evictions, 0);
  EXPECT_EQ(ledger.counts().blocks_moved, 3);
  EXPECT_EQ(ledger.counts().blocks_cached, 3);
  const std::vector<BlockCopy> copies = ledger.take_copies();
  ASSERT_EQ(copies.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(copies[i].from.value, before[i]);
    EXPECT_GE(copies[i].to.value, 4) << "not into the slab that is lent";
    EXPECT_EQ(copies[i].format, kOwnFormat);
  }
  EXPECT_EQ(ledger.cache().match(tokens_of(13)), 12) << "found where they lie now";
  expect_consistent(ledger);
}

TEST(LedgerFormats, WhatHasNoRoomElsewhereIsEvictedInOrder) {
  Ledger ledger(mixed_formats(8));
  const SeqId old = computed(ledger, tokens_of(12));
  const SeqId used = computed(ledger, tokens_of(4, 100));
  const SeqId recent = computed(ledger, tokens_of(12, 200));
  ledger.sequences().close(old);
  ledger.sequences().close(recent);
  EXPECT_EQ(ledger.blocks_available(kHalf), 8) << "the other slab has a block in use";
  reserved(ledger, 8, kHalf);
  EXPECT_EQ(ledger.counts().evictions, 3) << "four free blocks are wanted, one is there";
  EXPECT_EQ(ledger.cache().match(tokens_of(13, 200)), 12) << "the least recently used ones go";
  EXPECT_TRUE(ledger.sequences().contains(used));
  expect_consistent(ledger);
}

TEST(LedgerFormats, WithAWindowCachedBlocksAreEvictedAndDoNotMove) {
  LedgerConfig config = mixed_formats(8);
  config.window_tokens = 16;
  Ledger ledger(config);
  const SeqId used = computed(ledger, tokens_of(4, 100));
  const SeqId cached = computed(ledger, tokens_of(12));
  const bool first_slab = block_ids(ledger, used)[0] < 4;
  ledger.sequences().close(cached);
  const SegmentId segment = reserved(ledger, 8, kHalf);
  EXPECT_EQ(ids_of(ledger, segment)[0], first_slab ? 8 : 0);
  EXPECT_EQ(ledger.counts().blocks_moved, 0);
  EXPECT_TRUE(ledger.take_copies().empty());
  expect_consistent(ledger);
}

TEST(LedgerFormats, ABlockInUsePinsItsSlab) {
  Ledger ledger(mixed_formats(8));
  const SeqId first = computed(ledger, tokens_of(1));
  const SeqId second = computed(ledger, tokens_of(1, 50));
  EXPECT_EQ(block_ids(ledger, first), (Ids{0}));
  EXPECT_EQ(block_ids(ledger, second), (Ids{4}));
  EXPECT_EQ(ledger.blocks_available(), 6);
  EXPECT_EQ(ledger.blocks_available(kHalf), 0);
  EXPECT_EQ(ledger.bytes_lacking(ledger.config().blocks_for(8, kHalf)), 100);
  const LedgerCounts before = ledger.counts();
  const Result<SegmentId> refused = ledger.segments().reserve(tokens_of(8), 0, kHalf);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBlocks);
  EXPECT_EQ(refused.error().message,
            "a segment of 8 tokens needs 2 blocks (100 B), 0 (0 B) of a pool of 800 B can be had");
  EXPECT_EQ(refused.error().needed_bytes, 100);
  EXPECT_EQ(refused.error().free_bytes, 0);
  EXPECT_EQ(ledger.counts().bytes_free, before.bytes_free);
  EXPECT_EQ(ledger.counts().bytes_lent, 0);
  ledger.sequences().close(second);
  reserved(ledger, 8, kHalf);
  expect_consistent(ledger);
}

TEST(LedgerFormats, AFormatAndWhatItsLastBlockHasAreCountedTogether) {
  Ledger ledger(mixed_formats(8));
  // Both slabs give 26 blocks of 30 bytes, but the last block needs one of the pool's own.
  EXPECT_EQ(ledger.blocks_available(kBlockwise), 26);
  EXPECT_EQ(ledger.bytes_lacking(ledger.config().blocks_for(26 * 4, kBlockwise)), 0);
  EXPECT_EQ(ledger.bytes_lacking(ledger.config().blocks_for(26 * 4 + 1, kBlockwise)), 100);
  EXPECT_FALSE(ledger.segments().reserve(tokens_of(26 * 4 + 1), 0, kBlockwise).ok());
  EXPECT_EQ(ledger.counts().bytes_lent, 0);
  const SegmentId segment = reserved(ledger, 13 * 4 + 1, kBlockwise);
  EXPECT_EQ(ledger.segments().num_bytes(segment), 13 * 30 + 100);
  EXPECT_EQ(ledger.counts().bytes_lent, 400);
  expect_consistent(ledger);
}

TEST(LedgerFormats, ABlockAcrossTwoSlabsNeedsBoth) {
  // In slabs of 100 bytes, blocks 0 to 2 of 30 bytes lie in the first one, 4 and 5 in the second.
  // Block 3 is across both, and block 6 does not end in the pool.
  const LedgerConfig config{.num_blocks = 20,
                            .block_tokens = 1,
                            .formats = {{.block_bytes = 10}, {.block_bytes = 30}},
                            .slab_blocks = 10};
  Ledger ledger(config);
  EXPECT_EQ(ledger.blocks_available(FormatId{1}), 6);
  const SegmentId two = reserved(ledger, 2, FormatId{1});
  EXPECT_EQ(ids_of(ledger, two), (Ids{0, 1}));
  EXPECT_EQ(ledger.counts().bytes_lent, 100);
  EXPECT_EQ(ledger.blocks_available(FormatId{1}), 4);
  const SegmentId four = reserved(ledger, 4, FormatId{1});
  EXPECT_EQ(ids_of(ledger, four), (Ids{2, 3, 4, 5}));
  EXPECT_EQ(ledger.blocks_available(), 0);
  EXPECT_TRUE(ledger.segments().drop(two));
  EXPECT_EQ(ledger.counts().bytes_lent, 200) << "block 3 is used and lies in both";
  EXPECT_TRUE(ledger.segments().drop(four));
  EXPECT_EQ(ledger.counts().bytes_lent, 0);
  expect_consistent(ledger);
}

TEST(LedgerFormats, NoMixThatOnlyGrowsWastesMoreThanASlabOfAFormat) {
  LedgerConfig config = mixed_formats(64);
  config.formats[2].open.reset();
  Ledger ledger(config);
  std::int64_t stored = 0;
  for (int i = 0;; ++i) {
    const FormatId format{static_cast<std::uint8_t>(1 + i % 2)};
    const BlockCounts wanted = config.blocks_for(4 * (1 + i % 5), format);
    if (ledger.bytes_lacking(wanted) > 0) {
      break;
    }
    reserved(ledger, 4 * (1 + i % 5), format);
    stored += config.bytes_of(wanted);
    EXPECT_EQ(ledger.counts().bytes_in_use, stored);
    // A slab of each format, and what is lost at the ends of slabs that do not lie side by side.
    const std::int64_t slabs = ledger.counts().bytes_lent / 400;
    EXPECT_LE(ledger.counts().bytes_lent - stored, 2 * 400 + slabs * 30);
    expect_consistent(ledger);
  }
  EXPECT_GT(stored, 64 * 100 * 8 / 10);
}

TEST(LedgerFormats, UnknownFormatsAreRefused) {
  Ledger ledger(mixed_formats());
  const Result<SegmentId> segment = ledger.segments().reserve(tokens_of(1), 0, FormatId{3});
  ASSERT_FALSE(segment.ok());
  EXPECT_EQ(segment.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(segment.error().message, "a segment cannot have format 3: the pool has 3 formats");
}

std::string refusal(const LedgerConfig& config) {
  const Status status = config.validate();
  return status.ok() ? "" : status.error().message;
}

TEST(LedgerFormats, ConfigurationsOutOfRangeAreRefusedByName) {
  EXPECT_EQ(refusal(mixed_formats()), "");
  LedgerConfig config = mixed_formats();
  config.formats.clear();
  EXPECT_EQ(refusal(config), "there are 0 formats; give 1 to 8");
  config.formats.resize(9);
  EXPECT_EQ(refusal(config), "there are 9 formats; give 1 to 8");
  config = mixed_formats();
  config.formats[1].block_bytes = 0;
  EXPECT_THAT(refusal(config), HasSubstr("a block of format 1 has 0 bytes; give 1 to "));
  config = mixed_formats();
  config.formats[1].open = FormatId{7};
  EXPECT_EQ(refusal(config), "format 1 opens as format 7; there is no such format");
  config = mixed_formats();
  config.formats[0].open = kHalf;
  EXPECT_EQ(refusal(config), "format 2 opens as format 0, which is written block by block itself");
  config.formats[2].open = kHalf;
  EXPECT_EQ(refusal(config), "");
  config.standing_open_blocks = 21;
  EXPECT_EQ(refusal(config), "standing_open_blocks is 21; give 0 to 20, which is half of the pool");
  config = mixed_formats();
  config.formats[1].block_bytes = 201;
  EXPECT_EQ(refusal(config),
            "slab_blocks is 4; give 5 or more, since a slab holds two blocks of 201 bytes");
  config = mixed_formats();
  config.num_blocks = 1 << 28;
  EXPECT_THAT(refusal(config), HasSubstr("blocks of 50 bytes; give a num_blocks with which it"));
  config = {.num_blocks = 4, .slab_blocks = 0};
  EXPECT_EQ(refusal(config), "") << "one format has no slabs";
}

}  // namespace
}  // namespace quire::kv

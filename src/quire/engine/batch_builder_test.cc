#include "quire/engine/batch_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "quire/attention/entry.h"
#include "quire/base/ids.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/model/forward_batch.h"
#include "quire/sched/types.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

using testing::ElementsAre;
using Tokens = std::vector<TokenId>;

constexpr std::int32_t kBlockTokens = 4;

class BatchBuilderTest : public testing::Test {
 protected:
  kv::SegmentId segment(std::size_t size) {
    const SeqId sequence = ledger.sequences().open(Tokens(size, 7), false);
    EXPECT_TRUE(ledger.sequences().extend(sequence, static_cast<std::int32_t>(size)).ok());
    ledger.sequences().advance(sequence, static_cast<std::int32_t>(size));
    const kv::SegmentId sealed = ledger.segments().seal(sequence).value();
    ledger.sequences().close(sequence);
    return sealed;
  }

  // Returns a sequence of `own` tokens behind these segments, of which `computed` have KV and the
  // others are scheduled.
  sched::ScheduledRun behind(const std::vector<kv::SegmentUse>& uses, std::int32_t own,
                             std::int32_t computed = 0) {
    Tokens tokens;
    for (std::int32_t i = 0; i < own; ++i) {
      tokens.push_back(100 + i);
    }
    const SeqId sequence = ledger.segments().compose(uses, {.tokens = tokens}).value();
    EXPECT_TRUE(ledger.sequences().extend(sequence, computed).ok());
    ledger.sequences().advance(sequence, computed);
    EXPECT_TRUE(ledger.sequences().extend(sequence, own - computed).ok());
    return {.sequence = sequence, .first = computed, .count = own - computed};
  }

  const model::ForwardBatch& build(const std::vector<sched::ScheduledRun>& runs) {
    return builder.build(runs, std::vector<std::int32_t>(runs.size(), 1), ledger);
  }

  kv::Ledger ledger{{.num_blocks = 400, .block_tokens = kBlockTokens, .prefix_cache = false}};
  BatchBuilder builder;
};

std::vector<std::int32_t> rows_of(const attention::Entry& entry) {
  std::vector<std::int32_t> rows;
  for (const attention::EntryRow& row : entry.rows) {
    rows.push_back(row.row);
  }
  return rows;
}

std::vector<std::int32_t> positions_of(const attention::Entry& entry) {
  std::vector<std::int32_t> positions;
  for (const attention::EntryRow& row : entry.rows) {
    positions.push_back(row.query_position);
  }
  return positions;
}

TEST_F(BatchBuilderTest, ASegmentInUseIsOneEntryWithTheRowsOfAllThatSeeIt) {
  const kv::SegmentId shared = segment(6);
  const auto one = behind({{.segment = shared, .position = 0}}, 2);
  const auto two = behind({{.segment = shared, .position = 30}}, 4, 3);
  const auto three = behind({{.segment = shared, .position = 0}}, 1);
  const model::ForwardBatch& batch = build({one, two, three});
  EXPECT_THAT(batch.token_ids, ElementsAre(100, 101, 103, 100));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 3, 0)) << "where keys are stored";
  EXPECT_THAT(batch.use_positions, ElementsAre(6, 7, 39, 6)) << "where tokens are used";
  ASSERT_EQ(batch.entries.size(), 4U);
  const attention::Entry& entry = batch.entries[0];
  EXPECT_EQ(entry.num_tokens, 6);
  EXPECT_EQ(entry.blocks.size(), 2U);
  EXPECT_THAT(rows_of(entry), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(positions_of(entry), ElementsAre(6, 7, 9, 6)) << "as far behind it as it is used";
  for (const attention::EntryRow& row : entry.rows) {
    EXPECT_EQ(row.visible_end, 6);
  }
  EXPECT_THAT(rows_of(batch.entries[1]), ElementsAre(0, 1));
  EXPECT_THAT(positions_of(batch.entries[2]), ElementsAre(3));
  EXPECT_EQ(batch.entries[2].rows[0].visible_end, 4) << "its own tokens, itself included";
  EXPECT_THAT(batch.logit_rows, ElementsAre(1, 2, 3));
}

TEST_F(BatchBuilderTest, EntriesStandByRankWhateverTheOrderOfSegments) {
  const kv::SegmentId a = segment(4);
  const kv::SegmentId b = segment(8);
  const kv::SegmentUse first = {.segment = a, .position = 0, .rank = {9}};
  const kv::SegmentUse second = {.segment = b, .position = 4, .rank = {2}};
  const kv::SegmentUse moved = {.segment = a, .position = 8, .rank = {9}};
  const kv::SegmentUse front = {.segment = b, .position = 0, .rank = {2}};
  const model::ForwardBatch& batch = build({behind({first, second}, 1), behind({front, moved}, 1)});
  ASSERT_EQ(batch.entries.size(), 4U);
  EXPECT_EQ(batch.entries[0].num_tokens, 8);
  EXPECT_EQ(batch.entries[1].num_tokens, 4);
  EXPECT_THAT(rows_of(batch.entries[0]), ElementsAre(0, 1));
  EXPECT_THAT(positions_of(batch.entries[0]), ElementsAre(8, 12));
  EXPECT_THAT(positions_of(batch.entries[1]), ElementsAre(12, 4));
}

TEST_F(BatchBuilderTest, TheSameSegmentTwiceInOneSequenceIsTwoEntries) {
  const kv::SegmentId twice = segment(5);
  const auto both =
      behind({{.segment = twice, .position = 0}, {.segment = twice, .position = 5}}, 2);
  const auto once = behind({{.segment = twice, .position = 3}}, 1);
  const model::ForwardBatch& batch = build({both, once});
  ASSERT_EQ(batch.entries.size(), 4U);
  EXPECT_THAT(rows_of(batch.entries[0]), ElementsAre(0, 1, 2));
  EXPECT_THAT(rows_of(batch.entries[1]), ElementsAre(0, 1));
  EXPECT_THAT(positions_of(batch.entries[0]), ElementsAre(10, 11, 5));
  EXPECT_THAT(positions_of(batch.entries[1]), ElementsAre(5, 6));
}

TEST_F(BatchBuilderTest, RunsOfOneRankStandAsInTheirSequenceWhereverTheirBlocksLie) {
  const kv::SegmentId low = segment(5);
  const kv::SegmentId high = segment(5);
  for (const auto& [first, second] : {std::pair(low, high), std::pair(high, low)}) {
    const auto run = behind({{.segment = first, .position = 0, .rank = {3}},
                             {.segment = second, .position = 5, .rank = {3}}},
                            1);
    const model::ForwardBatch& batch = build({run});
    ASSERT_EQ(batch.entries.size(), 3U);
    EXPECT_EQ(batch.entries[0].blocks[0], ledger.segments().find(first)->blocks().ids()[0].value);
    EXPECT_EQ(batch.entries[1].blocks[0], ledger.segments().find(second)->blocks().ids()[0].value);
  }
}

TEST_F(BatchBuilderTest, WithoutSharingEveryUseIsAnEntry) {
  const kv::SegmentId shared = segment(6);
  const std::vector runs = {behind({{.segment = shared}}, 1), behind({{.segment = shared}}, 1)};
  BatchBuilder flat(false);
  const std::vector<std::int32_t> wanted(2, 0);
  EXPECT_EQ(flat.build(runs, wanted, ledger).entries.size(), 4U);
  EXPECT_EQ(build(runs).entries.size(), 3U);
}

// Entries that a row sees, in the order in which they are merged, but for the row's own number.
using Seen = std::vector<
    std::tuple<std::vector<std::int32_t>, std::int32_t, std::int32_t, std::int32_t, std::int32_t>>;

Seen seen_by(const model::ForwardBatch& batch, std::int32_t row) {
  Seen seen;
  for (const attention::Entry& entry : batch.entries) {
    for (const attention::EntryRow& entry_row : entry.rows) {
      if (entry_row.row == row) {
        seen.emplace_back(std::vector<std::int32_t>(entry.blocks.begin(), entry.blocks.end()),
                          entry.num_tokens, entry.first_token, entry_row.query_position,
                          entry_row.visible_end);
      }
    }
  }
  return seen;
}

// Runs shorter than a canonical piece of attention, so that open runs are never shared.
TEST_F(BatchBuilderTest, RandomBatchesShareEverySegmentOnceAndChangeNothingForAnyRow) {
  std::mt19937 random(3);
  const auto below = [&](std::uint32_t bound) {
    return static_cast<std::int32_t>(random() % bound);
  };
  std::vector<kv::SegmentId> segments;
  segments.reserve(6);
  for (int i = 0; i < 6; ++i) {
    segments.push_back(segment(std::size_t{1} + static_cast<std::size_t>(below(11))));
  }
  for (int round = 0; round < 200; ++round) {
    std::vector<sched::ScheduledRun> runs;
    std::set<std::pair<std::uint64_t, std::int32_t>> uses;  // segment, occurrence in its sequence
    for (int i = 1 + below(5); i > 0; --i) {
      std::vector<kv::SegmentUse> segments_of;
      std::vector<std::int32_t> occurrences(segments.size());
      for (int n = below(6); n > 0; --n) {
        const auto which = static_cast<std::size_t>(below(6));
        segments_of.push_back({.segment = segments[which],
                               .position = below(60),
                               .rank = {(which * 7) % 5}});  // with a tie
        uses.emplace(segments[which].value, occurrences[which]++);
      }
      const std::int32_t own = 1 + below(6);
      runs.push_back(behind(segments_of, own, below(static_cast<std::uint32_t>(own))));
    }
    std::vector<Seen> alone;
    for (const sched::ScheduledRun& run : runs) {
      const model::ForwardBatch& batch = build({run});
      for (std::int32_t row = 0; row < run.count; ++row) {
        alone.push_back(seen_by(batch, row));
      }
    }
    const model::ForwardBatch& batch = build(runs);
    ASSERT_EQ(batch.entries.size(), uses.size() + runs.size());
    ASSERT_EQ(batch.token_ids.size(), alone.size());
    for (const attention::Entry& entry : batch.entries) {
      ASSERT_EQ(std::ranges::adjacent_find(entry.rows, std::ranges::greater_equal{},
                                           &attention::EntryRow::row),
                entry.rows.end())
          << "rows ascend";
    }
    for (std::size_t row = 0; row < alone.size(); ++row) {
      ASSERT_EQ(seen_by(batch, static_cast<std::int32_t>(row)), alone[row]) << "round " << round;
    }
    for (const sched::ScheduledRun& run : runs) {
      ledger.sequences().close(run.sequence);
    }
  }
}

TEST_F(BatchBuilderTest, LogitsAreThoseOfTheRowsThatWereAskedFor) {
  const std::vector runs = {behind({}, 3), behind({}, 2), behind({}, 4, 2)};
  const std::vector<std::int32_t> wanted = {3, 0, 1};
  const model::ForwardBatch& batch = builder.build(runs, wanted, ledger);
  EXPECT_THAT(batch.logit_rows, ElementsAre(0, 1, 2, 6));
  ASSERT_EQ(builder.logit_ranges().size(), 3U);
  EXPECT_EQ(builder.logit_ranges()[0].count, 3);
  EXPECT_EQ(builder.logit_ranges()[1].count, 0);
  EXPECT_EQ(builder.logit_ranges()[2].first, 3);
  EXPECT_EQ(batch.slots[6].offset, 3);
}

// A ledger with a second format, whose blocks have half the bytes.
TEST(BatchBuilderStates, RowsOfOwedTokensAreKept) {
  kv::Ledger ledger({.num_blocks = 20, .block_tokens = 4, .num_states = 4});
  const std::vector<TokenId> tokens(20, 3);
  const auto opened = [&](std::size_t count) {
    const SeqId id = ledger.sequences().open(std::span(tokens).first(count), true);
    EXPECT_TRUE(ledger.sequences().extend(id, static_cast<std::int32_t>(count)).ok());
    return id;
  };
  const SeqId cut = opened(10);
  ledger.sequences().advance(cut, 10);
  ASSERT_TRUE(ledger.sequences().rollback(cut, 6).ok());
  ledger.sequences().append(cut, 5);
  ASSERT_TRUE(ledger.sequences().extend(cut, 7).ok());
  const SeqId fresh = opened(2);
  BatchBuilder builder;
  const std::vector<std::int32_t> logits = {1, 1};
  const std::vector<sched::ScheduledRun> runs = {{.sequence = cut, .first = 2, .count = 5},
                                                 {.sequence = fresh, .first = 0, .count = 2}};
  const model::ForwardBatch& batch = builder.build(runs, logits, ledger);
  EXPECT_THAT(batch.kept, ElementsAre(1, 1, 1, 1, 0, 0, 0)) << "token 6 is new";
  EXPECT_EQ(batch.slots.size(), 7U);
  EXPECT_TRUE(builder.build({runs.begin() + 1, 1}, {logits.begin(), 1}, ledger).kept.empty());
}

TEST(BatchBuilderFormats, EntriesAndSlotsNameTheFormatsOfTheirRuns) {
  kv::Ledger ledger({.num_blocks = 40,
                     .block_tokens = kBlockTokens,
                     .formats = {{.block_bytes = 100}, {.block_bytes = 50}},
                     .slab_blocks = 4});
  const kv::FormatId coded{1};
  const kv::SegmentId segment = ledger.segments().reserve(Tokens(5, 7), 0, coded).value();
  const kv::SegmentUse use{.segment = segment};
  const Tokens own(3, 8), rest(2, 9);
  const SeqId behind = ledger.segments().compose({&use, 1}, {.tokens = own}).value();
  ASSERT_TRUE(ledger.sequences().extend(behind, 3).ok());
  const SeqId computed = ledger.segments().compose_in(coded, {}, {.tokens = rest}).value();
  const std::vector<sched::ScheduledRun> runs = {{.sequence = behind, .count = 3},
                                                 {.sequence = computed, .count = 2}};
  BatchBuilder builder;
  const model::ForwardBatch& mixed = builder.build(runs, std::vector<std::int32_t>{1, 0}, ledger);
  EXPECT_EQ(mixed.num_formats, 2);
  EXPECT_THAT(mixed.slot_formats, ElementsAre(0, 0, 0, 1, 1));
  ASSERT_EQ(mixed.entries.size(), 3U);
  EXPECT_EQ(mixed.entries[0].format, 1) << "the segment";
  EXPECT_EQ(mixed.entries[1].format, 0) << "the query";
  EXPECT_EQ(mixed.entries[2].format, 1) << "the chunk that is computed";

  const SeqId plain = ledger.sequences().open(own, false);
  ASSERT_TRUE(ledger.sequences().extend(plain, 3).ok());
  const std::vector<sched::ScheduledRun> alone = {{.sequence = plain, .count = 3}};
  const model::ForwardBatch& one = builder.build(alone, std::vector<std::int32_t>{1}, ledger);
  EXPECT_EQ(one.num_formats, 1);
  EXPECT_TRUE(one.slot_formats.empty()) << "one format costs nothing";
}

}  // namespace
}  // namespace quire::engine

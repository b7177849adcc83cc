// Blocks that are set aside for sequences that will grow.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/test_support.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

void grow(Ledger& ledger, SeqId id, std::int32_t count) {
  for (std::int32_t i = 0; i < count; ++i) {
    ledger.sequences().append(id, i);
  }
  compute(ledger, id, count);
}

TEST(Reserve, ARunWithinItsHintTakesNoOtherBlock) {
  Ledger ledger({.num_blocks = 40, .block_tokens = 4});
  const SeqId id = computed(ledger, tokens_of(6));
  ASSERT_TRUE(ledger.sequences().reserve(id, 30).ok());
  const SeqId other = computed(ledger, tokens_of(40, 100));
  const std::int64_t taken = ledger.counts().blocks_taken;
  for (int step = 0; step < 24; ++step) {
    grow(ledger, id, 1);
    expect_consistent(ledger);
  }
  EXPECT_EQ(ledger.counts().blocks_taken, taken);
  EXPECT_EQ(ledger.counts().blocks_reserved, 0);
  EXPECT_EQ(block_ids(ledger, id), Ids({0, 1, 2, 3, 4, 5, 6, 7})) << "side by side";
  grow(ledger, id, 3);
  EXPECT_EQ(ledger.counts().blocks_taken, taken + 1);
  ledger.sequences().close(other);
}

TEST(Reserve, BlocksCountAsFreeAndOthersGetThemBeforeAnythingCachedGoes) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  ledger.sequences().close(computed(ledger, tokens_of(8, 100)));
  const SeqId id = computed(ledger, tokens_of(4));
  ASSERT_TRUE(ledger.sequences().reserve(id, 16).ok());
  EXPECT_EQ(ledger.counts().blocks_free, 5);
  EXPECT_EQ(ledger.counts().blocks_reserved, 3);
  EXPECT_EQ(ledger.blocks_available(), 7);
  const SeqId other = computed(ledger, tokens_of(16, 200));
  EXPECT_EQ(ledger.counts().blocks_reserved, 1);
  EXPECT_EQ(ledger.counts().evictions, 0);
  expect_consistent(ledger);
  grow(ledger, id, 8);
  EXPECT_EQ(ledger.counts().evictions, 1);
  expect_consistent(ledger);
  ledger.sequences().close(other);
}

TEST(Reserve, WhatIsCutOffWithinTheHintIsSetAsideAgain) {
  Ledger ledger({.num_blocks = 12, .block_tokens = 4, .prefix_cache = false});
  const SeqId id = computed(ledger, tokens_of(4));
  ASSERT_TRUE(ledger.sequences().reserve(id, 24).ok());
  grow(ledger, id, 17);
  const SeqId fork = ledger.sequences().fork(id);
  const std::int64_t taken = ledger.counts().blocks_taken;
  ASSERT_TRUE(ledger.sequences().rollback(id, 5).ok());
  expect_consistent(ledger);
  EXPECT_EQ(ledger.counts().blocks_reserved, 0) << "the fork holds what was cut off";
  ledger.sequences().close(fork);
  grow(ledger, id, 3);
  EXPECT_EQ(ledger.counts().blocks_taken, taken);
  ASSERT_TRUE(ledger.sequences().reserve(id, 24).ok());
  grow(ledger, id, 16);
  ASSERT_TRUE(ledger.sequences().rollback(id, 1).ok());
  expect_consistent(ledger);
  EXPECT_EQ(ledger.counts().blocks_reserved, 5);
  grow(ledger, id, 23);
  EXPECT_EQ(ledger.counts().blocks_taken, taken + 4);
}

TEST(Reserve, FewerTokensClosingAndDroppingGiveBlocksBack) {
  Ledger ledger({.num_blocks = 12, .block_tokens = 4});
  const SeqId id = computed(ledger, tokens_of(4));
  ASSERT_TRUE(ledger.sequences().reserve(id, 40).ok());
  EXPECT_EQ(ledger.counts().blocks_reserved, 9);
  ASSERT_TRUE(ledger.sequences().reserve(id, 13).ok());
  EXPECT_EQ(ledger.counts().blocks_reserved, 3);
  ledger.preemption().drop_kv(id);
  EXPECT_EQ(ledger.counts().blocks_reserved, 0);
  expect_consistent(ledger);
  ASSERT_TRUE(ledger.sequences().reserve(id, 13).ok());
  ledger.sequences().close(id);
  EXPECT_EQ(ledger.counts().blocks_reserved, 0);
  EXPECT_EQ(ledger.counts().blocks_in_use, 0);
  expect_consistent(ledger);
}

TEST(Reserve, TooFewFreeBlocksAreRefusedAndNothingChanges) {
  Ledger ledger({.num_blocks = 8, .block_tokens = 4});
  ledger.sequences().close(computed(ledger, tokens_of(8, 100)));
  const SeqId id = computed(ledger, tokens_of(4));
  ASSERT_TRUE(ledger.sequences().reserve(id, 8).ok());
  const Status refused = ledger.sequences().reserve(id, 28);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBlocks);
  EXPECT_EQ(refused.error().message,
            "cannot reserve blocks for 28 tokens: 4 of 8 are free and not reserved; reserve fewer "
            "tokens, or close sequences");
  EXPECT_EQ(ledger.counts().blocks_reserved, 1);
  EXPECT_EQ(ledger.counts().blocks_cached, 2);
  expect_consistent(ledger);
}

TEST(Reserve, ReservedBlocksPinNoSlabOfAnotherFormat) {
  Ledger ledger(mixed_formats());
  const SeqId id = computed(ledger, tokens_of(4));
  ASSERT_TRUE(ledger.sequences().reserve(id, 80).ok());
  EXPECT_EQ(ledger.counts().blocks_reserved, 19);
  EXPECT_EQ(ledger.blocks_available(kHalf), 32);
  ASSERT_TRUE(ledger.segments().reserve(tokens_of(128), 0, kHalf).ok());
  expect_consistent(ledger);
  EXPECT_EQ(ledger.counts().blocks_reserved, 3) << "in the slab of the block in use";
}

TEST(Reserve, BlocksOfARunThatIsStoredBlockByBlockAreSetAside) {
  Ledger ledger({.num_blocks = 24,
                 .block_tokens = 4,
                 .formats = {{.block_bytes = 4, .open = FormatId{1}}, {.block_bytes = 8}},
                 .slab_blocks = 4});
  const SeqId id = computed(ledger, tokens_of(2));
  ASSERT_TRUE(ledger.sequences().reserve(id, 30).ok());
  const std::int64_t taken = ledger.counts().blocks_taken;
  for (int step = 0; step < 28; ++step) {
    grow(ledger, id, 1);
    expect_consistent(ledger);
  }
  EXPECT_EQ(ledger.counts().blocks_taken, taken);
}

// Does the same with two ledgers, of which one is told lengths ahead.
class Twins {
 public:
  Twins(const LedgerConfig& config, std::uint32_t seed)
      : ledgers_{Ledger(config), Ledger(config)}, random_(seed) {}

  void step() {
    if (held_.empty() || (held_.size() < 5 && below(6) == 0)) {
      return open();
    }
    const auto which = static_cast<std::size_t>(below(static_cast<int>(held_.size())));
    const std::array<SeqId, 2> ids = held_[which];
    switch (below(8)) {
      case 0:
        for (std::size_t i = 0; i < 2; ++i) {
          ledgers_[i].sequences().close(ids[i]);
        }
        held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(which));
        return;
      case 1:
        return rollback(ids);
      case 2:
        num_reserved_ += ledgers_[0].sequences().reserve(ids[0], below(60)).ok() ? 1 : 0;
        return;
      default:
        return grow_both(ids);
    }
  }

  void expect_alike() {
    const LedgerCounts told = ledgers_[0].counts(), other = ledgers_[1].counts();
    expect_consistent(ledgers_[0]);
    ASSERT_EQ(told.blocks_free, other.blocks_free);
    ASSERT_EQ(told.blocks_cached, other.blocks_cached);
    ASSERT_EQ(told.evictions, other.evictions);
    ASSERT_EQ(told.tokens_reused, other.tokens_reused);
    ASSERT_EQ(ledgers_[0].blocks_available(), ledgers_[1].blocks_available());
  }

  [[nodiscard]] int reserved() const { return num_reserved_; }
  [[nodiscard]] std::int64_t evictions() const { return ledgers_[0].counts().evictions; }

 private:
  int below(int bound) { return static_cast<int>(random_() % static_cast<std::uint32_t>(bound)); }

  void open() {
    const Tokens tokens = tokens_of(1 + below(30), below(3));
    std::array<SeqId, 2> ids;
    for (std::size_t i = 0; i < 2; ++i) {
      ASSERT_EQ(ledgers_[i].cache().match(tokens, ""), ledgers_[1].cache().match(tokens, ""));
      ids[i] = ledgers_[i].sequences().open(tokens, true);
    }
    held_.push_back(ids);
  }

  void rollback(const std::array<SeqId, 2>& ids) {
    const int length = below(static_cast<int>(ledgers_[0].sequences().tokens(ids[0]).size()) + 1);
    for (std::size_t i = 0; i < 2; ++i) {
      ASSERT_TRUE(ledgers_[i].sequences().rollback(ids[i], length).ok());
    }
  }

  void grow_both(const std::array<SeqId, 2>& ids) {
    const TokenId token = below(3);
    std::array<bool, 2> fits{};
    for (std::size_t i = 0; i < 2; ++i) {
      Sequences& sequences = ledgers_[i].sequences();
      sequences.append(ids[i], token);
      const auto all = static_cast<std::int32_t>(sequences.tokens(ids[i]).size());
      const std::int32_t count = all - sequences.num_computed(ids[i]);
      fits[i] = sequences.extend(ids[i], count).ok();
      (void)ledgers_[i].take_copies();
      if (fits[i]) {
        sequences.advance(ids[i], count);
      }
    }
    ASSERT_EQ(fits[0], fits[1]);
  }

  std::array<Ledger, 2> ledgers_;  // the first one is told lengths
  std::vector<std::array<SeqId, 2>> held_;
  std::mt19937 random_;
  int num_reserved_ = 0;
};

TEST(Reserve, LookupsEvictionsAndRefusalsAreAsWithout) {
  int reserved = 0;
  std::int64_t evictions = 0;
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    Twins twins({.num_blocks = 14 + static_cast<std::int32_t>(seed % 5), .block_tokens = 4}, seed);
    for (int i = 0; i < 400; ++i) {
      twins.step();
      twins.expect_alike();
      ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed << " step " << i;
    }
    reserved += twins.reserved();
    evictions += twins.evictions();
  }
  EXPECT_GT(reserved, 100);
  EXPECT_GT(evictions, 100);
}

}  // namespace
}  // namespace quire::kv

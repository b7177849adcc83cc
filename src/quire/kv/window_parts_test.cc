// Window parts: what the ledger keeps of layers with a window where others have none.
#include "quire/kv/window_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/ledger.h"
#include "quire/kv/test_support.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::kv {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kFull = 10, kPart = 90;  // bytes of a block

// Blocks of four tokens, and a window of 16: four blocks and a part of a fifth.
LedgerConfig windowed(std::int32_t num_blocks) {
  return {.num_blocks = num_blocks,
          .block_tokens = 4,
          .window_group = {.tokens = 16, .block_bytes = kPart},
          .formats = {{.block_bytes = kFull + kPart}}};
}

SeqId open(Ledger& ledger, const Tokens& tokens) {
  return ledger.sequences().open(tokens, true, {}, {}, BehindWindow::kFrees);
}

// Computes all tokens, in steps of `step` tokens.
void compute_all(Ledger& ledger, SeqId id, std::int32_t step) {
  const auto all = static_cast<std::int32_t>(ledger.sequences().tokens(id).size());
  while (ledger.sequences().num_computed(id) < all) {
    compute(ledger, id, std::min(step, all - ledger.sequences().num_computed(id)));
    expect_consistent(ledger);
  }
}

SeqId computed_in_steps(Ledger& ledger, const Tokens& tokens, std::int32_t step = 7) {
  const SeqId id = open(ledger, tokens);
  compute_all(ledger, id, step);
  return id;
}

std::int64_t parts_in_use(const Ledger& ledger) {
  return ledger.counts().bytes_window_in_use / kPart;
}

TEST(WindowParts, OfALongSequenceAreNoMoreThanItsWindowAndStep) {
  Ledger ledger(windowed(100));
  const SeqId id = open(ledger, tokens_of(300));
  for (const std::int32_t step : {1, 5, 4, 20, 60, 3}) {
    const std::int32_t most = (15 + step + 3) / 4 + 1;
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(ledger.sequences().extend(id, step).ok());
      EXPECT_LE(parts_in_use(ledger), most);
      ledger.sequences().advance(id, step);
      EXPECT_LE(parts_in_use(ledger), 5);
      expect_consistent(ledger);
    }
  }
  EXPECT_EQ(ledger.sequences().num_blocks_held(id), 70);
}

TEST(WindowParts, BehindTheWindowAreTakenByOthers) {
  Ledger ledger(windowed(16));  // 1600 bytes; a sequence of 200 tokens needs 950
  const SeqId first = computed_in_steps(ledger, tokens_of(200));
  const SeqId second = computed_in_steps(ledger, tokens_of(40, 1000));
  EXPECT_EQ(ledger.sequences().num_computed(first), 200);
  EXPECT_EQ(ledger.sequences().num_computed(second), 40);
  EXPECT_FALSE(ledger.lost().take().windows.empty());
  EXPECT_EQ(ledger.counts().evictions, 0);
}

TEST(WindowParts, CountInTheFewestBlocksOfASequence) {
  const Ledger ledger(windowed(16));
  EXPECT_EQ(ledger.min_blocks(12), 3);
  EXPECT_EQ(ledger.min_blocks(200), 10);  // 50 * 10 + 5 * 90 bytes
}

TEST(WindowParts, ThatHaveGoneEndAHitWhereTheyAreStillThere) {
  Ledger ledger(windowed(16));
  const Tokens prompt = tokens_of(100);
  ledger.sequences().close(computed_in_steps(ledger, prompt));
  EXPECT_EQ(ledger.cache().match(prompt), 96);
  const SeqId other = computed_in_steps(ledger, tokens_of(60, 1000));
  // The beginning is known as far as before. No window inside of it is whole.
  const Tokens begins = tokens_of(50);
  EXPECT_EQ(ledger.cache().match(begins), 0);
  EXPECT_EQ(ledger.cache().probe(begins).known_tokens, 48);
  const PrefixMiss miss = ledger.cache().explain(begins);
  EXPECT_EQ(miss.why, PrefixMiss::Why::kWindowFreed);
  EXPECT_THAT(to_text(miss), HasSubstr("known up to token 48, and the window freed"));
  ledger.sequences().close(other);
  expect_consistent(ledger);
}

TEST(WindowParts, OfAPromptsEndOutliveThoseInItsMiddle) {
  Ledger ledger(windowed(20));
  const Tokens prompt = tokens_of(100);
  const SeqId first = open(ledger, prompt);
  ledger.points().mark(first, {}, 61);  // the rest is an answer
  compute_all(ledger, first, 7);
  ledger.sequences().close(first);
  ledger.sequences().close(computed_in_steps(ledger, tokens_of(44, 1000)));
  const Tokens regenerated = tokens_of(61);
  EXPECT_EQ(ledger.cache().match(regenerated), 60);
  EXPECT_EQ(ledger.cache().match(tokens_of(50)), 0);
}

TEST(WindowParts, ThatAreComputedAgainServeTheNextRequest) {
  Ledger ledger(windowed(16));
  ledger.sequences().close(computed_in_steps(ledger, tokens_of(100)));
  ledger.sequences().close(computed_in_steps(ledger, tokens_of(60, 1000)));
  const Tokens begins = tokens_of(26);
  const SeqId again = open(ledger, begins);
  EXPECT_EQ(ledger.sequences().num_computed(again), 0);
  EXPECT_EQ(ledger.counts().tokens_replayed, 0);
  compute_all(ledger, again, 26);
  EXPECT_EQ(ledger.counts().tokens_replayed, 24);
  std::vector<BlockCopy> handed = ledger.take_copies();
  std::erase_if(handed,
                [](const BlockCopy& copy) { return copy.parts != BlockCopy::Parts::kWindow; });
  EXPECT_FALSE(handed.empty());
  ledger.sequences().close(again);
  EXPECT_EQ(ledger.cache().match(begins), 24);
  expect_consistent(ledger);
}

TEST(WindowParts, AreAllKeptBySequencesThatAreSealed) {
  Ledger ledger(windowed(30));
  const SeqId id = computed(ledger, tokens_of(80));
  EXPECT_EQ(parts_in_use(ledger), 20);
  EXPECT_TRUE(ledger.segments().seal(id).ok());
  const SeqId frees = computed_in_steps(ledger, tokens_of(40, 1000));
  const auto refused = ledger.segments().seal(frees);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("window of 16 tokens of some layers has freed"));
  EXPECT_TRUE(ledger.segments().seal_to_forget(frees).ok());
  expect_consistent(ledger);
}

TEST(WindowParts, ThatHaveGoneMoveARollbackToTheLastWindowThatIsThere) {
  Ledger ledger(windowed(14));
  const SeqId id = open(ledger, tokens_of(100));
  compute_all(ledger, id, 4);
  const SeqId other = computed_in_steps(ledger, tokens_of(16, 1000));
  ledger.sequences().close(other);
  for (const std::int32_t length : {99, 98, 60}) {
    const SeqId branch = ledger.sequences().fork(id);
    ASSERT_TRUE(ledger.sequences().rollback(branch, length).ok());
    EXPECT_EQ(ledger.sequences().tokens(branch).size(), static_cast<std::size_t>(length));
    EXPECT_LE(ledger.sequences().num_computed(branch), length);
    expect_consistent(ledger);
    ledger.sequences().close(branch);
  }
  const SeqId branch = ledger.sequences().fork(id);
  ASSERT_TRUE(ledger.sequences().rollback(branch, 99).ok());
  EXPECT_EQ(ledger.sequences().num_computed(branch), 99);
}

// Layers of Gemma 4 31B: 10 without a window, 80 KiB per token; 50 with one of 1024, 800 KiB.
TEST(WindowParts, OfLargeModelsTakeWhatTheirGroupsNeed) {
  constexpr std::int64_t kTokens = 32768, kBlock = 32, kWindow = 1024, kKiB = 1024;
  constexpr std::int64_t kNeeded = 80 * kKiB * kTokens + 800 * kKiB * kWindow;
  constexpr std::int64_t kBlockBytes = 880 * kKiB * kBlock;
  Ledger ledger({.num_blocks = static_cast<std::int32_t>(kNeeded * 102 / 100 / kBlockBytes),
                 .block_tokens = kBlock,
                 .window_group = {.tokens = kWindow, .block_bytes = 800 * kKiB * kBlock},
                 .formats = {{.block_bytes = kBlockBytes}}});
  const SeqId id = open(ledger, tokens_of(kTokens));
  while (ledger.sequences().num_computed(id) < kTokens) {
    const std::int64_t left = kTokens - ledger.sequences().num_computed(id);
    const std::int64_t fit = ledger.blocks_available() * kBlock;
    ASSERT_GT(fit, 0) << ledger.sequences().num_computed(id);
    compute(ledger, id, static_cast<std::int32_t>(std::min({left, fit, std::int64_t{512}})));
  }
  EXPECT_LE(ledger.counts().bytes_total, kNeeded * 102 / 100);
  EXPECT_LE(ledger.counts().bytes_in_use, kNeeded * 102 / 100);
  EXPECT_EQ(ledger.min_blocks(kTokens) <= ledger.config().num_blocks, true);
  expect_consistent(ledger);
}

TEST(WindowParts, AreRefusedByNameWhereTheyCannotBe) {
  LedgerConfig config = windowed(10);
  config.window_group.block_bytes = 100;
  EXPECT_THAT(config.validate().error().message, HasSubstr("a part of the block's bytes"));
  config = windowed(10);
  config.num_states = 4;
  EXPECT_THAT(config.validate().error().message, HasSubstr("a window group beside states"));
}

}  // namespace
}  // namespace quire::kv

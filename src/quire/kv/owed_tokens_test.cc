// Tokens that a sequence owes: their KV is there, and the state behind them is not. Oracle: each
// slot of a block holds the tokens up to its own, as a step or a copy has put them there. A step
// reads slots of exactly its sequence's tokens, and no slot is written that holds them already.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/ledger.h"
#include "quire/kv/restore_points.h"
#include "quire/kv/states.h"
#include "quire/kv/test_support.h"
#include "quire/kv/types.h"

namespace quire::kv {
namespace {

class OwedTokens : public testing::Test {
 protected:
  static constexpr std::int32_t kBlockTokens = 4;
  using Slot = std::pair<std::int32_t, std::int32_t>;  // block and offset
  Ledger ledger_{{.num_blocks = 60, .block_tokens = kBlockTokens, .num_states = 9}};
  std::map<Slot, Tokens> rows_;
  std::map<std::int32_t, Tokens> states_;  // tokens that each state is behind
  std::map<std::int32_t, std::map<std::int32_t, Tokens>> tails_;  // rows beside it, by offset
  std::int64_t stored_ = 0;

  [[nodiscard]] Tokens first(SeqId id, std::int32_t count) const {
    const auto tokens = ledger_.sequences().tokens(id).first(static_cast<std::size_t>(count));
    return {tokens.begin(), tokens.end()};
  }
  [[nodiscard]] static Slot slot(const RunView& run, std::int32_t token) {
    const auto block = static_cast<std::size_t>(token / kBlockTokens);
    const std::int32_t begin = block + 1 == run.blocks.size() ? run.tail_slot : 0;
    return {run.blocks[block].value, begin + token % kBlockTokens};
  }

  // Makes the copies and puts the tail into its block, as a step does before it computes.
  void prepare(SeqId id) {
    for (const BlockCopy& copy : ledger_.take_copies()) {
      for (std::int32_t i = 0; i < copy.tokens; ++i) {
        rows_[{copy.to.value, copy.to_slot + i}] = rows_[{copy.from.value, copy.from_slot + i}];
      }
    }
    if (const auto tail = ledger_.points().take_tail(id)) {
      for (const auto& [offset, tokens] : tails_[tail->state]) {
        rows_[{tail->block.value, offset}] = tokens;
      }
    }
  }

  // Computes `count` tokens. Returns false where there is no room.
  bool step(SeqId id, std::int32_t count, bool keeps = false) {
    if (!ledger_.sequences().extend(id, count).ok()) {
      return false;
    }
    prepare(id);
    const RunView run = ledger_.sequences().runs(id).back();
    const std::int32_t begin = run.num_tokens, end = begin + count;
    const RestorePoints::Places places = ledger_.points().places(id);
    EXPECT_EQ(places.from < 0, begin == 0);
    EXPECT_TRUE(places.from < 0 || states_[places.from] == first(id, begin));
    for (std::int32_t token = 0; token < end; ++token) {
      Tokens& row = rows_[slot(run, token)];
      const bool is_there = token < std::max(begin, run.kept_tokens);
      if (is_there) {
        EXPECT_EQ(row, first(id, token + 1)) << token << " of " << begin << " to " << end;
      } else {
        row = first(id, token + 1);
        ++stored_;
      }
    }
    std::optional<HeldState> kept;
    const std::int32_t middle = begin + count / 2;
    if (keeps && middle > begin && ledger_.points().wants_point(id, middle)) {
      kept = ledger_.points().take_state(true);
    }
    states_[places.to] = first(id, end);
    ledger_.sequences().advance(id, count);
    if (kept && kept->is_there()) {
      add_point(id, middle, *kept);
    }
    return true;
  }

  void add_point(SeqId id, std::int32_t length, const HeldState& state) {
    states_[state.ref().index] = first(id, length);
    auto& tail = tails_[state.ref().index];
    tail.clear();
    const RunView run = ledger_.sequences().runs(id).back();
    for (std::int32_t token = length / kBlockTokens * kBlockTokens; token < length; ++token) {
      tail[token % kBlockTokens] = rows_[slot(run, token)];
    }
    ledger_.points().add(id, length, state);
  }

  void keep_end(SeqId id) {
    const std::int32_t length = ledger_.sequences().num_computed(id);
    if (length > 0 && !ledger_.points().lacks_tail(id) &&
        ledger_.points().wants_point(id, length)) {
      add_point(id, length, ledger_.points().present(id));
    }
  }
};

TEST_F(OwedTokens, KeepTheirBlocksAndWriteNoKv) {
  const SeqId id = ledger_.sequences().open(tokens_of(20), true);
  ASSERT_TRUE(step(id, 10));
  keep_end(id);
  ASSERT_TRUE(step(id, 10));
  const std::int64_t taken = ledger_.counts().blocks_taken, stored = stored_;
  const Ids blocks = block_ids(ledger_, id);
  ASSERT_TRUE(ledger_.sequences().rollback(id, 17).ok());
  EXPECT_EQ(ledger_.sequences().num_computed(id), 10);
  EXPECT_EQ(ledger_.points().num_owed(id), 7);
  EXPECT_EQ(block_ids(ledger_, id), blocks);
  ASSERT_TRUE(step(id, 3));
  ASSERT_TRUE(step(id, 4));
  EXPECT_EQ(ledger_.counts().blocks_taken, taken);
  EXPECT_EQ(stored_, stored);
  EXPECT_EQ(ledger_.counts().tokens_replayed, 7);
  expect_consistent(ledger_);
}

TEST_F(OwedTokens, OfSeveralRollbacksAreReplayedOnce) {
  const SeqId id = ledger_.sequences().open(tokens_of(30), true);
  ASSERT_TRUE(step(id, 8));
  keep_end(id);
  ASSERT_TRUE(step(id, 22));
  for (const std::int32_t length : {28, 25, 20}) {
    ASSERT_TRUE(ledger_.sequences().rollback(id, length).ok());
    EXPECT_EQ(ledger_.points().num_owed(id), length - 8);
  }
  EXPECT_EQ(ledger_.counts().tokens_replayed, 0) << "nothing was computed yet";
  ledger_.sequences().append(id, 99);
  ASSERT_TRUE(step(id, 13));
  EXPECT_EQ(ledger_.counts().tokens_replayed, 12) << "the last token was not known";
  expect_consistent(ledger_);
}

TEST_F(OwedTokens, OfAForkAreOwedByBothAndTheFirstToWriteCopiesTheirBlock) {
  const SeqId id = ledger_.sequences().open(tokens_of(12), true);
  ASSERT_TRUE(step(id, 5));
  keep_end(id);
  ASSERT_TRUE(step(id, 6));
  ASSERT_TRUE(ledger_.sequences().rollback(id, 10).ok());
  const SeqId fork = ledger_.sequences().fork(id);
  EXPECT_EQ(ledger_.points().num_owed(fork), 5);
  const std::int64_t taken = ledger_.counts().blocks_taken;
  ASSERT_TRUE(step(fork, 5));
  EXPECT_EQ(ledger_.counts().blocks_taken, taken) << "no row of it was written";
  ledger_.sequences().append(fork, 77);
  ASSERT_TRUE(step(fork, 1));
  EXPECT_EQ(ledger_.counts().blocks_taken, taken + 1);
  ledger_.sequences().append(id, 78);
  ASSERT_TRUE(step(id, 6));
  expect_consistent(ledger_);
}

TEST_F(OwedTokens, OfAPromptTakeTheBlocksThatAreKnownBehindItsPoint) {
  ledger_.sequences().close([&] {
    const SeqId id = ledger_.sequences().open(tokens_of(21), true);
    EXPECT_TRUE(step(id, 6));
    keep_end(id);
    EXPECT_TRUE(step(id, 15));
    return id;
  }());
  Tokens prompt = tokens_of(19);
  prompt.back() = 500;
  const PrefixMatch match = ledger_.cache().probe(prompt);
  EXPECT_EQ(match.tokens, 6);
  EXPECT_EQ(match.known_tokens, 16);
  EXPECT_EQ(match.blocks, 4);
  const std::int64_t taken = ledger_.counts().blocks_taken, stored = stored_;
  const SeqId id = ledger_.sequences().open(prompt, true);
  EXPECT_EQ(ledger_.sequences().num_computed(id), 6);
  EXPECT_EQ(ledger_.points().num_owed(id), 10);
  EXPECT_FALSE(ledger_.points().lacks_tail(id)) << "its block is full and known";
  ASSERT_TRUE(step(id, 13));
  EXPECT_EQ(ledger_.counts().blocks_taken - taken, 1);
  EXPECT_EQ(stored_ - stored, 3);
  EXPECT_EQ(ledger_.counts().tokens_replayed, 10);
  expect_consistent(ledger_);
}

TEST_F(OwedTokens, AreKeptWhereNoPointIsBeforeThem) {
  const SeqId id = ledger_.sequences().open(tokens_of(14), true);
  ASSERT_TRUE(step(id, 14));
  const std::int64_t taken = ledger_.counts().blocks_taken;
  ASSERT_TRUE(ledger_.sequences().rollback(id, 11).ok());
  EXPECT_EQ(ledger_.sequences().num_computed(id), 0);
  (void)ledger_.preemption().reattach(id);
  EXPECT_EQ(ledger_.points().num_owed(id), 11) << "an admission keeps what the index lacks";
  ASSERT_TRUE(step(id, 11));
  EXPECT_EQ(ledger_.counts().blocks_taken, taken);
  expect_consistent(ledger_);
}

TEST_F(OwedTokens, GiveTheirBlocksBackWhenTheirKvIsReadFromElsewhere) {
  const SeqId id = ledger_.sequences().open(tokens_of(14), true);
  ASSERT_TRUE(step(id, 6));
  keep_end(id);
  ASSERT_TRUE(step(id, 8));
  const SeqId fork = ledger_.sequences().fork(id);
  ASSERT_TRUE(ledger_.sequences().rollback(fork, 13).ok());
  ledger_.points().drop_owed(fork);
  EXPECT_EQ(ledger_.points().num_owed(fork), 0);
  EXPECT_TRUE(ledger_.points().lacks_tail(fork));
  EXPECT_EQ(block_ids(ledger_, fork).size(), 1U);
  expect_consistent(ledger_);
  const std::int64_t stored = stored_;
  ASSERT_TRUE(step(fork, 7));
  EXPECT_EQ(stored_ - stored, 7);
  ledger_.sequences().append(id, 5);
  ASSERT_TRUE(step(id, 1));
  expect_consistent(ledger_);
}

TEST_F(OwedTokens, OfAnyHistoryAreThoseOfItsTokens) {
  std::mt19937 random(11);
  std::vector<SeqId> open;
  std::int64_t owed = 0;
  for (int operation = 0; operation < 20000; ++operation) {
    const std::size_t at = open.empty() ? 0 : random() % open.size();
    switch (open.empty() ? 0 : random() % 11) {
      case 0:
      case 1: {
        Tokens prompt(1 + random() % 24);
        std::ranges::generate(prompt, [&] { return static_cast<TokenId>(random() % 8 == 0); });
        open.push_back(ledger_.sequences().open(prompt, random() % 8 != 0, {},
                                                random() % 4 == 0 ? "salt" : ""));
        break;
      }
      case 2:
        open.push_back(ledger_.sequences().fork(open[at]));
        break;
      case 3:
        ledger_.sequences().append(open[at], static_cast<TokenId>(random() % 2));
        break;
      case 4:
      case 5: {
        const auto length = ledger_.sequences().tokens(open[at]).size();
        ASSERT_TRUE(ledger_.sequences()
                        .rollback(open[at], static_cast<std::int32_t>(random() % (length + 1)))
                        .ok());
        owed += ledger_.points().num_owed(open[at]);
        if (random() % 8 == 0) {
          ledger_.points().drop_owed(open[at]);
        }
        break;
      }
      case 6:
        if (random() % 2 == 0) {
          keep_end(open[at]);
          ledger_.points().thin(open[at]);
        }
        ledger_.sequences().close(open[at]);
        open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      case 7:
        if (random() % 2 == 0) {
          ledger_.preemption().drop_kv(open[at]);
        }
        (void)ledger_.preemption().reattach(open[at]);
        break;
      case 8:
        if (random() % 8 == 0) {
          (void)ledger_.coalescing().apply(ledger_.coalescing().plan());
        }
        break;
      default: {
        const auto known = static_cast<std::int32_t>(ledger_.sequences().tokens(open[at]).size());
        const std::int32_t left = known - ledger_.sequences().num_computed(open[at]);
        if (left > 0) {
          (void)step(open[at], 1 + static_cast<std::int32_t>(random() % left), true);
        }
      }
    }
    const Status sound = ledger_.check();
    ASSERT_TRUE(sound.ok()) << operation << ": " << sound.error().message;
    ASSERT_FALSE(HasFailure()) << operation;
  }
  EXPECT_GT(owed, 1000);
}

}  // namespace
}  // namespace quire::kv

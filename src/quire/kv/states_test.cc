// States and restore points of a ledger. Oracle: each state holds the tokens that a step has
// written into it. A step may read only a state behind exactly its sequence's tokens.
#include "quire/kv/states.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/ledger.h"
#include "quire/kv/restore_points.h"
#include "quire/kv/types.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

using Tokens = std::vector<TokenId>;

class StatesOfALedger : public testing::Test {
 protected:
  static constexpr std::int32_t kStates = 9;
  Ledger ledger_{{.num_blocks = 60, .block_tokens = 4, .num_states = kStates}};
  std::map<std::int32_t, Tokens> written_;  // tokens that each state is behind
  std::map<std::int32_t, Tokens> tails_;    // likewise of the KV beside it

  [[nodiscard]] Tokens first(SeqId id, std::int32_t count) const {
    const auto tokens = ledger_.sequences().tokens(id).first(static_cast<std::size_t>(count));
    return {tokens.begin(), tokens.end()};
  }

  // Computes `count` tokens as a step does. Returns false where there is no room.
  bool step(SeqId id, std::int32_t count, bool keeps) {
    if (!ledger_.sequences().extend(id, count).ok()) {
      return false;
    }
    (void)ledger_.take_copies();
    const std::int32_t length = ledger_.sequences().num_computed(id);
    const RestorePoints::Places places = ledger_.points().places(id);
    EXPECT_EQ(places.from < 0, length == 0);
    if (places.from >= 0) {
      EXPECT_EQ(written_[places.from], first(id, length)) << "a step reads another history's state";
    }
    if (const auto tail = ledger_.points().take_tail(id)) {
      EXPECT_EQ(tails_[tail->state], first(id, length)) << "KV of another history lies beside it";
    }
    std::optional<HeldState> kept;
    const std::int32_t middle = length + count / 2;
    if (keeps && middle > length && ledger_.points().wants_point(id, middle)) {
      kept = ledger_.points().take_state(true);
    }
    written_[places.to] = first(id, length + count);
    ledger_.sequences().advance(id, count);
    if (kept && kept->is_there()) {
      written_[kept->ref().index] = tails_[kept->ref().index] = first(id, middle);
      ledger_.points().add(id, middle, *kept);
    }
    return true;
  }

  void keep_end(SeqId id) {
    const std::int32_t length = ledger_.sequences().num_computed(id);
    if (length > 0 && ledger_.points().wants_point(id, length)) {
      const HeldState present = ledger_.points().present(id);
      tails_[present.ref().index] = first(id, length);
      ledger_.points().add(id, length, present);
    }
  }
};

TEST_F(StatesOfALedger, APromptGoesOnFromTheLastPointBeforeItsLastToken) {
  const Tokens prompt = {1, 2, 3, 4, 5, 6, 7};
  const SeqId id = ledger_.sequences().open(prompt, true);
  ASSERT_TRUE(step(id, 7, false));
  keep_end(id);
  ledger_.sequences().close(id);
  EXPECT_EQ(ledger_.cache().match(prompt), 0) << "the last token is always computed";
  const Tokens longer = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  EXPECT_EQ(ledger_.cache().match(longer), 7);
  const Tokens other = {1, 2, 3, 4, 5, 6, 9, 8, 9};
  EXPECT_EQ(ledger_.cache().match(other), 0) << "KV is there, and no state";
  EXPECT_EQ(ledger_.cache().probe(other).known_tokens, 4);
  const SeqId next = ledger_.sequences().open(longer, true);
  EXPECT_EQ(ledger_.sequences().num_computed(next), 7);
  ASSERT_TRUE(step(next, 2, false));
  EXPECT_TRUE(ledger_.check().ok()) << ledger_.check().error().message;
}

TEST_F(StatesOfALedger, AForkWithoutStateTakesNoneAndExchangesBlocks) {
  Sequences sequences = ledger_.sequences();
  const SeqId id = sequences.open(Tokens{1, 2, 3, 4, 5}, true);
  ASSERT_TRUE(step(id, 5, false));
  sequences.append(id, 6);
  ASSERT_TRUE(sequences.extend(id, 2).ok());
  const std::int32_t available = ledger_.points().states_available();
  const std::int32_t state = ledger_.points().places(id).from;
  const SeqId fork = sequences.fork(id, ForkedState::kNone);
  EXPECT_EQ(ledger_.points().states_needed(fork), 0);
  ASSERT_TRUE(sequences.extend(fork, 2).ok());
  EXPECT_EQ(ledger_.take_copies().size(), 1U);
  EXPECT_EQ(ledger_.points().states_available(), available);
  sequences.exchange_kv(id, fork);
  sequences.close(fork);
  sequences.advance(id, 1);
  EXPECT_EQ(ledger_.points().places(id).from, state);
  EXPECT_EQ(ledger_.points().places(id).to, state) << "nobody else holds it";
  EXPECT_TRUE(ledger_.check().ok()) << ledger_.check().error().message;
}

TEST_F(StatesOfALedger, AForkReadsTheSharedStateAndWritesAnother) {
  const SeqId id = ledger_.sequences().open(Tokens{1, 2, 3, 4, 5}, true);
  ASSERT_TRUE(step(id, 5, false));
  const SeqId fork = ledger_.sequences().fork(id);
  EXPECT_EQ(ledger_.points().states_needed(fork), 1);
  ledger_.sequences().append(fork, 6);
  ASSERT_TRUE(step(fork, 1, false));
  EXPECT_EQ(ledger_.points().states_needed(fork), 0);
  EXPECT_EQ(ledger_.points().states_needed(id), 0) << "the fork has gone on";
  ledger_.sequences().append(id, 7);
  ASSERT_TRUE(step(id, 1, false));
  EXPECT_TRUE(ledger_.check().ok());
}

TEST_F(StatesOfALedger, IdlePointsGiveWayAndHeldStatesStay) {
  std::vector<SeqId> held;
  for (TokenId i = 0; i < kStates; ++i) {
    const SeqId id = ledger_.sequences().open(Tokens{i, i, i}, true);
    ASSERT_TRUE(step(id, 3, false));
    keep_end(id);
    held.push_back(id);
  }
  const SeqId late = ledger_.sequences().open(Tokens{50, 51}, true);
  const Status refused = ledger_.sequences().extend(late, 2);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBlocks);
  ledger_.sequences().close(held.front());
  EXPECT_TRUE(step(late, 2, false));
  EXPECT_EQ(ledger_.cache().match(Tokens{0, 0, 0, 1}), 0) << "its point gave way";
  EXPECT_EQ(ledger_.cache().match(Tokens{1, 1, 1, 1}), 3);
  EXPECT_TRUE(ledger_.check().ok());
}

TEST_F(StatesOfALedger, RollingBackLandsOnAPointAndOwesTheRest) {
  const SeqId id = ledger_.sequences().open(Tokens{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, true);
  ASSERT_TRUE(step(id, 10, true));  // keeps one behind 5
  ASSERT_TRUE(ledger_.sequences().rollback(id, 8).ok());
  EXPECT_EQ(ledger_.sequences().num_computed(id), 5);
  EXPECT_EQ(ledger_.sequences().tokens(id).size(), 8);
  ASSERT_TRUE(step(id, 3, false));
  ASSERT_TRUE(ledger_.sequences().rollback(id, 4).ok());
  EXPECT_EQ(ledger_.sequences().num_computed(id), 0) << "no point is before it";
  EXPECT_TRUE(ledger_.check().ok());
}

// Makes a point behind the first `length` tokens.
void add(States& states, const Tokens& tokens, std::size_t length, bool stays = false) {
  const HeldState held(states, states.acquire());
  states.add_point(std::span(tokens).first(length), "", held.ref(), stays);
}

TEST(States, ThinnedPointsStandAtMostHalfAsFarAgainFromTheEnd) {
  States states(400);
  Tokens tokens(8000);
  std::ranges::generate(tokens, [i = 0]() mutable { return i++ % 7; });
  for (std::size_t length = 20; length < tokens.size(); length += 20) {
    add(states, tokens, length, length == 100);
  }
  states.thin(tokens, "", 256, 7900);
  std::vector<std::int64_t> distances;
  for (std::size_t length = tokens.size() - 1; length > 0; --length) {
    if (states.has_point(std::span(tokens).first(length), "")) {
      distances.push_back(std::ssize(tokens) - static_cast<std::int64_t>(length));
    }
  }
  EXPECT_LE(distances.size(), 12 + 1) << "log2 of 8000, and the one that stays";
  EXPECT_TRUE(states.has_point(std::span(tokens).first(100), "")) << "it was to stay";
  EXPECT_TRUE(states.has_point(std::span(tokens).first(7900), "")) << "one of the own request";
  for (std::size_t i = 1; i < distances.size(); ++i) {
    EXPECT_LE(distances[i], distances[i - 1] * 3 / 2 + 256);
  }
}

TEST(States, AConversationKeepsAtMostLog2OfItsTokens) {
  States states(64);
  Tokens tokens;
  for (std::size_t turn = 0; tokens.size() < 54000; ++turn) {
    const std::size_t before = tokens.size();
    tokens.resize(before + 150 + turn % 7 * 40, static_cast<TokenId>(turn));
    const std::size_t prompt = tokens.size();
    for (const std::size_t length : {before + 1, prompt - 6, prompt - 1}) {
      add(states, tokens, length);
    }
    tokens.resize(prompt + 30 + turn % 5 * 60, static_cast<TokenId>(turn));
    add(states, tokens, tokens.size());
    states.thin(tokens, "", 256, static_cast<std::int32_t>(before + 1));
    const auto most = static_cast<std::int32_t>(std::log2(tokens.size()));
    ASSERT_LE(states.num_points(), std::max(4, most)) << tokens.size();
  }
  EXPECT_EQ(states.num_evictions(), 0);
}

// A sequence still holds the state at its end when its history is thinned.
TEST(States, TheEndThatASequenceHoldsCountsAmongThePointsOfItsConversation) {
  States states(64);
  Tokens tokens;
  for (std::size_t turn = 0; tokens.size() < 32000; ++turn) {
    const std::size_t before = tokens.size();
    tokens.resize(before + 1564, static_cast<TokenId>(turn));
    add(states, tokens, before + 1499);
    const HeldState end(states, states.acquire());
    states.add_point(tokens, "", end.ref());
    states.thin(tokens, "", 256, static_cast<std::int32_t>(before + 1499));
    ASSERT_LE(states.num_points(), std::max(4, static_cast<std::int32_t>(std::log2(tokens.size()))))
        << tokens.size();
  }
}

TEST(States, APointGivesWayToOneWhoseHitSavesMoreTokens) {
  States states(4);
  Tokens history(1000);
  std::ranges::generate(history, [i = 0]() mutable { return i++ % 11; });
  add(states, history, 400);
  add(states, history, 410);  // saves 10 tokens over the one before
  add(states, history, 1000);
  add(states, Tokens{1, 2, 3}, 3);
  const auto is_there = [&](const Tokens& tokens, std::size_t length) {
    return states.has_point(std::span(tokens).first(length), "");
  };
  add(states, Tokens(100, 5), 100);
  EXPECT_FALSE(is_there({1, 2, 3}, 3)) << "3 tokens, though used last";
  add(states, Tokens(100, 6), 100);
  EXPECT_FALSE(is_there(history, 410));
  EXPECT_TRUE(is_there(history, 400));
  EXPECT_TRUE(is_there(history, 1000));
  std::vector<std::int32_t> users(4);
  EXPECT_TRUE(states.check(users).ok());
}

TEST(States, APointThatNobodyUsesGivesWayInTheEndHoweverLongItsHistory) {
  States states(3);
  const Tokens old(2000, 1);
  add(states, old, 2000);
  for (TokenId i = 2; i < 60; ++i) {
    add(states, Tokens(100, i), 100);
  }
  EXPECT_FALSE(states.has_point(old, ""));
}

TEST_F(StatesOfALedger, ASealedSegmentIsRefused) {
  const SeqId id = ledger_.sequences().open(Tokens{1, 2, 3, 4}, true);
  ASSERT_TRUE(step(id, 4, false));
  EXPECT_EQ(ledger_.segments().seal(id).error().code, ErrorCode::kIncompatible);
}

TEST_F(StatesOfALedger, NoHistoryReadsTheStateOfAnother) {
  std::mt19937 random(3);
  std::vector<SeqId> open;
  for (int operation = 0; operation < 20000; ++operation) {
    const std::size_t at = open.empty() ? 0 : random() % open.size();
    switch (open.empty() ? 0 : random() % 8) {
      case 0:
      case 1: {
        Tokens prompt(1 + random() % 14);
        std::ranges::generate(prompt, [&] { return static_cast<TokenId>(random() % 2); });
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
      case 4: {
        const auto length = ledger_.sequences().tokens(open[at]).size();
        ASSERT_TRUE(ledger_.sequences()
                        .rollback(open[at], static_cast<std::int32_t>(random() % (length + 1)))
                        .ok());
        break;
      }
      case 5:
        if (random() % 2 == 0) {
          keep_end(open[at]);
          ledger_.points().thin(open[at]);
        }
        ledger_.sequences().close(open[at]);
        open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      case 6:
        ledger_.preemption().drop_kv(open[at]);
        (void)ledger_.preemption().reattach(open[at]);
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
  }
  for (const SeqId id : open) {
    ledger_.sequences().close(id);
  }
  (void)ledger_.cache().clear();
  EXPECT_EQ(ledger_.counts().states_in_use, 0);
  EXPECT_EQ(ledger_.points().states_available(), kStates);
  EXPECT_TRUE(ledger_.check().ok());
}

}  // namespace
}  // namespace quire::kv

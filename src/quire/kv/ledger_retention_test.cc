// Sessions of the ledger: whose cached blocks go first, on a driven clock.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

#include "quire/base/ids.h"
#include "quire/kv/ledger.h"
#include "quire/kv/test_support.h"
#include "quire/kv/types.h"

namespace quire::kv {
namespace {

using std::chrono::seconds;

// A finished request of `session`.
void serve(Ledger& ledger, const Tokens& prompt, SessionRef session) {
  const SeqId id = ledger.sequences().open(prompt, true, session);
  compute(ledger, id,
          static_cast<std::int32_t>(prompt.size()) - ledger.sequences().num_computed(id));
  ledger.sequences().close(id);
}

// Makes room for so many blocks and gives them back, not cached.
void need(Ledger& ledger, std::int32_t blocks) {
  const SeqId id = ledger.sequences().open(tokens_of(1, 900), false);
  ASSERT_TRUE(ledger.sequences().extend(id, blocks * ledger.config().block_tokens).ok());
  ledger.sequences().close(id);
  expect_consistent(ledger);
}

TEST(LedgerRetention, ClosedSessionsGoBeforeOlderPathsAndLeavesBeforeParents) {
  Ledger ledger({.num_blocks = 6, .block_tokens = 4});
  const SessionRef session = ledger.cache().open_session();
  serve(ledger, tokens_of(12), {});
  serve(ledger, tokens_of(12, 50), session);
  ledger.cache().close_session(session);
  need(ledger, 1);
  EXPECT_EQ(ledger.cache().match(tokens_of(13)), 12);
  EXPECT_EQ(ledger.cache().match(tokens_of(13, 50)), 8);
  EXPECT_EQ(to_text(ledger.cache().explain(tokens_of(13, 50))),
            "evicted to make room 0 s ago: its session was closed");
  need(ledger, 3);
  EXPECT_EQ(ledger.cache().match(tokens_of(13)), 12);
  EXPECT_EQ(ledger.cache().match(tokens_of(13, 50)), 0);
  EXPECT_EQ(ledger.counts().evictions_closed, 3);
  need(ledger, 4);
  EXPECT_EQ(ledger.cache().match(tokens_of(13)), 8);
  EXPECT_EQ(ledger.counts().evictions, 4);
}

TEST(LedgerRetention, TheSharedPartOfAClosedSessionStays) {
  Ledger ledger({.num_blocks = 6, .block_tokens = 4});
  const SessionRef stays = ledger.cache().open_session();
  const SessionRef closes = ledger.cache().open_session();
  Tokens other = tokens_of(8);
  other.insert(other.end(), {70, 71, 72, 73, 74, 75, 76, 77});
  serve(ledger, other, closes);
  serve(ledger, tokens_of(12), stays);
  serve(ledger, tokens_of(4, 200), {});
  ledger.cache().close_session(closes);
  need(ledger, 2);
  EXPECT_EQ(ledger.cache().match(other), 8);
  EXPECT_EQ(ledger.cache().match(tokens_of(13)), 12);
  EXPECT_EQ(ledger.counts().evictions_closed, 2);
  EXPECT_EQ(ledger.counts().sessions, 1);
}

TEST(LedgerRetention, TheFartherReturnGoesFirstAndIsForgottenWhenItComes) {
  Ledger ledger({.num_blocks = 4, .block_tokens = 4});
  const SessionRef soon = ledger.cache().open_session();
  const SessionRef later = ledger.cache().open_session();
  serve(ledger, tokens_of(8), soon);
  serve(ledger, tokens_of(8, 50), later);
  ledger.cache().set_retention(soon, {.expected_return = at(60)});
  ledger.cache().set_retention(later, {.expected_return = at(90)});
  need(ledger, 1);
  EXPECT_EQ(ledger.cache().match(tokens_of(9, 50)), 4);
  EXPECT_EQ(to_text(ledger.cache().explain(tokens_of(9, 50))),
            "evicted to make room 0 s ago: its session was expected back later than others");
  EXPECT_EQ(ledger.counts().evictions_later, 1);
  ledger.cache().set_time(at(85));
  serve(ledger, tokens_of(8, 50), later);  // earlier than it said
  EXPECT_FALSE(ledger.cache().retention(later).expected_return);
  EXPECT_EQ(ledger.cache().match(tokens_of(9)), 8);
  need(ledger, 1);  // `soon` is 25 s late; nobody knows of `later`
  EXPECT_EQ(ledger.cache().match(tokens_of(9, 50)), 4);
  EXPECT_EQ(ledger.cache().match(tokens_of(9)), 8);
}

TEST(LedgerRetention, ATtlEndsOnTheClockAndPriorityHoldsUntilThen) {
  Ledger ledger({.num_blocks = 4, .block_tokens = 4});
  const SessionRef session = ledger.cache().open_session();
  serve(ledger, tokens_of(8), session);
  ledger.cache().set_retention(session, {.priority = 3, .ttl = seconds(100)});
  serve(ledger, tokens_of(8, 50), {});
  ledger.cache().set_time(at(99));
  need(ledger, 1);
  EXPECT_EQ(ledger.cache().match(tokens_of(9)), 8);
  EXPECT_EQ(ledger.cache().match(tokens_of(9, 50)), 4);
  ledger.cache().set_time(at(100));
  serve(ledger, tokens_of(8, 50), {});
  need(ledger, 1);
  EXPECT_EQ(ledger.cache().match(tokens_of(9)), 4);
  EXPECT_EQ(ledger.cache().match(tokens_of(9, 50)), 8);
  EXPECT_EQ(ledger.counts().evictions_expired, 1);
  ledger.cache().set_time(at(142));
  EXPECT_EQ(to_text(ledger.cache().explain(tokens_of(9))),
            "evicted to make room 42 s ago: its session's ttl was over");
}

TEST(LedgerRetention, BlocksInUseStayWhateverTheirSessionSays) {
  Ledger ledger({.num_blocks = 4, .block_tokens = 4});
  const SessionRef session = ledger.cache().open_session();
  serve(ledger, tokens_of(8), session);
  const SeqId running = ledger.sequences().open(tokens_of(9), true, session);
  ledger.cache().close_session(session);
  EXPECT_EQ(ledger.blocks_available(), 2);
  EXPECT_FALSE(
      ledger.sequences().extend(ledger.sequences().open(tokens_of(1, 900), false), 12).ok());
  EXPECT_EQ(ledger.sequences().num_computed(running), 8);
  ledger.sequences().close(running);
  need(ledger, 3);
  EXPECT_EQ(ledger.counts().evictions_closed, 1);
}

TEST(LedgerRetention, HintsWithoutAPrefixCacheOrForAForkAreHarmless) {
  for (const bool prefix_cache : {false, true}) {
    Ledger ledger({.num_blocks = 4, .block_tokens = 4, .prefix_cache = prefix_cache});
    const SessionRef session = ledger.cache().open_session();
    const SeqId id = ledger.sequences().open(tokens_of(8), true, session);
    compute(ledger, id, 8);
    const SeqId fork = ledger.sequences().fork(id);
    ledger.sequences().close(id);
    ledger.cache().set_retention(session, {.priority = -1, .ttl = seconds(0)});
    ledger.cache().forget_session(session);
    ledger.cache().close_session(session);
    ledger.sequences().close(fork);
    EXPECT_EQ(ledger.counts().sessions, 0);
    need(ledger, 4);
  }
}

TEST(LedgerRetention, ClearingTheCacheEndsClaimsAndKeepsTheSession) {
  Ledger ledger({.num_blocks = 4, .block_tokens = 4});
  const SessionRef session = ledger.cache().open_session();
  serve(ledger, tokens_of(8), session);
  ledger.cache().set_retention(session, {.priority = 2});
  EXPECT_EQ(ledger.cache().clear(), 2);
  EXPECT_EQ(ledger.cache().retention(session).priority, 2);
  serve(ledger, tokens_of(8), session);
  serve(ledger, tokens_of(8, 50), {});
  need(ledger, 2);
  EXPECT_EQ(ledger.cache().match(tokens_of(9)), 8);
}

TEST(LedgerRetention, BehindAWindowTheLastBlocksAreTheSessions) {
  Ledger ledger({.num_blocks = 6, .block_tokens = 4, .window_tokens = 6});
  const SessionRef session = ledger.cache().open_session();
  serve(ledger, tokens_of(8, 50), {});
  serve(ledger, tokens_of(16), session);
  ledger.cache().close_session(session);
  need(ledger, 4);
  EXPECT_EQ(ledger.cache().match(tokens_of(9, 50)), 8);
  EXPECT_EQ(ledger.counts().evictions_closed, 4);
}

}  // namespace
}  // namespace quire::kv

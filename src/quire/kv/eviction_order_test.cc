#include "quire/kv/eviction_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "quire/kv/block_heap.h"
#include "quire/kv/test_support.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::kv {
namespace {

using Why = PrefixMiss::Why;
using std::chrono::seconds;

// Takes a block out as the index does; it has no parent.
std::int32_t evict(EvictionOrder& order) {
  const std::int32_t block = order.next().block;
  order.forbid(block);
  order.remove(block, -1);
  return block;
}

// A block that only a request of `session` has used, until now.
void leave(EvictionOrder& order, std::int32_t block, SessionRef session) {
  order.begin(session);
  order.add(block, session);
  order.end(session, block);
  order.release(block);
  order.allow(block);
}

TEST(BlockHeap, GivesItsMembersInOrderWhateverIsTakenOut) {
  std::vector<int> ranks(200);
  std::mt19937 random(3);
  std::ranges::generate(ranks, [&] { return static_cast<int>(random() % 50); });
  const auto before = [&](std::int32_t a, std::int32_t b) {
    return std::tuple(ranks[static_cast<std::size_t>(a)], a) <
           std::tuple(ranks[static_cast<std::size_t>(b)], b);
  };
  BlockHeap heap(200, before);
  std::vector<std::int32_t> members;
  for (int step = 0; step < 20'000; ++step) {
    const auto block = static_cast<std::int32_t>(random() % 200);
    const auto found = std::ranges::find(members, block);
    ASSERT_EQ(heap.contains(block), found != members.end());
    if (found == members.end()) {
      heap.insert(block);
      members.push_back(block);
    } else {
      heap.erase(block);
      members.erase(found);
    }
    ASSERT_EQ(heap.size(), members.size());
    if (!heap.empty()) {
      ASSERT_EQ(heap.first(), *std::ranges::min_element(members, before));
    }
  }
}

TEST(EvictionOrder, WithoutSessionsTheLeastRecentlyUsedGoesFirst) {
  EvictionOrder order(3);
  for (const std::int32_t block : {2, 0, 1}) {
    leave(order, block, {});
  }
  EXPECT_EQ(order.next().why, Why::kEvicted);
  EXPECT_EQ(evict(order), 2);
  order.set_time(at(100));
  leave(order, 2, {});
  EXPECT_EQ(evict(order), 0);
  EXPECT_EQ(evict(order), 1);
  EXPECT_EQ(evict(order), 2);
}

TEST(EvictionOrder, WhatIsExpectedBackLastGoesFirst) {
  EvictionOrder order(3);
  for (const auto& [block, back] : {std::pair(0, 20), std::pair(1, 90), std::pair(2, 40)}) {
    const SessionRef session = order.open_session();
    leave(order, block, session);
    order.set_retention(session, {.expected_return = at(back)});
  }
  EXPECT_EQ(order.next().why, Why::kReturnsLater);
  EXPECT_EQ(evict(order), 1);
  EXPECT_EQ(evict(order), 2);
  EXPECT_EQ(evict(order), 0);
}

TEST(EvictionOrder, AnOverdueSessionCountsAsFarAwayAsItIsLate) {
  EvictionOrder order(2);
  const SessionRef late = order.open_session();
  const SessionRef other = order.open_session();
  leave(order, 0, late);
  leave(order, 1, other);
  order.set_retention(late, {.expected_return = at(100)});
  order.set_retention(other, {.expected_return = at(300)});
  order.set_time(at(199));  // 99 late, 101 to go
  EXPECT_EQ(order.next().block, 1);
  order.set_time(at(201));
  EXPECT_EQ(order.next().block, 0);
  EXPECT_EQ(order.next().why, Why::kEvicted);
}

TEST(EvictionOrder, WhoSaysNothingCountsAsAwayForTwoMinutesMore) {
  EvictionOrder order(2);
  const SessionRef session = order.open_session();
  leave(order, 0, session);
  leave(order, 1, {});
  order.set_time(at(10));
  order.set_retention(session, {.expected_return = at(10 + 129)});
  EXPECT_EQ(order.next().block, 1);
  order.set_retention(session, {.expected_return = at(10 + 131)});
  EXPECT_EQ(order.next().block, 0);
}

TEST(EvictionOrder, TheLowestPriorityGoesFirst) {
  EvictionOrder order(3);
  const SessionRef low = order.open_session();
  const SessionRef high = order.open_session();
  leave(order, 0, high);
  leave(order, 1, {});
  leave(order, 2, low);
  order.set_retention(high, {.priority = 1, .expected_return = at(1'000'000)});
  order.set_retention(low, {.priority = -1, .expected_return = at(1)});
  EXPECT_EQ(evict(order), 2);
  EXPECT_EQ(evict(order), 1);
  EXPECT_EQ(evict(order), 0);
}

TEST(EvictionOrder, ClosedGoesBeforeExpiredAndBothBeforeAllElse) {
  EvictionOrder order(4);
  const SessionRef closed = order.open_session();
  const SessionRef expired = order.open_session();
  const SessionRef lasting = order.open_session();
  leave(order, 0, {});
  leave(order, 1, lasting);
  leave(order, 2, expired);
  leave(order, 3, closed);
  order.set_retention(expired, {.priority = 9, .ttl = seconds(60)});
  order.set_retention(lasting, {.ttl = seconds(61)});
  order.close_session(closed);
  order.set_time(at(60));
  EXPECT_EQ(order.next().why, Why::kClosed);
  EXPECT_EQ(evict(order), 3);
  EXPECT_FALSE(order.contains(closed)) << "nothing is left that it could speak for";
  EXPECT_EQ(order.next().why, Why::kExpired);
  EXPECT_EQ(evict(order), 2);
  EXPECT_EQ(evict(order), 0);
  order.set_time(at(61));
  EXPECT_EQ(order.next().why, Why::kExpired);
}

TEST(EvictionOrder, ATtlCountsFromTheLastRequest) {
  EvictionOrder order(2);
  const SessionRef session = order.open_session();
  leave(order, 0, session);
  order.set_retention(session, {.ttl = seconds(60)});
  order.set_time(at(50));
  order.begin(session);
  order.end(session, 0);
  order.set_time(at(109));
  leave(order, 1, {});
  EXPECT_EQ(order.next().why, Why::kEvicted);
  order.set_time(at(110));
  EXPECT_EQ(order.next().why, Why::kExpired);
}

TEST(EvictionOrder, ABlockThatAnotherSessionExpectsStaysWhenOneCloses) {
  EvictionOrder order(2);
  const SessionRef stays = order.open_session();
  const SessionRef closes = order.open_session();
  order.add(0, stays);
  order.use(0, closes);
  for (const SessionRef session : {stays, closes}) {
    order.begin(session);
    order.end(session, 0);
  }
  order.release(0);
  order.allow(0);
  leave(order, 1, {});
  order.set_retention(stays, {.expected_return = at(30)});
  order.close_session(closes);
  EXPECT_FALSE(order.contains(closes)) << "it had nothing of its own";
  EXPECT_EQ(evict(order), 1);
  order.close_session(stays);
  EXPECT_EQ(order.next().why, Why::kEvicted) << "others have used it";
}

TEST(EvictionOrder, ABlockThatSomebodyWithoutASessionUsesIsNotGivenUp) {
  EvictionOrder order(1);
  const SessionRef session = order.open_session();
  leave(order, 0, session);
  order.forbid(0);
  order.use(0, {});
  order.release(0);
  order.allow(0);
  order.close_session(session);
  EXPECT_EQ(order.next().why, Why::kEvicted);
}

TEST(EvictionOrder, ClaimsOfWhatGoesMoveToItsParent) {
  EvictionOrder order(3);
  const SessionRef session = order.open_session();
  order.add(0, session);
  order.add(1, session);
  order.begin(session);
  order.end(session, 1);
  order.release(1);
  order.release(0);
  order.allow(1);
  order.set_retention(session, {.expected_return = at(500)});
  EXPECT_EQ(order.next().block, 1);
  order.forbid(1);
  order.allow(0);
  order.remove(1, 0);
  leave(order, 2, {});
  EXPECT_EQ(order.next().block, 0);
  EXPECT_EQ(order.next().why, Why::kReturnsLater);
  order.close_session(session);
  EXPECT_EQ(order.next().why, Why::kClosed);
}

TEST(EvictionOrder, ARequestEndsWhatWasExpected) {
  EvictionOrder order(2);
  const SessionRef session = order.open_session();
  leave(order, 0, session);
  order.set_retention(session, {.priority = 0, .expected_return = at(900)});
  order.begin(session);
  order.end(session, 0);
  leave(order, 1, {});
  EXPECT_FALSE(order.retention(session).expected_return);
  EXPECT_EQ(order.next().why, Why::kEvicted);
}

TEST(EvictionOrder, ASessionThatClosesWhileItsRequestRunsGivesUpWhatTheRequestLeaves) {
  EvictionOrder order(1);
  const SessionRef session = order.open_session();
  order.begin(session);
  order.close_session(session);
  EXPECT_EQ(order.num_sessions(), 0);
  EXPECT_TRUE(order.contains(session));
  order.add(0, session);
  order.end(session, 0);
  order.release(0);
  order.allow(0);
  EXPECT_EQ(order.next().why, Why::kClosed);
}

TEST(EvictionOrder, StaleHandlesDoNothing) {
  EvictionOrder order(1);
  const SessionRef stale = order.open_session();
  order.forget_session(stale);
  const SessionRef next = order.open_session();
  EXPECT_EQ(stale.index, next.index);
  leave(order, 0, stale);
  order.close_session(stale);
  order.forget_session(stale);
  order.set_retention(stale, {.priority = -5});
  EXPECT_EQ(order.retention(stale).priority, 0);
  EXPECT_EQ(order.num_sessions(), 1);
  EXPECT_EQ(order.next().why, Why::kEvicted);
  EXPECT_TRUE(order.check().ok());
}

TEST(EvictionOrder, TimeDoesNotGoBack) {
  EvictionOrder order(1);
  order.set_time(at(5));
  order.set_time(at(4));
  EXPECT_EQ(order.now(), at(5));
}

TEST(EvictionOrder, TimesAtTheEndOfTheClockAreHarmless) {
  EvictionOrder order(2);
  const SessionRef session = order.open_session();
  leave(order, 0, session);
  leave(order, 1, {});
  order.set_retention(session,
                      {.ttl = Clock::duration::max(), .expected_return = TimePoint::max()});
  order.set_time(at(1'000'000));
  EXPECT_EQ(order.next().block, 0);
  order.set_retention(session,
                      {.ttl = Clock::duration::min(), .expected_return = TimePoint::min()});
  EXPECT_EQ(order.next().why, Why::kExpired);
}

// The oracle: everything that was said, and the rules of the header applied to all blocks at once.
class Model {
 public:
  static constexpr int kBlocks = 12;
  static constexpr int kSessions = 6;

  explicit Model(std::uint32_t seed) : random_(seed) {}

  void step() {
    switch (below(10)) {
      case 0:
        now_ += below(40);
        return order.set_time(at(now_));
      case 1:
      case 2:
        return request();
      case 3:
      case 4:
        return say();
      case 5:
        return close();
      case 6:
        return begin();
      case 7:
        return move();
      default:
        return evict();
    }
  }

  EvictionOrder order{kBlocks};
  int evictions[PrefixMiss::kNumWhys] = {};

 private:
  struct Session {
    SessionRef ref;
    bool closed = false;
    bool running = false;
    Retention said;
    int last_use = 0;
    int claim = -1;
  };
  struct Block {
    bool present = false;
    int parent = -1;
    int last_use = 0;
    std::vector<int> users;  // sessions, -1: nobody's requests
  };
  // Worth as far as the order depends on it: dead, when it ended, priority, distance.
  using Worth = std::tuple<bool, int, int, int>;

  int below(int bound) { return static_cast<int>(random_() % static_cast<std::uint32_t>(bound)); }

  [[nodiscard]] bool has_child(int block) const {
    return std::ranges::any_of(blocks_,
                               [&](const Block& b) { return b.present && b.parent == block; });
  }

  // A session of the model lives on when it is closed: what it said stays true.
  int any_open_session() {
    std::vector<int> open;
    for (int i = 0; i < std::ssize(sessions_); ++i) {
      if (!sessions_[static_cast<std::size_t>(i)].closed) {
        open.push_back(i);
      }
    }
    if (std::ssize(open) < kSessions && below(3) == 0) {
      sessions_.push_back({.ref = order.open_session(), .last_use = now_});
      return static_cast<int>(std::ssize(sessions_)) - 1;
    }
    return open.empty() ? -1 : open[static_cast<std::size_t>(below(static_cast<int>(open.size())))];
  }

  // A path of known blocks, perhaps with a new one behind it, used by a session or nobody.
  void request() {
    const int who = below(4) == 0 ? -1 : any_open_session();
    int last = below(kBlocks + 1) - 1;
    last = last >= 0 && blocks_[static_cast<std::size_t>(last)].present ? last : -1;
    const auto free = std::ranges::find(blocks_, false, &Block::present);
    const SessionRef ref = who < 0 ? SessionRef() : sessions_[static_cast<std::size_t>(who)].ref;
    const bool begins = who >= 0 && !sessions_[static_cast<std::size_t>(who)].running;
    if (begins) {
      order.begin(ref);
    }
    std::vector<int> path;
    if (free != blocks_.end() && below(2) == 0) {
      const auto added = static_cast<int>(free - blocks_.begin());
      *free = {.present = true, .parent = last};
      order.add(added, ref);
      path.push_back(added);
    }
    for (int block = last; block >= 0; block = blocks_[static_cast<std::size_t>(block)].parent) {
      order.use(block, ref);
      path.push_back(block);
    }
    if (who >= 0) {
      Session& session = sessions_[static_cast<std::size_t>(who)];
      if (begins) {
        session.said.expected_return.reset();
      }
      session.last_use = now_;
      session.running = false;
      session.claim = path.empty() ? session.claim : path.front();
      order.end(ref, path.empty() ? -1 : path.front());
    }
    for (const int block : path) {
      if (order.allows(block)) {
        order.forbid(block);
      }
      order.release(block);
      blocks_[static_cast<std::size_t>(block)].last_use = now_;
      blocks_[static_cast<std::size_t>(block)].users.push_back(who);
    }
    allow_leaves();
  }

  void allow_leaves() {
    for (int block = 0; block < kBlocks; ++block) {
      const bool leaf = blocks_[static_cast<std::size_t>(block)].present && !has_child(block);
      if (leaf != order.allows(block)) {
        leaf ? order.allow(block) : order.forbid(block);
      }
    }
  }

  void begin() {
    const int who = any_open_session();
    if (who >= 0 && !sessions_[static_cast<std::size_t>(who)].running) {
      Session& session = sessions_[static_cast<std::size_t>(who)];
      order.begin(session.ref);
      session.running = true;
      session.last_use = now_;
      session.said.expected_return.reset();
    }
  }

  void say() {
    const int who = any_open_session();
    if (who < 0) {
      return;
    }
    Session& session = sessions_[static_cast<std::size_t>(who)];
    session.said = {.priority = below(3) - 1};
    if (below(2) == 0) {
      session.said.expected_return = at(now_ + below(300) - 50);
    }
    if (below(3) == 0) {
      session.said.ttl = seconds(below(80));
    }
    order.set_retention(session.ref, session.said);
  }

  void close() {
    const int who = any_open_session();
    if (who < 0) {
      return;
    }
    Session& session = sessions_[static_cast<std::size_t>(who)];
    session.closed = true;
    if (below(4) == 0) {
      order.forget_session(session.ref);
      session.claim = -1;
    } else {
      order.close_session(session.ref);
      if (session.running) {
        order.end(session.ref, -1);
      }
    }
  }

  void move() {
    const int from = below(kBlocks);
    const int to = below(kBlocks);
    if (!blocks_[static_cast<std::size_t>(from)].present ||
        blocks_[static_cast<std::size_t>(to)].present) {
      return;
    }
    order.move(from, to);
    std::swap(blocks_[static_cast<std::size_t>(from)], blocks_[static_cast<std::size_t>(to)]);
    for (Block& block : blocks_) {
      block.parent = block.parent == from ? to : block.parent;
    }
    for (Session& session : sessions_) {
      session.claim = session.claim == from ? to : session.claim;
    }
  }

  // The best of what is said, by the rules; nobody's word: two minutes more than it is idle.
  [[nodiscard]] Worth worth(int id) const {
    const Block& block = blocks_[static_cast<std::size_t>(id)];
    const int idle = now_ - block.last_use + 120;
    std::optional<std::pair<int, int>> best;  // priority, minus distance
    int last_end = -1;
    bool claimed = false;
    for (const Session& session : sessions_) {
      if (session.claim != id) {
        continue;
      }
      claimed = true;
      const auto& said = session.said;
      const int end = session.closed ? -1
                      : said.ttl     ? session.last_use + static_cast<int>(*said.ttl / seconds(1))
                                     : now_ + 1;
      if (end <= now_) {
        last_end = std::max(last_end, end);
        continue;
      }
      const int away =
          said.expected_return
              ? std::abs(static_cast<int>((*said.expected_return - at(now_)) / seconds(1)))
              : idle;
      best = std::max(best, std::optional(std::pair(said.priority, -away)));
    }
    const bool others =
        std::ranges::any_of(block.users, [&](int user) { return user != block.users.front(); });
    if (others || !claimed) {
      best = std::max(best, std::optional(std::pair(0, -idle)));
    }
    // The smallest goes first.
    return best ? Worth(true, 0, best->first, best->second) : Worth(false, last_end, 0, 0);
  }

  void evict() {
    std::optional<Worth> least;
    for (int block = 0; block < kBlocks; ++block) {
      if (order.allows(block)) {
        least = least ? std::min(*least, worth(block)) : worth(block);
      }
    }
    if (!least) {
      return;
    }
    const EvictionOrder::Choice choice = order.next();
    ASSERT_TRUE(order.allows(choice.block));
    ASSERT_EQ(worth(choice.block), *least);
    if (!std::get<0>(*least)) {
      ASSERT_EQ(choice.why, std::get<1>(*least) < 0 ? Why::kClosed : Why::kExpired);
    }
    ++evictions[static_cast<int>(choice.why)];
    const int parent = blocks_[static_cast<std::size_t>(choice.block)].parent;
    order.forbid(choice.block);
    order.remove(choice.block, parent);
    blocks_[static_cast<std::size_t>(choice.block)] = {};
    for (Session& session : sessions_) {
      session.claim = session.claim == choice.block ? parent : session.claim;
    }
    allow_leaves();
  }

  std::mt19937 random_;
  int now_ = 0;
  std::vector<Session> sessions_;
  std::vector<Block> blocks_ = std::vector<Block>(kBlocks);
};

TEST(EvictionOrder, RandomOperationsEqualTheRulesAppliedToAllBlocks) {
  int evictions[PrefixMiss::kNumWhys] = {};
  for (std::uint32_t seed = 0; seed < 600; ++seed) {
    Model model(seed);
    for (int step = 0; step < 400; ++step) {
      model.step();
      ASSERT_FALSE(testing::Test::HasFatalFailure()) << "seed " << seed << " step " << step;
      const Status status = model.order.check();
      ASSERT_TRUE(status.ok()) << status.error().message;
    }
    for (std::size_t i = 0; i < PrefixMiss::kNumWhys; ++i) {
      evictions[i] += model.evictions[i];
    }
  }
  for (const Why why : {Why::kEvicted, Why::kClosed, Why::kExpired, Why::kReturnsLater}) {
    EXPECT_GT(evictions[static_cast<int>(why)], 300) << "the walk reached every rule";
  }
}

}  // namespace
}  // namespace quire::kv

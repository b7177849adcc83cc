// Which cached block goes next, and what sessions say about it.
//
// The order, among the blocks that may go (the index offers unused ones with no unused child, so
// leaves go before their parents):
//   1. what nobody wants any more: its session was closed, then its TTL is over;
//   2. the lowest priority;
//   3. the block that is due farthest from now. A block is due when its session is expected back
//      (Belady's rule, by what users say). Where nobody said anything, or once the session is
//      overdue, it counts as coming back after as long as it is away already (Lindy's rule). It is
//      away since the expected return, or since two minutes before its last use. So every block has
//      one fixed time, and the farthest from now is always the first or the last in order of time.
//      Without sessions this is least recently used first.
//
// A session has one claim: it hangs at the deepest cached block of its last request, and speaks for
// the blocks above too. When a block goes, its claims move to its parent. The best of several
// claims counts. A block that others have used as well counts as claimed by somebody who says
// nothing. So no shared block goes first because one of its sessions was closed.
//
// Arrays are indexed by block id; only opening a session may allocate. Cost: O(log blocks) for each
// block that enters, leaves or is chosen, plus O(claims) at that block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/kv/block_heap.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::kv {

class EvictionOrder {
 public:
  explicit EvictionOrder(std::int32_t num_blocks);
  EvictionOrder(const EvictionOrder&) = delete;  // the heaps look at ranks_
  EvictionOrder& operator=(const EvictionOrder&) = delete;

  // Sets the time. Time never goes back: an earlier one is ignored.
  void set_time(TimePoint now);
  [[nodiscard]] TimePoint now() const { return now_; }

  // Opens a session. Stale handles of sessions are no-ops, for a request may outlive its session.
  [[nodiscard]] SessionRef open_session();
  [[nodiscard]] bool contains(SessionRef session) const;
  [[nodiscard]] Retention retention(SessionRef session) const;  // defaults when stale
  void set_retention(SessionRef session, const Retention& retention);
  // Closes a session, to which nobody returns: what it alone has used goes first. The handle is
  // stale once its requests have ended and its blocks are gone.
  void close_session(SessionRef session);
  // Treats the session as if it had never said anything.
  void forget_session(SessionRef session);
  [[nodiscard]] std::int32_t num_sessions() const { return num_open_; }
  // Begins or ends a request of the session. When it begins, the expected return has happened. When
  // it ends, its KV is cached up to block `last` (-1: nothing is cached).
  void begin(SessionRef session);
  void end(SessionRef session, std::int32_t last);

  // Adds a block. The index calls this and the next calls. `session` is the one that computed the
  // block, or that uses it.
  void add(std::int32_t block, SessionRef session);
  void use(std::int32_t block, SessionRef session);
  void release(std::int32_t block);  // used until now
  void allow(std::int32_t block);    // the block may be evicted
  void forbid(std::int32_t block);
  // Says that the KV of `block` lies in block `to` from now on. The order must not know `to` yet.
  void move(std::int32_t block, std::int32_t to);
  // Removes a block that has gone. `parent` is -1 if it had none.
  void remove(std::int32_t block, std::int32_t parent);
  [[nodiscard]] bool allows(std::int32_t block) const { return oldest_.contains(block); }
  [[nodiscard]] std::int32_t num_allowed() const {
    return static_cast<std::int32_t>(oldest_.size());
  }

  struct Choice {
    std::int32_t block = -1;
    PrefixMiss::Why why = PrefixMiss::Why::kEvicted;
  };
  // Returns the block to evict next, and why. Precondition: there is a block that may go.
  [[nodiscard]] Choice next();

  // Ranks, by the rules of blocks, a thing that is no block. `users` have used it (stale ones say
  // nothing), and with `others` somebody without a session too, last at `last_use`. O(users).
  [[nodiscard]] Standing standing(std::span<const SessionRef> users, bool others,
                                  TimePoint last_use) const;

  // Returns kInternal when heaps and claims disagree with blocks and sessions.
  [[nodiscard]] Status check() const;

 private:
  struct Session {
    std::uint32_t generation = 0;
    bool present = false;
    bool closed = false;
    Retention retention;
    TimePoint last_use;
    std::int32_t requests = 0;  // running
    // The claim of the session: the block, and its neighbours there.
    std::int32_t block = -1;
    std::int32_t previous = -1;
    std::int32_t next = -1;
  };
  struct Block {
    SessionRef user;      // the first one
    bool shared = false;  // others, with or without a session, used it too
    TimePoint last_use;
    std::uint64_t released = 0;     // ascending
    std::int32_t first_claim = -1;  // a session's index
  };
  // The rank of a block, by what was known when it was ranked. Time makes it stale in one direction
  // only: the block may be worth more than this says, or its first claim has ended.
  struct Rank {
    // End of the first claim that ends; once it has passed, of the last.
    TimePoint ends = TimePoint::max();
    std::int32_t priority = 0;
    TimePoint due;
    bool expected = false;  // a session says so
    std::uint64_t released = 0;
    friend bool operator==(const Rank&, const Rank&) = default;
  };
  using Ranks = std::vector<Rank>;
  class Claims;
  struct EndsFirst {
    const Ranks* ranks;
    bool operator()(std::int32_t a, std::int32_t b) const;
  };
  struct DueFirst {
    const Ranks* ranks;
    bool operator()(std::int32_t a, std::int32_t b) const;
  };
  struct DueLast {
    const Ranks* ranks;
    bool operator()(std::int32_t a, std::int32_t b) const;
  };

  [[nodiscard]] Session& session(std::int32_t index) {
    return sessions_[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] const Session& session(std::int32_t index) const {
    return sessions_[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] Block& block(std::int32_t id) { return blocks_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] const Block& block(std::int32_t id) const {
    return blocks_[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] const Rank& rank(std::int32_t id) const {
    return ranks_[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] TimePoint end_of(const Session& claimant) const;
  [[nodiscard]] double distance(TimePoint due) const;
  [[nodiscard]] Rank rank_now(std::int32_t id) const;
  [[nodiscard]] std::int32_t candidate() const;
  void rerank(std::int32_t id);
  void hang(std::int32_t index, std::int32_t id);
  void unhang(std::int32_t index);
  void settle(std::int32_t index);
  void drop(std::int32_t index);

  TimePoint now_;
  std::vector<Session> sessions_;            // by index
  std::vector<std::int32_t> free_sessions_;  // free indices of sessions_
  std::int32_t num_open_ = 0;
  std::vector<Block> blocks_;  // [num_blocks]
  Ranks ranks_;                // [num_blocks], of those that may go
  std::uint64_t releases_ = 0;
  BlockHeap<DueFirst> oldest_;  // all that may go, two ways: lowest priority first, then by time
  BlockHeap<DueLast> farthest_;
  BlockHeap<EndsFirst> ending_;  // those of them with a claim that ends
};

}  // namespace quire::kv

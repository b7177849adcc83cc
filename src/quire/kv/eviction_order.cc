#include "quire/kv/eviction_order.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>

#include "quire/base/check.h"
#include "quire/base/str.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::kv {
namespace {

// A session that says nothing counts as gone for so long already when it ends a request. It is the
// median pause of a person who chats (the conversation trace of Mooncake, FAST'25). Among such
// sessions it changes nothing; against those that say when they return it is worth much, see the
// table of chat_trace_bench in bench/journal/2026-11-22.md.
constexpr Clock::duration kHeadStart = std::chrono::seconds(120);

constexpr TimePoint kClosed = TimePoint::min();
constexpr TimePoint kNever = TimePoint::max();

double seconds(TimePoint time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

}  // namespace

bool EvictionOrder::EndsFirst::operator()(std::int32_t a, std::int32_t b) const {
  const Rank& left = (*ranks)[static_cast<std::size_t>(a)];
  const Rank& right = (*ranks)[static_cast<std::size_t>(b)];
  return std::tie(left.ends, left.released) < std::tie(right.ends, right.released);
}

bool EvictionOrder::DueFirst::operator()(std::int32_t a, std::int32_t b) const {
  const Rank& left = (*ranks)[static_cast<std::size_t>(a)];
  const Rank& right = (*ranks)[static_cast<std::size_t>(b)];
  return std::tie(left.priority, left.due, left.released) <
         std::tie(right.priority, right.due, right.released);
}

bool EvictionOrder::DueLast::operator()(std::int32_t a, std::int32_t b) const {
  const Rank& left = (*ranks)[static_cast<std::size_t>(a)];
  const Rank& right = (*ranks)[static_cast<std::size_t>(b)];
  return std::tie(left.priority, right.due, left.released) <
         std::tie(right.priority, left.due, right.released);
}

EvictionOrder::EvictionOrder(std::int32_t num_blocks)
    : blocks_(static_cast<std::size_t>(num_blocks)),
      ranks_(static_cast<std::size_t>(num_blocks)),
      oldest_(num_blocks, {&ranks_}),
      farthest_(num_blocks, {&ranks_}),
      ending_(num_blocks, {&ranks_}) {}

void EvictionOrder::set_time(TimePoint now) { now_ = std::max(now_, now); }

SessionRef EvictionOrder::open_session() {
  if (free_sessions_.empty()) {
    free_sessions_.reserve(sessions_.size() + 1);  // for all of them: ending one needs no memory
    sessions_.emplace_back();
    free_sessions_.push_back(static_cast<std::int32_t>(sessions_.size()) - 1);
  }
  const std::int32_t index = free_sessions_.back();
  free_sessions_.pop_back();
  Session& opened = session(index);
  opened = {.generation = opened.generation + 1, .present = true, .last_use = now_};
  ++num_open_;
  return {.index = index, .generation = opened.generation};
}

bool EvictionOrder::contains(SessionRef ref) const {
  return ref.index >= 0 && session(ref.index).present &&
         session(ref.index).generation == ref.generation;
}

Retention EvictionOrder::retention(SessionRef ref) const {
  return contains(ref) ? session(ref.index).retention : Retention();
}

void EvictionOrder::set_retention(SessionRef ref, const Retention& retention) {
  if (contains(ref)) {
    session(ref.index).retention = retention;
    rerank(session(ref.index).block);
  }
}

void EvictionOrder::close_session(SessionRef ref) {
  if (contains(ref) && !session(ref.index).closed) {
    session(ref.index).closed = true;
    --num_open_;
    rerank(session(ref.index).block);
    settle(ref.index);
  }
}

void EvictionOrder::forget_session(SessionRef ref) {
  if (contains(ref)) {
    drop(ref.index);
  }
}

void EvictionOrder::begin(SessionRef ref) {
  if (contains(ref)) {
    Session& returned = session(ref.index);
    ++returned.requests;
    returned.last_use = now_;
    returned.retention.expected_return.reset();
    rerank(returned.block);
  }
}

void EvictionOrder::end(SessionRef ref, std::int32_t last) {
  if (!contains(ref)) {
    return;
  }
  Session& left = session(ref.index);
  --left.requests;
  left.last_use = now_;
  if (last >= 0) {
    unhang(ref.index);
    hang(ref.index, last);
  }
  settle(ref.index);
}

// Drops a closed session whose hints no longer count. They count while it has a claim on what it
// alone uses, or may still get one.
void EvictionOrder::settle(std::int32_t index) {
  const Session& settled = session(index);
  const bool counts = settled.block >= 0 && !block(settled.block).shared;
  if (settled.closed && !counts && settled.requests == 0) {
    drop(index);
  }
}

void EvictionOrder::drop(std::int32_t index) {
  unhang(index);
  Session& dropped = session(index);
  num_open_ -= dropped.closed ? 0 : 1;
  dropped = {.generation = dropped.generation};
  free_sessions_.push_back(index);
}

void EvictionOrder::hang(std::int32_t index, std::int32_t id) {
  Session& claimant = session(index);
  claimant.block = id;
  claimant.previous = -1;
  claimant.next = block(id).first_claim;
  if (claimant.next >= 0) {
    session(claimant.next).previous = index;
  }
  block(id).first_claim = index;
  rerank(id);
}

void EvictionOrder::unhang(std::int32_t index) {
  Session& claimant = session(index);
  const std::int32_t id = claimant.block;
  if (id < 0) {
    return;
  }
  (claimant.previous >= 0 ? session(claimant.previous).next : block(id).first_claim) =
      claimant.next;
  if (claimant.next >= 0) {
    session(claimant.next).previous = claimant.previous;
  }
  claimant.block = claimant.previous = claimant.next = -1;
  rerank(id);
}

void EvictionOrder::add(std::int32_t id, SessionRef user) { block(id) = {.user = user}; }

void EvictionOrder::use(std::int32_t id, SessionRef user) {
  block(id).shared = block(id).shared || block(id).user != user;
}

void EvictionOrder::release(std::int32_t id) {
  block(id).last_use = now_;
  block(id).released = ++releases_;
}

void EvictionOrder::allow(std::int32_t id) {
  const Rank& ranked = ranks_[static_cast<std::size_t>(id)] = rank_now(id);
  oldest_.insert(id);
  farthest_.insert(id);
  if (ranked.ends != kNever) {
    ending_.insert(id);
  }
}

void EvictionOrder::forbid(std::int32_t id) {
  oldest_.erase(id);
  farthest_.erase(id);
  if (ending_.contains(id)) {
    ending_.erase(id);
  }
}

void EvictionOrder::rerank(std::int32_t id) {
  if (id >= 0 && allows(id)) {
    forbid(id);
    allow(id);
  }
}

void EvictionOrder::move(std::int32_t id, std::int32_t to) {
  const bool allowed = allows(id);
  if (allowed) {
    forbid(id);
  }
  block(to) = std::exchange(block(id), {});
  for (std::int32_t index = block(to).first_claim; index >= 0; index = session(index).next) {
    session(index).block = to;
  }
  if (allowed) {
    allow(to);
  }
}

void EvictionOrder::remove(std::int32_t id, std::int32_t parent) {
  while (block(id).first_claim >= 0) {
    const std::int32_t index = block(id).first_claim;
    unhang(index);
    if (parent >= 0) {
      hang(index, parent);
    }
    settle(index);
  }
}

TimePoint EvictionOrder::end_of(const Session& claimant) const {
  if (claimant.closed) {
    return kClosed;
  }
  const Clock::duration ttl = claimant.retention.ttl.value_or(Clock::duration::max());
  const bool ends = ttl < kNever - claimant.last_use;
  return ends ? claimant.last_use + std::max(ttl, Clock::duration::zero()) : kNever;
}

double EvictionOrder::distance(TimePoint due) const {
  return std::abs(seconds(due) - seconds(now_));
}

// Sums up the claims on one thing: the best counts.
class EvictionOrder::Claims {
 public:
  // Starts with no claim. `wanted` says that somebody without hints wants the thing.
  Claims(const EvictionOrder& order, const Rank& unsaid, bool wanted)
      : order_(order), unsaid_(unsaid), best_(unsaid), wanted_(wanted) {}

  void hear(const Session& claimant) {
    const TimePoint end = order_.end_of(claimant);
    if (end <= order_.now_) {
      last_end_ = std::max(last_end_, end);
      return;
    }
    const Retention& said = claimant.retention;
    Rank claimed = unsaid_;
    claimed.priority = said.priority;
    claimed.due = said.expected_return.value_or(unsaid_.due);
    claimed.expected = said.expected_return.has_value();
    const bool better = claimed.priority != best_.priority
                            ? claimed.priority > best_.priority
                            : order_.distance(claimed.due) < order_.distance(best_.due);
    if (!wanted_ || better) {
      best_ = claimed;
    }
    wanted_ = true;
    first_end_ = std::min(first_end_, end);
  }

  [[nodiscard]] Rank rank() const {
    Rank rank = best_;
    rank.ends = wanted_ ? first_end_ : last_end_;
    return rank;
  }

 private:
  const EvictionOrder& order_;
  const Rank unsaid_;
  Rank best_;
  bool wanted_;
  TimePoint first_end_ = kNever;
  TimePoint last_end_ = kClosed;
};

EvictionOrder::Rank EvictionOrder::rank_now(std::int32_t id) const {
  const Block& ranked = block(id);
  Claims claims(*this, {.due = ranked.last_use - kHeadStart, .released = ranked.released},
                ranked.shared || ranked.first_claim < 0);
  for (std::int32_t index = ranked.first_claim; index >= 0; index = session(index).next) {
    claims.hear(session(index));
  }
  return claims.rank();
}

Standing EvictionOrder::standing(std::span<const SessionRef> users, bool others,
                                 TimePoint last_use) const {
  Claims claims(*this, {.due = last_use - kHeadStart}, others);
  for (const SessionRef ref : users) {
    if (contains(ref)) {
      claims.hear(session(ref.index));
    }
  }
  const Rank rank = claims.rank();
  return {.ended = rank.ends <= now_ ? rank.ends : kNever,
          .priority = rank.priority,
          .nearness = -distance(rank.due)};
}

std::int32_t EvictionOrder::candidate() const {
  if (!ending_.empty() && rank(ending_.first()).ends <= now_) {
    return ending_.first();
  }
  QUIRE_CHECK(!oldest_.empty(), "nothing to evict");
  const TimePoint oldest = rank(oldest_.first()).due;
  const TimePoint farthest = rank(farthest_.first()).due;
  return farthest > now_ && distance(farthest) > distance(oldest) ? farthest_.first()
                                                                  : oldest_.first();
}

// Ranks are renewed when they come to the top. A stale one never says that a block is worth more
// than it is, but for claims that have ended, and those come first.
EvictionOrder::Choice EvictionOrder::next() {
  std::int32_t id = candidate();
  while (rank_now(id) != rank(id)) {
    rerank(id);
    id = candidate();
  }
  using Why = PrefixMiss::Why;
  const Rank& chosen = rank(id);
  if (chosen.ends <= now_) {
    return {.block = id, .why = chosen.ends == kClosed ? Why::kClosed : Why::kExpired};
  }
  const bool later = chosen.expected && chosen.due > now_;
  return {.block = id, .why = later ? Why::kReturnsLater : Why::kEvicted};
}

Status EvictionOrder::check() const {
  const auto broken = [](std::int32_t id, const char* what) {
    return Error{.code = ErrorCode::kInternal,
                 .message = base::str_cat("order of eviction: block ", id, " ", what)};
  };
  std::size_t allowed = 0;
  std::size_t ending = 0;
  std::size_t claims = 0;
  for (std::int32_t id = 0; id < static_cast<std::int32_t>(blocks_.size()); ++id) {
    allowed += allows(id) ? 1 : 0;
    ending += ending_.contains(id) ? 1 : 0;
    if (farthest_.contains(id) != allows(id) ||
        ending_.contains(id) != (allows(id) && rank(id).ends != kNever)) {
      return broken(id, "stands in one heap and not in the other");
    }
    for (std::int32_t index = block(id).first_claim; index >= 0; index = session(index).next) {
      ++claims;
      if (!session(index).present || session(index).block != id || claims > sessions_.size()) {
        return broken(id, "has a claim of a session that claims another one");
      }
    }
  }
  const auto claiming =
      std::ranges::count_if(sessions_, [](const Session& s) { return s.block >= 0; });
  const auto open =
      std::ranges::count_if(sessions_, [](const Session& s) { return s.present && !s.closed; });
  if (allowed != oldest_.size() || allowed != farthest_.size() || ending != ending_.size() ||
      claims != static_cast<std::size_t>(claiming) || open != num_open_) {
    return broken(-1, "and its likes are not counted right");
  }
  return {};
}

}  // namespace quire::kv

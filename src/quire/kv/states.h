// States: who holds which state, and which of them are restore points.
//
// A state is what all layers that carry one have at one position of one history. A sequence has one
// at its length, which its next step reads. A restore point is a state of a known history that
// stays when its sequence goes on or ends; it is never written again. A state that has several
// holders is not written either: who goes on from it writes another one.
//
// Points are found by the tokens before them, compared one by one. The hash only says where to
// look. Points that nobody uses give way to states that are needed, the least useful one first. A
// point is worth the tokens that a hit on it saves over a hit on the next shorter point of its
// history. All states have the same bytes, so that is also tokens per byte. Use keeps its worth
// fresh: it is added to the worth of what has given way before (GreedyDual-Size, Cao and Irani
// 1997).
//
// Thread rule: one thread per object, as for the ledger.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {

// Tokens within which no second point is worth its bytes: computing them costs about what a step
// does.
inline constexpr std::int32_t kPointDistance = 256;

// Names a state as it was when it was handed out. The generation changes when it becomes free, so
// that a stale handle never means the state of another history.
struct StateRef {
  std::int32_t index = -1;  // -1: names none
  std::uint32_t generation = 0;
  friend bool operator==(StateRef, StateRef) = default;
};

class States {
 public:
  // Makes `num_states` free states; 0 for models without any.
  explicit States(std::int32_t num_states);

  [[nodiscard]] bool exist() const { return !slots_.empty(); }
  [[nodiscard]] std::int32_t num_states() const { return static_cast<std::int32_t>(slots_.size()); }
  [[nodiscard]] std::int32_t num_free() const { return static_cast<std::int32_t>(free_.size()); }
  [[nodiscard]] std::int32_t num_points() const {
    return static_cast<std::int32_t>(points_.size());
  }
  // Returns how many states acquire() can hand out: free ones and points that nobody uses.
  [[nodiscard]] std::int32_t num_available() const { return num_free() + num_idle_; }
  [[nodiscard]] std::int64_t num_evictions() const { return num_evictions_; }

  // Takes a state, with one reference. Precondition: num_available() > 0. Allocates nothing.
  [[nodiscard]] StateRef acquire();
  // Preconditions, always checked: the handle is current.
  void retain(StateRef state);
  void release(StateRef state);
  // Returns whether somebody else holds the state too.
  [[nodiscard]] bool is_shared(StateRef state) const { return slot(state).references > 1; }
  // Returns the holders that are no restore points.
  [[nodiscard]] std::int32_t num_users(StateRef state) const {
    return slot(state).references - (slot(state).is_point ? 1 : 0);
  }

  // A point, valid until it is dropped.
  struct KnownPoint {
    std::span<const TokenId> tokens;
    std::string_view salt;
    StateRef state;
  };
  // Sets who hears of a point before acquire() takes its state.
  void set_on_eviction(std::function<void(const KnownPoint&)> hears) {
    on_eviction_ = std::move(hears);
  }
  // Returns the points behind all of `tokens` and fewer than `more` others.
  [[nodiscard]] std::vector<KnownPoint> points_within_block(std::span<const TokenId> tokens,
                                                            std::string_view salt,
                                                            std::int32_t more) const;
  // Drops a point that nobody uses, as acquire() does; else does nothing.
  void drop_idle(const KnownPoint& point);

  struct Found {
    std::int32_t tokens = 0;
    StateRef state;
  };
  // Returns the point behind the most of `tokens` that `accepts` its length. Cost: O(tokens).
  [[nodiscard]] std::optional<Found> find(std::span<const TokenId> tokens, std::string_view salt,
                                          const std::function<bool(std::int32_t)>& accepts) const;
  // Returns whether there is a point behind exactly these tokens.
  [[nodiscard]] bool has_point(std::span<const TokenId> tokens, std::string_view salt) const;
  // Makes a state the point behind `tokens`, unless there is one. Precondition: at least one token.
  // With `stays` thin() leaves it.
  void add_point(std::span<const TokenId> tokens, std::string_view salt, StateRef state,
                 bool stays = false);
  // Calls visitor(length, stays) for each point behind some of `tokens`, the shortest first.
  void visit_points(std::span<const TokenId> tokens, std::string_view salt,
                    const std::function<void(std::int32_t, bool)>& visitor) const;
  // Forgets points of a history of which others do nearly as well. Each point that is left is at
  // most half as far again from the end as the next nearer one, and `slack` tokens. It is farther
  // where more than log2 of the tokens would be left. Points behind `keep_from` tokens or more
  // stay. So do points that several histories share, and those that are held.
  void thin(std::span<const TokenId> tokens, std::string_view salt, std::int32_t slack,
            std::int32_t keep_from);
  // Returns the length of the longest point behind some of `tokens` that gave way; 0 for none. For
  // people: the last ones are known by hash alone.
  [[nodiscard]] std::int32_t lost_point(std::span<const TokenId> tokens,
                                        std::string_view salt) const;
  // Notes a state behind these tokens that no point may be, as other arithmetic has computed it.
  void note_other_form(std::span<const TokenId> tokens, std::string_view salt);
  // Returns the length of the longest such state behind some of `tokens`; 0 for none. For people.
  [[nodiscard]] std::int32_t other_form(std::span<const TokenId> tokens,
                                        std::string_view salt) const;
  // Notes that the point is used now.
  void touch(StateRef state);
  // Forgets all points.
  void clear_points();

  // Returns kInternal when references, points and free states disagree. `users` counts the holders
  // of each state that are no points.
  [[nodiscard]] Status check(std::span<const std::int32_t> users) const;

 private:
  struct Slot {
    std::int32_t references = 0;
    std::uint32_t generation = 0;
    bool is_point = false;
    bool stays = false;  // a point that several histories share
    std::uint64_t last_use = 0;
    std::int64_t worth_before = 0;  // worth of what had given way before its last use
  };
  struct Point {
    std::string salt;
    std::vector<TokenId> tokens;
    StateRef state;
    const Point* before = nullptr;  // next shorter point of its history; null: none

    // Returns the tokens that a hit saves over a hit on the next shorter one.
    [[nodiscard]] std::int64_t saves() const {
      return std::ssize(tokens) - (before == nullptr ? 0 : std::ssize(before->tokens));
    }
    // Returns whether the other one is a longer point of the same history.
    [[nodiscard]] bool begins(const Point& other) const;
  };
  using Points = std::unordered_multimap<std::uint64_t, Point>;

  [[nodiscard]] const Slot& slot(StateRef state) const;
  [[nodiscard]] Slot& slot(StateRef state) {
    return const_cast<Slot&>(std::as_const(*this).slot(state));
  }
  [[nodiscard]] std::vector<Points::iterator> points_within(std::span<const TokenId> tokens,
                                                            std::string_view salt);
  [[nodiscard]] std::vector<Points::iterator> points_too_close(
      std::span<const Points::iterator> points, std::int64_t length, std::int64_t quarters,
      std::int32_t slack, std::int32_t keep_from, std::int64_t& left) const;
  // Returns the idle point that is worth least. Precondition: there is one.
  [[nodiscard]] Points::iterator least_useful();
  [[nodiscard]] std::int64_t worth(const Point& point) const {
    return slot(point.state).worth_before + point.saves();
  }
  [[nodiscard]] const Point* look_up(std::uint64_t hash, std::span<const TokenId> tokens,
                                     std::string_view salt) const;
  void drop(Points::iterator point);
  void give_way(Points::iterator point);

  std::vector<Slot> slots_;
  std::vector<std::int32_t> free_;
  Points points_;                                 // by the hash of salt and tokens
  std::map<std::int32_t, std::int32_t> lengths_;  // of points: how many have it
  std::int32_t num_idle_ = 0;
  std::vector<std::uint64_t> foreign_;  // hashes of the last states of other arithmetic, a ring
  std::size_t next_foreign_ = 0;
  std::vector<std::uint64_t> lost_;  // hashes of the last points that gave way, a ring
  std::size_t next_lost_ = 0;
  std::uint64_t uses_ = 0;
  std::int64_t worth_of_evicted_ = 0;
  std::int64_t num_evictions_ = 0;
  std::function<void(const KnownPoint&)> on_eviction_;  // absent: nobody hears
};

// A reference to a state, given back by its destructor.
class HeldState {
 public:
  HeldState() = default;
  // Takes over a reference.
  HeldState(States& states, StateRef state) : states_(&states), state_(state) {}
  HeldState(HeldState&& other) noexcept
      : states_(other.states_), state_(std::exchange(other.state_, {})) {}
  HeldState& operator=(HeldState&& other) noexcept {
    std::swap(states_, other.states_);
    std::swap(state_, other.state_);
    return *this;
  }
  HeldState(const HeldState&) = delete;
  HeldState& operator=(const HeldState&) = delete;
  ~HeldState() { reset(); }

  [[nodiscard]] HeldState clone() const;
  void reset() {
    if (state_.index >= 0) {
      states_->release(std::exchange(state_, {}));
    }
  }
  [[nodiscard]] StateRef ref() const { return state_; }
  [[nodiscard]] bool is_there() const { return state_.index >= 0; }

 private:
  States* states_ = nullptr;
  StateRef state_;
};

// A length at which a request wants a restore point.
struct PointMark {
  std::int32_t tokens = 0;
  bool stays = false;  // other histories will go on from it: thinning leaves it
};

// The states of one sequence: the one at its length, which is there but for length 0, and the one
// that its next step writes.
class SequenceStates {
 public:
  explicit SequenceStates(States& states) : states_(&states) {}
  // Returns states of a copy of the sequence, which shares the one at its length.
  [[nodiscard]] SequenceStates fork() const;

  // Returns whether the next step needs a state that nobody else holds.
  [[nodiscard]] bool needs_one() const {
    return states_->exist() && !next_.is_there() &&
           (!now_.is_there() || states_->is_shared(now_.ref()));
  }
  // Precondition: a state is available if one is needed.
  void make_room();
  // Notes that the step is done.
  void advance() {
    if (next_.is_there()) {
      now_ = std::exchange(next_, {});
    }
  }
  // Goes on from a point, or from no token.
  void restore(StateRef point);
  void drop();

  // Returns whether the KV of the last tokens lies beside the state, and not in a block.
  [[nodiscard]] bool lacks_tail() const { return lacks_tail_; }
  void set_lacks_tail(bool lacks) { lacks_tail_ = lacks; }
  // Returns the length of the known history that the sequence left when it was opened, if no
  // point was there; else 0.
  [[nodiscard]] std::int32_t left_history_at() const { return left_history_at_; }
  void leave_history_at(std::int32_t tokens) { left_history_at_ = tokens; }

  // Sets what its request wants, whose prompt has so many tokens.
  void mark(std::span<const PointMark> marks, std::int32_t prompt_tokens);
  [[nodiscard]] std::span<const PointMark> marks() const { return marks_; }
  // Returns the length from which on points are of its own request.
  [[nodiscard]] std::int32_t own_points_from() const { return own_points_from_; }

  [[nodiscard]] StateRef now() const { return now_.ref(); }
  [[nodiscard]] StateRef next() const { return next_.is_there() ? next_.ref() : now_.ref(); }
  // Calls `fn` with each reference.
  template <class Fn>
  void visit(Fn fn) const {
    for (const HeldState* held : {&now_, &next_}) {
      if (held->is_there()) {
        fn(held->ref());
      }
    }
  }

 private:
  States* states_;
  HeldState now_;
  HeldState next_;
  bool lacks_tail_ = false;
  std::int32_t left_history_at_ = 0;
  std::vector<PointMark> marks_;
  std::int32_t own_points_from_ = std::numeric_limits<std::int32_t>::max();
};

}  // namespace quire::kv

// States: who holds which state, and which of them are restore points.
//
// A state is what all layers that carry one have at one position of one history. A sequence has one
// at its length, which its next step reads. A restore point is a state of a known history that
// stays when its sequence goes on or ends; it is never written again. A state that has several
// holders is not written either: who goes on from it writes another one.
//
// Points are found by the tokens before them, compared one by one. The hash only says where to
// look. Points that nobody uses give way to states that are needed, the one least recently used
// first.
//
// Thread rule: one thread per object, as for the ledger.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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
  // Forgets points of a history of which others do nearly as well. Those that are left stand at
  // most half as far again from the end as the next nearer one. The last `recent` tokens keep all.
  void thin(std::span<const TokenId> tokens, std::string_view salt, std::int32_t recent);
  // Returns the length of the longest point behind some of `tokens` that gave way; 0 for none. For
  // people: the last ones are known by hash alone.
  [[nodiscard]] std::int32_t lost_point(std::span<const TokenId> tokens,
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
  };
  struct Point {
    std::string salt;
    std::vector<TokenId> tokens;
    StateRef state;
  };
  using Points = std::unordered_multimap<std::uint64_t, Point>;

  [[nodiscard]] const Slot& slot(StateRef state) const;
  [[nodiscard]] Slot& slot(StateRef state) {
    return const_cast<Slot&>(std::as_const(*this).slot(state));
  }
  [[nodiscard]] std::vector<Points::iterator> points_within(std::span<const TokenId> tokens,
                                                            std::string_view salt);
  [[nodiscard]] const Point* look_up(std::uint64_t hash, std::span<const TokenId> tokens,
                                     std::string_view salt) const;
  void drop(Points::iterator point);

  std::vector<Slot> slots_;
  std::vector<std::int32_t> free_;
  Points points_;                                 // by the hash of salt and tokens
  std::map<std::int32_t, std::int32_t> lengths_;  // of points: how many have it
  std::int32_t num_idle_ = 0;
  std::vector<std::uint64_t> lost_;  // hashes of the last points that gave way, a ring
  std::size_t next_lost_ = 0;
  std::uint64_t uses_ = 0;
  std::int64_t num_evictions_ = 0;
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
};

}  // namespace quire::kv

// RestorePoints: what a step does with the states of its sequences. A view: Ledger::points() lends
// it.
//
// An unknown id is a broken invariant of the caller (QUIRE_CHECK).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/point_keeper.h"
#include "quire/kv/states.h"

namespace quire::kv {

struct LedgerState;

class RestorePoints {
 public:
  // Borrows `state`.
  explicit RestorePoints(LedgerState& state) : state_(&state) {}

  // Returns whether the model has layers with a state.
  [[nodiscard]] bool exist() const;
  // Returns how many states extend() could obtain now, and by how many that grows if the KV of all
  // of `ids` is dropped. The latter does not count what several of them share.
  [[nodiscard]] std::int32_t states_available() const;
  [[nodiscard]] std::int32_t states_freed_by_drop(std::span<const SeqId> ids) const;
  // Returns how many states extend() takes for the next step of a sequence.
  [[nodiscard]] std::int32_t states_needed(SeqId id) const;

  // Numbers of the states before and behind the next step. `from` is -1 for a sequence without KV.
  struct Places {
    std::int32_t from = -1;
    std::int32_t to = 0;
  };
  // Precondition: extend() made room.
  [[nodiscard]] Places places(SeqId id) const;

  // KV of a block that lies beside a state and not in the block yet, which the sequence has taken
  // up at a point.
  struct Tail {
    std::int32_t state = 0;
    BlockId block;
  };
  // Returns the tail that must be copied before the next step, once.
  [[nodiscard]] std::optional<Tail> take_tail(SeqId id);

  // Returns whether there is such a tail.
  [[nodiscard]] bool lacks_tail(SeqId id) const;

  // Returns how many tokens behind its state a sequence owes whose KV is there.
  [[nodiscard]] std::int32_t num_owed(SeqId id) const;
  // Gives up the KV of owed tokens, which the caller reads from elsewhere with their state.
  // Precondition: no step has computed any of them.
  void drop_owed(SeqId id);

  // A point of a history.
  struct Known {
    std::int32_t tokens = 0;
    bool stays = false;
  };
  // Returns the points behind some of the sequence's tokens with KV, the shortest first. None of a
  // sequence that finds no other's.
  [[nodiscard]] std::vector<Known> known(SeqId id) const;

  // Returns whether a point behind the first `tokens` tokens would be found, and is not there.
  [[nodiscard]] bool wants_point(SeqId id, std::int32_t tokens) const;
  // Returns the length at which the sequence has left a known history, if no point is close before
  // it; 0: none.
  [[nodiscard]] std::int32_t left_history_at(SeqId id) const;
  // Notes what a request wants on its sequence, whose prompt has so many tokens.
  void mark(SeqId id, std::span<const PointMark> marks, std::int32_t prompt_tokens);
  [[nodiscard]] std::span<const PointMark> marks(SeqId id) const;
  // Takes a state for a point. Not there where none is free; with `evicts` idle points give way.
  [[nodiscard]] HeldState take_state(bool evicts);
  // Returns the state at the length of a sequence.
  [[nodiscard]] HeldState present(SeqId id) const;
  // Makes a state the point behind the first `tokens` tokens.
  // With `stays` thin() leaves it.
  void add(SeqId id, std::int32_t tokens, const HeldState& state, bool stays = false);
  // Forgets points of the sequence's history that stand close together, far from its end.
  void thin(SeqId id);
  // Sets who keeps points that are about to be lost.
  void set_keeper(PointKeeper keeper);
  // Notes that the KV and the state behind `first` tokens of a sequence were brought back: its
  // present length needs no replay from there.
  void note_brought(SeqId id, std::int32_t first);
  // Returns the block that token `tokens` of the sequence lies in, if others before it do too.
  [[nodiscard]] std::optional<BlockId> block_of_tail(SeqId id, std::int32_t tokens) const;

 private:
  LedgerState* state_;
};

}  // namespace quire::kv

// KnownStates: the sequence states that are alive.
//
// Thread rule: the engine thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "quire/sequences/sequence_state.h"

namespace quire::sequences {

class KnownStates {
 public:
  // Adds a state. Cost: O(1), amortised: states that have gone are swept when there are twice as
  // many.
  void add(const StateRef& state) {
    if (states_.size() >= next_sweep_) {
      std::erase_if(states_, [](const auto& known) { return known.expired(); });
      next_sweep_ = std::max(kFirstSweep, 2 * states_.size());
    }
    states_.push_back(state);
  }

  // Calls `visitor` with each state that is alive.
  template <class Visitor>
  void visit(Visitor visitor) const {
    for (const auto& known : states_) {
      if (const StateRef state = known.lock()) {
        visitor(state);
      }
    }
  }

 private:
  static constexpr std::size_t kFirstSweep = 64;
  std::vector<std::weak_ptr<const SequenceState>> states_;
  std::size_t next_sweep_ = kFirstSweep;
};

}  // namespace quire::sequences

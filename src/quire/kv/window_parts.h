// WindowParts: which blocks have the KV of their tokens in layers with a window, and who needs it.
//
// Where some layers have a window and others have none, a block has two parts. The *full part*
// lives as long as the block. The *window part* may go earlier: no row behind the window reads it.
// Both lie at the place of the block, so a block that has lost its window part keeps its id.
//
// A part is held (somebody needs it), idle (nobody does, and its bytes are not wanted yet) or gone.
// Idle parts that a window passed over go first. Those at whose end a later request may go on have
// a point, and go last.
//
// Thread rule: one thread per object, as for the ledger.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::kv {

class WindowParts {
 public:
  // Makes a book of no parts. Precondition: config.validate().ok().
  explicit WindowParts(const LedgerConfig& config);

  // Returns whether blocks have window parts at all. Where they have none, all blocks count as
  // whole, and the other methods do nothing.
  [[nodiscard]] bool exist() const { return !parts_.empty(); }
  [[nodiscard]] bool is_there(BlockId block) const {
    return !exist() || part(block).state != State::kGone;
  }
  [[nodiscard]] std::int32_t holders(BlockId block) const {
    return exist() ? part(block).holders : 0;
  }
  [[nodiscard]] std::int32_t num_there() const { return num_there_; }
  [[nodiscard]] std::int32_t num_idle() const {
    return static_cast<std::int32_t>(passed_.size() + at_points_.size());
  }
  // Returns the number of idle parts that no point needs.
  [[nodiscard]] std::int32_t num_passed() const {
    return static_cast<std::int32_t>(passed_.size());
  }

  // Gives a block a part that has one holder. Precondition: its part is gone.
  void make(BlockId block);
  // Adds a holder. Precondition: the part is there.
  void hold(BlockId block);
  // Takes a holder away. `at_point`: a later request may go on behind its tokens.
  void let_go(BlockId block, bool at_point);
  // Notes that the block is free. Precondition: nobody holds the part.
  void free(BlockId block);
  // Says that `to` has the part of `from` from now on, if any. Precondition: nobody holds it.
  void move(BlockId from, BlockId to);
  // Drops the idle part that goes first. Precondition: num_idle() > 0.
  void drop_next();

  // Returns the blocks that have lost their part, or all they had, since the last call. Some may
  // have one again.
  [[nodiscard]] std::vector<BlockId> take_lost();

  // Returns kInternal where the lists and `holders`, counted block by block, disagree.
  [[nodiscard]] Status check(std::span<const std::int32_t> holders) const;

 private:
  enum class State : std::uint8_t { kGone, kHeld, kPassed, kAtPoint };
  struct Part {
    State state = State::kGone;
    bool is_lost = false;  // stands in lost_
    std::int32_t holders = 0;
    std::list<std::int32_t>::iterator place;  // in the list of its state, while idle
  };

  [[nodiscard]] const Part& part(BlockId block) const {
    return parts_[static_cast<std::size_t>(block.value)];
  }
  [[nodiscard]] Part& part(BlockId block) { return parts_[static_cast<std::size_t>(block.value)]; }
  [[nodiscard]] std::list<std::int32_t>& list_of(State state) {
    return state == State::kPassed ? passed_ : at_points_;
  }
  void set_idle(BlockId block, State state);
  void end_idle(BlockId block);
  void lose(BlockId block);

  std::vector<Part> parts_;         // [blocks], or empty
  std::list<std::int32_t> spare_;   // nodes for the lists, so that nothing here asks for memory
  std::list<std::int32_t> passed_;  // idle ones, the first to go first
  std::list<std::int32_t> at_points_;
  std::int32_t num_there_ = 0;
  std::vector<BlockId> lost_;
};

}  // namespace quire::kv

#include "quire/kv/window_parts.h"

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::kv {

WindowParts::WindowParts(const LedgerConfig& config) {
  if (config.window_group.tokens == 0) {
    return;
  }
  const auto blocks = static_cast<std::size_t>(config.num_ids());
  parts_.resize(blocks);
  spare_.resize(blocks);
  lost_.reserve(blocks);
}

void WindowParts::set_idle(BlockId block, State state) {
  std::list<std::int32_t>& list = list_of(state);
  part(block).state = state;
  part(block).place = spare_.begin();
  spare_.front() = block.value;
  list.splice(list.end(), spare_, spare_.begin());
}

void WindowParts::end_idle(BlockId block) {
  spare_.splice(spare_.begin(), list_of(part(block).state), part(block).place);
}

void WindowParts::lose(BlockId block) {
  if (!part(block).is_lost) {
    part(block).is_lost = true;
    lost_.push_back(block);
  }
}

void WindowParts::make(BlockId block) {
  if (!exist()) {
    return;
  }
  QUIRE_CHECK(part(block).state == State::kGone, "a block has two window parts");
  part(block).state = State::kHeld;
  part(block).holders = 1;
  ++num_there_;
}

void WindowParts::hold(BlockId block) {
  if (!exist()) {
    return;
  }
  Part& held = part(block);
  QUIRE_CHECK(held.state != State::kGone, "a window part that has gone is held");
  if (held.state != State::kHeld) {
    end_idle(block);
    held.state = State::kHeld;
  }
  ++held.holders;
}

void WindowParts::let_go(BlockId block, bool at_point) {
  if (!exist()) {
    return;
  }
  Part& held = part(block);
  QUIRE_CHECK(held.holders > 0, "a window part was let go twice");
  if (--held.holders == 0) {
    set_idle(block, at_point ? State::kAtPoint : State::kPassed);
  }
}

void WindowParts::free(BlockId block) {
  if (!exist()) {
    return;
  }
  QUIRE_CHECK(part(block).holders == 0, "a free block has a window part that is held");
  if (part(block).state != State::kGone) {
    end_idle(block);
    part(block).state = State::kGone;
    --num_there_;
  }
  lose(block);
}

void WindowParts::move(BlockId from, BlockId to) {
  if (!exist()) {
    return;
  }
  QUIRE_CHECK(part(from).holders == 0 && part(to).state == State::kGone,
              "a window part that is held was moved");
  if (part(from).state != State::kGone) {
    part(to).state = part(from).state;
    part(to).place = part(from).place;
    *part(to).place = to.value;
    part(from).state = State::kGone;
  }
  lose(from);
}

void WindowParts::drop_next() {
  std::list<std::int32_t>& list = passed_.empty() ? at_points_ : passed_;
  QUIRE_CHECK(!list.empty(), "no window part is idle");
  const BlockId block{list.front()};
  end_idle(block);
  part(block).state = State::kGone;
  --num_there_;
  lose(block);
}

std::vector<BlockId> WindowParts::take_lost() {
  std::vector<BlockId> lost = lost_;
  for (const BlockId block : lost) {
    part(block).is_lost = false;
  }
  lost_.clear();  // keeps its memory
  return lost;
}

Status WindowParts::check(std::span<const std::int32_t> holders) const {
  std::int32_t there = 0;
  std::size_t idle = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    const bool is_idle = part.state == State::kPassed || part.state == State::kAtPoint;
    there += part.state == State::kGone ? 0 : 1;
    idle += is_idle ? 1 : 0;
    if (part.holders != holders[i] || (part.state == State::kHeld) != (holders[i] > 0) ||
        (is_idle && *part.place != static_cast<std::int32_t>(i))) {
      return {ErrorCode::kInternal,
              base::str_cat("the window part of block ", i, " has ", holders[i],
                            " holders, counted are ", part.holders)};
    }
  }
  if (there != num_there_ || idle != passed_.size() + at_points_.size() ||
      spare_.size() + idle != parts_.size()) {
    return {ErrorCode::kInternal,
            base::str_cat(there, " window parts are there and ", idle, " idle, counted are ",
                          num_there_, " and ", passed_.size() + at_points_.size())};
  }
  return {};
}

}  // namespace quire::kv

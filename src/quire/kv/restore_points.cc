#include "quire/kv/restore_points.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/ledger_state.h"
#include "quire/kv/point_keeper.h"
#include "quire/kv/sequence.h"
#include "quire/kv/states.h"

namespace quire::kv {

bool RestorePoints::exist() const { return state_->states.exist(); }

std::int32_t RestorePoints::states_available() const { return state_->states.num_available(); }

std::int32_t RestorePoints::states_freed_by_drop(std::span<const SeqId> ids) const {
  const States& states = state_->states;
  std::int32_t freed = 0;
  for (const SeqId id : ids) {
    if (!states.exist()) {
      break;
    }
    state_->states_of(id)->visit(
        [&](StateRef state) { freed += states.num_users(state) == 1 ? 1 : 0; });
  }
  return freed;
}

std::int32_t RestorePoints::states_needed(SeqId id) const {
  const SequenceStates* states = state_->states_of(id);
  return states != nullptr && states->needs_one() ? 1 : 0;
}

RestorePoints::Places RestorePoints::places(SeqId id) const {
  const SequenceStates& states = *state_->states_of(id);
  return {.from = states.now().index, .to = states.next().index};
}

std::optional<RestorePoints::Tail> RestorePoints::take_tail(SeqId id) {
  SequenceStates& states = *state_->states_of(id);
  if (!states.lacks_tail()) {
    return std::nullopt;
  }
  states.set_lacks_tail(false);
  const OpenRun& open = state_->sequence(id).open();
  return Tail{.state = states.now().index,
              .block = open.blocks.ref(open.num_tokens / state_->shared.config().block_tokens).id};
}

bool RestorePoints::lacks_tail(SeqId id) const {
  const SequenceStates* states = state_->states_of(id);
  return states != nullptr && states->lacks_tail();
}

std::int32_t RestorePoints::num_owed(SeqId id) const {
  const OpenRun& open = state_->sequence(id).open();
  return open.rows() - open.num_tokens;
}

void RestorePoints::drop_owed(SeqId id) {
  Sequence& sequence = state_->sequence(id);
  if (num_owed(id) > 0) {
    sequence.drop_kv(Sequence::Dropped::kOwed);
    state_->states_of(id)->set_lacks_tail(
        sequence.num_computed() % state_->shared.config().block_tokens != 0);
  }
}

std::vector<RestorePoints::Known> RestorePoints::known(SeqId id) const {
  const Sequence& sequence = state_->sequence(id);
  std::vector<Known> known;
  if (sequence.is_plain() && sequence.use().adopts) {
    state_->states.visit_points(
        sequence.tokens().first(static_cast<std::size_t>(sequence.num_computed())),
        sequence.use().salt, [&](std::int32_t tokens, bool stays) {
          known.push_back({.tokens = tokens, .stays = stays});
        });
  }
  return known;
}

bool RestorePoints::wants_point(SeqId id, std::int32_t tokens) const {
  const Sequence& sequence = state_->sequence(id);
  return state_->shared.config().prefix_cache && sequence.is_plain() && tokens > 0 &&
         !state_->states.has_point(sequence.tokens().first(static_cast<std::size_t>(tokens)),
                                   sequence.use().salt);
}

std::int32_t RestorePoints::left_history_at(SeqId id) const {
  return state_->states_of(id)->left_history_at();
}

void RestorePoints::mark(SeqId id, std::span<const PointMark> marks, std::int32_t prompt_tokens) {
  if (SequenceStates* states = state_->states_of(id)) {
    states->mark(marks, prompt_tokens);
  }
  Sequence& sequence = state_->sequence(id);
  sequence.add_point(prompt_tokens - 1);
  for (const PointMark& mark : marks) {
    sequence.add_point(mark.tokens);
  }
}

std::span<const PointMark> RestorePoints::marks(SeqId id) const {
  return state_->states_of(id)->marks();
}

HeldState RestorePoints::take_state(bool evicts) {
  States& states = state_->states;
  if ((evicts ? states.num_available() : states.num_free()) == 0) {
    return {};
  }
  return {states, states.acquire()};
}

HeldState RestorePoints::present(SeqId id) const {
  States& states = state_->states;
  const StateRef now = state_->states_of(id)->now();
  if (now.index < 0) {
    return {};
  }
  states.retain(now);
  return {states, now};
}

void RestorePoints::add(SeqId id, std::int32_t tokens, const HeldState& state, bool stays) {
  const Sequence& sequence = state_->sequence(id);
  state_->states.add_point(sequence.tokens().first(static_cast<std::size_t>(tokens)),
                           sequence.use().salt, state.ref(), stays);
}

void RestorePoints::thin(SeqId id) {
  const Sequence& sequence = state_->sequence(id);
  if (!sequence.is_plain()) {
    return;
  }
  state_->states.thin(sequence.tokens().first(static_cast<std::size_t>(sequence.num_computed())),
                      sequence.use().salt, kPointDistance,
                      std::min(sequence.num_computed(), state_->states_of(id)->own_points_from()));
}

void RestorePoints::set_keeper(PointKeeper keeper) { state_->losing.set_keeper(std::move(keeper)); }

void RestorePoints::note_brought(SeqId id, std::int32_t first) {
  SequenceStates& states = *state_->states_of(id);
  const Sequence& sequence = state_->sequence(id);
  const std::int32_t length = sequence.num_computed();
  state_->tokens_replayed -= std::max(std::min(length, sequence.open().replays_until) - first, 0);
  if (length + kPointDistance >= states.left_history_at()) {
    states.leave_history_at(0);
  }
}

std::optional<BlockId> RestorePoints::block_of_tail(SeqId id, std::int32_t tokens) const {
  const std::int32_t block_tokens = state_->shared.config().block_tokens;
  if (tokens % block_tokens == 0) {
    return std::nullopt;
  }
  return state_->sequence(id).open().blocks.ref(tokens / block_tokens).id;
}

}  // namespace quire::kv

// The part of SavedSequences that is about states of models whose layers carry one.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/step_points.h"
#include "quire/kv/ledger.h"
#include "quire/kv/restore_points.h"
#include "quire/kv/states.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/saved_states.h"
#include "quire/result.h"
#include "quire/sequences/saved_sequences.h"
#include "quire/sequences/saved_state.h"
#include "quire/sequences/sequence_service.h"
#include "quire/sequences/sequence_state.h"
#include "quire/tensor/state_view.h"

namespace quire::sequences {
namespace {

// Returns the restore points to save, the shortest first. They are those that several histories
// share, and others. Each of the others is at least twice as far from the end as the next nearer
// one. There are at most `most`, the nearest ones.
std::vector<kv::RestorePoints::Known> points_to_save(
    std::span<const kv::RestorePoints::Known> known, std::int32_t length, std::int64_t most) {
  std::vector<kv::RestorePoints::Known> chosen;
  std::int32_t nearest = 32;  // computing fewer tokens is cheaper than reading a state
  for (auto point = known.rbegin(); point != known.rend() && std::ssize(chosen) < most; ++point) {
    const std::int32_t distance = length - point->tokens;
    if (distance > 0 && (point->stays || distance >= nearest)) {
      chosen.push_back(*point);
      nearest = std::max(nearest, 2 * distance);
    }
  }
  std::ranges::reverse(chosen);
  return chosen;
}

std::int64_t tokens_of(std::span<const kv_store::SavedRun> runs) {
  std::int64_t tokens = 0;
  for (const kv_store::SavedRun& run : runs) {
    tokens += std::ssize(run.tokens);
  }
  return tokens;
}

// Makes a state a restore point of a sequence, if it is wanted and a place is left.
Status put_point(engine::EngineCore& core, SeqId sequence, const kv_store::StateAt& at,
                 std::span<const std::byte> bytes) {
  kv::RestorePoints& points = core.ledger.points();
  const bool wanted = points.wants_point(sequence, at.tokens);
  const kv::HeldState place = wanted ? points.take_state(true) : kv::HeldState();
  if (place.is_there()) {
    QUIRE_TRY_STATUS(core.states.write(place.ref().index, bytes));
    engine::add_point(core, sequence, at.tokens, place, at.stays);
  }
  return {};
}

}  // namespace

Result<StateRef> SavedSequences::with_tail(const StateRef& state) {
  return engine_.thread().ask_for_blocks<StateRef>([&]() -> Result<StateRef> {
    if (!ledger().points().lacks_tail(state->sequence)) {
      return state;
    }
    const SeqId whole = ledger().sequences().fork(state->sequence);
    Status made = ledger().sequences().extend(whole, 1);
    if (made.ok()) {
      made = engine_.copy_blocks_now();
    }
    if (const auto tail = made.ok() ? ledger().points().take_tail(whole) : std::nullopt) {
      engine::EngineCore& core = engine_.core();
      made = core.paged_pool.write_blocks(std::array{tail->block},
                                          core.states.block_beside(tail->state));
    }
    if (!made.ok()) {
      ledger().sequences().close(whole);
      return made.error();
    }
    return sequences_.adopt(whole, state->sampled, state->grade, state->salt);
  });
}

// Each point is held by a sequence that ends there, so that it does not give way meanwhile.
Status SavedSequences::describe_states(const StateRef& state, Described& described) {
  const tensor::StateGeometry geometry = engine_.model_config().state_geometry();
  return engine_.thread().ask_status([&]() -> Status {
    const std::int32_t length = ledger().sequences().num_computed(state->sequence);
    if (geometry.state_bytes == 0 || length == 0) {
      return {};
    }
    kv::RestorePoints& points = ledger().points();
    const auto add = [&](SeqId sequence, kv_store::StateAt at) -> Status {
      described.states.at.push_back(at);
      QUIRE_TRY(const auto bytes,
                engine_.core().states.read(points.places(sequence).from,
                                           described.copied_states.emplace_back()));
      QUIRE_TRY_STATUS(kv_store::check_finite(geometry.parts, bytes));
      described.state_bytes.push_back(bytes);
      return {};
    };
    const std::int64_t kv_bytes =
        std::int64_t{ledger().sequences().num_blocks_held(state->sequence)} *
        pool().geometry().block_bytes();
    const std::int64_t most = std::max<std::int64_t>(1, kv_bytes / geometry.state_bytes);
    for (const auto& point : points_to_save(points.known(state->sequence), length, most)) {
      const SeqId held = ledger().sequences().fork(state->sequence);
      if (ledger().sequences().rollback(held, point.tokens).ok()) {
        ledger().sequences().append(held, state->tokens[static_cast<std::size_t>(point.tokens)]);
      }
      described.held.push_back(sequences_.adopt(held, 0, state->grade, state->salt));
      QUIRE_TRY_STATUS(add(held, {.tokens = point.tokens, .stays = point.stays}));
    }
    described.states.parts = geometry.parts;
    return add(state->sequence, {.tokens = length});
  });
}

Status SavedSequences::check_states(const kv_store::KVFile& file, const SavedState& rest) const {
  const tensor::StateGeometry geometry = engine_.model_config().state_geometry();
  const bool has_own = parts_of(file.content().runs, rest).size() > rest.ranks.size();
  const bool has_state = has_own || (rest.map_blocks.empty() && !file.content().runs.empty());
  return has_state ? file.check_states_fit(geometry.parts) : Status();
}

Result<std::vector<std::byte>> SavedSequences::read_last_state(
    std::span<const kv_store::SavedRun> runs, const SavedState& rest,
    const StatesToLoad& states) const {
  const tensor::StateGeometry geometry = engine_.model_config().state_geometry();
  std::vector<std::byte> state;
  const auto parts = parts_of(runs, rest);
  const std::int64_t length = parts.size() > rest.ranks.size() ? tokens_of(parts.back()) : 0;
  if (geometry.state_bytes == 0 || length == 0) {
    return state;
  }
  const auto last = std::ranges::find(states.at, length, &kv_store::StateAt::tokens);
  if (last == states.at.end()) {
    return {ErrorCode::kCorrupt,
            base::str_cat("a saved sequence has KV of ", length,
                          " tokens and no state behind them, which the model's layers carry")};
  }
  state.resize(static_cast<std::size_t>(geometry.state_bytes));
  QUIRE_TRY_STATUS(
      states.read(static_cast<std::size_t>(last - states.at.begin()), geometry.parts, state));
  return state;
}

Status SavedSequences::restore_points(const StateRef& state, const StatesToLoad& states) {
  const tensor::StateGeometry geometry = engine_.model_config().state_geometry();
  if (geometry.state_bytes == 0) {
    return {};
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(geometry.state_bytes));
  for (std::size_t i = 0; i < states.at.size(); ++i) {
    const kv_store::StateAt at = states.at[i];
    if (at.tokens >= std::ssize(state->tokens) - 1) {
      continue;  // the state at the sequence's length
    }
    QUIRE_TRY_STATUS(states.read(i, geometry.parts, bytes));
    QUIRE_TRY_STATUS(engine_.thread().ask_status(
        [&] { return put_point(engine_.core(), state->sequence, at, bytes); }));
  }
  return {};
}

}  // namespace quire::sequences

#include "quire/sequences/sequence_state.h"

#include <utility>

#include "quire/engine/engine.h"  // IWYU pragma: keep (its thread gets a task)

namespace quire::sequences {

// Runs on any thread, the engine's too, and does not wait.
SequenceState::~SequenceState() {
  if (const auto owner = engine.lock()) {
    task.front() = [raw = owner.get(), id = sequence] { raw->core().ledger.sequences().close(id); };
    owner->thread().post(std::move(task));
  }
}

}  // namespace quire::sequences

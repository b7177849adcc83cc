#include "quire/tiers/held_segment.h"

#include <utility>

#include "quire/engine/engine.h"  // IWYU pragma: keep (its thread gets a task)

namespace quire::tiers {

// Runs on any thread, the engine's too, and does not wait.
HeldSegment::~HeldSegment() {
  if (const auto owner = engine.lock()) {
    task.front() = [raw = owner.get(), segment = id] {
      raw->core().ledger.segments().drop(segment);
    };
    owner->thread().post(std::move(task));
  }
}

}  // namespace quire::tiers

// StatsSnapshot: the counters of the engine as callers of any thread see them.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

#include "quire/engine/active_request.h"
#include "quire/engine/engine_core.h"

namespace quire::engine {

class StatsSnapshot {
 public:
  // Shows the counters of this moment. `waiting_since`: when the oldest waiting request was
  // submitted. Engine thread.
  void refresh(EngineCore& core, std::optional<Clock::time_point> waiting_since);
  // Returns the counters of the last refresh. Any thread.
  [[nodiscard]] EngineStats get() const;

  // Tasks that were posted, and that the counters show. Any thread.
  [[nodiscard]] bool shows(std::uint64_t posted_tasks) const;
  void note_shown(std::uint64_t posted_tasks);

 private:
  mutable std::mutex mutex_;  // guards what follows
  EngineStats stats_;
  std::uint64_t shown_tasks_ = 0;
};

}  // namespace quire::engine

// StatsSnapshot: the counters of the engine as callers of any thread see them.
#pragma once

#include <atomic>
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

  // Shows how many rows went through the model, those of a step that runs in part. Engine thread.
  void show_computed(std::int64_t tokens) { computed_tokens_ = tokens; }
  // Returns the rows that show_computed() has shown last. Any thread.
  [[nodiscard]] std::int64_t computed_tokens() const { return computed_tokens_; }

  // Tells whether the counters show all of `posted_tasks` posted tasks. Any thread.
  [[nodiscard]] bool shows(std::uint64_t posted_tasks) const;
  void note_shown(std::uint64_t posted_tasks);

 private:
  std::atomic<std::int64_t> computed_tokens_ = 0;
  mutable std::mutex mutex_;  // guards what follows
  EngineStats stats_;
  std::uint64_t shown_tasks_ = 0;
};

}  // namespace quire::engine

// StatsSnapshot: the counters of the engine as callers of any thread see them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "quire/engine/active_request.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/pressure_gauge.h"
#include "quire/stats.h"

namespace quire::engine {

class StatsSnapshot {
 public:
  // Shows the counters of this moment. `waiting_since`: when the oldest waiting request was
  // submitted. Engine thread.
  void refresh(EngineCore& core, std::optional<Clock::time_point> waiting_since);
  // Sets who hears that the pressure changes. Before the engine's thread runs.
  void on_pressure(std::function<void(const Pressure&)> hears) { hears_ = std::move(hears); }
  // Finds the level of pressure at these counters, which a refresh has shown, and tells where it
  // changed. Engine thread, behind steps and ends of requests.
  void measure(EngineStats& counters);
  // Returns the pressure at `now`. Any thread.
  [[nodiscard]] Pressure pressure(Clock::time_point now) const;
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
  std::function<void(const Pressure&)> hears_;
  mutable std::mutex mutex_;  // guards what follows
  EngineStats stats_;
  PressureGauge gauge_;
  std::uint64_t shown_tasks_ = 0;
};

}  // namespace quire::engine

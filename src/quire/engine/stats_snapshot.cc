#include "quire/engine/stats_snapshot.h"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>

#include "quire/engine/active_request.h"
#include "quire/engine/engine_core.h"
#include "quire/stats.h"

namespace quire::engine {

void StatsSnapshot::refresh(EngineCore& core, std::optional<Clock::time_point> waiting_since) {
  core.counters.ledger = core.ledger.counts();
  if (core.drafts_by != nullptr) {
    core.counters.draft = core.drafts_by->counts();
  }
  core.counters.requests_running = core.scheduler.num_running();
  core.counters.requests_waiting = core.scheduler.num_waiting();
  core.counters.waiting_since = waiting_since;
  if (core.host_points != nullptr) {
    core.counters.host_points = core.host_points->num_points();
    core.counters.host_kv_bytes = core.host_points->bytes();
    core.counters.points_to_host = core.host_points->num_kept();
  }
  show_computed(core.counters.tokens_computed);
  const std::lock_guard lock(mutex_);
  stats_ = core.counters;
}

void StatsSnapshot::measure(EngineStats& counters) {
  Pressure pressure;
  bool changed = false;
  {
    const std::lock_guard lock(mutex_);
    changed = gauge_.update(counters.ledger, counters.requests_waiting, counters.preemptions,
                            Clock::now());
    pressure = gauge_.at(Clock::now());
    counters.pressure_level = static_cast<std::int64_t>(pressure.level);
    counters.pressure_changes += changed ? 1 : 0;
    stats_.pressure_level = counters.pressure_level;
    stats_.pressure_changes = counters.pressure_changes;
  }
  if (changed && hears_) {
    hears_(pressure);
  }
}

Pressure StatsSnapshot::pressure(Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  return gauge_.at(now);
}

EngineStats StatsSnapshot::get() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

bool StatsSnapshot::shows(std::uint64_t posted_tasks) const {
  const std::lock_guard lock(mutex_);
  return shown_tasks_ == posted_tasks;
}

void StatsSnapshot::note_shown(std::uint64_t posted_tasks) {
  const std::lock_guard lock(mutex_);
  shown_tasks_ = std::max(shown_tasks_, posted_tasks);
}

}  // namespace quire::engine

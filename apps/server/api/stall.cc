#include "api/stall.h"

#include <chrono>
#include <memory>
#include <utility>

#include "api/call.h"
#include "api/metrics.h"
#include "engine.h"
#include "loop.h"
#include "quire/stats.h"

namespace quire::server {

void StallWatch::begin() {
  last_step_ = services_.loop.now();
  look();
}

void StallWatch::stop() {
  if (timer_ != 0) {
    services_.loop.cancel(timer_);
    timer_ = 0;
  }
  life_.reset();
}

void StallWatch::note_step() { last_step_ = services_.loop.now(); }

// Looks once a second whether the engine makes steps. The counters may wait for the step that runs,
// so a worker asks; while it waits, none is asked.
void StallWatch::look() {
  const std::weak_ptr<int> alive = life_;
  timer_ = services_.loop.after(std::chrono::seconds(1), [this, alive] {
    if (!alive.expired()) {
      look();
    }
  });
  if (services_.runs.empty()) {
    last_step_ = services_.loop.now();
  }
  if (asking_) {
    return;
  }
  asking_ = true;
  // The loop outlives the watch; the watch may be gone when a worker comes to the task.
  services_.loop.work([this, alive, &loop = services_.loop, engine = services_.engine] {
    auto counts = engine->counts();
    loop.post([this, alive, counts = std::move(counts)] {
      if (alive.expired()) {
        return;
      }
      asking_ = false;
      if (counts.ok()) {
        take(*counts);
      }
    });
  });
}

void StallWatch::take(const EngineCounts& counts) {
  const EngineStats& before = counts_.engine;
  const EngineStats& now = counts.engine;
  if (now.steps != before.steps) {
    last_step_ = services_.loop.now();
    services_.metrics->observe_steps(now.steps - before.steps,
                                     now.tokens_computed - before.tokens_computed);
  }
  counts_ = counts;
}

bool StallWatch::stalled() const {
  return device_failed_ || last_step_age() > services_.config->stall_seconds;
}

double StallWatch::last_step_age() const {
  if (services_.runs.empty()) {
    return 0;
  }
  return std::chrono::duration<double>(services_.loop.now() - last_step_).count();
}

}  // namespace quire::server

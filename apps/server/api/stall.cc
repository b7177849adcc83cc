#include "api/stall.h"

#include <chrono>
#include <cstdint>
#include <memory>

#include "api/call.h"
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

// The counters may wait for the step that runs, so a worker asks; while it waits, none is asked.
void StallWatch::look() {
  const std::weak_ptr<int> alive = life_;
  timer_ = services_.loop.after(std::chrono::seconds(1), [this, alive] {
    if (!alive.expired()) {
      look();
    }
  });
  running_ = !services_.runs.empty();
  if (!running_) {
    last_step_ = services_.loop.now();
    return;
  }
  if (asking_) {
    return;
  }
  asking_ = true;
  services_.loop.work([this, alive, engine = services_.engine] {
    const auto stats = engine->stats();
    const std::int64_t steps = stats.ok() ? stats->steps : -1;
    services_.loop.post([this, alive, steps] {
      if (alive.expired()) {
        return;
      }
      asking_ = false;
      if (steps != steps_) {
        steps_ = steps;
        last_step_ = services_.loop.now();
      }
    });
  });
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

// StallWatch: notices that the engine has stopped making steps.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "engine.h"
#include "loop.h"

namespace quire::server {

struct Services;

// Asks a worker for the engine's counters now and then, and keeps the time of the last step.
// Threads: the loop's thread.
class StallWatch {
 public:
  explicit StallWatch(Services& services) : services_(services) {}

  // Begins to watch. Precondition: the engine is there.
  void begin();
  // Stops watching.
  void stop();
  // Notes that the device has failed.
  void device_failed() { device_failed_ = true; }
  // Returns true if a request runs but no step was made for --stall-seconds, or if the device has
  // failed.
  [[nodiscard]] bool stalled() const;
  // Returns the seconds since the last step seen, or 0 while nothing runs.
  [[nodiscard]] double last_step_age() const;
  // Returns the engine's counters of about a second ago.
  [[nodiscard]] const EngineCounts& last_counts() const { return counts_; }
  // Notes that tokens have come.
  void note_step();

 private:
  void look();
  void take(const EngineCounts& counts);

  Services& services_;
  // Tells tasks under way whether the watch still exists.
  std::shared_ptr<int> life_ = std::make_shared<int>(0);
  Loop::Timer timer_ = 0;
  EngineCounts counts_;
  bool asking_ = false;
  bool device_failed_ = false;
  Loop::Clock::time_point last_step_ = {};
};

}  // namespace quire::server

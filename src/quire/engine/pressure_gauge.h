// PressureGauge: how short blocks are, and how often requests were preempted lately.
#pragma once

#include <array>
#include <cstdint>

#include "quire/engine/active_request.h"
#include "quire/kv/types.h"
#include "quire/stats.h"

namespace quire::engine {

// Returns the level at a share of free and cached blocks, while so many requests wait.
[[nodiscard]] PressureLevel pressure_level(double blocks_free_share, std::int64_t waiting);

// Allocates nothing.
class PressureGauge {
 public:
  // Takes the counters of a moment. `preemptions` counts all since the engine was opened. Returns
  // whether the level has changed.
  bool update(const kv::LedgerCounts& blocks, std::int64_t waiting, std::int64_t preemptions,
              Clock::time_point now);
  // Returns the pressure after the last update, with the preemptions of the minute before `now`.
  [[nodiscard]] Pressure at(Clock::time_point now) const;

 private:
  static constexpr std::int64_t kSeconds = 60;

  Pressure pressure_;
  std::int64_t preemptions_ = 0;
  std::array<std::int64_t, kSeconds> second_{};  // [second modulo 60] the second that is counted
  std::array<std::int64_t, kSeconds> counts_{};  // preemptions in it
};

}  // namespace quire::engine

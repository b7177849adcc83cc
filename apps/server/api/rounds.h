// Rounds: looks after streams that give tokens, all of them together and once an interval.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "loop.h"

namespace quire::server {

// Collects tasks and runs them together, at most once an interval. One turn of the loop serves the
// tokens of several steps of all streams, and the engine's thread wakes the loop for none of them.
// Network drivers poll their cards likewise: Mogul and Ramakrishnan, "Eliminating receive livelock
// in an interrupt-driven kernel", 1997. Threads: the loop's thread.
class Rounds {
 public:
  // Makes rounds of `interval`. With an interval of zero nothing may join. The loop and the rounds
  // end together.
  Rounds(Loop& loop, std::chrono::milliseconds interval) : loop_(loop), interval_(interval) {}
  Rounds(const Rounds&) = delete;
  Rounds& operator=(const Rounds&) = delete;

  // Returns true where rounds are held.
  [[nodiscard]] bool held() const { return interval_.count() > 0; }
  // Runs `task` once, in the next round. Tasks that join during a round belong to the one after it.
  void join(std::function<void()> task);

 private:
  void hold();

  Loop& loop_;
  std::chrono::milliseconds interval_;
  std::vector<std::function<void()>> next_;
};

}  // namespace quire::server

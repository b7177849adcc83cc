// Loop: the one thread of connections, answers, streams and timers, and the workers, which may
// block. Tests replace it with a loop whose clock they move.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

namespace quire::server {

// Counts of tasks that held the loop's thread for more than a millisecond. Plain data.
struct LoopTurns {
  std::int64_t blocked = 0;
  double blocked_seconds = 0;
};

// Runs tasks on one thread that never blocks, and on a few that may.
// Threads: any thread may call, also the engine's inside RequestOptions::notify.
class Loop {
 public:
  using Clock = std::chrono::steady_clock;
  // Id of a timer. 0: no timer.
  using Timer = std::uint64_t;

  Loop() = default;
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  virtual ~Loop() = default;

  // Runs `task` on the loop's thread, soon, in the order of the calls. Never runs it within the
  // call.
  virtual void post(std::function<void()> task) = 0;
  // Runs `task` on a worker, where it may block: tokenizing, registration, large JSON.
  virtual void work(std::function<void()> task) = 0;
  // Runs `task` on the loop's thread after `delay`.
  virtual Timer after(std::chrono::milliseconds delay, std::function<void()> task) = 0;
  // Cancels a timer. Does nothing for one that has run or was cancelled.
  virtual void cancel(Timer timer) = 0;
  // Returns the time by which timers run.
  [[nodiscard]] virtual Clock::time_point now() const = 0;
  // Returns the counts so far. The loop's thread calls.
  [[nodiscard]] virtual LoopTurns turns() const { return {}; }
};

}  // namespace quire::server

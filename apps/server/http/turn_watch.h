// TurnWatch: counts the tasks that hold the loop's thread for too long.
#pragma once

#include <chrono>

#include "loop.h"

namespace quire::server {

// Measures tasks. Threads: the loop's thread.
class TurnWatch {
 public:
  // Time that no task should exceed.
  static constexpr std::chrono::milliseconds kLimit{1};

  // Runs `task`, and counts it if it takes longer than kLimit, also if it throws. A task inside of
  // another counts as a part of that one.
  template <class Task>
  void run(Task&& task) {
    const Turn turn(*this);
    task();
  }
  // Counts a task of that length.
  void note(Loop::Clock::duration spent) {
    if (spent > kLimit) {
      ++turns_.blocked;
      turns_.blocked_seconds += std::chrono::duration<double>(spent).count();
    }
  }
  [[nodiscard]] LoopTurns turns() const { return turns_; }

 private:
  class Turn {
   public:
    explicit Turn(TurnWatch& watch) : watch_(watch) { ++watch_.depth_; }
    ~Turn() {
      if (--watch_.depth_ == 0) {
        watch_.note(Loop::Clock::now() - begin_);
      }
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    TurnWatch& watch_;
    const Loop::Clock::time_point begin_ = Loop::Clock::now();
  };

  LoopTurns turns_;
  int depth_ = 0;
};

}  // namespace quire::server

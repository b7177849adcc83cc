// ManualLoop: a loop whose time stands still until a test moves it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "loop.h"

namespace quire::server {

// Runs tasks in the thread of the test: posted tasks, work and timers alike. Time is manual.
// Threads: post() and work() from any; the rest from the test's thread.
class ManualLoop final : public Loop {
 public:
  void post(std::function<void()> task) override {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(task));
    changed_.notify_all();
  }
  void work(std::function<void()> task) override {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(task));
    changed_.notify_all();
  }
  Timer after(std::chrono::milliseconds delay, std::function<void()> task) override {
    const Timer timer = ++last_timer_;
    timers_.emplace(std::pair(now_ + delay, timer), std::move(task));
    return timer;
  }
  void cancel(Timer timer) override {
    std::erase_if(timers_, [&](const auto& entry) { return entry.first.second == timer; });
  }
  [[nodiscard]] Clock::time_point now() const override { return now_; }

  [[nodiscard]] LoopTurns turns() const override { return counted_turns; }

  // Returned by turns().
  LoopTurns counted_turns;

  // Runs all that is posted, and work, until nothing is left. Work that is held stays.
  void run() {
    while (run_one()) {
    }
  }
  // Runs what is posted by now and by that, and no work.
  void run_posted() {
    const bool held = std::exchange(hold_work_, true);
    run();
    hold_work_ = held;
  }
  // Runs one posted task, else one piece of work. Returns false when there was none.
  bool run_one() {
    std::function<void()> task;
    {
      const std::lock_guard lock(mutex_);
      auto& queue = posted_.empty() ? work_ : posted_;
      if (queue.empty() || (posted_.empty() && hold_work_)) {
        return false;
      }
      task = std::move(queue.front());
      queue.pop_front();
    }
    task();
    return true;
  }
  // Runs tasks until `done` is true; waits for other threads, at most `patience`. Returns done().
  bool run_until(const std::function<bool()>& done,
                 std::chrono::seconds patience = std::chrono::seconds(60)) {
    const auto end = Clock::now() + patience;
    while (!done()) {
      if (run_one()) {
        continue;
      }
      std::unique_lock lock(mutex_);
      if (!changed_.wait_until(lock, end, [&] { return !posted_.empty() || !work_.empty(); })) {
        return done();
      }
    }
    return true;
  }
  // Moves time on, and runs the timers that come due, each at its time.
  void advance(std::chrono::milliseconds by) {
    const Clock::time_point end = now_ + by;
    run();
    while (!timers_.empty() && timers_.begin()->first.first <= end) {
      now_ = std::max(now_, timers_.begin()->first.first);
      auto task = std::move(timers_.begin()->second);
      timers_.erase(timers_.begin());
      task();
      run();
    }
    now_ = end;
  }
  // Keeps work waiting, as busy workers do.
  void hold_work(bool hold) { hold_work_ = hold; }
  [[nodiscard]] std::size_t timers() const { return timers_.size(); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> posted_, work_;
  std::map<std::pair<Clock::time_point, Timer>, std::function<void()>> timers_;
  Clock::time_point now_ = Clock::time_point(std::chrono::hours(1));
  Timer last_timer_ = 0;
  bool hold_work_ = false;
};

}  // namespace quire::server

// AsioLoop: the loop over Asio, with its workers. Part of http.cc, which alone includes it.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <utility>

#include "http/turn_watch.h"
#include "loop.h"

namespace quire::server {
class AsioLoop final : public Loop {
 public:
  AsioLoop(boost::asio::io_context& context, int workers)
      : context_(context), pool_(workers), timer_(context) {}

  void post(std::function<void()> task) override {
    boost::asio::post(context_, [this, task = std::move(task)] { watch.run(task); });
  }
  void work(std::function<void()> task) override {
    boost::asio::post(pool_, [this, task = std::move(task)] { run_guarded(task); });
  }
  Timer after(std::chrono::milliseconds delay, std::function<void()> task) override {
    const Timer id = ++last_;
    const auto due = Clock::now() + delay;
    const auto entry = tasks_.emplace(std::pair(due, id), std::move(task)).first;
    dues_.emplace(id, due);
    if (entry == tasks_.begin()) {
      wait();
    }
    return id;
  }
  void cancel(Timer timer) override {
    if (const auto due = dues_.find(timer); due != dues_.end()) {
      tasks_.erase({due->second, timer});
      dues_.erase(due);
    }
  }
  [[nodiscard]] Clock::time_point now() const override { return Clock::now(); }
  [[nodiscard]] LoopTurns turns() const override { return watch.turns(); }

  void join() { pool_.join(); }

  // Runs a task. An exception of the task ends neither the thread nor the process.
  void run_guarded(const std::function<void()>& task) const {
    try {
      task();
    } catch (const std::exception& fault) {
      if (on_fault) {
        on_fault(fault.what());
      }
    }
  }

  // Counts every task of the loop's thread.
  TurnWatch watch;
  // Set before anything runs.
  std::function<void(const char* what)> on_fault;

 private:
  void wait() {
    timer_.expires_at(tasks_.begin()->first.first);
    timer_.async_wait([this](boost::system::error_code error) {
      if (!error) {
        run_due();
      }
    });
  }
  void run_due() {
    const auto now = Clock::now();
    while (!tasks_.empty() && tasks_.begin()->first.first <= now) {
      auto first = tasks_.extract(tasks_.begin());
      dues_.erase(first.key().second);
      watch.run([&] { run_guarded(first.mapped()); });
    }
    if (!tasks_.empty()) {
      wait();
    }
  }

  boost::asio::io_context& context_;
  boost::asio::thread_pool pool_;
  boost::asio::steady_timer timer_;
  std::map<std::pair<Clock::time_point, Timer>, std::function<void()>> tasks_;
  std::map<Timer, Clock::time_point> dues_;
  Timer last_ = 0;
};

}  // namespace quire::server

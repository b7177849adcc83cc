// Ctrl-C as an event that commands ask about, not a handler with globals.
#pragma once

#include <atomic>
#include <thread>

namespace quire::cli {

// Takes SIGINT for the whole process while it lives; construct it before any other thread starts.
// SIGINT ends the process with code 130 while unarmed, and while an interrupt is pending.
class Interrupts {
 public:
  Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;
  ~Interrupts();

  // Lets the first SIGINT from here on only become pending. Forgets a pending one.
  void arm();
  void disarm();
  // Returns whether an interrupt is pending. Any thread.
  [[nodiscard]] bool pending() const { return state_.load() == State::kPending; }

 private:
  enum class State { kUnarmed, kArmed, kPending };

  void watch();

  std::atomic<State> state_ = State::kUnarmed;
  std::atomic<bool> stopping_ = false;
  std::thread watcher_;
};

}  // namespace quire::cli

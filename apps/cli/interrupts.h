// Ctrl-C as an event that commands ask about, instead of a handler with globals.
#pragma once

#include <atomic>
#include <thread>

namespace quire::cli {

// Takes SIGINT for the whole process while it lives; construct it before any other thread starts.
// While unarmed, or when one interrupt is already pending, SIGINT ends the process with code 130.
class Interrupts {
 public:
  Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;
  ~Interrupts();

  // From here on the first SIGINT only becomes pending. Forgets a pending one.
  void arm();
  void disarm();
  // Any thread.
  [[nodiscard]] bool pending() const { return state_.load() == State::kPending; }

 private:
  enum class State { kUnarmed, kArmed, kPending };

  void watch();

  std::atomic<State> state_ = State::kUnarmed;
  std::atomic<bool> stopping_ = false;
  std::thread watcher_;
};

}  // namespace quire::cli

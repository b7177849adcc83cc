#include "interrupts.h"

#include <signal.h>  // POSIX: masks and waiting
#include <unistd.h>

#include <thread>

#include "command.h"

namespace quire::cli {
namespace {

// Returns SIGINT, and SIGUSR1 by which the destructor wakes the watcher.
sigset_t watched_signals() {  // NOLINT(misc-include-cleaner): the type comes with <signal.h>
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGUSR1);
  return signals;
}

}  // namespace

Interrupts::Interrupts() {
  const sigset_t signals = watched_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  watcher_ = std::thread([this] { watch(); });
}

Interrupts::~Interrupts() {
  stopping_ = true;
  pthread_kill(watcher_.native_handle(), SIGUSR1);
  watcher_.join();
  const sigset_t signals = watched_signals();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

void Interrupts::arm() { state_ = State::kArmed; }

void Interrupts::disarm() { state_ = State::kUnarmed; }

void Interrupts::watch() {
  const sigset_t signals = watched_signals();
  while (true) {
    int signal = 0;
    sigwait(&signals, &signal);
    if (stopping_) {
      return;
    }
    State expected = State::kArmed;
    if (signal == SIGINT && !state_.compare_exchange_strong(expected, State::kPending)) {
      _exit(kExitInterrupted);
    }
  }
}

}  // namespace quire::cli

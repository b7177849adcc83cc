// EngineThread: the thread that computes step after step, and the mailbox of tasks that other
// threads send to it.
//
// Invariants
//   1. One thread at a time calls the worker's functions. It is this one or, while this one sleeps,
//      a caller who runs a task of its own (docs/adr/0026). "Engine thread" means whichever of them
//      it is.
//   2. After close() no task runs, and every call returns kClosed.
//   3. In a forked child nothing waits: every call returns kClosed.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "quire/engine/home_process.h"
#include "quire/engine/tasks.h"
#include "quire/result.h"

namespace quire::engine {

class EngineThread {
 public:
  // Owns what the thread works on.
  class Worker {
   public:
    Worker() = default;
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;
    virtual ~Worker() = default;
    // Returns whether there is something to compute.
    [[nodiscard]] virtual bool has_work() const = 0;
    // Returns whether tasks may run now: no step is launched, and every token is booked.
    [[nodiscard]] virtual bool takes_tasks() const = 0;
    // Notes the time, before tasks and steps.
    virtual void begin_turn() = 0;
    virtual void step() = 0;
    // Runs `task`. Takes back what it began where memory is refused, which is kOutOfBlocks.
    [[nodiscard]] virtual Status run(const std::function<void()>& task) = 0;
    // Makes what a task changed visible to stats(), before its caller goes on.
    virtual void refresh_stats() = 0;
    // Blocks until a holder of blocks gives some back. Returns false when none will. Any thread.
    [[nodiscard]] virtual bool await_blocks() = 0;
    // Ends all that is open. Called once, by the thread, after the last task.
    virtual void end() = 0;
  };

  // Borrows both, which must outlive it.
  EngineThread(const HomeProcess& home, Worker& worker) : home_(home), worker_(worker) {}
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // Starts the thread. kIo when the system grants none.
  [[nodiscard]] Status start();
  // Ends the thread, and waits for it. Returns false when it was closed before, or never started,
  // and on the engine thread.
  bool close();

  // Runs `work` between two steps, on the engine thread or, while that sleeps, on this one, and
  // returns when it is done. kClosed when closed, kOutOfBlocks when memory was refused,
  // kInvalidArgument on the engine thread: a drafter may not call the engine that asks it.
  [[nodiscard]] Status call(const std::function<void()>& work);
  // Runs work that takes something back and may be done twice. Tries again where memory is refused.
  void call_surely(const std::function<void()>& work);
  // Returns the answer of `question` on the engine thread. stats() shows it before it comes back.
  template <class T>
  [[nodiscard]] Result<T> ask(const std::function<Result<T>()>& question) {
    std::optional<Result<T>> answer;
    QUIRE_TRY_STATUS(call([&] {
      answer = question();
      worker_.refresh_stats();
    }));
    return *std::move(answer);  // NOLINT(bugprone-unchecked-optional-access): call has run it
  }
  // Returns the status of `work` on the engine thread. stats() shows its changes before it comes
  // back.
  [[nodiscard]] Status ask_status(const std::function<Status()>& work);
  // Returns the answer of a question that needs blocks. Asks again while a holder gives some back.
  template <class T>
  [[nodiscard]] Result<T> ask_for_blocks(const std::function<Result<T>()>& question) {
    for (bool may_get = true;; may_get = worker_.await_blocks()) {
      Result<T> answer = ask<T>(question);
      if (answer.ok() || answer.error().code != ErrorCode::kOutOfBlocks || !may_get) {
        return answer;
      }
    }
  }
  // Sends a task and does not wait. Returns false when closed or in a forked child: then the task
  // never runs.
  bool post(std::function<void()> work);
  bool post(Tasks task) noexcept;

  // Returns whether a task waits, or the thread is to end.
  [[nodiscard]] bool has_tasks() const;
  [[nodiscard]] bool closed() const;
  // Returns kInvalidArgument on the engine thread, which cannot wait for itself.
  [[nodiscard]] Status check_outside() const;
  // Returns how many tasks were posted so far.
  [[nodiscard]] std::uint64_t posted() const;

 private:
  // Returns whether this thread is in the worker. Under mutex_.
  [[nodiscard]] bool is_inside() const;
  // Sends a task. `awaited` says that somebody waits until it has run.
  bool send(Tasks task, bool awaited) noexcept;
  void run();
  // Returns whether the thread has a reason to wake. Under mutex_, while `owned_` is false.
  [[nodiscard]] bool must_wake() const;
  void give_up_ownership();
  // Runs what callers have sent. Engine thread.
  void run_tasks();

  const HomeProcess& home_;
  Worker& worker_;
  Tasks running_;  // taken from the mailbox. Engine thread

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable work_arrived_;
  Tasks mailbox_;
  bool closing_ = false;
  bool owned_ = true;         // a thread is in the worker
  std::thread::id owner_;     // which one
  std::uint64_t posted_ = 0;  // tasks without a caller who waits
  std::thread thread_;
};

// Returns the error of every call after close().
[[nodiscard]] Error closed_error();

}  // namespace quire::engine

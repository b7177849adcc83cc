#include "quire/engine/engine_thread.h"

#include <cstdint>
#include <functional>
#include <future>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "quire/device/cpu/start_thread.h"
#include "quire/engine/tasks.h"
#include "quire/result.h"

namespace quire::engine {

namespace {

Error nested_error() {
  return {.code = ErrorCode::kInvalidArgument,
          .message =
              "a function that the engine calls, as a drafter, cannot call the same engine, "
              "which waits for it; call another one, or call before and after"};
}

}  // namespace

Error closed_error() {
  return {.code = ErrorCode::kClosed, .message = "the engine is closed; open the model again"};
}

Status EngineThread::start() {
  thread_ = device::start_thread([this] { run(); });
  if (!thread_.joinable()) {
    return {ErrorCode::kIo, "the system grants no thread for the engine"};
  }
  return {};
}

bool EngineThread::is_inside() const { return owned_ && owner_ == std::this_thread::get_id(); }

Status EngineThread::check_outside() const {
  const std::lock_guard lock(mutex_);
  return is_inside() ? Status(nested_error()) : Status();
}

bool EngineThread::close() {
  {
    const std::lock_guard lock(mutex_);
    if (closing_ || is_inside()) {
      return false;
    }
    closing_ = true;
  }
  work_arrived_.notify_all();
  if (!thread_.joinable()) {
    return false;
  }
  thread_.join();
  return true;
}

bool EngineThread::must_wake() const { return closing_ || !mailbox_.empty() || worker_.has_work(); }

void EngineThread::give_up_ownership() {
  bool wanted = false;
  {
    const std::lock_guard lock(mutex_);
    owned_ = false;
    wanted = must_wake();
  }
  if (wanted) {
    work_arrived_.notify_one();
  }
}

Status EngineThread::call(const std::function<void()>& work) {
  QUIRE_TRY_STATUS(home_.check());
  std::unique_lock lock(mutex_);
  if (closing_) {
    return closed_error();
  }
  if (is_inside()) {
    return nested_error();
  }
  if (!owned_ && !must_wake()) {
    struct Turn {
      EngineThread& thread;
      ~Turn() { thread.give_up_ownership(); }
    };
    owned_ = true;
    owner_ = std::this_thread::get_id();
    lock.unlock();
    const Turn turn{*this};
    worker_.begin_turn();
    return worker_.run(work);
  }
  lock.unlock();
  std::promise<void> done;
  auto ended = done.get_future();
  Status outcome;
  Tasks task;
  task.emplace_back([&] {
    outcome = worker_.run(work);
    done.set_value();
  });
  if (!send(std::move(task), true)) {
    return closed_error();
  }
  ended.wait();
  return outcome;
}

Status EngineThread::ask_status(const std::function<Status()>& work) {
  Status status;
  QUIRE_TRY_STATUS(call([&] {
    status = work();
    worker_.refresh_stats();
  }));
  return status;
}

void EngineThread::call_surely(const std::function<void()>& work) {
  constexpr int kTries = 3;
  for (int i = 0; i < kTries; ++i) {
    try {
      const Status done = call(work);
      if (done.ok() || done.error().code != ErrorCode::kOutOfBlocks) {
        return;  // the engine may be closed, and nothing is there any more
      }
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the next try is the answer
    }
  }
}

bool EngineThread::post(std::function<void()> work) {
  Tasks task;
  task.push_back(std::move(work));
  return post(std::move(task));
}

bool EngineThread::post(Tasks task) noexcept { return send(std::move(task), false); }

bool EngineThread::send(Tasks task, bool awaited) noexcept {
  if (home_.left()) {
    return false;
  }
  {
    const std::lock_guard lock(mutex_);
    if (closing_) {
      return false;
    }
    posted_ += awaited ? 0 : 1;
    mailbox_.splice(mailbox_.end(), task);
  }
  work_arrived_.notify_one();
  return true;
}

bool EngineThread::has_tasks() const {
  const std::lock_guard lock(mutex_);
  return closing_ || !mailbox_.empty();
}

bool EngineThread::closed() const {
  const std::lock_guard lock(mutex_);
  return closing_;
}

std::uint64_t EngineThread::posted() const {
  const std::lock_guard lock(mutex_);
  return posted_;
}

void EngineThread::run_tasks() {
  {
    const std::lock_guard lock(mutex_);
    running_.swap(mailbox_);
  }
  for (const auto& task : running_) {
    if (!worker_.run(task).ok()) {
      [[maybe_unused]] const Status again = worker_.run(task);  // nobody waits who would ask again
    }
  }
  running_.clear();
}

void EngineThread::run() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      owned_ = false;
      work_arrived_.wait(lock, [this] { return !owned_ && must_wake(); });
      owned_ = true;
      owner_ = std::this_thread::get_id();
      if (closing_ && mailbox_.empty()) {
        break;
      }
    }
    worker_.begin_turn();
    if (worker_.takes_tasks()) {
      run_tasks();
    }
    if (worker_.has_work()) {
      worker_.step();
    }
  }
  worker_.end();
}

}  // namespace quire::engine

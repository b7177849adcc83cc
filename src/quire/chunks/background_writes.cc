#include "quire/chunks/background_writes.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "quire/base/no_memory.h"
#include "quire/base/str.h"
#include "quire/device/cpu/start_thread.h"
#include "quire/options.h"
#include "quire/result.h"

namespace quire::chunks {

namespace {

Status outcome_of(const BackgroundWrites::Write& write) {
  try {
    return write();
  } catch (const std::bad_alloc&) {
    return base::no_memory("what is written behind");
  }
}

}  // namespace

// Notes how a write has ended. Without memory to note a failure, a reader finds that the store
// lacks the chunk.
void BackgroundWrites::note(const std::string& name, const Status& status) {
  if (status.ok()) {
    failed_.erase(name);
    return;
  }
  try {
    failed_.insert(name);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): see above
  }
}

void BackgroundWrites::put(std::string name, Write write) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopped_ || waiting_.size() < kMostWaiting; });
  if (!stopped_ && !thread_.joinable()) {
    thread_ = device::start_thread([this] { run(); });
  }
  if (!thread_.joinable()) {
    lock.unlock();
    const Status status = write_now(name, write);
    lock.lock();
    failure_ = failure_.ok() ? status : failure_;
    return;
  }
  waiting_.emplace_back(std::move(name), std::move(write));
  changed_.notify_all();
}

Status BackgroundWrites::write_now(const std::string& name, const Write& write) {
  wait();
  Status status = outcome_of(write);
  const std::lock_guard lock(mutex_);
  note(name, status);
  return status;
}

void BackgroundWrites::refuse(const Status& why) {
  const std::lock_guard lock(mutex_);
  failure_ = failure_.ok() ? why : failure_;
}

bool BackgroundWrites::has_failed(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return failed_.contains(name);
}

bool BackgroundWrites::is_waiting(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return writing_ == name ||
         std::ranges::any_of(waiting_, [&](const auto& put) { return put.first == name; });
}

void BackgroundWrites::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopped_ || !waiting_.empty(); });
    if (waiting_.empty()) {
      return;
    }
    auto [name, write] = std::move(waiting_.front());
    waiting_.pop_front();
    writing_ = std::move(name);
    lock.unlock();
    Status status = outcome_of(write);
    if (!status.ok()) {
      log_.tell(LogLevel::kError,
                base::str_cat("writing a chunk in the background: ", status.error().message));
    }
    write = nullptr;  // releases its captures before anybody hears that it is done
    lock.lock();
    note(*writing_, status);
    if (failure_.ok()) {
      failure_ = std::move(status);
    }
    writing_.reset();
    ++ended_;
    changed_.notify_all();
  }
}

void BackgroundWrites::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return waiting_.empty() && !writing_; });
}

bool BackgroundWrites::wait_one() {
  std::unique_lock lock(mutex_);
  if (waiting_.empty() && !writing_) {
    return false;
  }
  changed_.wait(lock, [&, before = ended_] { return ended_ != before; });
  return true;
}

Status BackgroundWrites::flush() {
  wait();
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_, Status());
}

void BackgroundWrites::stop() {
  std::unique_lock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
  if (!thread_.joinable()) {
    return;
  }
  std::thread thread = std::move(thread_);
  lock.unlock();
  thread.join();
}

}  // namespace quire::chunks

#include "quire/engine/background_writes.h"

#include <mutex>
#include <thread>
#include <utility>

#include "quire/result.h"

namespace quire::engine {

void BackgroundWrites::note(const Status& status) {
  if (failure_.ok()) {
    failure_ = status;
  }
}

void BackgroundWrites::put(Write write) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopped_ || waiting_.size() < kMostWaiting; });
  if (stopped_) {
    lock.unlock();
    const Status status = write();
    lock.lock();
    note(status);
    return;
  }
  waiting_.push_back(std::move(write));
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { run(); });
  }
  changed_.notify_all();
}

void BackgroundWrites::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopped_ || !waiting_.empty(); });
    if (waiting_.empty()) {
      return;
    }
    Write write = std::move(waiting_.front());
    waiting_.pop_front();
    writing_ = true;
    lock.unlock();
    const Status status = write();
    write = nullptr;  // what it holds goes before anybody hears that it is done
    lock.lock();
    note(status);
    writing_ = false;
    changed_.notify_all();
  }
}

void BackgroundWrites::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return waiting_.empty() && !writing_; });
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

}  // namespace quire::engine

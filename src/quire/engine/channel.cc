#include "quire/engine/channel.h"

#include <chrono>
#include <mutex>
#include <optional>
#include <utility>

#include "quire/output.h"
#include "quire/result.h"

namespace quire::engine {

void Channel::end(std::unique_lock<std::mutex>& lock) {
  ended_ = true;
  lock.unlock();
  changed_.notify_all();
}

void Channel::push(Delta delta) {
  if (!streaming_) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (ended_) {
      return;
    }
    deltas_.push_back(std::move(delta));
  }
  changed_.notify_all();
}

void Channel::finish(GenerationOutput output) {
  std::unique_lock lock(mutex_);
  if (ended_) {
    return;
  }
  generation_ = std::move(output);
  end(lock);
}

void Channel::finish(ForwardOutput output) {
  std::unique_lock lock(mutex_);
  if (ended_) {
    return;
  }
  forward_ = std::move(output);
  end(lock);
}

void Channel::fail(Error error) {
  std::unique_lock lock(mutex_);
  if (ended_) {
    return;
  }
  error_ = std::move(error);
  end(lock);
}

template <class Condition>
bool Channel::wait_until(int timeout_ms, Condition condition) {
  std::unique_lock lock(mutex_);
  if (timeout_ms < 0) {
    changed_.wait(lock, condition);
    return true;
  }
  return changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), condition);
}

bool Channel::wait(int timeout_ms) {
  return wait_until(timeout_ms, [this] { return ready(); });
}

bool Channel::wait_end(int timeout_ms) {
  return wait_until(timeout_ms, [this] { return ended_; });
}

Result<std::optional<Delta>> Channel::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ready(); });
  if (!deltas_.empty()) {
    std::optional<Delta> delta(std::move(deltas_.front()));
    deltas_.pop_front();
    return delta;
  }
  if (error_) {
    return *error_;
  }
  return std::optional<Delta>();
}

Status Channel::failure() {
  const std::lock_guard lock(mutex_);
  return error_ ? Status(*error_) : Status();
}

Result<GenerationOutput> Channel::take_generation() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ended_; });
  if (error_) {
    return *error_;
  }
  return std::move(generation_);
}

Result<ForwardOutput> Channel::take_forward() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ended_; });
  if (error_) {
    return *error_;
  }
  return std::move(forward_);
}

}  // namespace quire::engine

#include "quire/engine/submission.h"

#include <chrono>
#include <mutex>
#include <optional>
#include <utility>

namespace quire::engine {

void Submission::answer(Answer answer) {
  const bool refused = !answer.ok();
  {
    const std::lock_guard lock(mutex_);
    answer_ = std::move(answer);
  }
  answered_.notify_all();
  if (refused && notify_) {
    notify_();
  }
}

std::optional<Submission::Answer> Submission::take(int timeout_ms) {
  std::unique_lock lock(mutex_);
  const auto there = [this] { return answer_.has_value(); };
  if (timeout_ms < 0) {
    answered_.wait(lock, there);
  } else {
    answered_.wait_for(lock, std::chrono::milliseconds(timeout_ms), there);
  }
  return std::exchange(answer_, std::nullopt);
}

}  // namespace quire::engine

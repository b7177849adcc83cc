#include "quire/engine/channel.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "quire/output.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::engine {

Channel::Channel(RequestId id, std::uint64_t seed, bool streaming, std::size_t room_tokens,
                 std::function<void()> notify)
    : id_(id), seed_(seed), streaming_(streaming), notify_(std::move(notify)) {
  if (streaming_) {
    ends_.reserve(room_tokens);
    parts_.token_ids.reserve(room_tokens);
    parts_.text.reserve(room_tokens * kTextBytesPerToken);
  }
}

void Channel::end(std::unique_lock<std::mutex>& lock) {
  ended_ = true;
  lock.unlock();
  tell();
}

void Channel::tell() {
  changed_.notify_all();
  if (notify_) {
    notify_();
  }
}

void Channel::push(const DeltaView& delta) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) {
      return;
    }
    parts_.text += delta.text;
    parts_.token_ids.insert(parts_.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    parts_.logprobs.insert(parts_.logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
    parts_.finished = delta.finished;
    parts_.finish_reason = delta.finish_reason;
    ends_.push_back({parts_.text.size(), parts_.token_ids.size(), parts_.logprobs.size()});
  }
  tell();
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
  if (timeout_ms == 0) {
    return condition();  // a wait of no time would still give the CPU away
  }
  return changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), condition);
}

bool Channel::wait(int timeout_ms) {
  return wait_until(timeout_ms, [this] { return ready(); });
}

bool Channel::wait_end(int timeout_ms) {
  return wait_until(timeout_ms, [this] { return ended_; });
}

// Takes the next delta. The memory stays: the engine's thread should not have to ask for it again.
Delta Channel::take_delta() {
  const Ends begin = next_ == 0 ? Ends() : ends_[next_ - 1];
  const Ends end = ends_[next_++];
  const auto part = [](auto& whole, std::size_t from, std::size_t to) {
    return std::span(whole).subspan(from, to - from);
  };
  const auto ids = part(parts_.token_ids, begin.token_ids, end.token_ids);
  const auto logprobs = part(parts_.logprobs, begin.logprobs, end.logprobs);
  Delta delta{.text = parts_.text.substr(begin.text, end.text - begin.text),
              .token_ids = {ids.begin(), ids.end()},
              .logprobs = {std::make_move_iterator(logprobs.begin()),
                           std::make_move_iterator(logprobs.end())}};
  if (next_ == ends_.size()) {
    delta.finished = parts_.finished;
    delta.finish_reason = parts_.finish_reason;
    next_ = 0;
    ends_.clear();
    parts_.text.clear();
    parts_.token_ids.clear();
    parts_.logprobs.clear();
  }
  return delta;
}

Result<std::optional<Delta>> Channel::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ready(); });
  if (next_ < ends_.size()) {
    return std::optional(take_delta());
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

std::int64_t Channel::cached_tokens() {
  const std::lock_guard lock(mutex_);
  return generation_.usage.cached_tokens + forward_.cached_tokens;  // one of them has ended it
}

}  // namespace quire::engine

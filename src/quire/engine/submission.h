// Submission: a request on its way to the engine's thread, for a caller who does not wait for it.
//
// Thread rule: everything is locked; the engine answers once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "quire/engine/channel.h"
#include "quire/result.h"

namespace quire::engine {

class Submission {
 public:
  using Answer = Result<std::shared_ptr<Channel>>;
  // Makes a submission. `notify` is called when the answer is a refusal. An accepted request tells
  // through its channel.
  explicit Submission(std::function<void()> notify) : notify_(std::move(notify)) {}

  // Gives the answer. Engine side.
  void answer(Answer answer);
  [[nodiscard]] bool unwanted() const { return unwanted_; }

  // Waits at most `timeout_ms` (negative: for ever) and takes the answer, or returns nullopt when
  // it is not there. Needs no memory. Caller side.
  [[nodiscard]] std::optional<Answer> take(int timeout_ms);
  // Says that nobody wants the request any more. The engine ends it if it was not answered before
  // this.
  void give_up() { unwanted_ = true; }

 private:
  const std::function<void()> notify_;
  std::atomic<bool> unwanted_ = false;
  std::mutex mutex_;
  std::condition_variable answered_;
  std::optional<Answer> answer_;
};

}  // namespace quire::engine

// Channel: one request's results on their way from the engine thread to the thread that asked.
//
// Thread rule: the engine thread writes, any one thread reads; everything is locked.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>

#include "quire/output.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::engine {

class Channel {
 public:
  // `streaming` false: deltas are dropped, only the end is kept.
  Channel(RequestId id, bool streaming) : id_(id), streaming_(streaming) {}

  [[nodiscard]] RequestId id() const { return id_; }
  [[nodiscard]] bool streaming() const { return streaming_; }

  // Engine side. The first of finish and fail ends the request; what comes later is ignored.
  void push(Delta delta);
  void finish(GenerationOutput output);
  void finish(ForwardOutput output);
  void fail(Error error);

  // Caller side.
  // Waits at most `timeout_ms` (negative: for ever); true when a delta or the end is there.
  [[nodiscard]] bool wait(int timeout_ms);
  // The same for the end of the request.
  [[nodiscard]] bool wait_end(int timeout_ms);
  // The next delta, waiting for it; nullopt once the request has ended and all were taken.
  [[nodiscard]] Result<std::optional<Delta>> next();
  // The error with which the request has ended; ok also while it runs.
  [[nodiscard]] Status failure();
  // Waits for the end.
  [[nodiscard]] Result<GenerationOutput> take_generation();
  [[nodiscard]] Result<ForwardOutput> take_forward();

 private:
  [[nodiscard]] bool ready() const { return !deltas_.empty() || ended_; }
  void end(std::unique_lock<std::mutex>& lock);
  template <class Condition>
  [[nodiscard]] bool wait_until(int timeout_ms, Condition condition);

  const RequestId id_;
  const bool streaming_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Delta> deltas_;
  bool ended_ = false;
  std::optional<Error> error_;
  GenerationOutput generation_;
  ForwardOutput forward_;
};

}  // namespace quire::engine

// WorkMeter bounds the work of one call on a stranger's text, and lets the caller interrupt it.
//
// A failed meter stays failed. Code that counts goes on or returns early, and the code that started
// the work asks status() once, at the end.
//
// Thread rule: one thread per object.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "quire/result.h"

namespace quire::base {

// Limits of the work of one call.
struct WorkLimits {
  std::int64_t steps = 0;  // a node, a merge, or 64 bytes touched is one step
  std::int64_t bytes = 0;  // written in total, in texts and ids
};

class WorkMeter {
 public:
  // Allows `limits`. step() asks `interrupted` in the calling thread, at most every kPollMs; an
  // empty function is never asked.
  explicit WorkMeter(WorkLimits limits, std::function<bool()> interrupted = {});
  WorkMeter(const WorkMeter&) = delete;
  WorkMeter& operator=(const WorkMeter&) = delete;

  static constexpr int kPollMs = 20;

  // Adds to the limits, for more input.
  void grant(WorkLimits more);

  // Counts `count` steps. Returns false once the steps are used up or the caller has interrupted;
  // the meter has failed then.
  bool step(std::int64_t count = 1) {
    steps_used_ += count;
    return steps_used_ < next_check_ || check();
  }
  // Counts the steps of touching `bytes` bytes, as step() does.
  bool step_bytes(std::size_t bytes) { return step(static_cast<std::int64_t>(bytes / 64) + 1); }
  // Counts bytes before they are written. Returns false beyond the limit; the meter has failed
  // then.
  bool write(std::size_t bytes);

  // Fails the meter as if its steps were used up, for work that stops at a limit of its own.
  void exhaust();

  [[nodiscard]] bool failed() const { return failure_ != Failure::kNone; }
  [[nodiscard]] std::int64_t steps_used() const { return steps_used_; }
  // Returns OK unless the meter has failed: kCancelled when interrupted, else kInvalidArgument that
  // names the limit.
  [[nodiscard]] Status status() const;

 private:
  enum class Failure : std::uint8_t { kNone, kSteps, kBytes, kInterrupted };
  using Clock = std::chrono::steady_clock;

  bool check();

  WorkLimits limits_;
  std::function<bool()> interrupted_;
  Clock::time_point last_poll_;
  std::int64_t steps_used_ = 0;
  std::int64_t next_check_ = 0;
  std::int64_t bytes_used_ = 0;
  Failure failure_ = Failure::kNone;
};

}  // namespace quire::base

// Bounds the work of one call on text of strangers, and lets its caller interrupt it.
//
// Failing is sticky: code that only counts goes on or returns early, and whoever started the work
// asks once, at the end.
//
// Thread rule: one thread per object.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "quire/result.h"

namespace quire::base {

struct WorkLimits {
  std::int64_t steps = 0;  // some ten nanoseconds each: a node, a merge, 64 bytes touched
  std::int64_t bytes = 0;  // written in total, in texts and ids
};

class WorkMeter {
 public:
  // `interrupted` is asked in the calling thread, at most every kPollMs; empty: never.
  explicit WorkMeter(WorkLimits limits, std::function<bool()> interrupted = {});
  WorkMeter(const WorkMeter&) = delete;
  WorkMeter& operator=(const WorkMeter&) = delete;

  static constexpr int kPollMs = 20;

  // Allows more work: for more input.
  void grant(WorkLimits more);

  // Counts work; false, and failed from then on, once the steps are used up or the caller has
  // interrupted.
  bool step(std::int64_t count = 1) {
    steps_used_ += count;
    return steps_used_ < next_check_ || check();
  }
  // Counts the touching of `bytes` bytes.
  bool step_bytes(std::size_t bytes) { return step(static_cast<std::int64_t>(bytes / 64) + 1); }
  // Counts bytes that are about to be written; false, and failed from then on, beyond the limit.
  bool write(std::size_t bytes);

  // Fails as if the steps were used up: for work that stops at a limit of its own.
  void exhaust();

  [[nodiscard]] bool failed() const { return failure_ != Failure::kNone; }
  [[nodiscard]] std::int64_t steps_used() const { return steps_used_; }
  // kCancelled when interrupted, else kInvalidArgument that names what ran out. OK unless failed.
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

#include "quire/base/work_meter.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "quire/base/str.h"
#include "quire/result.h"

namespace quire::base {
namespace {

constexpr std::int64_t kStepsPerCheck = 512;  // a small part of a millisecond

}  // namespace

WorkMeter::WorkMeter(WorkLimits limits, std::function<bool()> interrupted)
    : limits_(limits), interrupted_(std::move(interrupted)), last_poll_(Clock::now()) {}

void WorkMeter::grant(WorkLimits more) {
  limits_.steps += more.steps;
  limits_.bytes += more.bytes;
}

bool WorkMeter::write(std::size_t bytes) {
  if (failed()) {
    return false;
  }
  if (bytes > static_cast<std::size_t>(limits_.bytes - bytes_used_)) {
    failure_ = Failure::kBytes;
    next_check_ = 0;
    return false;
  }
  bytes_used_ += static_cast<std::int64_t>(bytes);
  return step_bytes(bytes);
}

void WorkMeter::exhaust() {
  if (!failed()) {
    failure_ = Failure::kSteps;
    next_check_ = 0;
  }
}

bool WorkMeter::check() {
  if (failed()) {
    return false;
  }
  if (steps_used_ > limits_.steps) {
    failure_ = Failure::kSteps;
    return false;
  }
  next_check_ = std::min(steps_used_ + kStepsPerCheck, limits_.steps + 1);
  if (interrupted_) {
    const auto now = Clock::now();
    if (now - last_poll_ >= std::chrono::milliseconds(kPollMs)) {
      last_poll_ = now;
      if (interrupted_()) {
        failure_ = Failure::kInterrupted;
        next_check_ = 0;
        return false;
      }
    }
  }
  return true;
}

Status WorkMeter::status() const {
  constexpr const char* kWayOut =
      "; shorten the text, or look for a chain in the tokenizer's or template's file that makes "
      "text grow or searches it again and again";
  switch (failure_) {
    case Failure::kNone:
      break;
    case Failure::kInterrupted:
      return {ErrorCode::kCancelled, "the call was interrupted"};
    case Failure::kSteps:
      return {ErrorCode::kInvalidArgument,
              str_cat("work on the text takes more than ", limits_.steps, " steps", kWayOut)};
    case Failure::kBytes:
      return {ErrorCode::kInvalidArgument,
              str_cat("work on the text writes more than ", format_bytes(limits_.bytes), kWayOut)};
  }
  return {};
}

}  // namespace quire::base

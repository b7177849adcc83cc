// Bounds of one rendering: steps, live memory, text length and nesting. Failing is sticky, so that
// code which only builds values need not return errors: the interpreter asks after every node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "quire/base/work_meter.h"
#include "quire/result.h"

namespace quire::text {

// Containers nest at most so deep, which bounds every recursion over values.
inline constexpr int kMaxContainerDepth = 200;

struct Limits {
  std::int64_t steps = 20'000'000;  // nodes evaluated, items or 64 bytes touched
  std::size_t text_bytes = std::size_t{64}
                           << 20;  // most bytes of any one string, the output included
  std::size_t memory_bytes = std::size_t{256} << 20;  // most bytes of all values alive at one time
  int depth = 400;  // nested statements, expressions and macro calls
};

class Meter {
 public:
  // Makes a meter of `limits`. `work`, which may be null and is borrowed, counts the steps, too.
  explicit Meter(const Limits& limits, base::WorkMeter* work = nullptr)
      : limits_(limits), work_(work), steps_left_(limits.steps) {}
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  // Counts work; false once the steps are used up.
  bool step(std::size_t count = 1) {
    const auto steps = static_cast<std::int64_t>(count);
    steps_left_ -= steps;
    return steps_left_ >= 0 && (work_ == nullptr || work_->step(steps));
  }
  // Counts the touching of `bytes` bytes as work.
  bool step_bytes(std::size_t bytes) { return step((bytes / 64) + 1); }

  // Counts live memory; false, and failed from then on, beyond the limit.
  bool reserve(std::size_t bytes);
  void release(std::size_t bytes) { memory_bytes_ -= bytes; }

  // Returns false, and has failed from then on, when a string of `bytes` bytes is too long.
  bool allow_text(std::size_t bytes);

  // Returns false at the depth limit. Each success must be followed by leave().
  bool enter();
  void leave() { --depth_; }

  // Fails from then on when a container nests `depth` deep, beyond kMaxContainerDepth.
  bool allow_depth(int depth);

  [[nodiscard]] bool failed() const {
    return !failure_.empty() || steps_left_ < 0 || (work_ != nullptr && work_->failed());
  }
  // Returns kInvalidArgument naming the bound, or what the work meter says. Precondition: failed().
  [[nodiscard]] Error error() const;
  Status status() const { return failed() ? Status(error()) : Status(); }

 private:
  Limits limits_;
  base::WorkMeter* work_;
  std::int64_t steps_left_;
  std::size_t memory_bytes_ = 0;
  int depth_ = 0;
  std::string failure_;  // empty: none but perhaps of steps or work
};

// Memory that a value holds, given back when the value dies. The meter must outlive it; values of
// the parsed template have none.
class Charge {
 public:
  Charge() = default;
  explicit Charge(Meter* meter) : meter_(meter) {}
  Charge(Charge&& other) noexcept
      : meter_(std::exchange(other.meter_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Charge& operator=(Charge&& other) noexcept {
    std::swap(meter_, other.meter_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  ~Charge() {
    if (meter_ != nullptr) {
      meter_->release(bytes_);
    }
  }

  // Adds memory. Returns false when it is used up.
  bool add(std::size_t bytes) {
    const bool held = meter_ == nullptr || meter_->reserve(bytes);
    bytes_ += held ? bytes : 0;
    return held;
  }
  [[nodiscard]] Meter* meter() const { return meter_; }

 private:
  Meter* meter_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace quire::text

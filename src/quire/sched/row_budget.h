// RowBudget: the rows, and the time, that a plan may still give to prompts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "quire/sched/step_pace.h"

namespace quire::sched {

class RowBudget {
 public:
  explicit RowBudget(std::int32_t rows = 0) : rows_(rows) {}

  [[nodiscard]] std::int32_t rows() const { return rows_; }
  void take_single() { --rows_; }
  // Bounds the time that prompts may add to the step.
  void bound(double seconds, const StepPace& pace) {
    seconds_ = std::max(seconds, 0.0);
    pace_ = pace;
  }
  // Takes rows of a prompt behind `first` tokens with KV, at most `wanted`. `at_least_one` says
  // that the prompt shall go on, however short the time is. A prompt that is cut for want of time
  // takes all rows, as one that is cut for want of rows does.
  [[nodiscard]] std::int32_t take(std::int32_t first, std::int32_t wanted, bool at_least_one) {
    std::int32_t count = wanted;
    if (seconds_ != kEver && wanted > 0) {
      count = pace_.rows_within(seconds_, first, wanted);
      count = at_least_one ? std::max(count, 1) : count;
      seconds_ -= pace_.seconds(work_of(first, count));
      rows_ = count < wanted ? count : rows_;
    }
    rows_ -= count;
    return count;
  }

 private:
  static constexpr double kEver = std::numeric_limits<double>::infinity();

  std::int32_t rows_;
  double seconds_ = kEver;
  StepPace pace_;
};

}  // namespace quire::sched

// StepPace: how long a step takes, as measured from the steps of this run.
#pragma once

#include <array>
#include <cstdint>

namespace quire::sched {

// The work of a step, or of a part of it.
struct StepWork {
  double rows = 0;
  double pairs = 0;  // pairs of a row and a token that it attends to
};

// Returns the work of `count` rows behind `first` tokens with KV.
[[nodiscard]] StepWork work_of(std::int64_t first, std::int64_t count);

// A step takes about fixed + row * rows + pair * pairs seconds. Plain data.
struct StepPace {
  double fixed_seconds = 0;
  double row_seconds = 0;
  double pair_seconds = 0;
  // Rows of the largest step that was measured: what lies far beyond is not known. 0: no step was.
  double measured_rows = 0;
  // Share by which one step of a hundred takes longer than foreseen.
  double lateness = 0;

  // Returns the seconds that `work` adds to a step.
  [[nodiscard]] double seconds(const StepWork& work) const {
    return row_seconds * work.rows + pair_seconds * work.pairs;
  }
  // Returns how many rows behind `first` tokens fit into `seconds`, at most `wanted`. It is never
  // more than twice the rows of the largest measured step.
  [[nodiscard]] std::int32_t rows_within(double seconds, std::int64_t first,
                                         std::int32_t wanted) const;
};

// Fits a StepPace to measured steps: least squares of relative errors, in which older steps count
// less. No allocation.
class PaceMeter {
 public:
  void add(const StepWork& work, double seconds);
  [[nodiscard]] const StepPace& pace() const { return pace_; }

 private:
  void fit();
  void note_error(const StepWork& work, double seconds);

  std::array<std::array<double, 3>, 3> sums_{};  // of products of fixed, rows and pairs
  std::array<double, 3> goals_{};
  double squared_errors_ = 0;  // of foreseen times, beside squares of these
  double squared_times_ = 0;
  StepPace pace_;
};

}  // namespace quire::sched

#include "quire/sched/step_pace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace quire::sched {
namespace {

constexpr double kKept = 0.98;           // share of its weight that a step keeps when another comes
constexpr double kOneOfAHundred = 2.33;  // standard deviations that so few exceed
constexpr double kMostLateness = 1;      // a bound is never cut to less than half
constexpr std::int32_t kFirstRows = 16;  // rows of a prompt while no step was measured

}  // namespace

StepWork work_of(std::int64_t first, std::int64_t count) {
  const auto rows = static_cast<double>(count);
  return {.rows = rows, .pairs = rows * static_cast<double>(first) + rows * (rows + 1) / 2};
}

std::int32_t StepPace::rows_within(double seconds, std::int64_t first, std::int32_t wanted) const {
  const std::int32_t known = std::max(kFirstRows, static_cast<std::int32_t>(2 * measured_rows));
  std::int32_t most = std::min(wanted, known);
  std::int32_t fit = 0;
  while (most > fit) {
    const std::int32_t middle = fit + (most - fit + 1) / 2;
    if (this->seconds(work_of(first, middle)) <= seconds) {
      fit = middle;
    } else {
      most = middle - 1;
    }
  }
  return fit;
}

void PaceMeter::add(const StepWork& work, double seconds) {
  if (!(seconds > 0) || !(work.rows > 0)) {
    return;
  }
  note_error(work, seconds);
  const std::array<double, 3> parts = {1 / seconds, work.rows / seconds, work.pairs / seconds};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (std::size_t j = 0; j < parts.size(); ++j) {
      sums_[i][j] = kKept * sums_[i][j] + parts[i] * parts[j];
    }
    goals_[i] = kKept * goals_[i] + parts[i];
  }
  pace_.measured_rows = std::max(pace_.measured_rows, work.rows);
  fit();
}

// Compares a step with what was foreseen. Seconds count, so that long steps decide: those are the
// ones that a bound cuts.
void PaceMeter::note_error(const StepWork& work, double seconds) {
  const double foreseen = pace_.fixed_seconds + pace_.seconds(work);
  if (work.rows > pace_.measured_rows) {
    return;  // a guess: no step was as large
  }
  squared_errors_ = kKept * squared_errors_ + (seconds - foreseen) * (seconds - foreseen);
  squared_times_ = kKept * squared_times_ + foreseen * foreseen;
  if (squared_times_ > 0) {
    pace_.lateness =
        std::min(kOneOfAHundred * std::sqrt(squared_errors_ / squared_times_), kMostLateness);
  }
}

// Finds the three costs, none below 0, by coordinate descent from where they were. Costs that the
// steps do not tell apart keep what they were.
void PaceMeter::fit() {
  constexpr int kRounds = 40;
  std::array<double, 3> cost = {pace_.fixed_seconds, pace_.row_seconds, pace_.pair_seconds};
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < cost.size(); ++i) {
      double rest = goals_[i];
      for (std::size_t j = 0; j < cost.size(); ++j) {
        rest -= j == i ? 0 : sums_[i][j] * cost[j];
      }
      cost[i] = sums_[i][i] > 0 ? std::max(0.0, rest / sums_[i][i]) : 0;
    }
  }
  pace_.fixed_seconds = cost[0];
  pace_.row_seconds = cost[1];
  pace_.pair_seconds = cost[2];
}

}  // namespace quire::sched

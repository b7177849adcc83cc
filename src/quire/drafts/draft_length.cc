#include "quire/drafts/draft_length.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace quire::drafts {
namespace {

constexpr double kKept = 0.9;               // weight of what was known, when a guess is checked
constexpr double kNew = 0.2;                // weight of a new measurement of a step
constexpr double kGain = 1.03;              // a guess that gains less is not made
constexpr std::int32_t kLongestWait = 512;  // steps

}  // namespace

void Acceptance::note(std::int32_t drafted, std::int32_t accepted) {
  right_ = right_ * kKept + accepted;
  wrong_ = wrong_ * kKept + (accepted < drafted ? 1 : 0);
  if (may_probe()) {
    wait_ = 2 * accepted >= drafted ? 16 : std::min(2 * wait_, kLongestWait);
  }
  silent_ = 0;
}

double expected_tokens(double rate, std::int32_t drafted) {
  double sum = 1;
  double term = 1;
  for (std::int32_t i = 0; i < drafted; ++i) {
    term *= rate;
    sum += term;
  }
  return sum;
}

void RowCosts::add(std::int64_t rows, double seconds) {
  if (rows < 1 || rows > kMostRows) {
    return;
  }
  double& known = seconds_[static_cast<std::size_t>(rows)];
  known = known == 0 ? seconds : known + kNew * (seconds - known);
}

double RowCosts::seconds(std::int64_t rows) const {
  const auto at = static_cast<std::size_t>(std::clamp<std::int64_t>(rows, 1, kMostRows));
  std::size_t below = at;
  while (below > 0 && seconds_[below] == 0) {
    --below;
  }
  std::size_t above = at;
  while (above < seconds_.size() && seconds_[above] == 0) {
    ++above;
  }
  if (below == 0) {
    return above == seconds_.size() ? 0 : seconds_[above];
  }
  if (above == seconds_.size() || above == below) {
    return seconds_[below];
  }
  const double part = static_cast<double>(at - below) / static_cast<double>(above - below);
  return seconds_[below] + part * (seconds_[above] - seconds_[below]);
}

std::int32_t draft_length(double rate, const RowCosts& costs, std::int64_t rows, double tokens,
                          std::int32_t most) {
  if (rows + most > RowCosts::kMostRows) {
    most = static_cast<std::int32_t>(std::max<std::int64_t>(RowCosts::kMostRows - rows, 0));
  }
  const double plain = costs.seconds(rows);
  if (plain == 0) {
    return most;  // nothing is known of this machine yet
  }
  std::int32_t best = 0;
  double best_gain = kGain;
  for (std::int32_t count = 1; count <= most; ++count) {
    const double more = (tokens - 1 + expected_tokens(rate, count)) / tokens;
    const double gain = more * plain / std::max(costs.seconds(rows + count), plain);
    if (gain > best_gain) {
      best = count;
      best_gain = gain;
    }
  }
  return best;
}

}  // namespace quire::drafts

#include "quire/drafts/draft_length.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace quire::drafts {
namespace {

constexpr double kKept = 0.9;               // weight of what was known, when a guess is checked
constexpr double kNew = 0.2;                // weight of a new measurement of a step
constexpr double kGain = 1.03;              // a guess that gains less is not made
constexpr std::int32_t kFirstWait = 32;     // steps, as the next one
constexpr std::int32_t kLongestWait = 512;  // steps

}  // namespace

void Acceptance::begin(const Acceptance& others) {
  if (!begun_) {
    constexpr double kWeight = 2;  // so many tokens would have shown it
    right_ = kWeight * others.rate();
    wrong_ = kWeight - right_;
    begun_ = true;
  }
}

void Acceptance::note(std::int32_t drafted, std::int32_t accepted) {
  right_ = right_ * kKept + accepted;
  wrong_ = wrong_ * kKept + (accepted < drafted ? 1 : 0);
  if (may_probe()) {
    wait_ = 2 * accepted >= drafted ? kFirstWait : std::min(2 * wait_, kLongestWait);
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
  const auto is_known = [](double seconds) { return seconds > 0; };
  const auto first = std::ranges::find_if(seconds_, is_known);
  if (first == seconds_.end()) {
    return 0;
  }
  const auto above =
      std::find_if(seconds_.begin() + static_cast<std::ptrdiff_t>(at), seconds_.end(), is_known);
  const auto below = std::find_if(
      std::make_reverse_iterator(seconds_.begin() + static_cast<std::ptrdiff_t>(at) + 1),
      seconds_.rend(), is_known);
  if (below == seconds_.rend()) {
    return *above;
  }
  const auto known = static_cast<std::size_t>(seconds_.rend() - below) - 1;
  const auto between = [](double count, double of, double change) { return count / of * change; };
  if (above != seconds_.end()) {
    const auto next = static_cast<std::size_t>(above - seconds_.begin());
    return next == known ? *above
                         : *below + between(static_cast<double>(at - known),
                                            static_cast<double>(next - known), *above - *below);
  }
  const auto least = static_cast<std::size_t>(first - seconds_.begin());
  const double more = static_cast<double>(at - known);
  return least == known ? *below + between(more, 4 * static_cast<double>(known), *below)
                        : *below + std::max(0.0, between(more, static_cast<double>(known - least),
                                                         *below - *first));
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

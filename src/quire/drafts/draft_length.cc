#include "quire/drafts/draft_length.h"

#include <algorithm>
#include <cstdint>

namespace quire::drafts {
namespace {

constexpr double kKept = 0.95;              // weight of what was known, when a guess is checked
constexpr double kKeptCosts = 0.99;         // weight of the steps before, when one is measured
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
  if (rows < 1 || rows > kMostRows || !(seconds > 0)) {
    return;
  }
  const auto size = static_cast<double>(rows);
  const double weight = 1 / (seconds * seconds);
  weight_ = weight_ * kKeptCosts + weight;
  rows_ = rows_ * kKeptCosts + weight * size;
  squares_ = squares_ * kKeptCosts + weight * size * size;
  seconds_ = seconds_ * kKeptCosts + weight * seconds;
  products_ = products_ * kKeptCosts + weight * size * seconds;
}

double RowCosts::seconds(std::int64_t rows) const {
  if (weight_ == 0) {
    return 0;
  }
  const double size = rows_ / weight_;  // the means of both
  const double time = seconds_ / weight_;
  const double spread = squares_ / weight_ - size * size;
  constexpr double kLeastSpread = 0.02;  // of sizes squared, below which they count as one
  const double slope = spread > kLeastSpread * size * size
                           ? (products_ / weight_ - size * time) / spread
                           : time / (4 * size);
  const double row = std::clamp(slope, 0.0, time / size);  // neither part is negative
  return time + row * (static_cast<double>(rows) - size);
}

DraftLength draft_length(double rate, const RowCosts& costs, const DraftChoice& choice) {
  const std::int64_t room = std::max<std::int64_t>(RowCosts::kMostRows - choice.rows, 0);
  const auto most =
      static_cast<std::int32_t>(std::min<std::int64_t>(choice.most, room / choice.width));
  const double plain = costs.seconds(choice.rows);
  if (plain == 0) {  // nothing is known of this machine yet
    return {.tokens = most, .expected = expected_tokens(rate, most)};
  }
  DraftLength best;
  for (std::int32_t count = 1; count <= most; ++count) {
    const std::int32_t rows = count * choice.width;
    const double seconds = costs.seconds(choice.rows + rows) + count * choice.level_seconds;
    const double lost = choice.tokens * (seconds / plain - 1);  // in that time
    const double expected = expected_tokens(rate, count);
    const double gain = expected - 1 - lost - kLeastGain * rows;
    if (gain > best.gain) {
      best = {.tokens = count, .expected = expected, .gain = gain};
    }
  }
  return best;
}

}  // namespace quire::drafts

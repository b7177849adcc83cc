#include "quire/tiers/reload_policy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "quire/base/str.h"

namespace quire::tiers {
namespace {

constexpr std::int64_t kFewTokens = 32;
constexpr std::size_t kNeeded = 3;
constexpr int kComputedInTurn = 15;  // then one is read

}  // namespace

void ReloadPolicy::Median::note(std::int64_t tokens, double seconds) {
  if (tokens >= kFewTokens) {
    last_[count_ % last_.size()] = seconds / static_cast<double>(tokens);
    ++count_;
  }
}

std::optional<double> ReloadPolicy::Median::value() const {
  if (count_ < kNeeded) {
    return std::nullopt;
  }
  std::array<double, 5> sorted = last_;
  const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(std::min(count_, sorted.size()));
  const auto middle = sorted.begin() + (end - sorted.begin()) / 2;
  std::nth_element(sorted.begin(), middle, end);
  return *middle;
}

void ReloadPolicy::note_read(std::int64_t tokens, double seconds) {
  const std::lock_guard lock(mutex_);
  read_.note(tokens, seconds);
}

void ReloadPolicy::note_computed(std::int64_t tokens, double seconds) {
  const std::lock_guard lock(mutex_);
  computed_.note(tokens, seconds);
}

ReloadPolicy::Measured ReloadPolicy::measured() const {
  const std::lock_guard lock(mutex_);
  return {.read = read_.value(), .computed = computed_.value()};
}

bool ReloadPolicy::Forecast::reads_next() {
  if (!computing_is_faster_ || computed_in_turn_ == kComputedInTurn) {
    computed_in_turn_ = 0;
    return true;
  }
  ++computed_in_turn_;
  return false;
}

ReloadPolicy::Forecast ReloadPolicy::forecast() const {
  const bool faster = measured().computing_is_faster();
  const std::lock_guard lock(mutex_);
  return {faster, computed_in_turn_};
}

bool ReloadPolicy::reads_next() {
  const bool faster = measured().computing_is_faster();
  const std::lock_guard lock(mutex_);
  Forecast now(faster, computed_in_turn_);
  const bool reads = now.reads_next();
  computed_in_turn_ = now.computed_in_turn_;
  return reads;
}

std::string ReloadPolicy::why_not_read() const {
  const Measured known = measured();
  const auto microseconds = [](const std::optional<double>& seconds) {
    return base::str_cat(std::lround(seconds.value_or(0) * 1e6), " us");
  };
  return base::str_cat("on disk, but computing is faster here: ", microseconds(known.computed),
                       " a token, reading ", microseconds(known.read));
}

}  // namespace quire::tiers

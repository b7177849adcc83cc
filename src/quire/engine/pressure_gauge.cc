#include "quire/engine/pressure_gauge.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "quire/engine/active_request.h"
#include "quire/kv/types.h"
#include "quire/stats.h"

namespace quire::engine {
namespace {

std::int64_t second_of(Clock::time_point now) {
  return std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count();
}

}  // namespace

PressureLevel pressure_level(double blocks_free_share, std::int64_t waiting) {
  constexpr double kMedium = 1.0 / 2, kHigh = 1.0 / 5, kCritical = 1.0 / 20;
  if (waiting == 0 || blocks_free_share > kMedium) {
    return PressureLevel::kLow;
  }
  if (blocks_free_share < kCritical) {
    return PressureLevel::kCritical;
  }
  return blocks_free_share > kHigh ? PressureLevel::kMedium : PressureLevel::kHigh;
}

bool PressureGauge::update(const kv::LedgerCounts& blocks, std::int64_t waiting,
                           std::int64_t preemptions, Clock::time_point now) {
  const std::int64_t second = second_of(now);
  const auto slot = static_cast<std::size_t>(second % kSeconds);
  if (second_[slot] != second) {
    second_[slot] = second;
    counts_[slot] = 0;
  }
  const bool preempted = preemptions > preemptions_;
  counts_[slot] += preemptions - preemptions_;
  preemptions_ = preemptions;
  const PressureLevel before = pressure_.level;
  pressure_.blocks_free_share = static_cast<double>(blocks.blocks_free + blocks.blocks_cached) /
                                static_cast<double>(std::max(blocks.blocks_total, 1));
  pressure_.waiting = waiting;
  pressure_.level = pressure_level(pressure_.blocks_free_share, waiting);
  if (preempted && pressure_.level == PressureLevel::kMedium) {
    pressure_.level = PressureLevel::kHigh;  // blocks were short before somebody gave them back
  }
  return pressure_.level != before;
}

Pressure PressureGauge::at(Clock::time_point now) const {
  Pressure pressure = pressure_;
  const std::int64_t second = second_of(now);
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    pressure.preemptions_per_minute += second - second_[i] < kSeconds ? counts_[i] : 0;
  }
  return pressure;
}

}  // namespace quire::engine

// Histogram: how many durations fall into each of some fixed buckets, whose bounds double.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace quire::engine {

class Histogram {
 public:
  // Bounds are 2^-16 s (15 us), 2^-15 s, ... 2^10 s (17 min). One more bucket holds what is longer.
  static constexpr int kFirstExponent = -16;
  static constexpr std::size_t kBounds = 27;

  // Returns the longest duration that falls into bucket `i` < kBounds.
  [[nodiscard]] static double bound(std::size_t i) {
    return std::ldexp(1.0, kFirstExponent + static_cast<int>(i));
  }

  // Counts a duration. Allocates nothing.
  void add(double seconds) {
    ++counts_[bucket_of(seconds)];
    sum_ += seconds;
  }

  [[nodiscard]] std::int64_t count(std::size_t bucket) const { return counts_[bucket]; }
  [[nodiscard]] double sum() const { return sum_; }

 private:
  [[nodiscard]] static std::size_t bucket_of(double seconds) {
    if (seconds <= bound(0)) {
      return 0;
    }
    int exponent = 0;
    const double mantissa = std::frexp(seconds, &exponent);       // in [0.5, 1)
    const int above = mantissa == 0.5 ? exponent - 1 : exponent;  // 2^above is the bound
    return std::min(static_cast<std::size_t>(above - kFirstExponent), kBounds);
  }

  std::array<std::int64_t, kBounds + 1> counts_{};
  double sum_ = 0;
};

}  // namespace quire::engine

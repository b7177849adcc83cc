// Random numbers that are the same on every machine and with every library.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace quire::bench {

// splitmix64 (Steele et al. 2014).
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(mix(seed)) {}

  [[nodiscard]] double unit() {  // (0, 1)
    return (static_cast<double>(mix(++state_) >> 11) + 0.5) * 0x1p-53;
  }
  [[nodiscard]] std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(unit() * static_cast<double>(bound));
  }
  [[nodiscard]] double exponential(double mean) { return -mean * std::log(unit()); }
  [[nodiscard]] double normal() {  // Box and Muller
    return std::sqrt(-2 * std::log(unit())) * std::cos(2 * std::numbers::pi * unit());
  }
  [[nodiscard]] double log_normal(double mu, double sigma) {
    return std::exp(mu + sigma * normal());
  }

 private:
  std::uint64_t state_;
};

}  // namespace quire::bench
